// A row of logits as sampling reads it: in tiles of 128 columns, one a warp, with several loads on their
// way; and the order in which logits are kept.
#pragma once

#include "reduce.cuh"

namespace ottava {

constexpr uint32_t SAMPLE_WARPS = 16;
constexpr uint32_t TILE_COLS = 128;

// Larger for larger numbers; the zeros are equal. Nothing is below minus infinity but what is no number
// and has a sign, which max_nan takes away.
__device__ __forceinline__ uint32_t order_of(float x) {
    const uint32_t bits = __float_as_uint(x + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ float value_of(uint32_t order) {
    return __uint_as_float(order & 0x80000000u ? order & 0x7fffffffu : ~order);
}

// Elements are kept in the order of falling ranks: larger logits first, lower columns first among equal ones.
__device__ __forceinline__ uint64_t rank_of(float x, uint32_t col) {
    return static_cast<uint64_t>(order_of(x)) << 32 | ~col;
}

// The last element in that order that is kept.
struct Cut {
    float x;
    uint32_t col;

    __device__ __forceinline__ static Cut none() { return {-INFINITY, UINT32_MAX}; }
    __device__ __forceinline__ static Cut at(uint64_t rank) {
        return {value_of(static_cast<uint32_t>(rank >> 32)), ~static_cast<uint32_t>(rank)};
    }
    __device__ __forceinline__ bool keeps(float other, uint32_t other_col) const {
        return other > x || (other == x && other_col <= col);
    }
};

struct Logits {
    const float* row;  // [cols]
    uint32_t cols;
    bool aligned;  // whether four columns from a multiple of four on are one load

    __device__ __forceinline__ uint32_t tiles() const { return (cols + TILE_COLS - 1) / TILE_COLS; }

    // Of this thread's tiles where each has one of its warp's: with the next SAMPLE_WARPS * WARP behind it.
    __device__ __forceinline__ static uint32_t first_own_tile() {
        return threadIdx.x / WARP + threadIdx.x % WARP * SAMPLE_WARPS;
    }

    // The first of this lane's four columns in a tile.
    __device__ __forceinline__ static uint32_t col_of(uint32_t tile) {
        return tile * TILE_COLS + 4 * (threadIdx.x % WARP);
    }

    // This lane's four logits of a tile, minus infinity behind the row's end.
    __device__ __forceinline__ float4 load(uint32_t tile) const {
        const uint32_t col = col_of(tile);
        float4 x = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
        if (aligned) {
            if (col < cols) x = *reinterpret_cast<const float4*>(row + col);
            return x;
        }
        if (col < cols) x.x = row[col];
        if (col + 1 < cols) x.y = row[col + 1];
        if (col + 2 < cols) x.z = row[col + 2];
        if (col + 3 < cols) x.w = row[col + 3];
        return x;
    }

    // Calls `visit(tile, logits)` for the `wanted` of this warp's tiles, with the loads of AHEAD on their way.
    // All lanes are there for `visit`; `wanted` is asked by one for each tile.
    template <uint32_t AHEAD, typename Wanted, typename Visit>
    __device__ __forceinline__ void for_tiles(Wanted wanted, Visit visit) const {
        const uint32_t end = tiles(), lane = threadIdx.x % WARP;
#pragma unroll 1
        for (uint32_t first = threadIdx.x / WARP; first < end; first += WARP * SAMPLE_WARPS) {
            const uint32_t own = first + lane * SAMPLE_WARPS;
            uint32_t left = __ballot_sync(ALL_LANES, own < end && wanted(own));
#pragma unroll 1
            while (left != 0) {
                float4 x[AHEAD];
                uint32_t tile[AHEAD];
#pragma unroll
                for (uint32_t i = 0; i < AHEAD; ++i) {
                    tile[i] = left == 0 ? end : first + (__ffs(left) - 1) * SAMPLE_WARPS;
                    left &= left - 1;
                    if (tile[i] < end) x[i] = load(tile[i]);
                }
#pragma unroll
                for (uint32_t i = 0; i < AHEAD; ++i)
                    if (tile[i] < end) visit(tile[i], x[i]);
            }
        }
    }
};

// The largest of a tile's logits as `order_of` has it, in all lanes; beyond infinity's where one is NaN.
__device__ __forceinline__ uint32_t largest_of(float4 x) {
    return __reduce_max_sync(ALL_LANES, order_of(max_nan(max_nan(x.x, x.y), max_nan(x.z, x.w))));
}

}  // namespace ottava
