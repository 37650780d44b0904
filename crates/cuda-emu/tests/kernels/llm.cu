// Kernels as a language model's inference has them, for `tests/llm.rs`. Compiled by `compile.sh`.
#include <cuda_fp16.h>
#include <math_constants.h>
#include <stdint.h>

#define DEVICE __device__ __forceinline__

DEVICE float warp_sum(float v) {
  for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
  return v;
}
DEVICE float warp_max(float v) {
  for (int o = 16; o; o >>= 1) v = fmaxf(v, __shfl_xor_sync(~0u, v, o));
  return v;
}
DEVICE uint32_t shared_address(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }

// y = x / sqrt(mean(x²) + eps) · w; a block a row.  x, y: [rows, n]
extern "C" __global__ void __launch_bounds__(256) rmsnorm(__half* y, const __half* x, const __half* w, int n, float eps) {
  __shared__ float parts[8];
  const __half* row = x + (size_t)blockIdx.x * n;
  float sum = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) { float v = __half2float(row[i]); sum += v * v; }
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
  __syncthreads();
  float total = 0;
  for (int i = 0; i < blockDim.x / 32; i++) total += parts[i];
  float scale = rsqrtf(total / n + eps);
  for (int i = threadIdx.x; i < n; i += blockDim.x)
    y[(size_t)blockIdx.x * n + i] = __float2half(__half2float(row[i]) * scale * __half2float(w[i]));
}

// c = a · bᵀ; 64 × 64 tiles, 4 warps, two stages of cp.async.  a: [m, k], b: [n, k], c: [m, n]; k % 32 == 0
#define PITCH 40
extern "C" __global__ void __launch_bounds__(128) gemm(float* c, const __half* a, const __half* b, int m, int n, int k) {
  __shared__ __align__(16) __half tile[2][2][64][PITCH];
  int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
  int m0 = blockIdx.y * 64, n0 = blockIdx.x * 64;
  auto load = [&](int stage, int k0) {
    for (int i = tid; i < 512; i += 128) {
      int which = i / 256, r = i % 256 / 4, q = i % 4 * 8;
      const __half* src = which ? b : a;
      int row = (which ? n0 : m0) + r, rows = which ? n : m;
      int bytes = row < rows ? 16 : 0;
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::
        "r"(shared_address(&tile[stage][which][r][q])), "l"(src + (size_t)(row < rows ? row : 0) * k + k0 + q), "r"(bytes));
    }
    asm volatile("cp.async.commit_group;");
  };
  float acc[8][4] = {};
  int steps = k / 32;
  load(0, 0);
  for (int s = 0; s < steps; s++) {
    if (s + 1 < steps) { load(s + 1 & 1, (s + 1) * 32); asm volatile("cp.async.wait_group 1;"); }
    else asm volatile("cp.async.wait_group 0;");
    __syncthreads();
#pragma unroll
    for (int kk = 0; kk < 32; kk += 16) {
      uint32_t fa[4];
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
        : "=r"(fa[0]), "=r"(fa[1]), "=r"(fa[2]), "=r"(fa[3])
        : "r"(shared_address(&tile[s & 1][0][warp * 16 + lane % 16][kk + lane / 16 * 8])));
#pragma unroll
      for (int j = 0; j < 8; j++) {
        uint32_t fb[2];
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
          : "=r"(fb[0]), "=r"(fb[1]) : "r"(shared_address(&tile[s & 1][1][j * 8 + lane % 8][kk + lane / 8 % 2 * 8])));
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
          : "+f"(acc[j][0]), "+f"(acc[j][1]), "+f"(acc[j][2]), "+f"(acc[j][3])
          : "r"(fa[0]), "r"(fa[1]), "r"(fa[2]), "r"(fa[3]), "r"(fb[0]), "r"(fb[1]));
      }
    }
#ifndef MISSING_BARRIER
    __syncthreads();
#endif
  }
  for (int j = 0; j < 8; j++)
    for (int e = 0; e < 4; e++) {
      int row = m0 + warp * 16 + lane / 4 + e / 2 * 8, col = n0 + j * 8 + lane % 4 * 2 + e % 2;
      if (row < m && col < n) c[(size_t)row * n + col] = acc[j][e];
    }
}

// y = (w · x) · scale, weights of 8 bits; a warp a row.  w: [n, k], x: [k], y: [n]; k % 16 == 0
extern "C" __global__ void gemv_int8(float* y, const int8_t* w, const float* scale, const __half* x, int n, int k) {
  int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= n) return;
  __half2 sum = __float2half2_rn(0);
  float total = 0;
  for (int i = lane * 16; i < k; i += 512) {
    int4 packed = *reinterpret_cast<const int4*>(w + (size_t)row * k + i);
    const int words[4] = {packed.x, packed.y, packed.z, packed.w};
    sum = __float2half2_rn(0);
#pragma unroll
    for (int j = 0; j < 4; j++) {
      uint32_t q = words[j] ^ 0x80808080u;
      uint32_t lo = __byte_perm(q, 0x64646464u, 0x4140), hi = __byte_perm(q, 0x64646464u, 0x4342), bias = 0x64806480u;
      __half2 b = *reinterpret_cast<__half2*>(&bias);
      sum = __hfma2(__hsub2(*reinterpret_cast<__half2*>(&lo), b), reinterpret_cast<const __half2*>(x + i)[j * 2], sum);
      sum = __hfma2(__hsub2(*reinterpret_cast<__half2*>(&hi), b), reinterpret_cast<const __half2*>(x + i)[j * 2 + 1], sum);
    }
    total += __low2float(sum) + __high2float(sum);
  }
  total = warp_sum(total);
  if (lane == 0) y[row] = total * scale[row];
}

// out = softmax(q · kᵀ · factor) · v of one token; a block a head, heads of 64.  q: [heads, 64], k, v: [seq, 64]
extern "C" __global__ void attention(float* out, const __half* q, const __half* k, const __half* v, int seq, float factor) {
  extern __shared__ float scores[];
  __shared__ float parts[2][4];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float2 mine = __half22float2(reinterpret_cast<const __half2*>(q + blockIdx.x * 64)[lane]);
  for (int t = warp; t < seq; t += 4) {
    float2 key = __half22float2(reinterpret_cast<const __half2*>(k + (size_t)t * 64)[lane]);
    float s = warp_sum(mine.x * key.x + mine.y * key.y) * factor;
    if (lane == 0) scores[t] = s;
  }
  __syncthreads();
  float most = -CUDART_INF_F;
  for (int t = threadIdx.x; t < seq; t += 128) most = fmaxf(most, scores[t]);
  most = warp_max(most);
  if (lane == 0) parts[0][warp] = most;
  __syncthreads();
  most = fmaxf(fmaxf(parts[0][0], parts[0][1]), fmaxf(parts[0][2], parts[0][3]));
  float sum = 0;
  for (int t = threadIdx.x; t < seq; t += 128) { float e = __expf(scores[t] - most); scores[t] = e; sum += e; }
  sum = warp_sum(sum);
  if (lane == 0) parts[1][warp] = sum;
  __syncthreads();
  sum = parts[1][0] + parts[1][1] + parts[1][2] + parts[1][3];
  if (threadIdx.x < 64) {
    float acc = 0;
    for (int t = 0; t < seq; t++) acc += scores[t] * __half2float(v[(size_t)t * 64 + threadIdx.x]);
    out[blockIdx.x * 64 + threadIdx.x] = acc / sum;
  }
}

// Index of the largest value, the first of equals.
extern "C" __global__ void argmax(unsigned long long* best, const float* x, int n) {
  unsigned long long found = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    unsigned bits = __float_as_uint(x[i]);
    unsigned key = bits >> 31 ? ~bits : bits | 1u << 31;
    unsigned long long v = (unsigned long long)key << 32 | (unsigned)~i;
    found = v > found ? v : found;
  }
  atomicMax(best, found);
}

// Rotates pairs of a head of 64.  x: [heads, 64]
extern "C" __global__ void rope(__half* x, int position, float theta) {
  int i = threadIdx.x;
  float angle = position * powf(theta, -2.f * i / 64), s, c;
  sincosf(angle, &s, &c);
  __half* p = x + blockIdx.x * 64;
  float a = __half2float(p[i]), b = __half2float(p[i + 32]);
  p[i] = __float2half(a * c - b * s);
  p[i + 32] = __float2half(b * c + a * s);
}
