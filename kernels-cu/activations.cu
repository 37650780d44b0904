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
    constexpr int WARPS = 8;
    __shared__ RowPart parts[WARPS][ROW_PARTS];
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, token = blockIdx.x * WARPS + warp;
    wait_for_predecessor();
    if (token >= p.tokens) return;
    const float* row = p.src + static_cast<size_t>(token) * p.cols;
    __half* halves = p.halves + static_cast<size_t>(token) * p.half_cols;
    row_parts<1>(parts[warp], row, p.norm, p.cols, 0);
    __syncwarp();
    const RowScale scale = row_scale(parts[warp], p.norm != nullptr, p.eps, p.cols);
    if (lane == 0) p.inverse[token] = scale.inverse;
    for (uint32_t col = 4 * lane; col < p.half_cols; col += PART_COLS)
        *reinterpret_cast<uint2*>(halves + col) = half_four(row, p.norm, scale.factor, col, p.cols);
    release_dependents();
}
