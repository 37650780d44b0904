// Kernels of a language model with tensor cores and split attention, for `tests/model.rs`.
#include <cuda_fp16.h>
#include <math_constants.h>
#include <stdint.h>

#define DEVICE __device__ __forceinline__
DEVICE uint32_t shared_address(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }
DEVICE uint32_t bits(__half2 v) { return *reinterpret_cast<uint32_t*>(&v); }
DEVICE float warp_sum(float v) {
  for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
  return v;
}
DEVICE float warp_max(float v) {
  for (int o = 16; o; o >>= 1) v = fmaxf(v, __shfl_xor_sync(~0u, v, o));
  return v;
}
// 16 bytes, or zeros.
DEVICE void copy16(void* to, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(shared_address(to)), "l"(from), "r"(there ? 16 : 0) : "memory");
}
DEVICE void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> DEVICE void wait_all_but() { asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory"); }
DEVICE void load_a(uint32_t (&a)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
    : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3]) : "r"(shared_address(row)) : "memory");
}
DEVICE void load_b(uint32_t (&b)[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];" : "=r"(b[0]), "=r"(b[1]) : "r"(shared_address(row)) : "memory");
}
DEVICE void load_b_transposed(uint32_t (&b)[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];" : "=r"(b[0]), "=r"(b[1]) : "r"(shared_address(row)) : "memory");
}
DEVICE void mma(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
    : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Two bytes, each a number from -128 on, as halves: 0x64xx is 1024 + xx.
DEVICE uint32_t widen(uint32_t two) {
  uint32_t biased = __byte_perm(two ^ 0x8080u, 0x64646464u, 0x4140), bias = 0x64806480u;
  return bits(__hsub2(*reinterpret_cast<__half2*>(&biased), *reinterpret_cast<__half2*>(&bias)));
}

// c = (a · wᵀ) · scale, weights of 8 bits; 64 x 64 tiles, 4 warps, two stages.
// a: [m, k], w: [n, k], scale: [n], c: [m, n]; k % 32 == 0
struct Stage { __half a[64][40]; int8_t w[64][48]; };
extern "C" __global__ void __launch_bounds__(128) gemm_w8a16(__half* c, const __half* a, const int8_t* w, const float* scale, int m, int n, int k) {
  __shared__ __align__(16) Stage stages[2];
  int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, m0 = blockIdx.y * 64, n0 = blockIdx.x * 64;
  auto load = [&](Stage& s, int k0) {
#pragma unroll
    for (int i = tid; i < 256; i += 128) {
      int r = i / 4, q = i % 4 * 8;
      bool there = m0 + r < m;
      copy16(&s.a[r][q], a + (size_t)(there ? m0 + r : 0) * k + k0 + q, there);
    }
    int r = tid / 2, q = tid % 2 * 16;
    bool there = n0 + r < n;
    copy16(&s.w[r][q], w + (size_t)(there ? n0 + r : 0) * k + k0 + q, there);
    commit();
  };
  float acc[8][4] = {};
  load(stages[0], 0);
  int steps = k / 32;
#pragma unroll 1
  for (int s = 0; s < steps; s++) {
    if (s + 1 < steps) load(stages[(s + 1) % 2], (s + 1) * 32);
    else commit();
    wait_all_but<1>();
    __syncthreads();
    Stage& now = stages[s % 2];
#pragma unroll
    for (int kk = 0; kk < 32; kk += 16) {
      uint32_t fa[4];
      load_a(fa, &now.a[warp * 16 + lane % 16][kk + lane / 16 * 8]);
#pragma unroll
      for (int j = 0; j < 8; j++) {
        const int8_t* row = &now.w[j * 8 + lane / 4][kk + lane % 4 * 2];
        uint32_t fb[2] = {widen(*reinterpret_cast<const uint16_t*>(row)), widen(*reinterpret_cast<const uint16_t*>(row + 8))};
        mma(acc[j], fa, fb);
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int j = 0; j < 8; j++)
#pragma unroll
    for (int e = 0; e < 4; e++) {
      int row = m0 + warp * 16 + lane / 4 + e / 2 * 8, col = n0 + j * 8 + lane % 4 * 2 + e % 2;
      if (row < m && col < n) c[(size_t)row * n + col] = __float2half(acc[j][e] * scale[col]);
    }
}

// Causal attention of a prompt; 64 queries a block, 64 keys a step.  grid: (query tiles, heads)
// q, o: [seq, heads, 64], k, v: [seq, kv_heads, 64]
typedef __half Rows[64][72];
extern "C" __global__ void __launch_bounds__(128) flash_prefill(__half* o, const __half* q, const __half* k, const __half* v, int seq, int kv_heads, float factor) {
  extern __shared__ __align__(16) unsigned char memory[];
  Rows& sq = reinterpret_cast<Rows*>(memory)[0];
  Rows& sk = reinterpret_cast<Rows*>(memory)[1];
  Rows& sv = reinterpret_cast<Rows*>(memory)[2];
  int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, heads = gridDim.y, head = blockIdx.y;
  int kv_head = head / (heads / kv_heads), q0 = blockIdx.x * 64;
  auto load = [&](Rows& to, const __half* from, int row0, int stride) {
#pragma unroll
    for (int i = tid; i < 512; i += 128) {
      int r = i / 8, d = i % 8 * 8;
      bool there = row0 + r < seq;
      copy16(&to[r][d], from + (size_t)(there ? row0 + r : 0) * stride + d, there);
    }
  };
  load(sq, q + head * 64, q0, heads * 64);
  float acc[8][4] = {}, most[2] = {-CUDART_INF_F, -CUDART_INF_F}, sum[2] = {};
#pragma unroll 1
  for (int k0 = 0; k0 <= q0; k0 += 64) {
    load(sk, k + kv_head * 64, k0, kv_heads * 64);
    load(sv, v + kv_head * 64, k0, kv_heads * 64);
    commit();
    wait_all_but<0>();
    __syncthreads();
    float s[8][4] = {};
#pragma unroll
    for (int kk = 0; kk < 64; kk += 16) {
      uint32_t fa[4], fb[2];
      load_a(fa, &sq[warp * 16 + lane % 16][kk + lane / 16 * 8]);
#pragma unroll
      for (int j = 0; j < 8; j++) {
        load_b(fb, &sk[j * 8 + lane % 8][kk + lane / 8 % 2 * 8]);
        mma(s[j], fa, fb);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
      int row = q0 + warp * 16 + lane / 4 + half * 8;
      float high = most[half], part = 0;
#pragma unroll
      for (int j = 0; j < 16; j++) {
        float& x = s[j / 2][half * 2 + j % 2];
        x = k0 + j / 2 * 8 + lane % 4 * 2 + j % 2 <= row ? x * factor : -CUDART_INF_F;
        high = fmaxf(high, x);
      }
      high = fmaxf(high, __shfl_xor_sync(~0u, high, 1));
      high = fmaxf(high, __shfl_xor_sync(~0u, high, 2));
      float shrink = __expf(most[half] - high);
#pragma unroll
      for (int j = 0; j < 16; j++) {
        float& x = s[j / 2][half * 2 + j % 2];
        x = __expf(x - high);
        part += x;
        acc[j / 2][half * 2 + j % 2] *= shrink;
      }
      part += __shfl_xor_sync(~0u, part, 1);
      part += __shfl_xor_sync(~0u, part, 2);
      sum[half] = sum[half] * shrink + part;
      most[half] = high;
    }
#pragma unroll
    for (int kk = 0; kk < 4; kk++) {
      float (&l)[4] = s[2 * kk], (&r)[4] = s[2 * kk + 1];
      uint32_t fb[2], fa[4] = {bits(__floats2half2_rn(l[0], l[1])), bits(__floats2half2_rn(l[2], l[3])),
                               bits(__floats2half2_rn(r[0], r[1])), bits(__floats2half2_rn(r[2], r[3]))};
#pragma unroll
      for (int j = 0; j < 8; j++) {
        load_b_transposed(fb, &sv[kk * 16 + lane % 16][j * 8]);
        mma(acc[j], fa, fb);
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int j = 0; j < 8; j++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      int row = q0 + warp * 16 + lane / 4 + half * 8;
      __half2 pair = __floats2half2_rn(acc[j][half * 2] / sum[half], acc[j][half * 2 + 1] / sum[half]);
      if (row < seq) *reinterpret_cast<__half2*>(o + ((size_t)row * heads + head) * 64 + j * 8 + lane % 4 * 2) = pair;
    }
}

// Attention of one token over a chunk of the cache.  grid: (chunks, heads), 128 threads
// parts: [heads, chunks, 64], stats: [heads, chunks, 2] (largest score, sum of weights)
extern "C" __global__ void __launch_bounds__(128) decode_split(float* parts, float2* stats, const __half* q, const __half* k, const __half* v, int seq, int chunk, int kv_heads, float factor) {
  extern __shared__ float scores[];
  __shared__ float shared[2][4], halves[64];
  int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, head = blockIdx.y, at = head * gridDim.x + blockIdx.x;
  int begin = blockIdx.x * chunk, count = min(chunk, seq - begin), kv_head = head / (gridDim.y / kv_heads);
  const __half* keys = k + ((size_t)begin * kv_heads + kv_head) * 64;
  const __half* values = v + ((size_t)begin * kv_heads + kv_head) * 64;
  float2 mine = __half22float2(reinterpret_cast<const __half2*>(q + head * 64)[lane]);
  float most = -CUDART_INF_F, sum = 0, acc = 0;
#pragma unroll 1
  for (int t = warp; t < count; t += 4) {
    float2 key = __half22float2(reinterpret_cast<const __half2*>(keys + (size_t)t * kv_heads * 64)[lane]);
    float s = warp_sum(mine.x * key.x + mine.y * key.y) * factor;
    if (lane == 0) scores[t] = s;
    most = fmaxf(most, s);
  }
  if (lane == 0) shared[0][warp] = most;
  __syncthreads();
  most = fmaxf(fmaxf(shared[0][0], shared[0][1]), fmaxf(shared[0][2], shared[0][3]));
#pragma unroll 1
  for (int t = tid; t < count; t += 128) { float e = __expf(scores[t] - most); scores[t] = e; sum += e; }
  sum = warp_sum(sum);
  if (lane == 0) shared[1][warp] = sum;
  __syncthreads();
#pragma unroll 1
  for (int t = tid / 64; t < count; t += 2) acc += scores[t] * __half2float(values[(size_t)t * kv_heads * 64 + tid % 64]);
  if (tid >= 64) halves[tid - 64] = acc;
  __syncthreads();
  if (tid < 64) parts[at * 64 + tid] = acc + halves[tid];
  if (tid == 0) stats[at] = make_float2(most, shared[1][0] + shared[1][1] + shared[1][2] + shared[1][3]);
}

// Brings the chunks of a head together.  grid: heads, 64 threads.  out: [heads, 64]
extern "C" __global__ void decode_combine(__half* out, const float* parts, const float2* stats, int chunks) {
  int at = blockIdx.x * chunks;
  float most = -CUDART_INF_F, sum = 0, acc = 0;
  for (int c = 0; c < chunks; c++) most = fmaxf(most, stats[at + c].x);
#pragma unroll 1
  for (int c = 0; c < chunks; c++) {
    float weight = __expf(stats[at + c].x - most);
    sum += stats[at + c].y * weight;
    acc += parts[(at + c) * 64 + threadIdx.x] * weight;
  }
  out[blockIdx.x * 64 + threadIdx.x] = __float2half(acc / sum);
}
