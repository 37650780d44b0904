// Logits as numbers of 32 bits that compare as the logits do, and their largest by strips of a product: what the
// head leaves for sampling.
#pragma once

#include "ptx.cuh"

namespace ottava {

// Larger for larger numbers; the zeros are equal. Nothing is below minus infinity but what is no number
// and has a sign, which max_nan takes away.
__device__ __forceinline__ uint32_t order_of(float x) {
    const int32_t bits = __float_as_int(x + 0.0f);
    return static_cast<uint32_t>(bits ^ (bits >> 31 | INT32_MIN));
}

// Notes the largest logit of a token's strip, NaN where one is. The 16 lanes of a half warp call it together, each
// with the logit of a row of the strip, minus infinity behind the last.
__device__ __forceinline__ void note_largest(uint32_t* strip, float x) {
    const uint32_t lane = threadIdx.x % 32, half = 0xffffu << (lane & 16);
    uint32_t largest = order_of(max_nan(x, x));
#pragma unroll
    for (int distance = 8; distance > 0; distance /= 2)
        largest = max(largest, __shfl_xor_sync(half, largest, distance));
    if (lane % 16 == 0) *strip = largest;
}

// The same where lanes 4g + t hold rows g and g + 8 of a token: whole warps call it, the lanes with g = 0 note it.
__device__ __forceinline__ void note_largest(uint32_t* strip, float x, float y, bool notes) {
    uint32_t largest = order_of(max_nan(x, y));
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2)
        largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, distance));
    if (notes && threadIdx.x % 32 < 4) *strip = largest;
}

}  // namespace ottava
