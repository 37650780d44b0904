// The token of each row of logits: adjustments, temperature, top-k, top-p, min-p and a draw, exactly as
// `backend::RowSampling` says, without sorting.
//
// A row's weights are exp((x - max) / temperature) in whole parts of 2^-27, so that sums of them are
// the same in any order. Top-k and top-p keep the first of the order "largest logit first, lower ids
// first among equal ones": a `Cut` says where that ends. It is found by histograms, the first over the
// distance from the largest logit (its bins are filled evenly, so atomics seldom meet), then three
// over the bits of the logit itself within one bin. A draw walks the kept weights in the order of ids:
// warps take a stretch of columns each, one of them finds the token in its stretch.
//
// Reads a greedy row once and any other twice, top-k 4 times more, top-p 5 times; a row with a cut once more.
// Launch: a block a row, 512 threads, no dynamic shared memory.

#include "common/kv.cuh"
#include "common/sampled.cuh"

namespace ottava {

constexpr uint32_t BLOCK_WARPS = 16;
constexpr uint32_t BINS = 2048;
constexpr uint32_t THREAD_BINS = BINS / (BLOCK_WARPS * WARP);
// Sums of the two parts of weights over so many columns fit 32 bits.
constexpr uint32_t SAMPLE_COLS_MAX = 1u << 18;
constexpr float WEIGHT_ONE = 134217728.0f;  // 2^27: its upper part is 2^13, so all sums of parts fit
constexpr uint32_t PART_BITS = 14;

// backend::RowSampling. Mirrored by `backend::cuda::params::RowSampling`.
struct RowSampling {
    float temperature;
    uint32_t top_k;
    float top_p;
    float min_p;
    uint64_t draw;
    uint32_t adjustments;  // the first, in `Adjustment`s from the start of the step's tables
    uint32_t adjustment_count;
};
static_assert(sizeof(RowSampling) == 32, "the host's struct has no other padding");

// backend::LogitAdjustment, as it is.
struct Adjustment {
    uint32_t token;
    float bias, repetition, penalty;
};

// Mirrored by `backend::cuda::params::Sample`.
struct SampleParams {
    float* dst;                   // [rows, 1]
    float* src;                   // [rows, cols]
    const RowSampling* sampling;  // [outputs]
    const Adjustment* tables;     // the start of the step's tables
    const uint32_t* counts;
    Sampled sampled;
    uint32_t cols;
    uint32_t unused;
};
static_assert(sizeof(SampleParams) == 64, "the host's struct has no other padding");

// Larger for larger numbers; the zeros are equal, and nothing is below 1 but minus infinity's like.
__device__ __forceinline__ uint32_t order_of(float x) {
    const uint32_t bits = __float_as_uint(x + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// The first elements of the order: all above `key`, and of those at `key` the first `equal`.
struct Cut {
    uint32_t key;
    uint32_t equal;
};

struct Row {
    const float* logits;  // [cols]
    uint32_t cols;
    float largest;
    float inverse_temperature;

    __device__ __forceinline__ float relative(float x) const { return expf((x - largest) * inverse_temperature); }
    __device__ __forceinline__ uint32_t weight(float x) const { return __float2uint_rn(relative(x) * WEIGHT_ONE); }
    // Bins of falling logits: 64 a factor of e, the last takes the rest.
    __device__ __forceinline__ uint32_t distance(float x) const {
        return min(__float2uint_rd((largest - x) * inverse_temperature * 64.0f), BINS - 1);
    }
};

struct SampleShared {
    uint32_t count[BINS], low[BINS], high[BINS];
    uint64_t warp_value[BLOCK_WARPS];
    uint32_t warp_count[BLOCK_WARPS];
    uint64_t found_before;
    uint32_t found_bin;
};

__device__ __forceinline__ uint64_t warp_sum(uint64_t x) {
#pragma unroll
    for (int distance = WARP / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(ALL_LANES, x, distance);
    return x;
}

// Sums over the lanes up to this one.
__device__ __forceinline__ uint64_t warp_scan(uint64_t x) {
#pragma unroll
    for (uint32_t distance = 1; distance < WARP; distance *= 2) {
        const uint64_t other = __shfl_up_sync(ALL_LANES, x, distance);
        if (threadIdx.x % WARP >= distance) x += other;
    }
    return x;
}

// Sums over the threads before this one, and over all.
__device__ __forceinline__ uint64_t block_scan(uint64_t x, uint64_t* scratch, uint64_t& whole) {
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const uint64_t sum = warp_scan(x);
    __syncthreads();
    if (lane == WARP - 1) scratch[warp] = sum;
    __syncthreads();
    uint64_t before = 0;
    whole = 0;
    for (uint32_t other = 0; other < BLOCK_WARPS; ++other) {
        if (other < warp) before += scratch[other];
        whole += scratch[other];
    }
    return before + sum - x;
}

// What a level of the search counts into bin `bin_of(x)`: the elements that it `takes`, or their weights.
template <bool WEIGHTS, typename Takes, typename BinOf>
__device__ __forceinline__ void fill_bins(const Row& row, SampleShared& shared, Takes takes, BinOf bin_of) {
    __syncthreads();
    for (uint32_t bin = threadIdx.x; bin < BINS; bin += blockDim.x)
        shared.count[bin] = shared.low[bin] = shared.high[bin] = 0;
    __syncthreads();
#pragma unroll 4
    for (uint32_t col = threadIdx.x; col < row.cols; col += blockDim.x) {
        const float x = row.logits[col];
        if (!takes(x)) continue;
        const uint32_t bin = bin_of(x);
        if (WEIGHTS) {
            const uint32_t weight = row.weight(x);
            atomicAdd(&shared.low[bin], weight & ((1u << PART_BITS) - 1));
            atomicAdd(&shared.high[bin], weight >> PART_BITS);
        } else {
            atomicAdd(&shared.count[bin], 1);
        }
    }
    __syncthreads();
}

// Of bins in their order, the one in which the sum of all reaches `goal`, and the sum before it; the
// last that holds anything where it never does.
template <bool WEIGHTS>
__device__ __forceinline__ uint32_t find_bin(SampleShared& shared, uint64_t goal, uint64_t& before) {
    const auto value = [&](uint32_t bin) -> uint64_t {
        if (!WEIGHTS) return shared.count[bin];
        return (static_cast<uint64_t>(shared.high[bin]) << PART_BITS) + shared.low[bin];
    };
    const uint32_t first = THREAD_BINS * threadIdx.x;
    uint64_t own = 0, whole;
    for (uint32_t i = 0; i < THREAD_BINS; ++i) own += value(first + i);
    uint64_t sum = block_scan(own, shared.warp_value, whole);
    const uint64_t reached = min(goal, whole);
    for (uint32_t i = 0; i < THREAD_BINS; ++i) {
        const uint64_t next = sum + value(first + i);
        if (sum < reached && next >= reached) {
            shared.found_bin = first + i;
            shared.found_before = sum;
        }
        sum = next;
    }
    __syncthreads();
    before = shared.found_before;
    return shared.found_bin;
}

// Where the elements, largest first, reach `goal` (above 0) by number or by weight.
template <bool WEIGHTS>
__device__ __forceinline__ Cut find_cut(const Row& row, SampleShared& shared, uint64_t goal) {
    uint64_t before, left = goal;
    const auto any = [&](float x) { return x > -INFINITY; };
    fill_bins<WEIGHTS>(row, shared, any, [&](float x) { return row.distance(x); });
    const uint32_t distance = find_bin<WEIGHTS>(shared, left, before);
    left -= min(before, left);
    // The bits of the key that are known, from the top.
    uint32_t key = 0, known = 0;
    for (uint32_t level = 0; level < 3; ++level) {
        const uint32_t bits = level < 2 ? 11 : 10;
        known += bits;
        const uint32_t shift = 32 - known, last = (1u << bits) - 1;
        const auto takes = [&](float x) {
            const uint32_t order = order_of(x);
            return x > -INFINITY && row.distance(x) == distance &&
                   (level == 0 || order >> (shift + bits) == key >> (shift + bits));
        };
        fill_bins<WEIGHTS>(row, shared, takes, [&](float x) { return last - (order_of(x) >> shift & last); });
        key |= (last - find_bin<WEIGHTS>(shared, left, before)) << shift;
        left -= min(before, left);
    }
    if (!WEIGHTS) return {key, static_cast<uint32_t>(left)};
    const float x = __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
    const uint32_t weight = max(row.weight(x), 1u);
    return {key, static_cast<uint32_t>((left + weight - 1) / weight)};
}

// A warp's walk over a stretch of columns in the order of ids: what of each is kept.
struct Walk {
    const Row& row;
    Cut cut;
    float min_p;
    uint32_t equal_before;

    // Of this lane's column; all lanes call it.
    __device__ __forceinline__ uint32_t kept_weight(uint32_t col, uint32_t end) {
        const float x = col < end ? row.logits[col] : -INFINITY;
        const uint32_t order = order_of(x);
        const uint32_t equals = __ballot_sync(ALL_LANES, x > -INFINITY && order == cut.key);
        const uint32_t lower = (1u << threadIdx.x % WARP) - 1;
        const bool first = order == cut.key && equal_before + __popc(equals & lower) < cut.equal;
        equal_before += __popc(equals);
        const bool kept = x > -INFINITY && (order > cut.key || first) && row.relative(x) >= min_p;
        return kept ? row.weight(x) : 0;
    }
};

// How many elements of this warp's stretch are at the cut.
__device__ __forceinline__ uint32_t equals_in(const Row& row, uint32_t key, uint32_t start, uint32_t end) {
    uint32_t equals = 0;
    for (uint32_t col = start + threadIdx.x % WARP; col < end; col += WARP)
        equals += row.logits[col] > -INFINITY && order_of(row.logits[col]) == key;
    return __reduce_add_sync(ALL_LANES, equals);
}

// A warp's stretch of columns, with the sums of the kept weights in it, before it and of all.
struct Stretch {
    uint32_t start, end;
    uint32_t equal_before;
    uint64_t own, before, whole;
};

__device__ __forceinline__ Stretch measure(const Row& row, SampleShared& shared, Cut cut, float min_p) {
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const uint32_t cols = (row.cols + BLOCK_WARPS - 1) / BLOCK_WARPS;
    Stretch stretch{min(warp * cols, row.cols), min((warp + 1) * cols, row.cols), 0, 0, 0, 0};
    const uint32_t equals = cut.equal == UINT32_MAX ? 0 : equals_in(row, cut.key, stretch.start, stretch.end);
    __syncthreads();
    if (lane == 0) shared.warp_count[warp] = equals;
    __syncthreads();
    for (uint32_t other = 0; other < warp; ++other) stretch.equal_before += shared.warp_count[other];
    Walk walk{row, cut, min_p, stretch.equal_before};
#pragma unroll 4
    for (uint32_t col = stretch.start; col < stretch.end; col += WARP)
        stretch.own += walk.kept_weight(col + lane, stretch.end);
    stretch.own = warp_sum(stretch.own);
    const uint64_t before = block_scan(lane == 0 ? stretch.own : 0, shared.warp_value, stretch.whole);
    stretch.before = __shfl_sync(ALL_LANES, before, 0);
    return stretch;
}

// The token at which the sum of the kept weights passes the draw: one lane of the block calls `found`.
template <typename Found>
__device__ __forceinline__ void draw(const Row& row, const Stretch& stretch, Cut cut, float min_p,
                                     uint64_t fraction, Found found) {
    const uint64_t target = __umul64hi(fraction, stretch.whole);
    if (target < stretch.before || target >= stretch.before + stretch.own) return;
    const uint32_t lane = threadIdx.x % WARP;
    Walk walk{row, cut, min_p, stretch.equal_before};
    uint64_t before = stretch.before;
#pragma unroll 1
    for (uint32_t col = stretch.start; col < stretch.end; col += WARP) {
        const uint64_t sum = before + warp_scan(walk.kept_weight(col + lane, stretch.end));
        const uint32_t passed = __ballot_sync(ALL_LANES, sum > target);
        if (passed) {
            if (lane == 0) found(col + __ffs(passed) - 1);
            return;
        }
        before = __shfl_sync(ALL_LANES, sum, WARP - 1);
    }
}

// The largest element's order and column, the lowest column among equals, as one number; 0 without any
// above minus infinity. `usable`: whether there is neither NaN nor infinity.
__device__ __forceinline__ uint64_t best_of(const float* logits, uint32_t cols, SampleShared& shared, bool& usable) {
    uint64_t best = 0;
    usable = true;
#pragma unroll 4
    for (uint32_t col = threadIdx.x; col < cols; col += blockDim.x) {
        const float x = logits[col];
        usable = usable && x < INFINITY;
        const uint64_t rank = static_cast<uint64_t>(order_of(x)) << 32 | ~col;
        if (x > -INFINITY && rank > best) best = rank;
    }
    usable = __syncthreads_and(usable);
#pragma unroll
    for (int distance = WARP / 2; distance > 0; distance /= 2)
        best = max(best, __shfl_xor_sync(ALL_LANES, best, distance));
    if (threadIdx.x % WARP == 0) shared.warp_value[threadIdx.x / WARP] = best;
    __syncthreads();
    for (uint32_t warp = 0; warp < BLOCK_WARPS; ++warp) best = max(best, shared.warp_value[warp]);
    return best;
}

}  // namespace ottava

extern "C" __global__ void __launch_bounds__(512, 1) sample(const __grid_constant__ ottava::SampleParams p) {
    using namespace ottava;
    __shared__ SampleShared shared;
    wait_for_predecessor();
    float* logits = p.src + static_cast<size_t>(blockIdx.x) * p.cols;
    // Rows beyond the step's outputs are greedy, and nobody is fed with them.
    const bool output = blockIdx.x < p.counts[2];
    const RowSampling own = output ? p.sampling[blockIdx.x] : RowSampling{};
    const auto put = [&](uint32_t token) {
        p.dst[blockIdx.x] = token == NO_TOKEN ? -1.0f : static_cast<float>(token);
        if (output) p.sampled.ids[parity_of(p.counts) * p.sampled.outputs_max + blockIdx.x] = token;
    };
    const bool draws = own.temperature > 0.0f && own.top_k != 1;
    if (draws && p.cols > SAMPLE_COLS_MAX) {
        if (threadIdx.x == 0) put(NO_TOKEN);
        return;
    }
    for (uint32_t i = threadIdx.x; i < own.adjustment_count; i += blockDim.x) {
        const Adjustment adjustment = p.tables[own.adjustments + i];
        float x = logits[adjustment.token] + adjustment.bias;
        x = x > 0.0f ? x / adjustment.repetition : x * adjustment.repetition;
        logits[adjustment.token] = x - adjustment.penalty;
    }
    __syncthreads();
    bool usable;
    const uint64_t best = best_of(logits, p.cols, shared, usable);
    const uint32_t best_column = ~static_cast<uint32_t>(best);
    if (!usable || best == 0 || !draws) {
        if (threadIdx.x == 0) put(usable && best != 0 ? best_column : NO_TOKEN);
        return;
    }
    const Row row{logits, p.cols, logits[best_column], fminf(1.0f / own.temperature, 1e30f)};
    Cut cut{0, UINT32_MAX};
    if (own.top_k != 0 && own.top_k < p.cols) cut = find_cut<false>(row, shared, own.top_k);
    if (own.top_p < 1.0f) {
        const uint64_t whole = measure(row, shared, cut, 0.0f).whole;
        const uint64_t goal = static_cast<uint64_t>(static_cast<double>(own.top_p) * static_cast<double>(whole));
        cut = find_cut<true>(row, shared, max(goal, static_cast<uint64_t>(1)));
    }
    draw(row, measure(row, shared, cut, own.min_p), cut, own.min_p, own.draw, put);
}
