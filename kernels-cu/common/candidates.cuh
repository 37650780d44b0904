// The elements of a row of logits that can still be sampled, and sums of their weights by bins. Shared by the
// searches for cuts (cut.cuh) and the draw (sample.cu).
#pragma once

#include "logits.cuh"

namespace ottava {

constexpr uint32_t SAMPLE_THREADS = SAMPLE_WARPS * WARP;
constexpr uint32_t BIN_BITS = 11, BINS = 1u << BIN_BITS;
constexpr uint32_t THREAD_BINS = BINS / SAMPLE_THREADS;
// A draw has one bin per tile. Sums of the two parts of weights over this number of columns fit in 32 bits.
constexpr uint32_t SAMPLE_COLS_MAX = BINS * TILE_COLS;
constexpr uint32_t TURNS_MAX = SAMPLE_COLS_MAX / TURN_COLS;
static_assert(SAMPLE_COLS_MAX == 1u << 18, "the host's DRAW_COLS_MAX");
constexpr float WEIGHT_ONE = 134217728.0f;  // 2^27
constexpr uint32_t PART_BITS = 14;
// From the next distance on, exp(-distance / 64) * WEIGHT_ONE is below one half and rounds to zero.
constexpr uint32_t DISTANCE_MAX = 1243;
// Tiles that a warp loads at a time in the first pass.
constexpr uint32_t BEST_AHEAD = 8;
// Capacity of the candidate list, and maximum number of elements that a search compares pairwise.
constexpr uint32_t LISTED_MAX = 2048;
constexpr uint32_t COMPARED_MAX = SAMPLE_THREADS;

// An element for pairwise comparison: its rank, and its contribution to the sum.
struct __align__(16) Ranked {
    uint64_t rank;
    uint32_t value;
};

struct SampleShared {
    // By warp and turn, the largest logit of a tile: first its order, then its distance.
    uint32_t nearest[SAMPLE_WARPS][TURNS_MAX + BEST_AHEAD];
    union {
        struct {
            uint32_t low[BINS], high[BINS];  // sums of the values' low and high parts
        };
        Ranked compared[COMPARED_MAX];
    };
    uint64_t listed[LISTED_MAX];  // ranks, unordered
    uint64_t warp_value[SAMPLE_WARPS];
    uint64_t found_before;
    uint64_t found_cut;
    uint32_t any[2], all[2];  // bits set in any of the compared ranks, and bits set in all
    uint32_t found_bin;
    uint32_t arrived;
    uint32_t listed_count, compared_count;

    __device__ __forceinline__ uint32_t* own_nearest() { return nearest[threadIdx.x / WARP]; }
};

// Inclusive sum over the lanes.
__device__ __forceinline__ uint64_t warp_scan(uint64_t x) {
#pragma unroll
    for (uint32_t distance = 1; distance < WARP; distance *= 2) {
        const uint64_t other = __shfl_up_sync(ALL_LANES, x, distance);
        if (threadIdx.x % WARP >= distance) x += other;
    }
    return x;
}

// Exclusive sum over the threads; `whole` is the sum over all.
__device__ __forceinline__ uint64_t block_scan(uint64_t x, uint64_t* scratch, uint64_t& whole) {
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const uint64_t sum = warp_scan(x);
    __syncthreads();
    if (lane == WARP - 1) scratch[warp] = sum;
    __syncthreads();
    uint64_t before = 0;
    whole = 0;
#pragma unroll
    for (uint32_t other = 0; other < SAMPLE_WARPS; ++other) {
        if (other < warp) before += scratch[other];
        whole += scratch[other];
    }
    return before + sum - x;
}

// The logits, with the largest one and the temperature.
struct Row {
    Logits logits;
    float largest;
    float inverse_temperature;

    __device__ __forceinline__ float exponent(float x) const { return (x - largest) * inverse_temperature; }
    __device__ __forceinline__ float relative(float x) const { return expf(exponent(x)); }
    __device__ __forceinline__ uint32_t weight(float x) const { return __float2uint_rn(relative(x) * WEIGHT_ONE); }
    __device__ __forceinline__ uint32_t distance(float x) const {
        return min(__float2uint_rd(exponent(x) * -64.0f), BINS - 1);
    }
    // Whether the distance is at most `reach`, which must be less than the largest distance.
    __device__ __forceinline__ bool within(float x, uint32_t reach) const {
        return exponent(x) * -64.0f < static_cast<float>(reach + 1);
    }
};

// The elements that can still be chosen: those within a distance, in a list or in the tiles of the row.
struct Candidates {
    const Row& row;
    SampleShared& shared;
    uint32_t reach;
    bool listed;
    uint32_t count;  // of the list
    // Index of this block among the blocks that share the row, and their number, until their bins are added
    // up.
    uint32_t part, parts;

    // Calls `visit(x, col)` for each candidate.
    template <uint32_t AHEAD, typename Visit>
    __device__ __forceinline__ void for_each(Visit visit) const {
        if (listed) {
            for (uint32_t i = threadIdx.x; i < count; i += SAMPLE_THREADS) {
                const Cut element = Cut::at(shared.listed[i]);
                visit(element.x, element.col);
            }
            return;
        }
        for_turns<AHEAD>([&](uint32_t turn, float4 x) {
            const uint32_t col = row.logits.col_of(turn);
            if (row.within(x.x, reach)) visit(x.x, col);
            if (row.within(x.y, reach)) visit(x.y, col + 1);
            if (row.within(x.z, reach)) visit(x.z, col + 2);
            if (row.within(x.w, reach)) visit(x.w, col + 3);
        });
    }

    // Calls `visit(turn, logits)` for the turns that have candidates.
    template <uint32_t AHEAD, typename Visit>
    __device__ __forceinline__ void for_turns(Visit visit) const {
        const uint32_t* const nearest = shared.own_nearest();
        row.logits.for_each<AHEAD>([&](uint32_t turn) { return turn % parts == part && nearest[turn] <= reach; },
                                    visit);
    }
};

__device__ __forceinline__ void clear_bins(SampleShared& shared) {
    __syncthreads();
    for (uint32_t bin = threadIdx.x; bin < BINS; bin += SAMPLE_THREADS) shared.low[bin] = shared.high[bin] = 0;
    __syncthreads();
}

__device__ __forceinline__ void add_to_bin(SampleShared& shared, uint32_t bin, uint32_t value) {
    atomicAdd(&shared.low[bin], value & ((1u << PART_BITS) - 1));
    if (value >> PART_BITS) atomicAdd(&shared.high[bin], value >> PART_BITS);
}

// The common bins of the blocks that share a row; zero before and after.
struct SharedBins {
    uint32_t low[BINS], high[BINS];
    uint32_t arrived;
    uint32_t unused[3];
};
static_assert(sizeof(SharedBins) == 4 * (2 * 2048 + 4), "the host's BINS_BYTES");

// Adds up the bins of the blocks that share the row. Only the last block to arrive continues: it has the sums
// and handles the rest of the row alone.
__device__ __forceinline__ bool goes_on(Candidates& from, SharedBins* bins) {
    if (from.parts == 1) return true;
    SampleShared& shared = from.shared;
    __syncthreads();
    for (uint32_t bin = threadIdx.x; bin < BINS; bin += SAMPLE_THREADS) {
        if (shared.low[bin]) atomicAdd(&bins->low[bin], shared.low[bin]);
        if (shared.high[bin]) atomicAdd(&bins->high[bin], shared.high[bin]);
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) shared.arrived = atomicAdd(&bins->arrived, 1);
    __syncthreads();
    if (shared.arrived + 1 != from.parts) return false;
    __threadfence();
    for (uint32_t bin = threadIdx.x; bin < BINS; bin += SAMPLE_THREADS) {
        shared.low[bin] = __ldcg(&bins->low[bin]);
        shared.high[bin] = __ldcg(&bins->high[bin]);
        bins->low[bin] = bins->high[bin] = 0;
    }
    if (threadIdx.x == 0) bins->arrived = 0;
    from.part = 0;
    from.parts = 1;
    return true;
}

// The first bin in which the running sum over the bins reaches `goal_of(whole)`, or the last non-empty bin if
// none does. `before` is the sum before that bin, `whole` the sum over all bins.
template <typename GoalOf>
__device__ __forceinline__ uint32_t find_bin(SampleShared& shared, GoalOf goal_of, uint64_t& before,
                                             uint64_t& whole) {
    const uint32_t first = THREAD_BINS * threadIdx.x;
    __syncthreads();
    uint64_t values[THREAD_BINS], own = 0;
#pragma unroll
    for (uint32_t i = 0; i < THREAD_BINS; ++i) {
        values[i] = (static_cast<uint64_t>(shared.high[first + i]) << PART_BITS) + shared.low[first + i];
        own += values[i];
    }
    uint64_t sum = block_scan(own, shared.warp_value, whole);
    const uint64_t goal = min(static_cast<uint64_t>(goal_of(whole)), whole);
#pragma unroll
    for (uint32_t i = 0; i < THREAD_BINS; ++i) {
        if (sum < goal && goal <= sum + values[i]) {
            shared.found_bin = first + i;
            shared.found_before = sum;
        }
        sum += values[i];
    }
    __syncthreads();
    before = shared.found_before;
    return shared.found_bin;
}

}  // namespace ottava
