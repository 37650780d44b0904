// Parameters and scores that the attention kernels share.
#pragma once

#include "append.cuh"

namespace ottava {

// The host parses these constants from this file (src/backend/cuda/header.rs).
constexpr uint32_t TILE_ROWS = 64;       // rows per block of attention_prefill.cu
constexpr uint32_t PREFILL_BESIDE = 64;  // maximum bytes of its shared memory in addition to the tiles
constexpr uint32_t DECODE_WARPS = 4;     // warps per block of attention_decode.cu
constexpr uint32_t SPLITS_MAX = 64;      // its maximum number of blocks per row's past
constexpr uint32_t SPLITS_SHORT = 16;    // up to this number of blocks, each of their warps takes one page

// Mirrored by `backend::cuda::params::Attention`.
struct AttentionParams {
    Step step;
    KvLayer kv;
    AttentionInputs inputs;
    float* dst;          // [tokens, query_heads · head_dim]
    float* partial;      // [sequences, query_heads, splits, head_dim + 2]: sums, maximum, sum of weights
    uint32_t* arrived;   // [sequences, kv_heads · chunks], zero before and after
    float scale;         // of q · k, times log2(e); with a soft cap times 2 log2(e) / cap
    float soft_cap;      // times log2(e); 0 without a soft cap
    uint32_t window;     // of the layer; UINT32_MAX without a window
    uint32_t splits;     // maximum splits per row in the launch
    const uint2* tiles;  // prompts: (sequence, first row in it) of each block
    uint32_t by_rows;    // 1: attention_decode.cu processes rows of any sequence, not sequences of one row
    uint32_t first_row;  // first sequence or row of the launch
};
static_assert(sizeof(AttentionParams) == 216, "the host's struct has no other padding");

// The score, as an exponent of two, of a product with a soft cap: with x = 2 log2(e) · product / cap, cap ·
// tanh(product / cap) = cap · (1 − 2 / (1 + 2^x)).
__device__ __forceinline__ float capped(float x, float soft_cap) {
    return soft_cap * fmaf(-2.0f, rcp_approx_ftz(1.0f + ex2_approx_ftz(x)), 1.0f);
}

}  // namespace ottava
