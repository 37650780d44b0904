// Packed activations of a matrix product for many tokens, made once for all its row blocks: normalised,
// scaled by a power of two per row, f16, padded with zeros to whole units. The layout is row by row, or with
// the prefix sm90 the slabs of sm90_matmul_many.cu.
//
// Launch: one block of 256 threads per token.

#include "common/matmul.cuh"

namespace ottava {

// Mirrored by `backend::cuda::params::Activations`.
struct ActivationsParams {
    const float* src;   // [tokens, cols]
    const float* norm;  // [cols], or null
    __half* halves;     // [tokens, half_cols], or slabs
    float* inverse;     // [tokens]
    float eps;
    uint32_t tokens;
    uint32_t cols;
    uint32_t half_cols;
};
static_assert(sizeof(ActivationsParams) == 48, "the host's struct has no other padding");

// Stores four columns of a token in the slabs, in the order of wgmma's operand B: columns 4t.. of a step are
// its rows 2t, 2t + 1, 2t + 8 and 2t + 9, as in `Matrix`.
__device__ __forceinline__ void store_in_slab(__half* slabs, uint32_t tokens, uint32_t token, uint32_t col,
                                              uint2 four) {
    __half* row = slabs + col / SLAB_COLS * slab_tokens(tokens) * SLAB_COLS;
    // Pieces of 16 bytes (8 columns) are swizzled, so that a column of 8 tokens covers all banks.
    const uint32_t piece = col % SLAB_COLS / STEP_COLS * 2, in_piece = col % STEP_COLS / 2;
    *reinterpret_cast<uint32_t*>(row + (piece ^ token % 8) * 8 + in_piece) = four.x;
    *reinterpret_cast<uint32_t*>(row + (piece + 1 ^ token % 8) * 8 + in_piece) = four.y;
}

__device__ __forceinline__ void activations(const ActivationsParams& p, bool in_slabs) {
    __shared__ RowPart parts[ROW_PARTS];
    const uint32_t warp = threadIdx.x / WARP, token = blockIdx.x;
    const float* row = p.src + static_cast<size_t>(token) * p.cols;
    __half* halves = p.halves + static_cast<size_t>(token) * (in_slabs ? SLAB_COLS : p.half_cols);
    wait_for_predecessor();
    row_parts<ROW_PARTS>(parts, row, p.norm, p.cols, warp);
    __syncthreads();
    const RowScale scale = row_scale(parts, p.norm != nullptr, p.eps, p.cols);
    if (threadIdx.x == 0) p.inverse[token] = scale.inverse;
    const auto store = [&](uint32_t col, uint2 four) {
        if (in_slabs)
            store_in_slab(halves, p.tokens, token, col, four);
        else
            *reinterpret_cast<uint2*>(halves + col) = four;
    };
    for_each_half_four(row, p.norm, scale.factor, 4 * threadIdx.x, ROW_PARTS * PART_COLS, p.half_cols, p.cols, store);
}

}  // namespace ottava

extern "C" __global__ void __launch_bounds__(256) activations(const __grid_constant__ ottava::ActivationsParams p) {
    ottava::activations(p, false);
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
extern "C" __global__ void __launch_bounds__(256)
    sm90_activations(const __grid_constant__ ottava::ActivationsParams p) {
    ottava::activations(p, true);
}
#endif
