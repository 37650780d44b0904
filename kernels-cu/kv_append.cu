// Prepares an attention: each query and key head is normalised and rotated, the queries in place,
// and keys and values are written to their pages as f16 or as int8 with a scale for 32 elements.
//
// Launch: grid [tokens, query heads + 2 · kv heads], a warp a head. Shared memory: a head in f32.

#include "common/kv.cuh"
#include "common/math.cuh"

namespace ottava {

// Mirrored by `backend::cuda::params::KvAppend`.
struct KvAppendParams {
    Step step;
    KvLayer kv;
    float* q;             // [tokens, query_heads · head_dim], in place
    const float* k;       // [tokens, kv_heads · head_dim]
    const float* v;       // [tokens, kv_heads · head_dim]
    const float* q_norm;  // [head_dim], or null
    const float* k_norm;  // [head_dim], or null
    const float* angles;  // [tokens, angle_cols]: cosines, then sines; or null
    float q_eps, k_eps;
    uint32_t query_heads;
    uint32_t angle_cols;   // elements of a head that are turned
    uint32_t interleaved;  // 1: pairs (2i, 2i + 1); 0: (i, i + angle_cols / 2)
    uint32_t unused;
};
static_assert(sizeof(KvAppendParams) == 160, "the host's struct has no other padding");

// Normalises and rotates a head in shared memory, by one warp.
__device__ __forceinline__ void prepare_head(float* head, const KvAppendParams& p, const float* norm, float eps,
                                             uint32_t token) {
    const uint32_t lane = threadIdx.x, dim = p.kv.head_dim;
    if (norm) {
        float squares = 0.0f;
        for (uint32_t i = lane; i < dim; i += WARP) squares += head[i] * head[i];
        const float gain = rsqrtf(warp_sum(squares) / static_cast<float>(dim) + eps);
        for (uint32_t i = lane; i < dim; i += WARP) head[i] *= gain * norm[i];
    }
    __syncwarp();
    if (!p.angles) return;
    const uint32_t half = p.angle_cols / 2;
    const float* angles = p.angles + static_cast<size_t>(token) * p.angle_cols;
    for (uint32_t i = lane; i < half; i += WARP) {
        const uint32_t first = p.interleaved ? 2 * i : i, second = p.interleaved ? 2 * i + 1 : i + half;
        const float x = head[first], y = head[second], cosine = angles[i], sine = angles[half + i];
        head[first] = x * cosine - y * sine;
        head[second] = y * cosine + x * sine;
    }
    __syncwarp();
}

// Rounds a head to its slot of a page, by one warp.
__device__ __forceinline__ void store_head(const float* head, const KvLayer& kv, uint32_t page, uint32_t slot,
                                           int which, uint32_t kv_head) {
    const uint32_t lane = threadIdx.x, dim = kv.head_dim;
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
        // A value that is not finite makes the scale NaN, and with it all that is read back.
        const bool finite = __all_sync(ALL_LANES, isfinite(x));
        const __half scale = __float2half_rn(finite ? fminf(largest / 127.0f, 65504.0f) : NAN);
        const float divisor = __half2float(scale);
        const float code = finite && divisor > 0.0f ? fminf(fmaxf(rintf(x / divisor), -127.0f), 127.0f) : 0.0f;
        if (i < dim) out[i] = static_cast<int8_t>(code);
        if (lane == 0) scales[group] = scale;
    }
}

}  // namespace ottava

extern "C" __global__ void __launch_bounds__(32) kv_append(const __grid_constant__ ottava::KvAppendParams p) {
    using namespace ottava;
    extern __shared__ float head[];
    wait_for_predecessor();
    const uint32_t token = blockIdx.x, lane = threadIdx.x, dim = p.kv.head_dim, kv_heads = p.kv.kv_heads;
    if (token >= p.step.counts[0]) return;
    const bool is_query = blockIdx.y < p.query_heads;
    const uint32_t index = is_query ? blockIdx.y : (blockIdx.y - p.query_heads) % kv_heads;
    const int which = !is_query && blockIdx.y - p.query_heads >= kv_heads;
    const uint32_t heads = is_query ? p.query_heads : kv_heads;
    const size_t start = (static_cast<size_t>(token) * heads + index) * dim;
    const float* src = is_query ? p.q : which == 0 ? p.k : p.v;
    for (uint32_t i = lane; i < dim; i += WARP) head[i] = src[start + i];
    __syncwarp();
    if (is_query) {
        prepare_head(head, p, p.q_norm, p.q_eps, token);
        for (uint32_t i = lane; i < dim; i += WARP) p.q[start + i] = head[i];
    } else {
        if (which == 0) prepare_head(head, p, p.k_norm, p.k_eps, token);
        const Sequence sequence = p.step.sequences[p.step.sequence_of[token]];
        const uint32_t position = p.step.positions[token];
        const PageRef page = page_of(p.step, sequence, position);
        store_head(head, p.kv, page.page, position - page.start, which, index);
    }
    release_dependents();
}
