// dst = epilogue(norm(src) · matrixᵀ) for up to 32 tokens: the matrix is read once, at the speed of
// memory; the tokens are the 8 columns of the B operand, so that one to eight cost the same.
//
// A block works off strips of 16 rows; its 8 warps take turns at the units of 128 columns, each lane
// with 16-byte loads straight to registers, and add up their parts in shared memory in a fixed order.
// Sums of a group are f32, and so is everything after the product. What a block will read next is on its
// way to the second-level cache, at first while the kernel before this one still runs.
//
// In batch-invariant mode a result has the bits that matmul_many.cu gives it: scales are applied to the
// operand in f16 there, so they are here, and a warp's units are the part of a row that it adds up.
//
// Launch: 256 threads; dynamic shared memory as `FewShape` in src/backend/cuda/matmul.rs has it; any number of blocks, each
// takes every gridDim.x-th strip.

#include "common/matmul.cuh"

namespace ottava {

constexpr int FEW_WARPS = 8;

// Activations of a chunk: [tokens][units · 128 + 16]. A row's distance is an odd multiple of 32
// bytes, so that the 8-byte reads of 16 lanes, from four rows, touch every bank once.
__device__ __forceinline__ uint32_t activation_stride(uint32_t units) { return units * UNIT_COLS + 16; }
// Behind them their sums over each step, which minima multiply: [tokens][steps + 1], an odd distance.
__device__ __forceinline__ uint32_t sum_stride(uint32_t units) { return units * UNIT_STEPS + 1; }

// One warp's part of a strip: the sums over its units of a chunk.
template <int TILES, bool INVARIANT, int BITS, int GROUP_STEPS>
__device__ __forceinline__ void strip_part(float (&total)[TILES][4], const Matrix& matrix, uint32_t strip,
                                           const __half* x, const float* x_sums, const MatmulParams& p,
                                           uint32_t first_unit, uint32_t units) {
    const uint32_t stride = activation_stride(p.chunk_units), last = p.tokens - 1;
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const uint32_t g = lane / 4, t = lane % 4;
    const uint32_t loads = row_loads(matrix.cols, BITS);
    const uint4* row = matrix.codes + static_cast<size_t>(strip) * loads * WARP + lane;
    const size_t scale_row = static_cast<size_t>(strip) * matrix.groups;
    constexpr int UNIT_GROUPS = UNIT_STEPS / GROUP_STEPS;
    const __half* columns[TILES];
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) {
        // Beyond the last token any will do: nobody reads the result.
        columns[tile] = x + min(8 * tile + g, last) * stride + 4 * t;
    }
    for (uint32_t unit = warp; unit < units; unit += FEW_WARPS) {
        const auto codes = load_codes<BITS, UNIT_STEPS>(row, (first_unit + unit) * UNIT_STEPS, loads);
        __half2 scales[UNIT_GROUPS], mins[UNIT_GROUPS];
#pragma unroll
        for (int group = 0; group < UNIT_GROUPS; ++group) {
            const uint32_t index = min((first_unit + unit) * UNIT_GROUPS + group, matrix.groups - 1);
            scales[group] = matrix.scales[(scale_row + index) * 8 + g];
            if constexpr (INVARIANT) mins[group] = __float2half2_rn(0.0f);
            if (matrix.mins) mins[group] = matrix.mins[(scale_row + index) * 8 + g];
        }
#pragma unroll
        for (int group = 0; group < UNIT_GROUPS; ++group) {
            float sums[TILES][4] = {};
#pragma unroll
            for (int i = 0; i < GROUP_STEPS; ++i) {
                const int step = group * GROUP_STEPS + i;
                uint32_t a[4];
                step_operand(a, codes, step, matrix.zero);
                if constexpr (INVARIANT) scale_operand(a, scales[group], mins[group]);
#pragma unroll
                for (int tile = 0; tile < TILES; ++tile) {
                    const uint2 pair =
                        *reinterpret_cast<const uint2*>(columns[tile] + unit * UNIT_COLS + step * STEP_COLS);
                    const uint32_t b[2] = {pair.x, pair.y};
                    mma_m16n8k16(INVARIANT ? total[tile] : sums[tile], a, b);
                }
            }
            if constexpr (INVARIANT) continue;
            const float2 scale = __half22float2(scales[group]);
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile) {
                total[tile][0] = fmaf(sums[tile][0], scale.x, total[tile][0]);
                total[tile][1] = fmaf(sums[tile][1], scale.x, total[tile][1]);
                total[tile][2] = fmaf(sums[tile][2], scale.y, total[tile][2]);
                total[tile][3] = fmaf(sums[tile][3], scale.y, total[tile][3]);
            }
            if (!matrix.mins) continue;
            const float2 min_of_group = __half22float2(mins[group]);
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile) {
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const float* steps = x_sums + min(8 * tile + 2 * t + i, last) * sum_stride(p.chunk_units) +
                                         unit * UNIT_STEPS + group * GROUP_STEPS;
                    float sum = 0.0f;
#pragma unroll
                    for (int step = 0; step < GROUP_STEPS; ++step) sum += steps[step];
                    total[tile][i] = fmaf(sum, min_of_group.x, total[tile][i]);
                    total[tile][2 + i] = fmaf(sum, min_of_group.y, total[tile][2 + i]);
                }
            }
        }
    }
}

// The table of formats: a row for each that a matrix may have.
template <int TILES, bool INVARIANT>
__device__ __forceinline__ void any_strip_part(float (&total)[TILES][4], const Matrix& matrix, uint32_t strip,
                                               const __half* x, const float* x_sums,
                                               const MatmulParams& p, uint32_t first_unit, uint32_t units) {
#define OTTAVA_FORMAT(BITS, STEPS)                                                                       \
    case BITS * 16 + STEPS:                                                                              \
        strip_part<TILES, INVARIANT, BITS, STEPS>(total, matrix, strip, x, x_sums, p, first_unit, units); \
        break
    switch (matrix.bits * 16 + matrix.group_steps) {
        OTTAVA_FORMAT(4, 1);
        OTTAVA_FORMAT(4, 2);
        OTTAVA_FORMAT(4, 4);
        OTTAVA_FORMAT(4, 8);
        OTTAVA_FORMAT(8, 1);
        OTTAVA_FORMAT(8, 2);
        OTTAVA_FORMAT(8, 4);
        OTTAVA_FORMAT(8, 8);
        OTTAVA_FORMAT(16, 8);
    }
#undef OTTAVA_FORMAT
}

// Shared memory of a block, in this order.
template <int TILES>
struct FewShared {
    float sums[FEW_WARPS][STRIP_ROWS][8 * TILES];
    RowPart row_parts[8 * TILES][ROW_PARTS];
    RowScale scales[8 * TILES];
    // then the activations and their sums
};

// The activations of a chunk as f16, and at its first use each row's scale. WARPS share a row.
template <int TILES, int WARPS>
__device__ __forceinline__ void stage_by(FewShared<TILES>& shared, __half* x, const MatmulParams& p,
                                         uint32_t first_unit, uint32_t units, bool first_time) {
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, own = warp % WARPS;
    const uint32_t stride = activation_stride(p.chunk_units), first = first_unit * UNIT_COLS;
    if (first_time) {
        for (uint32_t token = warp / WARPS; token < p.tokens; token += FEW_WARPS / WARPS) {
            const float* row = p.src + static_cast<size_t>(token) * p.cols;
            row_parts<WARPS>(shared.row_parts[token], row, p.norm, p.cols, own);
        }
        __syncthreads();
        if (threadIdx.x < p.tokens) {
            const auto& parts = shared.row_parts[threadIdx.x];
            shared.scales[threadIdx.x] = row_scale(parts, p.norm != nullptr, p.eps, p.cols);
        }
        __syncthreads();
    }
    for (uint32_t token = warp / WARPS; token < p.tokens; token += FEW_WARPS / WARPS) {
        const float* row = p.src + static_cast<size_t>(token) * p.cols;
        const float factor = shared.scales[token].factor;
        float* x_sums = reinterpret_cast<float*>(x + p.tokens * stride) + token * sum_stride(p.chunk_units);
#pragma unroll 4
        for (uint32_t i = own * PART_COLS + 4 * lane; i < units * UNIT_COLS; i += WARPS * PART_COLS) {
            const uint2 four = half_four(row, p.norm, factor, first + i, p.cols);
            *reinterpret_cast<uint2*>(x + token * stride + i) = four;
            const float2 low = __half22float2(*reinterpret_cast<const __half2*>(&four.x));
            const float2 high = __half22float2(*reinterpret_cast<const __half2*>(&four.y));
            float sum = low.x + low.y + high.x + high.y;
            sum += __shfl_xor_sync(ALL_LANES, sum, 1);
            sum += __shfl_xor_sync(ALL_LANES, sum, 2);
            if (lane % 4 == 0) x_sums[i / STEP_COLS] = sum;
        }
    }
}

// All warps are at work, however few rows there are.
template <int TILES>
__device__ __forceinline__ void stage(FewShared<TILES>& shared, __half* x, const MatmulParams& p,
                                      uint32_t first_unit, uint32_t units, bool first_time) {
    if (TILES == 1 && p.tokens == 1)
        stage_by<TILES, 8>(shared, x, p, first_unit, units, first_time);
    else if (TILES == 1 && p.tokens <= 4)
        stage_by<TILES, 2>(shared, x, p, first_unit, units, first_time);
    else
        stage_by<TILES, 1>(shared, x, p, first_unit, units, first_time);
}

// The product that a strip belongs to.
__device__ __forceinline__ const Product& product_of(const MatmulParams& p, uint32_t strip) {
    uint32_t index = 0;
    while (index + 1 < p.product_count && strip >= p.products[index + 1].first_strip) ++index;
    return p.products[index];
}

__device__ __forceinline__ void prefetch(const void* start, uint32_t bytes) {
    constexpr uint32_t LINE = 128;
    for (uint32_t at = threadIdx.x * LINE; at < bytes; at += FEW_WARPS * WARP * LINE)
        prefetch_l2(static_cast<const uint8_t*>(start) + at);
}

// Asks for a strip's weights, which are nobody's result, long before they are loaded.
__device__ __forceinline__ void prefetch_strip(const MatmulParams& p, uint32_t strip) {
    if (strip >= p.strips) return;
    const Product& product = product_of(p, strip);
    for (int which = 0; which < (product.epilogue == Epilogue::Gated ? 2 : 1); ++which) {
        const Matrix& matrix = which == 0 ? product.matrix : product.up;
        const size_t own = strip - product.first_strip;
        const uint32_t loads = row_loads(matrix.cols, matrix.bits), scales = 8 * matrix.groups;
        prefetch(matrix.codes + own * loads * WARP, loads * WARP * sizeof(uint4));
        prefetch(matrix.scales + own * scales, scales * sizeof(__half2));
        if (matrix.mins) prefetch(matrix.mins + own * scales, scales * sizeof(__half2));
    }
}

template <int TILES, bool INVARIANT>
__device__ __forceinline__ void matmul_few(const MatmulParams& p) {
    extern __shared__ __align__(16) uint8_t memory[];
    auto& shared = *reinterpret_cast<FewShared<TILES>*>(memory);
    auto* x = reinterpret_cast<__half*>(memory + sizeof(FewShared<TILES>));
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const uint32_t g = lane / 4, t = lane % 4;
    const auto* x_sums = reinterpret_cast<const float*>(x + p.tokens * activation_stride(p.chunk_units));
    const uint32_t all_units = (p.cols + UNIT_COLS - 1) / UNIT_COLS;
    const bool whole = p.chunk_units >= all_units;

    prefetch_strip(p, blockIdx.x);
    wait_for_predecessor();
    for (uint32_t strip = blockIdx.x; strip < p.strips; strip += gridDim.x) {
        prefetch_strip(p, strip + gridDim.x);
        const Product& product = product_of(p, strip);
        const uint32_t own_strip = strip - product.first_strip;
        const int matrices = product.epilogue == Epilogue::Gated ? 2 : 1;
        float kept[(STRIP_ROWS * 8 * TILES + 255) / 256];
        for (int which = 0; which < matrices; ++which) {
            const Matrix& matrix = which == 0 ? product.matrix : product.up;
            float total[TILES][4] = {};
            for (uint32_t unit = 0; unit < all_units; unit += p.chunk_units) {
                const uint32_t units = min(p.chunk_units, all_units - unit);
                const bool first_time = strip == blockIdx.x && which == 0 && unit == 0;
                if (first_time || !whole) {
                    __syncthreads();
                    stage(shared, x, p, unit, units, first_time);
                    __syncthreads();
                }
                any_strip_part<TILES, INVARIANT>(total, matrix, own_strip, x, x_sums, p, unit, units);
            }
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile) {
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    shared.sums[warp][g + i / 2 * 8][8 * tile + 2 * t + i % 2] = total[tile][i];
            }
            __syncthreads();
#pragma unroll
            for (int slot = 0; slot < sizeof(kept) / sizeof(float); ++slot) {
                const uint32_t element = slot * FEW_WARPS * WARP + threadIdx.x;
                const uint32_t row = element % STRIP_ROWS, token = element / STRIP_ROWS;
                if (token >= p.tokens) continue;
                float y = 0.0f;
#pragma unroll
                for (int part = 0; part < FEW_WARPS; ++part) y += shared.sums[part][row][token];
                y = __fmul_rn(y, shared.scales[token].inverse);
                const uint32_t out = own_strip * STRIP_ROWS + row;
                if (which + 1 == matrices && out < matrix.rows) {
                    if (matrices == 2)
                        finish(product, token, out, kept[slot], y);
                    else
                        finish(product, token, out, y, 0.0f);
                }
                kept[slot] = y;
            }
            __syncthreads();
        }
    }
}

}  // namespace ottava

// The last argument is how many blocks must fit an SM: registers bound them.
#define OTTAVA_MATMUL_FEW(TOKENS, BLOCKS)                                                            \
    extern "C" __global__ void __launch_bounds__(256, BLOCKS)                                        \
        matmul_few_##TOKENS(const __grid_constant__ ottava::MatmulParams p) {                        \
        ottava::matmul_few<TOKENS / 8, false>(p);                                                    \
    }                                                                                                \
    extern "C" __global__ void __launch_bounds__(256, BLOCKS)                                        \
        matmul_few_invariant_##TOKENS(const __grid_constant__ ottava::MatmulParams p) {              \
        ottava::matmul_few<TOKENS / 8, true>(p);                                                     \
    }
OTTAVA_MATMUL_FEW(8, 2)
OTTAVA_MATMUL_FEW(16, 2)
OTTAVA_MATMUL_FEW(32, 1)
#undef OTTAVA_MATMUL_FEW
