// Reading a row of logits for sampling: in tiles of 128 columns, one per warp, with several loads in flight.
// Also the order in which logits are kept.
#pragma once

#include "order.cuh"
#include "reduce.cuh"

namespace ottava {

constexpr uint32_t SAMPLE_WARPS = 16;
constexpr uint32_t TILE_COLS = 128;
// A turn processes one tile per warp of a block.
constexpr uint32_t TURN_COLS = SAMPLE_WARPS * TILE_COLS;

__device__ __forceinline__ float value_of(uint32_t order) {
    return __uint_as_float(order & 0x80000000u ? order & 0x7fffffffu : ~order);
}

// Elements are kept in the order of falling ranks: larger logits first, lower columns first among equal ones.
__device__ __forceinline__ uint64_t rank_of(float x, uint32_t col) {
    return static_cast<uint64_t>(order_of(x)) << 32 | ~col;
}

// The last kept element in that order.
struct Cut {
    float x;
    uint32_t col;

    __device__ __forceinline__ static Cut none() { return {-INFINITY, UINT32_MAX}; }
    __device__ __forceinline__ static Cut at(uint64_t rank) {
        return {value_of(static_cast<uint32_t>(rank >> 32)), ~static_cast<uint32_t>(rank)};
    }
    // Without branches, because every element is tested in a pass.
    __device__ __forceinline__ bool keeps(float other, uint32_t other_col) const {
        return (other > x) | ((other == x) & (other_col <= col));
    }
};

// One lane's view of a row of logits.
struct Logits {
    const float* own;  // this lane's four of the first turn
    uint32_t own_col;
    uint32_t cols;
    bool aligned;  // whether four columns are one load

    __device__ __forceinline__ static Logits of(const float* row, uint32_t cols) {
        const uint32_t col = TILE_COLS * (threadIdx.x / WARP) + 4 * (threadIdx.x % WARP);
        const bool aligned = cols % 4 == 0 && reinterpret_cast<uintptr_t>(row) % sizeof(float4) == 0;
        return {row + col, col, cols, aligned};
    }

    __device__ __forceinline__ uint32_t turns() const { return (cols + TURN_COLS - 1) / TURN_COLS; }
    // This lane's first column in a turn.
    __device__ __forceinline__ uint32_t col_of(uint32_t turn) const { return turn * TURN_COLS + own_col; }

    // Loads this lane's four logits for each of COUNT turns; minus infinity after the row's end.
    template <uint32_t COUNT>
    __device__ __forceinline__ void load(float4 (&x)[COUNT], const uint32_t (&turn)[COUNT]) const {
#pragma unroll
        for (uint32_t i = 0; i < COUNT; ++i) x[i] = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
        if (aligned) {
#pragma unroll
            for (uint32_t i = 0; i < COUNT; ++i)
                if (col_of(turn[i]) < cols) x[i] = *reinterpret_cast<const float4*>(own + turn[i] * TURN_COLS);
            return;
        }
#pragma unroll
        for (uint32_t i = 0; i < COUNT; ++i) {
            const uint32_t col = col_of(turn[i]);
            const float* from = own + turn[i] * TURN_COLS;
            if (col < cols) x[i].x = from[0];
            if (col + 1 < cols) x[i].y = from[1];
            if (col + 2 < cols) x[i].z = from[2];
            if (col + 3 < cols) x[i].w = from[3];
        }
    }

    __device__ __forceinline__ float4 load(uint32_t turn) const {
        float4 x[1];
        load(x, {turn});
        return x[0];
    }

    // Calls `visit(turn, logits)` for all turns, and possibly for some after the last one.
    template <uint32_t AHEAD, typename Visit>
    __device__ __forceinline__ void for_all(Visit visit) const {
#pragma unroll 1
        for (uint32_t first = 0; first < turns(); first += AHEAD) {
            float4 x[AHEAD];
            uint32_t turn[AHEAD];
#pragma unroll
            for (uint32_t i = 0; i < AHEAD; ++i) turn[i] = first + i;
            load(x, turn);
#pragma unroll
            for (uint32_t i = 0; i < AHEAD; ++i) visit(turn[i], x[i]);
        }
    }

    // Calls `visit(turn, logits)` for the turns that are `wanted`, loading AHEAD of them at a time. One lane
    // evaluates `wanted` for a turn; all lanes of the warp visit it.
    template <uint32_t AHEAD, typename Wanted, typename Visit>
    __device__ __forceinline__ void for_each(Wanted wanted, Visit visit) const {
        const uint32_t lane = threadIdx.x % WARP, none = turns();
#pragma unroll 1
        for (uint32_t first = 0; first < turns(); first += WARP) {
            uint32_t left = __ballot_sync(ALL_LANES, first + lane < turns() && wanted(first + lane));
#pragma unroll 1
            while (left != 0) {
                float4 x[AHEAD];
                uint32_t turn[AHEAD];
#pragma unroll
                for (uint32_t i = 0; i < AHEAD; ++i) {
                    turn[i] = left == 0 ? none : first + __ffs(left) - 1;
                    left &= left - 1;
                }
                load(x, turn);
#pragma unroll
                for (uint32_t i = 0; i < AHEAD; ++i)
                    if (turn[i] != none) visit(turn[i], x[i]);
            }
        }
    }
};

// The largest logit of a tile in terms of `order_of`, in all lanes; above that of infinity if one is NaN.
__device__ __forceinline__ uint32_t largest_of(float4 x) {
    return __reduce_max_sync(ALL_LANES, order_of(max_nan(max_nan(x.x, x.y), max_nan(x.z, x.w))));
}

}  // namespace ottava
