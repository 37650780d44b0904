// dst = epilogue(norm(src) · matrixᵀ) for up to 8 tokens, which are the 8 columns of the B operand; the host launches it
// for up to 4. The matrix is read once, at the speed of memory.
//
// A block works through row blocks of strips of 16 rows, 8 / parts strips at a time. A warp takes one part of one
// strip: it loads units of 128 columns by 16-byte loads straight to registers, one unit ahead. The parts of a strip
// are added in shared memory in the order of the columns. Scales and minimums are applied to the operand in f16, as
// matmul_many.cu does, so sums stay in the accumulators from a part's first column to its last.
//
// Weights are no kernel's result, so warps prefetch their first ones into L2 while the kernel before this one still
// runs. From then on each prefetches AHEAD_BYTES ahead: all warps together have far less under way than L2 holds.
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

// What a warp has under way of the codes that it reads next: two units of 16 bits, four of 8, eight of 4.
constexpr uint32_t AHEAD_BYTES = 8192;

// Prefetches up to PREFETCH_BYTES into L2, by a warp.
constexpr uint32_t LINE_BYTES = 128, PREFETCH_BYTES = WARP * LINE_BYTES;
__device__ __forceinline__ void prefetch(Prefetch kind, const void* start, uint32_t bytes) {
    const uint32_t lane = threadIdx.x % WARP;
#if __CUDA_ARCH__ >= 900
    if (kind == Prefetch::Default) {
        if (lane == 0 && bytes > 0) bulk_prefetch_l2(start, bytes);
        return;
    }
#endif
    if (kind != Prefetch::None && lane * LINE_BYTES < bytes)
        prefetch_l2(static_cast<const uint8_t*>(start) + lane * LINE_BYTES);
}

__device__ __forceinline__ void prefetch_range(Prefetch kind, const void* start, uint32_t bytes) {
    for (uint32_t at = 0; at < bytes; at += PREFETCH_BYTES)
        prefetch(kind, static_cast<const uint8_t*>(start) + at, min(bytes - at, PREFETCH_BYTES));
}

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
    int loads;        // of the strip, from the unit that is read next on
    uint32_t groups;  // the same

    __device__ __forceinline__ StripStream(const Matrix& m, uint32_t strip, uint32_t unit) {
        const uint32_t lane = threadIdx.x % WARP, all_loads = row_loads(m.cols, BITS);
        // A row with one scale has it in every unit.
        const uint32_t group = m.groups == 1 ? 0 : unit * GROUPS;
        const size_t scale = (static_cast<size_t>(strip) * m.groups + group) * 8 + lane / 4;
        loads = static_cast<int>(all_loads - unit * LOADS);
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
            unit.scales[i] = __ldg(scales + group * 8);
            unit.mins[i] = mins ? __ldg(mins + group * 8) : __float2half2_rn(0.0f);
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

    // Units that a prefetch brings.
    static constexpr uint32_t PREFETCHED = PREFETCH_BYTES / (LOADS * LOAD_BYTES);
    static_assert(PREFETCHED > 0 && AHEAD_BYTES % PREFETCH_BYTES == 0, "prefetches are of whole units");

    // Prefetches the codes AHEAD_BYTES behind the unit before the one that is read next.
    __device__ __forceinline__ void prefetch_ahead(Prefetch kind) const {
        constexpr uint32_t AHEAD = AHEAD_BYTES / LOAD_BYTES - LOADS;
        const uint32_t left = max(loads - static_cast<int>(AHEAD), 0);
        prefetch(kind, codes - threadIdx.x % WARP + AHEAD * WARP, min(left * LOAD_BYTES, PREFETCH_BYTES));
    }
};

// A part of a strip of a matrix: what one warp adds up.
struct Chain {
    const Matrix* matrix;  // null where there is nothing to do
    uint32_t strip, begin, end;

    // Prefetches the first codes, and all scales and minimums.
    __device__ __forceinline__ void prefetch_start(Prefetch kind) const {
        if (!matrix || begin == end) return;
        const Matrix& m = *matrix;
        const uint32_t unit_loads = UNIT_STEPS * m.bits / 16, loads = row_loads(m.cols, m.bits);
        const uint32_t first = begin * unit_loads, last = min(end * unit_loads, loads);
        prefetch_range(kind, m.codes + (static_cast<size_t>(strip) * loads + first) * WARP,
                       min(last - first, AHEAD_BYTES / LOAD_BYTES) * LOAD_BYTES);
        const uint32_t unit_groups = UNIT_STEPS / m.group_steps;
        const uint32_t group = min(begin * unit_groups, m.groups - 1), groups = min(end * unit_groups, m.groups) - group;
        const size_t scale = (static_cast<size_t>(strip) * m.groups + group) * 8;
        prefetch_range(kind, m.scales + scale, groups * 8 * sizeof(__half2));
        if (m.mins) prefetch_range(kind, m.mins + scale, groups * 8 * sizeof(__half2));
    }
};

// The sums over a chain; `x` is the lane's part of the activations.
template <int BITS, int GROUP_STEPS>
__device__ __forceinline__ void add_up(float (&total)[4], const Chain& chain, const __half* x, Prefetch kind) {
    const Matrix& matrix = *chain.matrix;
    StripStream<BITS, GROUP_STEPS> stream(matrix, chain.strip, chain.begin);
    auto next = stream.next();
    for (uint32_t unit = chain.begin; unit < chain.end; ++unit) {
        const auto weights = next;
        if ((unit - chain.begin) % stream.PREFETCHED == 0) stream.prefetch_ahead(kind);
        if (unit + 1 < chain.end) next = stream.next();
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
__device__ __forceinline__ void add_up(float (&total)[4], const Chain& chain, const __half* x, Prefetch kind) {
    if (!chain.matrix || chain.begin == chain.end) return;
#define OTTAVA_FORMAT(BITS, STEPS)                           \
    case BITS * 16 + STEPS:                                  \
        add_up<BITS, STEPS>(total, chain, x, kind);          \
        break
    switch (chain.matrix->bits * 16 + chain.matrix->group_steps) {
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
__device__ __forceinline__ void stage(FewShared& shared, __half* x, const MatmulParams& p, uint32_t units) {
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

    // The warp's part of the strips from `first` on, of a gate's first or second matrix.
    const auto chain_of = [&](uint32_t first, int which) -> Chain {
        const uint32_t strip = first + warp / p.parts;
        if (strip >= p.row_blocks) return {nullptr, 0, begin, end};
        const Product& product = product_of(p, strip);
        if (which == 1 && product.epilogue != Epilogue::Gated) return {nullptr, 0, begin, end};
        return {which == 0 ? &product.matrix : &product.up, strip - product.first_block, begin, end};
    };

    chain_of(blockIdx.x * strips, 0).prefetch_start(p.prefetch);
    wait_for_predecessor();
    // All warps are at work, however few rows there are.
    if (p.tokens == 1)
        stage<8>(shared, x, p, units);
    else
        stage<2>(shared, x, p, units);
    for (uint32_t first = blockIdx.x * strips; first < p.row_blocks; first += gridDim.x * strips) {
        // A thread's results of the first matrix: gates wait for the second.
        constexpr uint32_t KEPT = FEW_WARPS * STRIP_ROWS * FEW_TOKENS / (FEW_WARPS * WARP);
        float kept[KEPT];
        for (int which = 0; which < matrices; ++which) {
            const bool again = which + 1 < matrices;
            chain_of(again ? first : first + gridDim.x * strips, again ? 1 : 0).prefetch_start(p.prefetch);
            float total[4] = {};
            add_up(total, chain_of(first, which), own_x, p.prefetch);
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
