// Positions at which top-k and top-p cut off a row of logits: the element at which the sum of values, largest
// logits first, reaches a goal. A value is 1 for top-k, the weight for top-p. The search goes from bins of
// distances to bins of the bits in which ranks differ, until a bin has few enough elements to compare them
// pairwise.
#pragma once

#include "candidates.cuh"

namespace ottava {

// Upper bound on the distance of the first `top_k` elements from the largest: at least `top_k` tiles have an
// element within it.
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

// A search for the element at which the sum of values, largest rank first, reaches a goal. With `weighs` a
// value is the element's weight, otherwise 1.
struct Search {
    bool weighs;
    Cut cut;  // of the previous search
    // Known properties of the element: its distance, if `near`, and the bits of its rank in `mask`.
    bool near;
    uint32_t distance;
    uint64_t key, mask;

    __device__ __forceinline__ uint32_t value(const Row& row, float x) const { return weighs ? row.weight(x) : 1; }
    __device__ __forceinline__ bool takes(const Row& row, float x, uint32_t col) const {
        return cut.keeps(x, col) && ((rank_of(x, col) ^ key) & mask) == 0 && (!near || row.distance(x) == distance);
    }
};

// Copies the elements that a search takes for comparison, and lists the candidates, if either fit. Returns
// the number of elements. If they do not fit, also returns the bits common to all ranks and those in which
// they differ.
__device__ __forceinline__ uint32_t collect(Candidates& from, const Search& search, uint64_t& common,
                                            uint64_t& differing) {
    SampleShared& shared = from.shared;
    const auto both = [](const uint32_t (&x)[2]) { return static_cast<uint64_t>(x[1]) << 32 | x[0]; };
    __syncthreads();
    if (threadIdx.x == 0) shared.listed_count = shared.compared_count = 0;
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
        const uint32_t at = atomicAdd(&shared.compared_count, 1);
        if (at < COMPARED_MAX) shared.compared[at] = {rank, search.value(from.row, x)};
    });
    __syncthreads();
    if (!from.listed) {
        from.count = shared.listed_count;
        from.listed = from.count <= LISTED_MAX;
    }
    const uint32_t count = shared.compared_count;
    if (count <= COMPARED_MAX) return count;
    atomicOr(&shared.any[0], static_cast<uint32_t>(any));
    atomicOr(&shared.any[1], static_cast<uint32_t>(any >> 32));
    atomicAnd(&shared.all[0], static_cast<uint32_t>(all));
    atomicAnd(&shared.all[1], static_cast<uint32_t>(all >> 32));
    __syncthreads();
    common = both(shared.all);
    differing = both(shared.any) & ~common;
    return count;
}

// The element among `count` collected ones at which the sum of values reaches `goal_of(whole)`.
template <typename GoalOf>
__device__ __forceinline__ Cut cut_of_compared(SampleShared& shared, uint32_t count, GoalOf goal_of) {
    if (threadIdx.x < count) {
        const uint64_t rank = shared.compared[threadIdx.x].rank;
        uint64_t before = 0, whole = 0;
#pragma unroll 4
        for (uint32_t i = 0; i < count; ++i) {
            const Ranked other = shared.compared[i];
            whole += other.value;
            if (other.rank > rank) before += other.value;
        }
        const uint64_t goal = min(static_cast<uint64_t>(goal_of(whole)), whole);
        if (before < goal && goal <= before + shared.compared[threadIdx.x].value) shared.found_cut = rank;
    }
    __syncthreads();
    return Cut::at(shared.found_cut);
}

// The last element that a search keeps. Elements beyond its distance are no longer candidates. If several
// blocks share the row, the result is valid in the block that continues.
template <typename GoalOf>
__device__ __forceinline__ Cut find_cut(Candidates& from, Search search, SharedBins* bins, GoalOf goal_of) {
    SampleShared& shared = from.shared;
    const Row& row = from.row;
    uint64_t left = 0, before, whole;
    const auto goal_left = [&](uint64_t all) -> uint64_t { return search.near ? left : goal_of(all); };
    // The distance of the first `top_k` elements is known; the distance at which a sum of weights ends is
    // not.
    bool narrow = from.listed || !search.weighs;
#pragma unroll 1
    while (true) {
        uint64_t common = 0, differing = 0;
        if (narrow) {
            const uint32_t count = collect(from, search, common, differing);
            if (count <= COMPARED_MAX) return cut_of_compared(shared, count, goal_left);
        }
        clear_bins(shared);
        if (!search.near) {
            from.for_each<4>([&](float x, uint32_t col) {
                if (search.cut.keeps(x, col)) add_to_bin(shared, row.distance(x), search.value(row, x));
            });
            if (!goes_on(from, bins)) return search.cut;
            search.distance = from.reach = find_bin(shared, goal_left, before, whole);
            left = min(goal_of(whole), whole) - before;
            search.near = narrow = true;
            continue;
        }
        // The highest bits in which ranks differ.
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

}  // namespace ottava
