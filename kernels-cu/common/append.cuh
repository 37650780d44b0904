// Preparation of an attention's heads: norm and rotation of queries and keys, and rounding of keys and values
// to their pages.
#pragma once

#include "kv.cuh"
#include "math.cuh"

namespace ottava {

// Mirrored by `backend::cuda::params::Inputs`.
struct AttentionInputs {
    float* q;             // [tokens, query_heads · head_dim]
    const float* k;       // [tokens, kv_heads · head_dim]; null if keys and values are in their pages
    const float* v;       // [tokens, kv_heads · head_dim]
    const float* q_norm;  // [head_dim], or null
    const float* k_norm;  // [head_dim], or null
    const float* angles;  // [tokens, angle_cols]: cosines, then sines; or null
    float q_eps, k_eps;
    uint32_t query_heads;
    uint32_t angle_cols;   // elements of a head that are rotated
    uint32_t interleaved;  // 1: pairs (2i, 2i + 1); 0: (i, i + angle_cols / 2)
    uint32_t unused;
};
static_assert(sizeof(AttentionInputs) == 72, "the host's struct has no other padding");

// Copies a head to shared memory and normalises and rotates it there, by one warp. Every rounding is
// explicit, so that a head has the same bits in all kernels.
__device__ __forceinline__ void prepare_head(float* head, const float* src, const AttentionInputs& p,
                                             const float* norm, float eps, bool turned, uint32_t token,
                                             uint32_t dim) {
    const uint32_t lane = threadIdx.x % WARP;
    float squares = 0.0f;
    for (uint32_t i = lane; i < dim; i += WARP) {
        head[i] = src[i];
        squares = fmaf(head[i], head[i], squares);
    }
    if (norm) {
        const float gain = rsqrtf(__fdiv_rn(warp_sum(squares), static_cast<float>(dim)) + eps);
        for (uint32_t i = lane; i < dim; i += WARP) head[i] *= gain * norm[i];
    }
    __syncwarp();
    if (!turned || !p.angles) return;
    const uint32_t half = p.angle_cols / 2;
    const float* angles = p.angles + static_cast<size_t>(token) * p.angle_cols;
    for (uint32_t i = lane; i < half; i += WARP) {
        const uint32_t first = p.interleaved ? 2 * i : i, second = p.interleaved ? 2 * i + 1 : i + half;
        const float x = head[first], y = head[second], cosine = angles[i], sine = angles[half + i];
        head[first] = fmaf(x, cosine, -__fmul_rn(y, sine));
        head[second] = fmaf(y, cosine, __fmul_rn(x, sine));
    }
    __syncwarp();
}

// Rounds a head to its slot of a page, by one warp.
__device__ __forceinline__ void store_head(const float* head, const KvLayer& kv, uint32_t page, uint32_t slot,
                                           int which, uint32_t kv_head) {
    const uint32_t lane = threadIdx.x % WARP, dim = kv.head_dim;
    if (kv.dtype == KvDtype::F16) {
        __half* out = page_elements<__half>(kv, page, which, kv_head) + slot * dim;
        for (uint32_t i = lane; i < dim; i += WARP) out[i] = saturated_half(head[i]);
        return;
    }
    int8_t* out = page_elements<int8_t>(kv, page, which, kv_head) + slot * dim;
    __half* scales = page_scales(kv, page, which, kv_head) + slot * kv.scale_groups;
    for (uint32_t group = 0; group < kv.scale_groups; ++group) {
        const uint32_t i = group * KV_SCALE_GROUP + lane;
        const float x = i < dim ? head[i] : 0.0f;
        const float largest = warp_max(fabsf(x));
        // A value that is not finite makes the scale NaN, so that everything read back is NaN, too.
        const bool finite = __all_sync(ALL_LANES, isfinite(x));
        const __half scale = __float2half_rn(finite ? fminf(largest / 127.0f, 65504.0f) : NAN);
        const float divisor = __half2float(scale);
        const float code = finite && divisor > 0.0f ? fminf(fmaxf(rintf(x / divisor), -127.0f), 127.0f) : 0.0f;
        if (i < dim) out[i] = static_cast<int8_t>(code);
        if (lane == 0) scales[group] = scale;
    }
}

// Prepares one of a token's heads (query heads first, then keys, then values), and writes keys and values to
// their page. By one warp; `head` is `head_dim` floats of shared memory.
__device__ __forceinline__ void append_head(float* head, const AttentionInputs& p, const KvLayer& kv,
                                            const PageRef& page, uint32_t token, uint32_t position, uint32_t index) {
    const uint32_t dim = kv.head_dim;
    const size_t row = static_cast<size_t>(token) * dim;
    if (index < p.query_heads) {
        prepare_head(head, p.q + row * p.query_heads + index * dim, p, p.q_norm, p.q_eps, true, token, dim);
        return;
    }
    index -= p.query_heads;
    const int which = index >= kv.kv_heads;
    const uint32_t kv_head = index - which * kv.kv_heads;
    const float* src = (which ? p.v : p.k) + row * kv.kv_heads + kv_head * dim;
    prepare_head(head, src, p, which ? nullptr : p.k_norm, p.k_eps, which == 0, token, dim);
    store_head(head, kv, page.page, position - page.start, which, kv_head);
}

}  // namespace ottava
