// The activations of a matrix product for many tokens, once for all its row blocks: normalised,
// scaled by a power of two a row, f16, padded with zeros to whole units.
//
// Launch: a warp a token, 8 a block.

#include "common/matmul.cuh"

namespace ottava {

// Mirrored by `backend::cuda::params::Activations`.
struct ActivationsParams {
    const float* src;   // [tokens, cols]
    const float* norm;  // [cols], or null
    __half* halves;     // [tokens, half_cols]
    float* inverse;     // [tokens]
    float eps;
    uint32_t tokens;
    uint32_t cols;
    uint32_t half_cols;
};
static_assert(sizeof(ActivationsParams) == 48, "the host's struct has no other padding");

}  // namespace ottava

extern "C" __global__ void __launch_bounds__(256) activations(const __grid_constant__ ottava::ActivationsParams p) {
    using namespace ottava;
    const uint32_t token = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    wait_for_predecessor();
    if (token >= p.tokens) return;
    const float* row = p.src + static_cast<size_t>(token) * p.cols;
    __half* halves = p.halves + static_cast<size_t>(token) * p.half_cols;
    const RowScale scale = row_scale(row, p.norm, p.eps, p.cols);
    if (lane == 0) p.inverse[token] = scale.inverse;
    for (uint32_t col = lane; col < p.half_cols; col += WARP) {
        float value = 0.0f;
        if (col < p.cols) value = row[col] * scale.factor * (p.norm ? p.norm[col] : 1.0f);
        halves[col] = __float2half_rn(value);
    }
    release_dependents();
}
