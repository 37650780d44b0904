// Elementwise functions as defined in `src/ir`.
#pragma once

#include <cuda_fp16.h>
#include <math.h>
#include <stdint.h>

namespace ottava {

// Mirrors `ir::Activation`.
enum class Activation : uint32_t { Silu = 0, GeluTanh = 1 };

__device__ __forceinline__ float silu(float x) { return x / (1.0f + __expf(-x)); }

__device__ __forceinline__ float gelu_tanh(float x) {
    // x/2 · (1 + tanh(u)) = x · sigmoid(2u)
    const float u = 0.7978845608028654f * (x + 0.044715f * x * x * x);
    return x / (1.0f + __expf(-2.0f * u));
}

__device__ __forceinline__ float activate(Activation activation, float x) {
    return activation == Activation::Silu ? silu(x) : gelu_tanh(x);
}

// cap · tanh(x / cap)
__device__ __forceinline__ float soft_cap(float x, float cap) { return cap * tanhf(x / cap); }

// The nearest f16; saturates outside its range, and keeps NaN.
__device__ __forceinline__ __half saturated_half(float x) {
    return __float2half_rn(isnan(x) ? x : fminf(fmaxf(x, -65504.0f), 65504.0f));
}

}  // namespace ottava
