// dst = epilogue(norm(src) · matrixᵀ) for up to 8 tokens, which are the 8 columns of the B operand; the host
// launches it for up to 4. The matrix is read once.
//
// A block processes row blocks of 16-row strips, 8 / parts strips at a time. A warp handles one part of one
// strip: a chain of units of 128 columns. The parts of a strip are added in shared memory in the order of the
// columns. Scales and minimums are applied to the operand in f16, as in matmul_many.cu, so sums stay in the
// accumulators from a part's first column to its last.
//
// A warp's weights pass through its own ring in shared memory, filled by cp.async in slices of 1 KB of codes.
// The ring continues from one chain to the next: while a block adds up a strip, the next strips' weights are
// being loaded. A lane multiplies data that it has copied itself, except for scales and minimums, which the
// warp shares.
//
//   for slice of the ring: copy          // before the wait: weights do not depend on earlier kernels
//   wait; convert the activations to f16
//   for chain
//     for unit of 128 columns
//       wait for its slices; load codes, scales and minimums; copy as many later slices
//       for step of 16 columns: mma
//     add up the parts, store
//
// Launch: 256 threads; dynamic shared memory of `FewShape` in src/backend/cuda/few.rs; any number of blocks,
// each of which processes every gridDim.x-th group of strips.

#include "common/matmul.cuh"
#include "common/order.cuh"

namespace ottava {

constexpr uint32_t FEW_WARPS = 8, FEW_TOKENS = 8;
static_assert(FEW_WARPS == PARTS_MAX, "a block has all parts of a strip");

// Activations: [tokens][units · 128 + 16]. The stride between rows is an odd multiple of 32 bytes, so that
// the 8-byte reads of 16 lanes, from four rows, touch every bank once.
__device__ __forceinline__ uint32_t activation_stride(uint32_t units) { return units * UNIT_COLS + 16; }

// A slice of a ring: codes of one unit at 4 bits, half a unit at 8, a quarter at 16.
constexpr uint32_t SLICE_LOADS = 2, SLICE_BYTES = SLICE_LOADS * LOAD_BYTES;

// Slices per unit with `bits` bits.
__device__ __forceinline__ constexpr uint32_t unit_slices(uint32_t bits) {
    return UNIT_STEPS * bits / 16 / SLICE_LOADS;
}

// A part of a strip of a matrix, which one warp sums up.
struct Chain {
    const Matrix* matrix;  // null if there is nothing to do
    uint32_t strip, begin, end;
};

// The chains of a warp in order: for each of the block's groups of strips, the warp's part of its strip, for
// a gate first in one matrix and then in the other.
struct Chains {
    const MatmulParams& p;
    uint32_t first;  // the group's first strip
    uint32_t which, matrices;
    uint32_t begin, end;  // units

    // `matrices`: 2 if any product is gated, otherwise 1.
    __device__ __forceinline__ Chains(const MatmulParams& p, uint32_t matrices)
        : p(p), first(blockIdx.x * strips()), which(0), matrices(matrices) {
        const uint32_t units = p.half_cols / UNIT_COLS, part = threadIdx.x / WARP % p.parts;
        begin = part_begin(part, p.parts, units);
        end = part_begin(part + 1, p.parts, units);
    }

    // Strips per group.
    __device__ __forceinline__ uint32_t strips() const { return FEW_WARPS / p.parts; }
    __device__ __forceinline__ bool done() const { return first >= p.row_blocks; }
    __device__ __forceinline__ void next() {
        if (++which < matrices) return;
        which = 0;
        first += gridDim.x * strips();
    }
    __device__ __forceinline__ Chain chain() const {
        const uint32_t strip = first + threadIdx.x / WARP / p.parts;
        if (strip >= p.row_blocks) return {nullptr, 0, begin, end};
        const Product& product = product_of(p, strip);
        if (which == 1 && product.epilogue != Epilogue::Gated) return {nullptr, 0, begin, end};
        return {which == 0 ? &product.matrix : &product.up, strip - product.first_block, begin, end};
    }
};

// A warp's ring: [slices] of codes, then [slices] with room for a unit's scales and minimums. Those are
// stored at the index of the unit's first slice.
struct Ring {
    uint8_t* codes;  // the lane's part
    uint8_t* scales;
    uint32_t slices, scale_bytes;  // scale_bytes: per slice; minimums are the second half

    __device__ __forceinline__ Ring(const MatmulParams& p, uint8_t* memory)
        : slices(p.ring_slices), scale_bytes(p.ring_scale_bytes) {
        const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
        memory += warp * slices * (SLICE_BYTES + scale_bytes);
        codes = memory + lane * sizeof(uint4);
        scales = memory + slices * SLICE_BYTES;
    }
    // Address of a slice. Slices are numbered consecutively; a ring holds the last ones.
    __device__ __forceinline__ uint4* code(uint32_t slice, uint32_t load) const {
        return reinterpret_cast<uint4*>(codes + (slice & (slices - 1)) * SLICE_BYTES + load * LOAD_BYTES);
    }
    __device__ __forceinline__ uint8_t* scale(uint32_t slice) const {
        return scales + (slice & (slices - 1)) * scale_bytes;
    }
    // Bytes of all rings of a block.
    __device__ __forceinline__ uint32_t all_bytes() const { return FEW_WARPS * slices * (SLICE_BYTES + scale_bytes); }

    // Waits for a unit's slices, the oldest in flight, and makes all lanes' copies visible. The number of
    // copy groups in flight equals the slices of a ring, including empty groups. The count must be a
    // constant, hence one call per ring size.
    template <int UNIT_SLICES>
    __device__ __forceinline__ void wait() const {
        cp_async_wait<8 - UNIT_SLICES>();
        cp_async_wait_if<4 - UNIT_SLICES>(slices < 8);
        cp_async_wait_if<UNIT_SLICES == 1 ? 1 : 0>(slices < 4);
        __syncwarp();
    }
};

// Copies the slices of a warp's chains into its ring, one after another.
struct Copies {
    Chains chains;
    const uint4* codes;     // the lane's part of the next slice
    const __half2* scales;  // the lane's part of the strip's scales or minimums; or null
    int loads;              // left in the row, from the next slice on
    uint32_t slices;        // left in the chain
    uint32_t group, last_group, unit_groups;  // the lane's group of the next unit
    uint32_t per_unit;      // slices per unit

    __device__ __forceinline__ Copies(const MatmulParams& p, uint32_t matrices) : chains(p, matrices), slices(0) {}

    // Starts the next chain that has slices; returns false if there is none.
    __device__ __forceinline__ bool start() {
        for (; !chains.done(); chains.next()) {
            const Chain chain = chains.chain();
            if (!chain.matrix || chain.begin == chain.end) continue;
            const Matrix& m = *chain.matrix;
            // 16 lanes copy 16 bytes each of the scales of up to 8 groups, the others minimums.
            const uint32_t lane = threadIdx.x % WARP, own = lane % 16, all_loads = row_loads(m.cols, m.bits);
            const uint32_t first = chain.begin * (UNIT_STEPS * m.bits / 16);
            codes = m.codes + (static_cast<size_t>(chain.strip) * all_loads + first) * WARP + lane;
            loads = static_cast<int>(all_loads - first);
            per_unit = unit_slices(m.bits);
            slices = (chain.end - chain.begin) * per_unit;
            unit_groups = UNIT_STEPS / m.group_steps;
            group = chain.begin * unit_groups + own / 2;
            last_group = m.groups - 1;
            const __half2* const from = lane < 16 ? m.scales : m.mins;
            const size_t before = static_cast<size_t>(chain.strip) * m.groups * 8 + own % 2 * 4;
            scales = from && own < 2 * unit_groups ? from + before : nullptr;
            chains.next();
            return true;
        }
        return false;
    }

    // Starts the copy of a slice, as a copy group of its own, which is empty after the last slice. After the
    // row's end, codes are zero and the last scale is used: activations are zero there. A row with one scale
    // uses it in every unit.
    __device__ __forceinline__ void next(const Ring& ring, uint32_t slice) {
        if (slices > 0 || start()) {
#pragma unroll
            for (uint32_t i = 0; i < SLICE_LOADS; ++i)
                cp_async_16(ring.code(slice, i), codes + i * WARP, static_cast<int>(i) < loads);
            // `per_unit` is a power of two.
            if ((slices & (per_unit - 1)) == 0) copy_scales(ring, slice);
            codes += SLICE_LOADS * WARP;
            loads -= SLICE_LOADS;
            --slices;
        }
        cp_async_commit();
    }

    // `next` for each of a unit's slices, of which `slice` is the first. A whole unit is one group of copies
    // followed by empty ones: copies complete earlier than `Ring::wait` relies on, never later.
    template <uint32_t UNIT_SLICES>
    __device__ __forceinline__ void next_unit(const Ring& ring, uint32_t slice) {
        // The chain's next unit may have another format, and after shorter units a ring's end may be within a
        // unit.
        const bool whole = slices > 0 && per_unit == UNIT_SLICES && (slice & (UNIT_SLICES - 1)) == 0;
        if (!whole) {
#pragma unroll 1
            for (uint32_t i = 0; i < UNIT_SLICES; ++i) next(ring, slice + i);
            return;
        }
        uint4* const to = ring.code(slice, 0);
#pragma unroll
        for (uint32_t i = 0; i < UNIT_SLICES * SLICE_LOADS; ++i)
            cp_async_16(to + i * WARP, codes + i * WARP, static_cast<int>(i) < loads);
        copy_scales(ring, slice);
        codes += UNIT_SLICES * SLICE_LOADS * WARP;
        loads -= UNIT_SLICES * SLICE_LOADS;
        slices -= UNIT_SLICES;
#pragma unroll
        for (uint32_t i = 0; i < UNIT_SLICES; ++i) cp_async_commit();
    }

    // Starts the copy of the next unit's scales and minimums, to the index of the unit's first slice.
    __device__ __forceinline__ void copy_scales(const Ring& ring, uint32_t slice) {
        const uint32_t lane = threadIdx.x % WARP;
        uint8_t* const to = ring.scale(slice) + lane / 16 * (ring.scale_bytes / 2) + lane % 16 * 16;
        cp_async_16_if(scales != nullptr, to, scales + min(group, last_group) * 8);
        group += unit_groups;
    }
};

// The sums over a chain; `x` is the lane's part of the activations, `slice` the number of slices multiplied
// so far.
template <int BITS, int GROUP_STEPS>
__device__ __forceinline__ void add_up(float (&total)[4], const Chain& chain, const __half* x, const Ring& ring,
                                       Copies& copies, uint32_t& slice) {
    constexpr uint32_t SLICES = unit_slices(BITS), GROUPS = UNIT_STEPS / GROUP_STEPS;
    const uint32_t g = threadIdx.x % WARP / 4, zero = chain.matrix->zero;
    const bool has_mins = chain.matrix->mins != nullptr;
    for (uint32_t unit = chain.begin; unit < chain.end; ++unit) {
        Codes<BITS, UNIT_STEPS> codes;
        __half2 scales[GROUPS], mins[GROUPS];
        ring.wait<SLICES>();
#pragma unroll
        for (uint32_t i = 0; i < codes.LOADS; ++i)
            codes.loads[i] = *ring.code(slice + i / SLICE_LOADS, i % SLICE_LOADS);
        const auto* const of_groups = reinterpret_cast<const __half2*>(ring.scale(slice)) + g;
        const auto* const mins_of_groups = of_groups + ring.scale_bytes / 8;
#pragma unroll
        for (uint32_t i = 0; i < GROUPS; ++i) {
            scales[i] = of_groups[i * 8];
            mins[i] = has_mins ? mins_of_groups[i * 8] : __float2half2_rn(0.0f);
        }
        // All lanes have read: the slices are free.
        __syncwarp();
        copies.next_unit<SLICES>(ring, slice);
        slice += SLICES;
#pragma unroll
        for (int step = 0; step < UNIT_STEPS; ++step) {
            const int group = step / GROUP_STEPS;
            uint32_t a[4];
            scaled_operand(a, codes, step, zero, scales[group], mins[group]);
            const uint2 pair = *reinterpret_cast<const uint2*>(x + unit * UNIT_COLS + step * STEP_COLS);
            const uint32_t b[2] = {pair.x, pair.y};
            mma_m16n8k16(total, a, b);
        }
    }
}

// The table of formats, one row each.
__device__ __forceinline__ void add_up(float (&total)[4], const Chain& chain, const __half* x, const Ring& ring,
                                       Copies& copies, uint32_t& slice) {
    if (!chain.matrix || chain.begin == chain.end) return;
#define OTTAVA_FORMAT(BITS, STEPS)                                 \
    case BITS * 16 + STEPS:                                        \
        add_up<BITS, STEPS>(total, chain, x, ring, copies, slice); \
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

// Shared memory of a block; the rings and the activations follow.
struct FewShared {
    float sums[FEW_WARPS][STRIP_ROWS][FEW_TOKENS];
    RowPart row_parts[FEW_TOKENS][ROW_PARTS];
    RowScale scales[FEW_TOKENS];
};
static_assert(sizeof(FewShared) == 4672, "as in few.rs");

// A thread's first column of fours that all warps share, and the distance to its next one.
__device__ __forceinline__ uint32_t first_four() { return threadIdx.x / WARP * PART_COLS + 4 * (threadIdx.x % WARP); }
constexpr uint32_t FOURS_DISTANCE = FEW_WARPS * PART_COLS;

__device__ __forceinline__ void store_scales(FewShared& shared, const MatmulParams& p) {
    __syncthreads();
    if (threadIdx.x < p.tokens)
        shared.scales[threadIdx.x] = row_scale(shared.row_parts[threadIdx.x], p.norm != nullptr, p.eps, p.cols);
    __syncthreads();
}

// Converts the activations to f16, with each row's scale. A thread reads up to FOURS fours of each row,
// once, and has all of them in flight; norm weights are loaded before the wait. For rows of whole fours.
template <int TOKENS, int FOURS, bool NORM>
__device__ __forceinline__ void stage_once(FewShared& shared, __half* x, const MatmulParams& p, uint32_t units) {
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, first = first_four();
    const bool normed = NORM && p.norm;
    float4 rows[TOKENS][FOURS], weights[FOURS];
#pragma unroll
    for (int i = 0; normed && i < FOURS; ++i) weights[i] = load_four<true>(p.norm, first + i * FOURS_DISTANCE, p.cols);
    wait_for_predecessor();
#pragma unroll
    for (int token = 0; token < TOKENS; ++token)
#pragma unroll
        for (int i = 0; i < FOURS; ++i) {
            const uint32_t end = token < p.tokens ? p.cols : 0;
            rows[token][i] = load_four<true>(p.src + token * p.cols, first + i * FOURS_DISTANCE, end);
        }
#pragma unroll
    for (int token = 0; token < TOKENS; ++token) {
        RowPart part = {0.0f, 0.0f};
#pragma unroll
        for (int i = 0; i < FOURS; ++i) {
            const float4 four = rows[token][i];
            add_four(part, four, normed ? times(four, weights[i]) : four);
        }
        part = {warp_sum(part.squares), warp_max(part.largest)};
        if (lane == 0) shared.row_parts[token][warp] = part;
    }
    store_scales(shared, p);
#pragma unroll
    for (int token = 0; token < TOKENS; ++token) {
        if (token >= p.tokens) break;
        const float factor = shared.scales[token].factor;
#pragma unroll
        for (int i = 0; i < FOURS; ++i) {
            const uint32_t col = first + i * FOURS_DISTANCE;
            const float4 four = times(rows[token][i], factor);
            if (col < units * UNIT_COLS)
                *reinterpret_cast<uint2*>(x + token * activation_stride(units) + col) =
                    half_four(normed ? times(four, weights[i]) : four);
        }
    }
}

// `stage_once` for rows of any length, which are read twice.
__device__ __forceinline__ void stage_twice(FewShared& shared, __half* x, const MatmulParams& p, uint32_t units) {
    const uint32_t warp = threadIdx.x / WARP;
    wait_for_predecessor();
    for (uint32_t token = 0; token < p.tokens; ++token) {
        const float* row = p.src + static_cast<size_t>(token) * p.cols;
        row_parts<FEW_WARPS>(shared.row_parts[token], row, p.norm, p.cols, warp);
    }
    store_scales(shared, p);
    for (uint32_t token = 0; token < p.tokens; ++token) {
        const float* row = p.src + static_cast<size_t>(token) * p.cols;
        const auto store = [&](uint32_t col, uint2 four) {
            *reinterpret_cast<uint2*>(x + token * activation_stride(units) + col) = four;
        };
        for_each_half_four(row, p.norm, shared.scales[token].factor, first_four(), FOURS_DISTANCE, units * UNIT_COLS,
                           p.cols, store);
    }
}

// Waits for the previous kernel, and converts the activations to f16 in the way that fits the registers.
__device__ __forceinline__ void stage(FewShared& shared, __half* x, const MatmulParams& p, uint32_t units) {
    const uint32_t fours = p.cols % 4 == 0 ? (p.cols + FOURS_DISTANCE - 1) / FOURS_DISTANCE : UINT32_MAX;
    if (p.tokens == 1 && fours <= 8)
        stage_once<1, 8, true>(shared, x, p, units);
    else if (p.tokens == 1 && fours <= 16 && !p.norm)
        stage_once<1, 16, false>(shared, x, p, units);
    else if (p.tokens <= 4 && fours <= 4)
        stage_once<4, 4, true>(shared, x, p, units);
    else
        stage_twice(shared, x, p, units);
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
    const Ring ring(p, memory + sizeof(FewShared));
    auto* x = reinterpret_cast<__half*>(memory + sizeof(FewShared) + ring.all_bytes());
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, t = lane % 4;
    const uint32_t units = p.half_cols / UNIT_COLS, strips = FEW_WARPS / p.parts;
    // Columns after the last token use its activations; their results are discarded.
    const __half* own_x = x + min(g, p.tokens - 1) * activation_stride(units) + 4 * t;
    const uint32_t matrices = any_gated(p) ? 2 : 1;

    Copies copies(p, matrices);
    for (uint32_t slice = 0; slice < ring.slices; ++slice) copies.next(ring, slice);
    stage(shared, x, p, units);
    // A thread's results of a gate's first matrix, kept for the second's.
    constexpr uint32_t KEPT = FEW_WARPS * STRIP_ROWS * FEW_TOKENS / (FEW_WARPS * WARP);
    float kept[KEPT];
    uint32_t slice = 0;
    for (Chains chains(p, matrices); !chains.done(); chains.next()) {
        const uint32_t first = chains.first, which = chains.which;
        float total[4] = {};
        add_up(total, chains.chain(), own_x, ring, copies, slice);
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

}  // namespace ottava

// Two blocks must fit on a multiprocessor; registers limit them.
extern "C" __global__ void __launch_bounds__(256, 2) matmul_few(const __grid_constant__ ottava::MatmulParams p) {
    ottava::matmul_few(p);
}
