// dst = epilogue(norm(src) · matrixᵀ) for up to 8 tokens, which are the 8 columns of the B operand. The matrix is
// read once, at the speed of memory.
//
// A block works through row blocks of strips of 16 rows, 8 / parts strips at a time. A warp takes one part of one
// strip: it loads units of 128 columns by 16-byte loads straight to registers, one unit ahead. The parts of a strip
// are added in shared memory in the order of the columns. Scales and minimums are applied to the operand in f16, as
// matmul_many.cu does, so sums stay in the accumulators from a part's first column to its last.
//
// Weights are no kernel's result, so a block prefetches its first strips into L2 while the kernel before it still
// runs, and the next ones while it multiplies.
//
// Launch: 256 threads; dynamic shared memory as `FewShape` in src/backend/cuda/few.rs; any number of blocks, each takes
// every gridDim.x-th group of strips.

#include "common/matmul.cuh"
#include "common/order.cuh"

namespace ottava {

constexpr uint32_t FEW_WARPS = 8, FEW_TOKENS = 8;
static_assert(FEW_WARPS == PARTS_MAX, "a block has all parts of a strip");

// Activations: [tokens][units · 128 + 16]. A row's distance is an odd multiple of 32 bytes, so that the 8-byte reads of
// 16 lanes, from four rows, touch every bank once.
__device__ __forceinline__ uint32_t activation_stride(uint32_t units) { return units * UNIT_COLS + 16; }

// A lane's weights of a unit.
template <int BITS, int GROUP_STEPS>
struct UnitWeights {
    static constexpr int GROUPS = UNIT_STEPS / GROUP_STEPS;
    Codes<BITS, UNIT_STEPS> codes;
    __half2 scales[GROUPS], mins[GROUPS];
};

// A warp's strip of a matrix, read unit by unit.
template <int BITS, int GROUP_STEPS>
struct StripStream {
    using Weights = UnitWeights<BITS, GROUP_STEPS>;
    static constexpr int LOADS = decltype(Weights::codes)::LOADS, GROUPS = Weights::GROUPS;
    const uint4* codes;
    const __half2 *scales, *mins;
    uint32_t loads, groups;  // of the strip, from the unit that is read next

    __device__ __forceinline__ StripStream(const Matrix& m, uint32_t strip, uint32_t unit) {
        const uint32_t lane = threadIdx.x % WARP, all_loads = row_loads(m.cols, BITS);
        // A row with one scale has it in every unit.
        const uint32_t group = m.groups == 1 ? 0 : unit * GROUPS;
        const size_t scale = (static_cast<size_t>(strip) * m.groups + group) * 8 + lane / 4;
        loads = all_loads - unit * LOADS;
        groups = m.groups - group;
        codes = m.codes + (static_cast<size_t>(strip) * all_loads + unit * LOADS) * WARP + lane;
        scales = m.scales + scale;
        mins = m.mins ? m.mins + scale : nullptr;
    }

    // Beyond the row's end codes are zero and the last scale holds: activations are zero there.
    __device__ __forceinline__ Weights next() {
        Weights unit;
        const bool whole = loads >= LOADS && groups >= GROUPS;
#pragma unroll
        for (int i = 0; i < LOADS; ++i)
            unit.codes.loads[i] = whole || i < loads ? ld_stream(codes + i * WARP) : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int i = 0; i < GROUPS; ++i) {
            const uint32_t group = whole ? i : min(i, groups - 1);
            unit.scales[i] = scales[group * 8];
            unit.mins[i] = mins ? mins[group * 8] : __float2half2_rn(0.0f);
        }
        codes += LOADS * WARP;
        loads -= LOADS;
        if (groups > 1) {
            scales += GROUPS * 8;
            if (mins) mins += GROUPS * 8;
            groups -= GROUPS;
        }
        return unit;
    }
};

// The sums over the units from `begin` to `end` of a strip; `x` is the lane's part of the activations.
template <int BITS, int GROUP_STEPS>
__device__ __forceinline__ void strip_part(float (&total)[4], const Matrix& matrix, uint32_t strip, const __half* x,
                                           uint32_t begin, uint32_t end) {
    StripStream<BITS, GROUP_STEPS> stream(matrix, strip, begin);
    auto next = stream.next();
    for (uint32_t unit = begin; unit < end; ++unit) {
        const auto weights = next;
        if (unit + 1 < end) next = stream.next();
#pragma unroll
        for (int step = 0; step < UNIT_STEPS; ++step) {
            const int group = step / GROUP_STEPS;
            uint32_t a[4];
            scaled_operand(a, weights.codes, step, matrix.zero, weights.scales[group], weights.mins[group]);
            const uint2 pair = *reinterpret_cast<const uint2*>(x + unit * UNIT_COLS + step * STEP_COLS);
            const uint32_t b[2] = {pair.x, pair.y};
            mma_m16n8k16(total, a, b);
        }
    }
}

// The table of formats: a row for each that a matrix may have.
__device__ __forceinline__ void any_strip_part(float (&total)[4], const Matrix& matrix, uint32_t strip,
                                               const __half* x, uint32_t begin, uint32_t end) {
    if (begin == end) return;
#define OTTAVA_FORMAT(BITS, STEPS)                                        \
    case BITS * 16 + STEPS:                                               \
        strip_part<BITS, STEPS>(total, matrix, strip, x, begin, end);     \
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

// Shared memory of a block; the activations follow.
struct FewShared {
    float sums[FEW_WARPS][STRIP_ROWS][FEW_TOKENS];
    RowPart row_parts[FEW_TOKENS][ROW_PARTS];
    RowScale scales[FEW_TOKENS];
};
static_assert(sizeof(FewShared) == 4672, "as in few.rs");

// Turns the activations to f16, with each row's scale. WARPS share a row.
template <int WARPS>
__device__ __forceinline__ void stage_by(FewShared& shared, __half* x, const MatmulParams& p, uint32_t units) {
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, own = warp % WARPS;
    for (uint32_t token = warp / WARPS; token < p.tokens; token += FEW_WARPS / WARPS) {
        const float* row = p.src + static_cast<size_t>(token) * p.cols;
        row_parts<WARPS>(shared.row_parts[token], row, p.norm, p.cols, own);
    }
    __syncthreads();
    if (threadIdx.x < p.tokens)
        shared.scales[threadIdx.x] = row_scale(shared.row_parts[threadIdx.x], p.norm != nullptr, p.eps, p.cols);
    __syncthreads();
    for (uint32_t token = warp / WARPS; token < p.tokens; token += FEW_WARPS / WARPS) {
        const float* row = p.src + static_cast<size_t>(token) * p.cols;
        const float factor = shared.scales[token].factor;
#pragma unroll 4
        for (uint32_t i = own * PART_COLS + 4 * lane; i < units * UNIT_COLS; i += WARPS * PART_COLS)
            *reinterpret_cast<uint2*>(x + token * activation_stride(units) + i) =
                half_four(row, p.norm, factor, i, p.cols);
    }
    __syncthreads();
}

// Keeps all warps at work, however few rows there are.
__device__ __forceinline__ void stage(FewShared& shared, __half* x, const MatmulParams& p, uint32_t units) {
    if (p.tokens == 1)
        stage_by<8>(shared, x, p, units);
    else if (p.tokens <= 4)
        stage_by<2>(shared, x, p, units);
    else
        stage_by<1>(shared, x, p, units);
}

// Prefetches a range into L2 by the block's threads.
__device__ __forceinline__ void prefetch(Prefetch kind, const void* start, uint32_t bytes) {
    constexpr uint32_t LINE = 128;
#if __CUDA_ARCH__ >= 900
    if (kind == Prefetch::Default) {
        if (threadIdx.x == 0) bulk_prefetch_l2(start, bytes);
        return;
    }
#endif
    for (uint32_t at = threadIdx.x * LINE; at < bytes; at += FEW_WARPS * WARP * LINE)
        prefetch_l2(static_cast<const uint8_t*>(start) + at);
}

// Prefetches the weights of a strip.
__device__ __forceinline__ void prefetch_strip(const MatmulParams& p, uint32_t strip) {
    const Product& product = product_of(p, strip);
    for (int which = 0; which < (product.epilogue == Epilogue::Gated ? 2 : 1); ++which) {
        const Matrix& matrix = which == 0 ? product.matrix : product.up;
        const size_t own = strip - product.first_block;
        const uint32_t loads = row_loads(matrix.cols, matrix.bits), scales = 8 * matrix.groups;
        prefetch(p.prefetch, matrix.codes + own * loads * WARP, loads * WARP * sizeof(uint4));
        prefetch(p.prefetch, matrix.scales + own * scales, scales * sizeof(__half2));
        if (matrix.mins) prefetch(p.prefetch, matrix.mins + own * scales, scales * sizeof(__half2));
    }
}

__device__ __forceinline__ void prefetch_strips(const MatmulParams& p, uint32_t first, uint32_t count) {
    if (p.prefetch == Prefetch::None) return;
    for (uint32_t strip = first; strip < min(first + count, p.row_blocks); ++strip) prefetch_strip(p, strip);
}

// Whether a product of the launch is gated.
__device__ __forceinline__ bool any_gated(const MatmulParams& p) {
    bool gated = false;
    for (uint32_t i = 0; i < p.product_count; ++i) gated |= p.products[i].epilogue == Epilogue::Gated;
    return gated;
}

__device__ __forceinline__ void matmul_few(const MatmulParams& p) {
    extern __shared__ __align__(16) uint8_t memory[];
    auto& shared = *reinterpret_cast<FewShared*>(memory);
    auto* x = reinterpret_cast<__half*>(memory + sizeof(FewShared));
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, t = lane % 4;
    const uint32_t units = p.half_cols / UNIT_COLS, strips = FEW_WARPS / p.parts;
    const uint32_t part = warp % p.parts;
    const uint32_t begin = part_begin(part, p.parts, units), end = part_begin(part + 1, p.parts, units);
    // Columns beyond the last token take its activations: their results are dropped.
    const __half* own_x = x + min(g, p.tokens - 1) * activation_stride(units) + 4 * t;
    const int matrices = any_gated(p) ? 2 : 1;

    prefetch_strips(p, blockIdx.x * strips, strips);
    wait_for_predecessor();
    stage(shared, x, p, units);
    for (uint32_t first = blockIdx.x * strips; first < p.row_blocks; first += gridDim.x * strips) {
        prefetch_strips(p, first + gridDim.x * strips, strips);
        // A thread's results of the first matrix: gates wait for the second.
        constexpr uint32_t KEPT = FEW_WARPS * STRIP_ROWS * FEW_TOKENS / (FEW_WARPS * WARP);
        float kept[KEPT];
        for (int which = 0; which < matrices; ++which) {
            const uint32_t strip = first + warp / p.parts;
            float total[4] = {};
            if (strip < p.row_blocks) {
                const Product& product = product_of(p, strip);
                const bool gated = product.epilogue == Epilogue::Gated;
                const Matrix& matrix = which == 0 ? product.matrix : product.up;
                if (which == 0 || gated) any_strip_part(total, matrix, strip - product.first_block, own_x, begin, end);
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) shared.sums[warp][g + i / 2 * 8][2 * t + i % 2] = total[i];
            __syncthreads();
#pragma unroll
            for (uint32_t slot = 0; slot < KEPT; ++slot) {
                const uint32_t element = slot * FEW_WARPS * WARP + threadIdx.x;
                const uint32_t row = element % STRIP_ROWS, token = element / STRIP_ROWS % FEW_TOKENS;
                const uint32_t own = element / (STRIP_ROWS * FEW_TOKENS), index = first + own;
                if (own >= strips || index >= p.row_blocks || token >= p.tokens) continue;
                float y = 0.0f;
                for (uint32_t i = 0; i < p.parts; ++i) y += shared.sums[own * p.parts + i][row][token];
                y = __fmul_rn(y, shared.scales[token].inverse);
                const Product& product = product_of(p, index);
                const bool gated = product.epilogue == Epilogue::Gated;
                const uint32_t strip = index - product.first_block, out = strip * STRIP_ROWS + row;
                if (gated == (which == 1)) {
                    float stored = -INFINITY;
                    if (out < product.matrix.rows) stored = finish(product, token, out, gated ? kept[slot] : y, y);
                    if (product.largest)
                        note_largest(product.largest + token * product.noted_strips + strip, stored);
                }
                kept[slot] = y;
            }
            __syncthreads();
        }
    }
}

}  // namespace ottava

// Two blocks must fit an SM: registers bound them.
extern "C" __global__ void __launch_bounds__(256, 2) matmul_few(const __grid_constant__ ottava::MatmulParams p) {
    ottava::matmul_few(p);
}
