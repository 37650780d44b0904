// What else kernels of this kind use, a little of each, for `tests/wide.rs`.
#include <assert.h>
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <stdint.h>
#include <stdio.h>

// Arithmetic of bf16 in pairs, and functions of f32.  x, y: [n / 2], z: [n / 2], f: [n]
extern "C" __global__ void bf16_math(__nv_bfloat162* z, float* f, const __nv_bfloat162* x, const __nv_bfloat162* y) {
  int i = threadIdx.x;
  __nv_bfloat162 a = x[i], b = y[i];
  z[i] = __hfma2(a, b, __hmax2(a, b));
  f[2 * i] = tanhf(__low2float(a)) + erff(__high2float(b));
  f[2 * i + 1] = logf(1 + __low2float(b) * __low2float(b)) + expf(-fabsf(__high2float(a))) + sqrtf(fabsf(__low2float(a)));
}

// One multiplication of each kind.  a: [16, 16], b: [8, 16], c: [16, 8] of bf16; p: [16, 32], q: [8, 32], r: [16, 8] of bytes
extern "C" __global__ void multiply(float* c, int* r, const uint32_t* a, const uint32_t* b, const uint32_t* p, const uint32_t* q) {
  int g = threadIdx.x / 4, t = threadIdx.x % 4;
  float f[4] = {};
  int s[4] = {};
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
    : "+f"(f[0]), "+f"(f[1]), "+f"(f[2]), "+f"(f[3])
    : "r"(a[g * 8 + t]), "r"(a[(g + 8) * 8 + t]), "r"(a[g * 8 + t + 4]), "r"(a[(g + 8) * 8 + t + 4]), "r"(b[g * 8 + t]), "r"(b[g * 8 + t + 4]));
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
    : "+r"(s[0]), "+r"(s[1]), "+r"(s[2]), "+r"(s[3])
    : "r"(p[g * 8 + t]), "r"(p[(g + 8) * 8 + t]), "r"(p[g * 8 + t + 4]), "r"(p[(g + 8) * 8 + t + 4]), "r"(q[g * 8 + t]), "r"(q[g * 8 + t + 4]));
  for (int e = 0; e < 4; e++) {
    int at = (g + e / 2 * 8) * 8 + t * 2 + e % 2;
    c[at] = f[e];
    r[at] = s[e];
  }
}

// Weights of 4 bits: two nibbles become halves 1024 + n by one lop3.  w: [n], scale: [n / 16], x: [n, 8]
extern "C" __global__ void dequantize_w4(__half2* x, const uint32_t* w, const __half* scale) {
  int i = threadIdx.x;
  __half2 factor = __half2half2(scale[i / 16]), bias = __half2half2(__ushort_as_half(0x6408));
  for (int j = 0; j < 4; j++) {
    uint32_t pair;
    asm("lop3.b32 %0, %1, 0x000f000f, 0x64006400, 0xea;" : "=r"(pair) : "r"(w[i] >> (4 * j)));
    x[i * 4 + j] = __hmul2(__hsub2(*reinterpret_cast<__half2*>(&pair), bias), factor);
  }
}

// Dot product of bytes, four at a time, and sum over the warp.  sum: [1]
extern "C" __global__ void dot_bytes(int* sum, const int* a, const int* b, int n) {
  int s = 0;
  for (int i = threadIdx.x; i < n; i += 32) s = __dp4a(a[i], b[i], s);
  s = __reduce_add_sync(~0u, s);
  if (threadIdx.x == 0) atomicAdd(sum, s);
}

// Keeps what is above a bound, in order; one warp.  y: [n], count: [2] (how many, whether any was not)
extern "C" __global__ void compact(float* y, int* count, const float* x, int n, float bound) {
  int kept = 0, lane = threadIdx.x, dropped = 0;
  for (int i = lane; i < (n + 31) / 32 * 32; i += 32) {
    float v = i < n ? x[i] : bound;
    unsigned mask = __ballot_sync(~0u, v > bound);
    if (v > bound) y[kept + __popc(mask & ((1u << lane) - 1))] = v;
    kept += __popc(mask);
    dropped |= __any_sync(~0u, i < n && !(v > bound));
  }
  if (__shfl_sync(~0u, kept, 31) == kept && lane == 0) { count[0] = kept; count[1] = dropped; }
}

// Sum of a block by cooperative groups; least, all and some bits by redux and votes.
extern "C" __global__ void groups(float* sum, unsigned* bits, const float* x, int n) {
  namespace cg = cooperative_groups;
  __shared__ float parts[8];
  auto block = cg::this_thread_block();
  auto warp = cg::tiled_partition<32>(block);
  float s = 0;
  for (int i = block.thread_rank(); i < n; i += block.size()) s += x[i];
  s = cg::reduce(warp, s, cg::plus<float>());
  if (warp.thread_rank() == 0) parts[warp.meta_group_rank()] = s;
  block.sync();
  auto eight = cg::tiled_partition<8>(block);
  if (block.thread_rank() < 8) {
    float total = cg::reduce(eight, parts[block.thread_rank()], cg::plus<float>());
    if (block.thread_rank() == 0) *sum = total;
  }
  unsigned v = block.thread_rank() * 7 + 5;
  if (block.thread_rank() < 32) {
    unsigned low = __reduce_min_sync(~0u, v), all = __reduce_or_sync(~0u, v), same = __match_any_sync(~0u, v % 3);
    bits[block.thread_rank()] = low + __clz(all) + __ffs(same) + __brev(v);
  }
}

// To 8-bit floats and back.  x, a, b: [n]
extern "C" __global__ void through_fp8(float* a, float* b, const float* x) {
  int i = threadIdx.x;
  a[i] = float(__nv_fp8_e4m3(x[i]));
  b[i] = float(__nv_fp8_e5m2(x[i]));
}

// Tells about what it finds; a number of 100 must not come.
extern "C" __global__ void complain(int* y, const int* x) {
  int v = x[threadIdx.x];
  if (v < 0) printf("thread %d has %d of %s, %.2f\n", threadIdx.x, v, "those", v * 0.5);
  assert(v != 100);
  y[threadIdx.x] = v;
}

// A struct by value, with arrays indexed at run time.
struct Tables { long long offset[4]; const float* table[3]; float scale; };
extern "C" __global__ void by_struct(float* y, const __grid_constant__ Tables t) {
  int i = threadIdx.x;
  y[i] = t.table[i % 3][t.offset[i % 4]] * t.scale;
}

__constant__ float codes[16];
// Entries of a table in constant memory.
extern "C" __global__ void by_code(float* y, const uint8_t* code) {
  y[threadIdx.x] = codes[code[threadIdx.x] & 15];
}
