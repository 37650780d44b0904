// What the attention kernels share: parameters, and scores.
#pragma once

#include "append.cuh"

namespace ottava {

// The host reads these numbers from here (src/backend/cuda/header.rs).
constexpr uint32_t TILE_ROWS = 64;       // of a block of attention_prefill.cu
constexpr uint32_t PREFILL_BESIDE = 64;  // bytes of its shared memory beside the tiles, at most
constexpr uint32_t DECODE_WARPS = 4;     // of a block of attention_decode.cu
constexpr uint32_t SPLITS_MAX = 64;      // its blocks that share a row's past, at most
constexpr uint32_t SPLITS_SHORT = 16;    // up to so many, each of their warps takes one page

// Mirrored by `backend::cuda::params::Attention`.
struct AttentionParams {
    Step step;
    KvLayer kv;
    AttentionInputs inputs;
    float* dst;          // [tokens, query_heads · head_dim]
    float* partial;      // [sequences, query_heads, splits, head_dim + 2]: sums, maximum, sum of weights
    uint32_t* arrived;   // [sequences, kv_heads · chunks], zero before and after
    float scale;         // of q · k, times log2(e); under a soft cap times 2 log2(e) / cap
    float soft_cap;      // times log2(e); 0 without one
    uint32_t window;     // of the layer, UINT32_MAX without one
    uint32_t splits;     // of the launch
    const uint2* tiles;  // prompts: (sequence, first row in it) of each block
    uint32_t by_rows;    // 1: attention_decode.cu takes a row of any sequence, not a sequence of one row
    uint32_t first_row;  // the launch's first sequence, or row
};
static_assert(sizeof(AttentionParams) == 216, "the host's struct has no other padding");

// The score, as an exponent of two, of a product under a soft cap: with x = 2 log2(e) · product / cap,
// cap · tanh(product / cap) = cap · (1 − 2 / (1 + 2^x)).
__device__ __forceinline__ float capped(float x, float soft_cap) {
    return soft_cap * fmaf(-2.0f, rcp_approx_ftz(1.0f + ex2_approx_ftz(x)), 1.0f);
}

}  // namespace ottava
