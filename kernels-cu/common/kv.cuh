// Layout of keys and values: [layer][page][keys, values][kv head][16 tokens][head_dim], f16; or int8 codes in
// the same order, followed in each page by an f16 scale per 32 elements of a head.
#pragma once

#include "reduce.cuh"

namespace ottava {

constexpr int PAGE_TOKENS = 16;
constexpr int KV_SCALE_GROUP = 32;

// Mirrors `ir::KvDtype`.
enum class KvDtype : uint32_t { F16 = 0, Int8 = 1 };

// One layer of the pool. Mirrored by `backend::cuda::params::KvLayer`.
struct KvLayer {
    uint8_t* base;
    uint64_t page_bytes;  // of a page in this layer
    uint32_t kv_heads;
    uint32_t head_dim;
    KvDtype dtype;
    uint32_t scale_groups;  // per head: head_dim / 32, rounded up
};
static_assert(sizeof(KvLayer) == 32, "the host's struct has no other padding");

// The step's rows and pages in device memory. Mirrored by `backend::cuda::params::Step`.
struct Step {
    const uint32_t* tokens;       // [tokens]
    const uint32_t* positions;    // [tokens]
    const uint32_t* sequence_of;  // [tokens]: index into `sequences`
    const struct Sequence* sequences;
    const struct PageRef* pages;
    const uint32_t* outputs;      // [outputs]
    const uint32_t* counts;       // tokens, sequences, outputs, parity: read by a graph's launches
};
static_assert(sizeof(Step) == 56, "the host's struct has no other padding");

// Mirrored by `backend::cuda::params::Sequence`.
struct Sequence {
    uint32_t rows_start, rows_end;
    uint32_t pages_start, pages_end;
    uint32_t window;  // number of visible tokens; UINT32_MAX without a window
    uint32_t sinks;   // number of first tokens visible in addition to the window
};
static_assert(sizeof(Sequence) == 24, "the host's struct has no other padding");

// Mirrors `ir::PageRef`.
struct PageRef {
    uint32_t page;
    uint32_t start;  // position of the page's first token
};

// The page of a sequence that holds `position`; the host has checked that it exists.
__device__ __forceinline__ PageRef page_of(const Step& step, const Sequence& sequence, uint32_t position) {
    const uint32_t start = position / PAGE_TOKENS * PAGE_TOKENS;
    uint32_t low = sequence.pages_start, high = sequence.pages_end;
    while (low + 1 < high) {
        const uint32_t middle = (low + high) / 2;
        if (step.pages[middle].start <= start)
            low = middle;
        else
            high = middle;
    }
    return step.pages[low];
}

// The elements (`which` 0: keys, 1: values) of a page and head, [16][head_dim].
template <typename T>
__device__ __forceinline__ T* page_elements(const KvLayer& kv, uint32_t page, int which, uint32_t head,
                                            uint32_t element_bytes = sizeof(T)) {
    const size_t first = (static_cast<size_t>(which) * kv.kv_heads + head) * PAGE_TOKENS * kv.head_dim;
    return reinterpret_cast<T*>(kv.base + page * kv.page_bytes + first * element_bytes);
}

// The scales of a page and head, [16][scale_groups].
__device__ __forceinline__ __half* page_scales(const KvLayer& kv, uint32_t page, int which, uint32_t head) {
    uint8_t* scales = kv.base + page * kv.page_bytes + 2u * kv.kv_heads * PAGE_TOKENS * kv.head_dim;
    const size_t first = (static_cast<size_t>(which) * kv.kv_heads + head) * PAGE_TOKENS * kv.scale_groups;
    return reinterpret_cast<__half*>(scales) + first;
}

// The first of `count` table entries that starts at the page of `position` or later. Pages are consecutive
// except where a window has dropped some, so the distance to the last entry, which starts at `last`, gives
// the place to start the search.
__device__ __forceinline__ uint32_t entry_from(const PageRef* entries, uint32_t count, uint32_t last,
                                               uint32_t position) {
    const uint32_t start = position / PAGE_TOKENS * PAGE_TOKENS;
    if (start == 0) return 0;
    const uint32_t distance = last > start ? (last - start) / PAGE_TOKENS : 0;
    uint32_t entry = count - 1 - min(distance, count - 1);
    while (entry + 1 < count && entries[entry].start < start) ++entry;
    return entry;
}

// The table entries of the pages visible to queries: those of the sinks, then those of the window.
struct SeenPages {
    uint32_t sinks_begin, sinks_end, begin, end;

    __device__ uint32_t count() const { return sinks_end - sinks_begin + (end - begin); }

    __device__ uint32_t entry(uint32_t index) const {
        const uint32_t sinks = sinks_end - sinks_begin;
        return index < sinks ? sinks_begin + index : begin + (index - sinks);
    }
};

// The first key visible to a query at `position` through a window.
__device__ __forceinline__ uint32_t window_begin(uint32_t position, uint32_t window) {
    return position < window ? 0 : position - window + 1;
}

// Bitmask of the slots, in a page that begins at `start`, with keys below `position`.
__device__ __forceinline__ uint32_t slots_below(uint32_t position, uint32_t start) {
    return (1u << min(max(position, start) - start, static_cast<uint32_t>(PAGE_TOKENS))) - 1;
}

// Bitmask of the slots visible to a query at `position`.
__device__ __forceinline__ uint32_t seen_slots(const Sequence& sequence, uint32_t layer_window, uint32_t position,
                                               uint32_t start) {
    const uint32_t sinks = slots_below(sequence.sinks, start);
    const uint32_t old = slots_below(window_begin(position, sequence.window), start) & ~sinks;
    return slots_below(position + 1, start) & ~old & ~slots_below(window_begin(position, layer_window), start);
}

// The pages visible to queries at positions `oldest` to `newest` of a sequence, given the layer's window.
// There is always at least one: that of the newest. `entries` is the sequence's part of the table.
__device__ __forceinline__ SeenPages seen_pages(const PageRef* entries, const Sequence& sequence,
                                                uint32_t layer_window, uint32_t oldest, uint32_t newest) {
    const uint32_t count = sequence.pages_end - sequence.pages_start;
    const uint32_t last = newest / PAGE_TOKENS * PAGE_TOKENS;
    SeenPages seen = {};
    seen.end = entry_from(entries, count, entries[count - 1].start, newest) + 1;
    const uint32_t key = window_begin(oldest, min(layer_window, sequence.window));
    seen.begin = min(entry_from(entries, seen.end, last, key), seen.end - 1);
    // Entry i starts at token 16 i or later, which bounds the number of entries with sinks.
    seen.sinks_end = min((sequence.sinks + PAGE_TOKENS - 1) / PAGE_TOKENS, seen.begin);
    while (seen.sinks_end > 0 && entries[seen.sinks_end - 1].start >= sequence.sinks) --seen.sinks_end;
    if (seen.sinks_end > 0) {
        const uint32_t in_layer = entry_from(entries, seen.end, last, window_begin(oldest, layer_window));
        seen.sinks_begin = min(in_layer, seen.sinks_end);
    }
    return seen;
}

}  // namespace ottava
