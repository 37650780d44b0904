// What the attention kernels share: parameters, and scores.
#pragma once

#include "append.cuh"

namespace ottava {

// Mirrored by `backend::cuda::params::Attention`.
struct AttentionParams {
    Step step;
    KvLayer kv;
    AttentionInputs inputs;
    float* dst;          // [tokens, query_heads · head_dim]
    float* partial;      // [sequences, query_heads, splits, head_dim + 2]: sums, maximum, sum of weights
    uint32_t* arrived;   // [sequences, kv_heads · chunks], zero before and after
    float scale;         // of q · k, times log2(e) unless there is a soft cap
    float soft_cap;      // 0 without one
    uint32_t window;     // of the layer, UINT32_MAX without one
    uint32_t splits;     // of the launch
    const uint2* tiles;  // prompts: (sequence, first row in it) of each block
    uint32_t by_rows;    // 1: attention_decode.cu takes a row of any sequence, not a sequence of one row
    uint32_t first_row;  // of the launch, where it does
};
static_assert(sizeof(AttentionParams) == 216, "the host's struct has no other padding");

constexpr float LOG2_E = 1.4426950408889634f;

// The score as an exponent of two, of a product that has been scaled.
__device__ __forceinline__ float score_of(const AttentionParams& p, float scaled) {
    return p.soft_cap > 0.0f ? soft_cap(scaled, p.soft_cap) * LOG2_E : scaled;
}

}  // namespace ottava
