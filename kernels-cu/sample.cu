// The token of each row of logits: adjustments, temperature, top-k, top-p, min-p and a draw, exactly as
// specified by `ir::RowSampling`, without sorting.
//
// The weight of a logit x is exp((x - largest) / temperature), rounded to multiples of 2^-27, so sums of
// weights are the same in any order. Its distance is (largest - x) / temperature in steps of 1/64. Beyond
// DISTANCE_MAX the weight is zero: such an element cannot be drawn and adds nothing to a sum.
//
// The first pass over a row finds the largest logit of every tile of 128 columns, unless the head has stored
// the maxima of its strips (order.cuh). Later passes skip the tiles whose largest logit is too far from the
// row's largest. As soon as the candidates fit a list in shared memory, all later steps use that list. A row
// is read
//   greedy          once, and one tile again for the column;
//   top-k           once, and the tiles near the largest: if k tiles have their largest logit within some
//                   distance, the first k elements are within it;
//   top-p           twice, for the sum of all weights, and the tiles within the distance of the cut;
//   temperature     twice, and one tile for the token; min-p skips the tiles of too unlikely elements.
// If the candidates do not fit the list, each further step reads the relevant tiles once more.
//
// A draw walks the kept weights in the order of columns: by their sums in tiles, then within a tile.
// Launch: one block per row, or [rows, parts] blocks if the head has stored maxima of strips: the blocks of a
// row then share the pass over all weights, and the last one to end it continues alone. 512 threads, no
// dynamic shared memory.

#include "common/cut.cuh"
#include "common/kv.cuh"
#include "common/sampled.cuh"

namespace ottava {

// Mirrors `ir::RowSampling`. Mirrored by `backend::cuda::params::RowSampling`.
struct RowSampling {
    float temperature;
    uint32_t top_k;
    float top_p;
    float min_p;
    uint64_t draw;
    uint32_t adjustments;  // index of the first, in `Adjustment`s from the start of the step's tables
    uint32_t adjustment_count;
};
static_assert(sizeof(RowSampling) == 32, "the host's struct has no other padding");

// Mirrors `ir::LogitAdjustment`.
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
    uint32_t noted_strips;    // strips per row of `largest`: eight per tile, for all tiles of the turns
    const uint32_t* largest;  // [rows, noted_strips]: maxima stored by the head (order.cuh), or null
    SharedBins* bins;         // [rows], if several blocks share a row
};
static_assert(sizeof(SampleParams) == 80, "the host's struct has no other padding");

// The constraints of a draw.
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

// The column at which the sum of the kept weights passes the draw; one lane of the block calls `found`.
template <typename Found>
__device__ __forceinline__ void draw_column(Candidates& from, const Draw& draw, SharedBins* bins, uint64_t fraction, Found found) {
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
    if (!goes_on(from, bins)) return;
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

// The largest of the warps' best values: an order, and the complement of a tile.
__device__ __forceinline__ uint64_t best_of_warps(uint64_t best, SampleShared& shared) {
    if (threadIdx.x % WARP == 0) shared.warp_value[threadIdx.x / WARP] = best;
    __syncthreads();
#pragma unroll
    for (uint32_t warp = 0; warp < SAMPLE_WARPS; ++warp) best = max(best, shared.warp_value[warp]);
    return best;
}

__device__ __forceinline__ uint64_t best_at(uint32_t order, uint32_t turn) {
    return static_cast<uint64_t>(order) << 32 | ~(turn * SAMPLE_WARPS + threadIdx.x / WARP);
}

// Stores each tile's largest logit. Returns the largest of all and the first tile that has it, as one number:
// order, then complement of the tile.
__device__ __forceinline__ uint64_t best_of(const Logits& logits, SampleShared& shared) {
    // The table is for draws; their rows fit it.
    const bool notes = threadIdx.x % WARP == 0 && logits.turns() <= TURNS_MAX;
    uint32_t* const nearest = shared.own_nearest();
    uint32_t best = 0, best_turn = 0;
    logits.for_all<BEST_AHEAD>([&](uint32_t turn, float4 x) {
        const uint32_t largest = largest_of(x);
        if (notes) nearest[turn] = largest;
        if (largest > best) best_turn = turn;
        best = max(best, largest);
    });
    return best_of_warps(best_at(best, best_turn), shared);
}

// best_of from the strips' maxima that the head has stored; tiles with adjusted logits are read again.
__device__ __forceinline__ uint64_t best_of_strips(const Logits& logits, SampleShared& shared, const uint32_t* strips,
                                                   const Adjustment* adjustments, uint32_t count) {
    constexpr uint32_t TILE_STRIPS = 8;
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    uint32_t* const nearest = shared.own_nearest();
    for (uint32_t turn = lane; turn < logits.turns(); turn += WARP) {
        const auto* own = reinterpret_cast<const uint4*>(strips + TILE_STRIPS * (turn * SAMPLE_WARPS + warp));
        const uint4 a = own[0], b = own[1];
        const uint32_t largest = max(max(max(a.x, a.y), max(a.z, a.w)), max(max(b.x, b.y), max(b.z, b.w)));
        // Strips after the last one are zero.
        nearest[turn] = max(largest, order_of(-INFINITY));
    }
    __syncwarp();
    for (uint32_t first = 0; first < count; first += WARP) {
        const uint32_t token = first + lane < count ? adjustments[first + lane].token : 0;
        uint32_t left = __ballot_sync(ALL_LANES, first + lane < count && token / TILE_COLS % SAMPLE_WARPS == warp);
        for (; left != 0; left &= left - 1) {
            const uint32_t turn = __shfl_sync(ALL_LANES, token, __ffs(left) - 1) / TURN_COLS;
            const uint32_t largest = largest_of(logits.load(turn));
            if (lane == 0) nearest[turn] = largest;
        }
    }
    __syncwarp();
    uint64_t best = 0;
    for (uint32_t turn = lane; turn < logits.turns(); turn += WARP) best = max(best, best_at(nearest[turn], turn));
#pragma unroll
    for (int distance = WARP / 2; distance > 0; distance /= 2)
        best = max(best, __shfl_xor_sync(ALL_LANES, best, distance));
    return best_of_warps(best, shared);
}

}  // namespace ottava

extern "C" __global__ void __launch_bounds__(512, 1) sample(const __grid_constant__ ottava::SampleParams p) {
    using namespace ottava;
    __shared__ SampleShared shared;
    wait_for_predecessor();
    float* const src = p.src + static_cast<size_t>(blockIdx.x) * p.cols;
    // Rows after the step's outputs are greedy, and not an input of the next step.
    const bool output = blockIdx.x < p.counts[2];
    const RowSampling own = output ? p.sampling[blockIdx.x] : RowSampling{};
    const auto put = [&](uint32_t token) {
        p.dst[blockIdx.x] = token == NO_TOKEN ? -1.0f : static_cast<float>(token);
        if (output) p.sampled.ids[parity_of(p.counts) * p.sampled.outputs_max + blockIdx.x] = token;
    };
    const bool draws = own.temperature > 0.0f && own.top_k != 1;
    // Blocks share a row if its largest logit is known, and all its weights are needed.
    const bool needs_all = own.top_k == 0 && (own.top_p < 1.0f || own.min_p == 0.0f);
    const bool shares = draws && needs_all && own.adjustment_count == 0 && p.largest;
    if (!shares && blockIdx.y > 0) return;
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
    const uint32_t* strips = p.largest + static_cast<size_t>(blockIdx.x) * p.noted_strips;
    // Each adjusted logit costs the latency of a load.
    const uint64_t best = p.largest && own.adjustment_count <= 64
        ? best_of_strips(logits, shared, strips, p.tables + own.adjustments, own.adjustment_count)
        : best_of(logits, shared);
    const float largest = value_of(static_cast<uint32_t>(best >> 32));
    // Neither NaN nor infinity, and something above minus infinity.
    if (!(largest > -INFINITY && largest < INFINITY)) {
        if (threadIdx.x == 0 && blockIdx.y == 0) put(NO_TOKEN);
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
    Candidates from{row, shared, DISTANCE_MAX, false, 0, blockIdx.y, shares ? gridDim.y : 1};
    SharedBins* const bins = p.bins + blockIdx.x;
    Cut cut = Cut::none();
    if (own.top_k != 0) from.reach = reach_of_top(row, shared, own.top_k);
#pragma unroll 1
    for (int round = 0; round < 2; ++round) {
        const bool weighs = round == 1;
        if (weighs ? own.top_p >= 1.0f : own.top_k == 0) continue;
        cut = find_cut(from, Search{weighs, cut, false, 0, 0, 0}, bins, [&](uint64_t whole) -> uint64_t {
            if (!weighs) return own.top_k;
            const auto goal = static_cast<double>(own.top_p) * static_cast<double>(whole);
            return max(static_cast<uint64_t>(goal), static_cast<uint64_t>(1));
        });
    }
    // Another block continues.
    if (from.parts > 1 && own.top_p < 1.0f) return;
    if (own.min_p > 0.0f) {
        // A margin of one for rounding, and one for the fraction of a step.
        const uint32_t likely = __float2uint_ru(-64.0f * logf(own.min_p)) + 2;
        from.reach = min(from.reach, likely);
    }
    draw_column(from, Draw{cut, own.min_p}, bins, own.draw, put);
}
