// Small kernels that are right, for `tests/bugs.rs` to break: one way of working together each.
#include <assert.h>
#include <cooperative_groups.h>
#include <stdint.h>

#define DEVICE __device__ __forceinline__
DEVICE uint32_t shared_address(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }
DEVICE void init(uint64_t* b, int n) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(shared_address(b)), "r"(n) : "memory"); }
DEVICE void arrive(uint64_t* b) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(shared_address(b)) : "memory"); }
DEVICE void wait(uint64_t* b, int parity) {
  asm volatile("{ .reg .pred p; L%=: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra L%=; }" :: "r"(shared_address(b)), "r"(parity) : "memory");
}

// y = 2 x; four elements a thread.  x, y: [n]
extern "C" __global__ void twice(float4* y, const float4* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i * 4 >= n) return;
  float4 v = x[i];
  y[i] = make_float4(2 * v.x, 2 * v.y, 2 * v.z, 2 * v.w);
}

// Neighbouring lanes swap through shared memory.
extern "C" __global__ void swap_lanes(float* y, const float* x) {
  __shared__ float values[32];
  values[threadIdx.x] = x[threadIdx.x];
  __syncwarp();
  y[threadIdx.x] = values[threadIdx.x ^ 1];
}

// The lower lanes swap, and they alone.
extern "C" __global__ void swap_half(float* y, const float* x) {
  float v = x[threadIdx.x];
  if (threadIdx.x < 16) v = __shfl_xor_sync(0xffff, v, 1);
  y[threadIdx.x] = v;
}

// A histogram of bytes, in shared memory first.  bins: [256]
extern "C" __global__ void histogram(unsigned* bins, const uint8_t* x, int n) {
  __shared__ unsigned counts[256];
  counts[threadIdx.x] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += 256) atomicAdd(&counts[x[i]], 1u);
  __syncthreads();
  atomicAdd(&bins[threadIdx.x], counts[threadIdx.x]);
}

// Two warps give their values to two others, at a barrier of 128 threads.
extern "C" __global__ void hand_over(float* y, const float* x) {
  __shared__ float values[64];
  int i = threadIdx.x % 64;
  if (threadIdx.x < 64) {
    values[i] = x[i];
    asm volatile("bar.arrive 1, 128;" ::: "memory");
  } else {
    asm volatile("bar.sync 1, 128;" ::: "memory");
    y[i] = values[63 - i];
  }
}

// A tile comes by cp.async; each thread reads what another has copied.
extern "C" __global__ void staged(float* y, const float* x) {
  __shared__ float tile[128];
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(shared_address(&tile[threadIdx.x])), "l"(x + threadIdx.x) : "memory");
  asm volatile("cp.async.commit_group;" ::: "memory");
  asm volatile("cp.async.wait_group 0;" ::: "memory");
  __syncthreads();
  y[threadIdx.x] = tile[127 - threadIdx.x];
}

// One warp fills a stage, another empties it, by two mbarriers.  x, y: [steps, 32]
extern "C" __global__ void relay(float* y, const float* x, int steps) {
  __shared__ float stage[32];
  __shared__ uint64_t full, empty;
  int lane = threadIdx.x % 32;
  if (threadIdx.x == 0) { init(&full, 32); init(&empty, 32); }
  __syncthreads();
#pragma unroll 1
  for (int s = 0; s < steps; s++)
    if (threadIdx.x < 32) {
      wait(&empty, s % 2 ^ 1);
      stage[lane] = x[s * 32 + lane];
      arrive(&full);
    } else {
      wait(&full, s % 2);
      y[s * 32 + lane] = stage[lane ^ 1];
      arrive(&empty);
    }
}

// A matrix of 16 x 16 halves, stored by stmatrix and read by rows.  x: [32, 4] registers, y: [256]
extern "C" __global__ void fragments(uint32_t* y, const uint4* x) {
  __shared__ __align__(16) uint32_t tile[128];
  uint4 v = x[threadIdx.x];
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};"
    :: "r"(shared_address(&tile[threadIdx.x * 4])), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
  __syncwarp();
  for (int i = 0; i < 4; i++) y[i * 32 + threadIdx.x] = tile[i * 32 + threadIdx.x];
}

// Rows go out by bulk stores from one buffer.  x, y: [rows, 64]
extern "C" __global__ void rows_out(float* y, const float* x, int rows) {
  __shared__ __align__(16) float row[64];
#pragma unroll 1
  for (int r = 0; r < rows; r++) {
    if (threadIdx.x == 0) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    __syncthreads();
    row[threadIdx.x] = 2 * x[r * 64 + threadIdx.x];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0)
      asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 256; cp.async.bulk.commit_group;" :: "l"(y + r * 64), "r"(shared_address(row)) : "memory");
  }
  if (threadIdx.x == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

// Entries of a table on the stack.
extern "C" __global__ void look_up(int* y, const int* index) {
  int table[8];
#pragma unroll 1
  for (int i = 0; i < 8; i++) table[i] = i * index[threadIdx.x];
  y[threadIdx.x] = table[index[threadIdx.x]];
}

// Blocks write, meet, and read what the next one has written.
extern "C" __global__ void around(int* y, int* x) {
  auto grid = cooperative_groups::this_grid();
  int i = blockIdx.x * blockDim.x + threadIdx.x, n = gridDim.x * blockDim.x;
  x[i] = i;
  grid.sync();
  y[i] = x[(i + blockDim.x) % n];
}

// The positions must lie in the cache.
extern "C" __global__ void positions(int* y, const int* x, int most) {
  assert(x[threadIdx.x] < most);
  y[threadIdx.x] = x[threadIdx.x];
}

// x + 1, and what depends on it: launched before it ends.
extern "C" __global__ void first(int* x) {
  asm volatile("griddepcontrol.launch_dependents;");
  x[threadIdx.x] += 1;
}
extern "C" __global__ void second(int* y, const int* x) {
  asm volatile("griddepcontrol.wait;" ::: "memory");
  y[threadIdx.x] = x[threadIdx.x] * 10;
}
