// The token of each row of logits: adjustments, temperature, top-k, top-p, min-p and a draw, exactly as
// `backend::RowSampling` says, without sorting.
//
// A row's weights are exp((x - max) / temperature) in whole parts of 2^-27, so that sums of them are
// the same in any order. Top-k and top-p keep the first elements of the order of falling ranks
// (logits.cuh): a cut is the rank of the last that is kept. An element's distance says how far it lies
// below the largest, in steps of 1/64 of the temperature: beyond DISTANCE_MAX its weight is zero, and it
// can neither be drawn nor change a sum.
//
// The first pass over the row finds the largest logit of every tile. Later ones skip the tiles whose largest
// lies beyond the distance that still matters, and as soon as the candidates are few they are copied to
// shared memory, where all the rest happens:
//   greedy          reads the row once, and one tile again for the column;
//   top-k           k tiles have a largest logit within some distance, so the first k elements do, too: only
//                   the tiles within it are read again;
//   top-p           needs the sum of all weights: the row is read twice, and then the tiles within the
//                   distance at which the sum is reached;
//   temperature     reads the row twice, min-p alone the tiles of what is likely enough; both one tile more.
// Where the candidates do not fit, each step of a search reads the tiles that matter once more.
//
// A cut is searched among bins of distances, then, while more than SORTED_MAX elements share the bin,
// among bins of the bits of their ranks; the rest is compared, each with each. A draw walks the kept weights
// in the order of columns: first by tiles, then within one.
// Launch: a block a row, 512 threads, no dynamic shared memory.

#include "common/kv.cuh"
#include "common/logits.cuh"
#include "common/sampled.cuh"

namespace ottava {

constexpr uint32_t SAMPLE_THREADS = SAMPLE_WARPS * WARP;
constexpr uint32_t BIN_BITS = 11, BINS = 1u << BIN_BITS;
constexpr uint32_t THREAD_BINS = BINS / SAMPLE_THREADS;
// A tile is a bin of a draw. And sums of the two parts of weights over so many columns fit 32 bits.
constexpr uint32_t SAMPLE_COLS_MAX = BINS * TILE_COLS;
constexpr uint32_t TURNS_MAX = SAMPLE_COLS_MAX / TURN_COLS;
static_assert(SAMPLE_COLS_MAX == 1u << 18, "the host's DRAW_COLS_MAX, and the bits of a rank's column");
constexpr float WEIGHT_ONE = 134217728.0f;  // 2^27: its upper part is 2^13, so all sums of parts fit
constexpr uint32_t PART_BITS = 14;
// exp(-distance / 64) times WEIGHT_ONE is below a half from distance 1243 on.
constexpr uint32_t DISTANCE_MAX = 1243;
// Tiles that a warp loads at a time in the first pass.
constexpr uint32_t BEST_AHEAD = 8;
constexpr uint32_t LISTED_MAX = 2048;
constexpr uint32_t SORTED_MAX = SAMPLE_THREADS;

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

// An element of a search's last part: its rank, and what it adds to the sum.
struct __align__(16) Ranked {
    uint64_t rank;
    uint32_t value;
};

struct SampleShared {
    // Of each warp's tiles the largest logit: its order, then its distance.
    uint32_t nearest[SAMPLE_WARPS][TURNS_MAX + BEST_AHEAD];
    union {
        struct {
            uint32_t low[BINS], high[BINS];  // sums of the values' two parts
        };
        Ranked sorted[SORTED_MAX];
    };
    uint64_t listed[LISTED_MAX];  // ranks, in no order
    uint64_t warp_value[SAMPLE_WARPS];
    uint64_t found_before;
    uint64_t found_cut;
    uint32_t any[2], all[2];  // bits that some ranks have, and that all have
    uint32_t found_bin;
    uint32_t listed_count, sorted_count;

    __device__ __forceinline__ uint32_t* own_nearest() { return nearest[threadIdx.x / WARP]; }
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
#pragma unroll
    for (uint32_t other = 0; other < SAMPLE_WARPS; ++other) {
        if (other < warp) before += scratch[other];
        whole += scratch[other];
    }
    return before + sum - x;
}

// The logits with what the draw needs of their largest and of the temperature.
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
    // Whether the distance is at most `reach`, which is less than the last.
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

    // Calls `visit(x, col)` for each.
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

    // Calls `visit(turn, logits)` for the turns that have any.
    template <uint32_t AHEAD, typename Visit>
    __device__ __forceinline__ void for_turns(Visit visit) const {
        const uint32_t* const nearest = shared.own_nearest();
        row.logits.for_each<AHEAD>([&](uint32_t turn) { return nearest[turn] <= reach; }, visit);
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

// Of bins in their order, the one in which the sum of all reaches `goal_of(whole)`, or the last that holds
// anything where it never does. `before` and `whole` are the sums before the bin and of all.
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

// How far the first `top_k` elements lie from the largest at most: so many tiles have one within it.
__device__ __forceinline__ uint32_t reach_of_top(const Row& row, SampleShared& shared, uint32_t top_k) {
    clear_bins(shared);
    for (uint32_t turn = threadIdx.x % WARP; turn < row.logits.turns(); turn += WARP) {
        const uint32_t distance = shared.own_nearest()[turn];
        if (distance <= DISTANCE_MAX) atomicAdd(&shared.low[distance], 1);
    }
    uint64_t before, whole;
    const uint32_t distance = find_bin(shared, [&](uint64_t) { return top_k; }, before, whole);
    return whole < top_k ? DISTANCE_MAX : distance;
}

// A search for the element at which the sum of values, largest rank first, reaches a goal. `weighs`: a value
// is the element's weight, else 1.
struct Search {
    bool weighs;
    Cut cut;  // of the search before
    // What is known of the element: its distance, if any, and the bits of its rank that the mask has.
    bool near;
    uint32_t distance;
    uint64_t key, mask;

    __device__ __forceinline__ uint32_t value(const Row& row, float x) const { return weighs ? row.weight(x) : 1; }
    __device__ __forceinline__ bool takes(const Row& row, float x, uint32_t col) const {
        return cut.keeps(x, col) && ((rank_of(x, col) ^ key) & mask) == 0 && (!near || row.distance(x) == distance);
    }
};

// Copies the elements that a search takes to be sorted, and lists the candidates, where either fit. Gives the
// number of elements and, where they do not fit, the bits that all ranks have and those in which they differ.
__device__ __forceinline__ uint32_t collect(Candidates& from, const Search& search, uint64_t& common,
                                            uint64_t& differing) {
    SampleShared& shared = from.shared;
    const auto both = [](const uint32_t (&x)[2]) { return static_cast<uint64_t>(x[1]) << 32 | x[0]; };
    __syncthreads();
    if (threadIdx.x == 0) shared.listed_count = shared.sorted_count = 0;
    if (threadIdx.x < 2) {
        shared.any[threadIdx.x] = 0;
        shared.all[threadIdx.x] = UINT32_MAX;
    }
    __syncthreads();
    uint64_t any = 0, all = ~0ull;
    from.for_each<2>([&](float x, uint32_t col) {
        const uint64_t rank = rank_of(x, col);
        if (!from.listed) {
            const uint32_t at = atomicAdd(&shared.listed_count, 1);
            if (at < LISTED_MAX) shared.listed[at] = rank;
        }
        if (!search.takes(from.row, x, col)) return;
        any |= rank;
        all &= rank;
        const uint32_t at = atomicAdd(&shared.sorted_count, 1);
        if (at < SORTED_MAX) shared.sorted[at] = {rank, search.value(from.row, x)};
    });
    __syncthreads();
    if (!from.listed) {
        from.count = shared.listed_count;
        from.listed = from.count <= LISTED_MAX;
    }
    const uint32_t count = shared.sorted_count;
    if (count <= SORTED_MAX) return count;
    atomicOr(&shared.any[0], static_cast<uint32_t>(any));
    atomicOr(&shared.any[1], static_cast<uint32_t>(any >> 32));
    atomicAnd(&shared.all[0], static_cast<uint32_t>(all));
    atomicAnd(&shared.all[1], static_cast<uint32_t>(all >> 32));
    __syncthreads();
    common = both(shared.all);
    differing = both(shared.any) & ~common;
    return count;
}

// Of so many collected elements, the one at which the sum of values reaches `goal_of(whole)`.
template <typename GoalOf>
__device__ __forceinline__ Cut cut_of_sorted(SampleShared& shared, uint32_t count, GoalOf goal_of) {
    if (threadIdx.x < count) {
        const uint64_t rank = shared.sorted[threadIdx.x].rank;
        uint64_t before = 0, whole = 0;
#pragma unroll 4
        for (uint32_t i = 0; i < count; ++i) {
            const Ranked other = shared.sorted[i];
            whole += other.value;
            if (other.rank > rank) before += other.value;
        }
        const uint64_t goal = min(static_cast<uint64_t>(goal_of(whole)), whole);
        if (before < goal && goal <= before + shared.sorted[threadIdx.x].value) shared.found_cut = rank;
    }
    __syncthreads();
    return Cut::at(shared.found_cut);
}

// The last element that a search keeps. Candidates beyond its distance are none any more.
template <typename GoalOf>
__device__ __forceinline__ Cut find_cut(Candidates& from, Search search, GoalOf goal_of) {
    SampleShared& shared = from.shared;
    const Row& row = from.row;
    uint64_t left = 0, before, whole;
    const auto goal_left = [&](uint64_t all) -> uint64_t { return search.near ? left : goal_of(all); };
    // How far the first `top_k` lie at most is known; how far the sum of weights reaches is not.
    bool narrow = from.listed || !search.weighs;
#pragma unroll 1
    while (true) {
        uint64_t common = 0, differing = 0;
        if (narrow) {
            const uint32_t count = collect(from, search, common, differing);
            if (count <= SORTED_MAX) return cut_of_sorted(shared, count, goal_left);
        }
        clear_bins(shared);
        if (!search.near) {
            from.for_each<4>([&](float x, uint32_t col) {
                if (search.cut.keeps(x, col)) add_to_bin(shared, row.distance(x), search.value(row, x));
            });
            search.distance = from.reach = find_bin(shared, goal_left, before, whole);
            left = min(goal_of(whole), whole) - before;
            search.near = narrow = true;
            continue;
        }
        // The first bits from which on ranks differ.
        const uint32_t top = 63 - __clzll(differing), shift = top < BIN_BITS ? 0 : top + 1 - BIN_BITS;
        from.for_each<1>([&](float x, uint32_t col) {
            if (!search.takes(row, x, col)) return;
            const uint32_t bits = static_cast<uint32_t>(rank_of(x, col) >> shift) & (BINS - 1);
            add_to_bin(shared, BINS - 1 - bits, search.value(row, x));
        });
        const uint64_t bin = BINS - 1 - find_bin(shared, goal_left, before, whole);
        left -= before;
        search.mask = ~0ull << shift;
        search.key = (common & ~((2ull << top) - 1)) | bin << shift;
    }
}

// What of an element a draw may take.
struct Draw {
    Cut cut;
    float min_p;

    __device__ __forceinline__ uint32_t weight(const Row& row, float x, uint32_t col) const {
        const float relative = row.relative(x);
        return cut.keeps(x, col) & (relative >= min_p) ? __float2uint_rn(relative * WEIGHT_ONE) : 0;
    }
    __device__ __forceinline__ uint4 weights(const Row& row, float4 x, uint32_t col) const {
        return {weight(row, x.x, col), weight(row, x.y, col + 1), weight(row, x.z, col + 2), weight(row, x.w, col + 3)};
    }
};

// The column at which the sum of the kept weights passes the draw: one lane of the block calls `found`.
template <typename Found>
__device__ __forceinline__ void draw_column(const Candidates& from, const Draw& draw, uint64_t fraction, Found found) {
    const Row& row = from.row;
    SampleShared& shared = from.shared;
    clear_bins(shared);
    if (from.listed) {
        from.for_each<1>([&](float x, uint32_t col) {
            add_to_bin(shared, col / TILE_COLS, draw.weight(row, x, col));
        });
    } else {
        from.for_turns<4>([&](uint32_t turn, float4 x) {
            const uint4 w = draw.weights(row, x, row.logits.col_of(turn));
            const uint32_t sum = w.x + w.y + w.z + w.w;
            const uint32_t low = __reduce_add_sync(ALL_LANES, sum & ((1u << PART_BITS) - 1));
            const uint32_t high = __reduce_add_sync(ALL_LANES, sum >> PART_BITS);
            if (threadIdx.x % WARP != 0) return;
            shared.low[turn * SAMPLE_WARPS + threadIdx.x / WARP] = low;
            shared.high[turn * SAMPLE_WARPS + threadIdx.x / WARP] = high;
        });
    }
    uint64_t before, whole;
    const auto passed = [&](uint64_t all) { return __umul64hi(fraction, all) + 1; };
    const uint32_t tile = find_bin(shared, passed, before, whole);
    if (threadIdx.x / WARP != tile % SAMPLE_WARPS) return;
    const uint64_t goal = passed(whole) - before;
    const uint32_t turn = tile / SAMPLE_WARPS, col = row.logits.col_of(turn);
    const uint4 w = draw.weights(row, row.logits.load(turn), col);
    const uint64_t end = warp_scan(w.x + w.y + w.z + w.w), x = end - w.w - w.z - w.y, y = x + w.y, z = y + w.z;
    if (x - w.x < goal && goal <= end) found(goal <= x ? col : goal <= y ? col + 1 : goal <= z ? col + 2 : col + 3);
}

// Notes each tile's largest logit, and gives the largest of all and the first tile that has it: order
// before complement, as one number.
__device__ __forceinline__ uint64_t best_of(const Logits& logits, SampleShared& shared) {
    // The table is for draws, whose rows fit it.
    const bool notes = threadIdx.x % WARP == 0 && logits.turns() <= TURNS_MAX;
    uint32_t* const nearest = shared.own_nearest();
    uint32_t best = 0, best_turn = 0;
    logits.for_all<BEST_AHEAD>([&](uint32_t turn, float4 x) {
        const uint32_t largest = largest_of(x);
        if (notes) nearest[turn] = largest;
        if (largest > best) best_turn = turn;
        best = max(best, largest);
    });
    const uint32_t best_tile = best_turn * SAMPLE_WARPS + threadIdx.x / WARP;
    uint64_t whole = static_cast<uint64_t>(best) << 32 | ~best_tile;
    if (threadIdx.x % WARP == 0) shared.warp_value[threadIdx.x / WARP] = whole;
    __syncthreads();
#pragma unroll
    for (uint32_t warp = 0; warp < SAMPLE_WARPS; ++warp) whole = max(whole, shared.warp_value[warp]);
    return whole;
}

}  // namespace ottava

extern "C" __global__ void __launch_bounds__(512, 1) sample(const __grid_constant__ ottava::SampleParams p) {
    using namespace ottava;
    __shared__ SampleShared shared;
    wait_for_predecessor();
    float* const src = p.src + static_cast<size_t>(blockIdx.x) * p.cols;
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
        float x = src[adjustment.token] + adjustment.bias;
        x = x > 0.0f ? x / adjustment.repetition : x * adjustment.repetition;
        src[adjustment.token] = x - adjustment.penalty;
    }
    __syncthreads();
    const Logits logits = Logits::of(src, p.cols);
    const uint64_t best = best_of(logits, shared);
    const float largest = value_of(static_cast<uint32_t>(best >> 32));
    // Neither NaN nor infinity, and something above minus infinity.
    if (!(largest > -INFINITY && largest < INFINITY)) {
        if (threadIdx.x == 0) put(NO_TOKEN);
        return;
    }
    if (!draws) {
        const uint32_t tile = ~static_cast<uint32_t>(best), turn = tile / SAMPLE_WARPS, col = logits.col_of(turn);
        if (threadIdx.x / WARP != tile % SAMPLE_WARPS) return;
        const float4 x = logits.load(turn);
        const uint32_t first = x.x == largest ? col : x.y == largest ? col + 1 : x.z == largest ? col + 2 : col + 3;
        const bool has = x.x == largest || x.y == largest || x.z == largest || x.w == largest;
        const uint32_t column = __reduce_min_sync(ALL_LANES, has ? first : NO_TOKEN);
        if (threadIdx.x % WARP == 0) put(column);
        return;
    }
    const Row row{logits, largest, fminf(1.0f / own.temperature, 1e30f)};
    uint32_t* const nearest = shared.own_nearest();
    for (uint32_t turn = threadIdx.x % WARP; turn < logits.turns(); turn += WARP)
        nearest[turn] = row.distance(value_of(nearest[turn]));
    Candidates from{row, shared, DISTANCE_MAX, false, 0};
    Cut cut = Cut::none();
    if (own.top_k != 0) from.reach = reach_of_top(row, shared, own.top_k);
#pragma unroll 1
    for (int round = 0; round < 2; ++round) {
        const bool weighs = round == 1;
        if (weighs ? own.top_p >= 1.0f : own.top_k == 0) continue;
        cut = find_cut(from, Search{weighs, cut, false, 0, 0, 0}, [&](uint64_t whole) -> uint64_t {
            if (!weighs) return own.top_k;
            const auto goal = static_cast<double>(own.top_p) * static_cast<double>(whole);
            return max(static_cast<uint64_t>(goal), static_cast<uint64_t>(1));
        });
    }
    if (own.min_p > 0.0f) {
        // A margin of one for rounding, and one for the part of a step.
        const uint32_t likely = __float2uint_ru(-64.0f * logf(own.min_p)) + 2;
        from.reach = min(from.reach, likely);
    }
    draw_column(from, Draw{cut, own.min_p}, own.draw, put);
}
