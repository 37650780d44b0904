// Where keys and values lie: [layer][page][keys, values][kv head][16 tokens][head_dim], f16; or int8
// codes in the same order and behind a page's codes an f16 scale for every 32 elements of a head.
#pragma once

#include "reduce.cuh"

namespace ottava {

constexpr int PAGE_TOKENS = 16;
constexpr int KV_SCALE_GROUP = 32;

// backend::KvDtype
enum class KvDtype : uint32_t { F16 = 0, Int8 = 1 };

// One layer of the pool. Mirrored by `backend::cuda::params::KvLayer`.
struct KvLayer {
    uint8_t* base;
    uint64_t page_bytes;  // of this layer
    uint32_t kv_heads;
    uint32_t head_dim;
    KvDtype dtype;
    uint32_t scale_groups;  // of a head: head_dim / 32, rounded up
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
    const uint32_t* counts;       // tokens, sequences, outputs: a graph's launches read them here
};
static_assert(sizeof(Step) == 56, "the host's struct has no other padding");

// Mirrored by `backend::cuda::params::Sequence`.
struct Sequence {
    uint32_t rows_start, rows_end;
    uint32_t pages_start, pages_end;
    uint32_t window;  // tokens that a query sees, UINT32_MAX without one
    uint32_t sinks;   // first tokens that every query sees beside the window
};
static_assert(sizeof(Sequence) == 24, "the host's struct has no other padding");

// backend::PageRef
struct PageRef {
    uint32_t page;
    uint32_t start;  // position of its first token
};

// The page of a sequence that holds `position`; the host has checked that there is one.
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

// Whether a query at `position` sees the key at `key`, given the layer's window.
__device__ __forceinline__ bool sees(const Sequence& sequence, uint32_t layer_window, uint32_t position,
                                     uint32_t key) {
    const uint32_t age = position - key;
    return key <= position && age < layer_window && (age < sequence.window || key < sequence.sinks);
}

// Whether it may see any key of the page that begins at `start`.
__device__ __forceinline__ bool sees_page(const Sequence& sequence, uint32_t layer_window, uint32_t position,
                                          uint32_t start) {
    const uint32_t last = start + PAGE_TOKENS - 1, age = position - min(last, position);
    return start <= position && age < layer_window && (age < sequence.window || start < sequence.sinks);
}

}  // namespace ottava
