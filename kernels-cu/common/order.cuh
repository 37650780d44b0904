// Logits as 32-bit numbers with the same order, and maxima per strip that the head's product stores for
// sampling.
#pragma once

#include "ptx.cuh"

namespace ottava {

// Larger for larger numbers; both zeros are equal. Only NaN with a sign would be below minus infinity, and
// max_nan removes the sign.
__device__ __forceinline__ uint32_t order_of(float x) {
    const int32_t bits = __float_as_int(x + 0.0f);
    return static_cast<uint32_t>(bits ^ (bits >> 31 | INT32_MIN));
}

// Stores the largest logit of a token's strip, NaN if one is NaN. Called together by the 16 lanes of a half
// warp, each with the logit of a row of the strip, minus infinity after the last row.
__device__ __forceinline__ void note_largest(uint32_t* strip, float x) {
    const uint32_t lane = threadIdx.x % 32, half = 0xffffu << (lane & 16);
    uint32_t largest = order_of(max_nan(x, x));
#pragma unroll
    for (int distance = 8; distance > 0; distance /= 2)
        largest = max(largest, __shfl_xor_sync(half, largest, distance));
    if (lane % 16 == 0) *strip = largest;
}

// note_largest for lanes 4g + t that hold rows g and g + 8 of a token: called by whole warps, stored by the
// lanes with g = 0.
__device__ __forceinline__ void note_largest(uint32_t* strip, float x, float y, bool notes) {
    uint32_t largest = order_of(max_nan(x, y));
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2)
        largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, distance));
    if (notes && threadIdx.x % 32 < 4) *strip = largest;
}

}  // namespace ottava
