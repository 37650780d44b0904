// Hopper's own instructions, for `tests/hopper.rs`: TMA, mbarriers, wgmma, clusters.
#include <cuda.h>
#include <cuda_fp16.h>
#include <stdint.h>

#define DEVICE __device__ __forceinline__
DEVICE uint32_t shared_address(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }
DEVICE void init(uint64_t* b, int n) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(shared_address(b)), "r"(n)); }
DEVICE void arrive(uint64_t* b) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(shared_address(b)) : "memory"); }
DEVICE void expect(uint64_t* b, int n) { asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(shared_address(b)), "r"(n) : "memory"); }
DEVICE void wait(uint64_t* b, int parity) {
  asm volatile("{ .reg .pred p; L%=: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra L%=; }" :: "r"(shared_address(b)), "r"(parity) : "memory");
}
DEVICE void tma(void* to, const CUtensorMap* map, int x, int y, uint64_t* b) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
    :: "r"(shared_address(to)), "l"(map), "r"(x), "r"(y), "r"(shared_address(b)) : "memory");
}
DEVICE uint64_t descriptor(const void* p) {
  return (uint64_t)1 << 62 | (uint64_t)64 << 32 | (uint64_t)1 << 16 | shared_address(p) >> 4;
}

// c = a · bᵀ; 64 × 64 tiles, one producer warpgroup, one consumer.  a: [m, k], b: [n, k], c: [m, n]; k % 64 == 0
extern "C" __global__ void __launch_bounds__(256) gemm(float* c, const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b, int n, int k) {
  extern __shared__ __align__(1024) unsigned char tiles[];
  __shared__ __align__(8) uint64_t full[2], empty[2];
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; i++) { init(&full[i], 1); init(&empty[i], 128); }
    asm volatile("fence.mbarrier_init.release.cluster; fence.proxy.async;");
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x == 0)
      for (int s = 0; s < k / 64; s++) {
        int stage = s % 2, round = s / 2;
        wait(&empty[stage], round % 2 ^ 1);
        expect(&full[stage], 2 * 64 * 64 * 2);
        tma(tiles + stage * 16384, &a, s * 64, blockIdx.y * 64, &full[stage]);
        tma(tiles + stage * 16384 + 8192, &b, s * 64, blockIdx.x * 64, &full[stage]);
      }
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
  float d[32];
  for (int i = 0; i < 32; i++) d[i] = 0;
  for (int s = 0; s < k / 64; s++) {
    int stage = s % 2;
    wait(&full[stage], s / 2 % 2);
    asm volatile("wgmma.fence.sync.aligned;");
#pragma unroll
    for (int kk = 0; kk < 4; kk++) {
      uint64_t da = descriptor(tiles + stage * 16384 + kk * 32), db = descriptor(tiles + stage * 16384 + 8192 + kk * 32);
      asm volatile("{ .reg .pred p; setp.ne.b32 p, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, %32, %33, p, 1, 1, 0, 0; }"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "l"(da), "l"(db), "r"(s + kk));
    }
    asm volatile("wgmma.commit_group.sync.aligned;");
    asm volatile("wgmma.wait_group.sync.aligned 0;");
    arrive(&empty[stage]);
  }
  int t = threadIdx.x - 128, warp = t / 32, lane = t % 32;
  for (int i = 0; i < 32; i++) {
    int row = blockIdx.y * 64 + warp * 16 + lane / 4 + i / 2 % 2 * 8, col = blockIdx.x * 64 + i / 4 * 8 + lane % 4 * 2 + i % 2;
    c[(size_t)row * n + col] = d[i];
  }
}

// Each block of a cluster of two writes its rank into its shared memory; the other reads it.
extern "C" __global__ void __cluster_dims__(2, 1, 1) exchange(int* out) {
  __shared__ int mine[32];
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  mine[threadIdx.x] = rank * 100 + threadIdx.x;
  asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
  uint32_t address, value;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(&mine[threadIdx.x])), "r"(rank ^ 1));
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  out[blockIdx.x * 32 + threadIdx.x] = value;
  asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
}

// A linear bulk copy in, and one out.
extern "C" __global__ void bulk(float* to, const float* from) {
  __shared__ __align__(16) float data[256];
  __shared__ uint64_t barrier;
  if (threadIdx.x == 0) { init(&barrier, 1); asm volatile("fence.mbarrier_init.release.cluster;"); }
  __syncthreads();
  if (threadIdx.x == 0) {
    expect(&barrier, 1024);
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
      :: "r"(shared_address(data)), "l"(from), "r"(1024), "r"(shared_address(&barrier)) : "memory");
  }
  wait(&barrier, 0);
  data[threadIdx.x] *= 2;
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" :: "l"(to), "r"(shared_address(data)), "r"(1024) : "memory");
    asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;" ::: "memory");
  }
}
