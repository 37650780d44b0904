// Sums and maxima over warps and blocks, in a fixed order.
#pragma once

#include "ptx.cuh"

namespace ottava {

constexpr int WARP = 32;
constexpr uint32_t ALL_LANES = 0xffffffffu;

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int distance = WARP / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(ALL_LANES, x, distance);
    return x;
}

__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
    for (int distance = WARP / 2; distance > 0; distance /= 2)
        x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, distance));
    return x;
}

// Reduces over all threads of a block of whole warps; `scratch` holds one float per warp and may be reused
// after the next barrier.
template <typename Combine>
__device__ __forceinline__ float block_reduce(float x, float* scratch, float neutral, Combine combine) {
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, warps = blockDim.x / WARP;
    x = combine(x);
    __syncthreads();
    if (lane == 0) scratch[warp] = x;
    __syncthreads();
    return combine(lane < warps ? scratch[lane] : neutral);
}

__device__ __forceinline__ float block_sum(float x, float* scratch) {
    return block_reduce(x, scratch, 0.0f, [](float x) { return warp_sum(x); });
}

__device__ __forceinline__ float block_max(float x, float* scratch) {
    return block_reduce(x, scratch, -INFINITY, [](float x) { return warp_max(x); });
}

}  // namespace ottava
