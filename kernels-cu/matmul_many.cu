// dst = epilogue(x · matrixᵀ) for 5 tokens or more, with activations converted to f16 by `activations`.
//
// A tile is 8 strips of 16 rows by TOKENS tokens. Each warp has two strips: adjacent ones, or in a gated
// product the same rows of both matrices. A block's ring of stages in shared memory is filled by cp.async:
// activations are shared by the warps, and each strip's codes, scales and minimums are read from memory once.
// Scales and minimums are applied to the operand in f16, so sums stay in the accumulators.
//
//   for stage of 1 KB of codes per strip     // copied STAGES - 1 ahead
//     for step of 16 columns
//       a = scale · (code - zero) + min      // two operands A in registers
//       for 8 tokens: b from shared memory, two mma
//
// If a tile has up to 64 tokens, the parts of a row (see part_begin) are separate blocks. Their sums go
// through memory, and the block that arrives last adds them in the order of the columns. Tiles of 128 tokens
// are not divided: a block adds up the parts itself. The bits are the same in both cases, and in
// matmul_few.cu.
//
// Launch: `ManyShape` in src/backend/cuda/many.rs: one block per tile and part, 128 threads (256 for tiles of
// 128 tokens). `partial` and `arrived` are needed if parts are blocks.

#include "common/matmul.cuh"
#include "common/order.cuh"

namespace ottava {

constexpr int TILE_STRIPS = 8;

// Shape of a tile of TOKENS_ tokens.
template <int TOKENS_>
struct ManyTile {
    static constexpr int TOKENS = TOKENS_;
    // Two warps share the tokens of a tile of 128.
    static constexpr int TOKEN_WARPS = TOKENS == 128 ? 2 : 1;
    static constexpr int WARPS = TILE_STRIPS / 2 * TOKEN_WARPS, THREADS = WARPS * WARP;
    // Groups of eight tokens per warp.
    static constexpr int EIGHTS = TOKENS / 8 / TOKEN_WARPS;
    static constexpr int STAGES = TOKENS == 16 ? 5 : TOKENS == 128 ? 3 : 4;
    static constexpr bool WHOLE = TOKENS == 128;
    // A lane's sums, per strip of its warp and group of eight tokens.
    using Sums = float[2][EIGHTS][4];
};

// Steps per stage: 1 KB of codes per strip, half of that if many tokens leave less room.
template <int TOKENS, int BITS>
constexpr int STAGE_STEPS = TOKENS >= 64 && BITS == 4 ? 4 : 32 / BITS;

template <int TOKENS, int BITS>
struct Stage {
    static constexpr int STEPS = STAGE_STEPS<TOKENS, BITS>, COLS = STEPS * STEP_COLS;
    static constexpr int LOADS = STEPS / LOAD_STEPS<BITS>;
    // The stride between rows is an odd multiple of 32 bytes, see matmul_few.cu.
    __half activations[TOKENS][COLS + 16];
    struct Strip {
        uint4 codes[LOADS][WARP];
        __half2 scales[STEPS][8], mins[STEPS][8];  // rows g and g + 8
    } strips[TILE_STRIPS];
};
static_assert(sizeof(Stage<16, 4>) == 16896 && sizeof(Stage<16, 8>) == 12800 && sizeof(Stage<16, 16>) == 10752 &&
                  sizeof(Stage<64, 4>) == 16384 && sizeof(Stage<64, 8>) == 20480 && sizeof(Stage<64, 16>) == 15360,
              "as in many.rs");

// An output tile: rows of a product by tokens.
struct Tile {
    const Product* product;
    bool gated;
    uint32_t strip, token;  // first strip and first token

    // Tile indices run through the row blocks of all products, then through the tokens.
    __device__ __forceinline__ Tile(const MatmulParams& p, uint32_t index, uint32_t tokens) {
        const uint32_t row_block = index % p.row_blocks;
        product = &product_of(p, row_block);
        gated = product->epilogue == Epilogue::Gated;
        strip = (row_block - product->first_block) * (gated ? TILE_STRIPS / 2 : TILE_STRIPS);
        token = index / p.row_blocks * tokens;
    }

    // The matrix of the tile's `own`-th strip, and the strip's index in it.
    __device__ __forceinline__ const Matrix& matrix(uint32_t own) const {
        return gated && own % 2 ? product->up : product->matrix;
    }
    __device__ __forceinline__ uint32_t strip_of(uint32_t own) const { return strip + (gated ? own / 2 : own); }
    // The strip to read: after the last one, that one is computed again and its result discarded.
    __device__ __forceinline__ uint32_t read_strip(uint32_t own) const {
        return min(strip_of(own), (product->matrix.rows + STRIP_ROWS - 1) / STRIP_ROWS - 1);
    }
};

// Copies a strip's codes, stage by stage. After the row's end they are zero.
template <class Stage, int BITS>
struct CodeCopies {
    const uint4* codes;  // the lane's part of the next stage
    int loads;           // left in the row, from the next stage on

    CodeCopies() = default;
    __device__ __forceinline__ CodeCopies(const Matrix& m, uint32_t strip, uint32_t stage) {
        const uint32_t all_loads = row_loads(m.cols, BITS);
        loads = static_cast<int>(all_loads - stage * Stage::LOADS);
        codes = m.codes + (static_cast<size_t>(strip) * all_loads + stage * Stage::LOADS) * WARP + threadIdx.x % WARP;
    }

    __device__ __forceinline__ void next(typename Stage::Strip& to) {
#pragma unroll
        for (int i = 0; i < Stage::LOADS; ++i)
            cp_async_16(&to.codes[i][threadIdx.x % WARP], codes + i * WARP, i < loads);
        codes += Stage::LOADS * WARP;
        loads -= Stage::LOADS;
    }
};

// Copies the scales and minimums of a warp's strips, stage by stage: a lane copies 16 bytes of a group of one
// strip.
template <class Stage, int STRIPS>
struct ScaleCopies {
    static constexpr uint32_t STRIP_LANES = 16;
    static_assert(STRIPS * STRIP_LANES <= WARP && 2 * Stage::STEPS <= STRIP_LANES, "all groups of a stage");
    const __half2 *scales, *mins;  // of the strip's first group
    uint32_t step, shift, last_group;
    bool active;

    __device__ __forceinline__ ScaleCopies(const Matrix& m, uint32_t strip, uint32_t stage) {
        const uint32_t lane = threadIdx.x % WARP;
        const size_t first = static_cast<size_t>(strip) * m.groups * 8 + lane % 2 * 4;
        scales = m.scales + first;
        mins = m.mins ? m.mins + first : nullptr;
        step = stage * Stage::STEPS;
        shift = __ffs(m.group_steps) - 1;
        last_group = m.groups - 1;
        active = lane < STRIPS * STRIP_LANES && group() < max(Stage::STEPS >> shift, 1);
    }

    // The lane's group within a stage.
    static __device__ __forceinline__ uint32_t group() { return threadIdx.x % STRIP_LANES / 2; }
    // The lane's strip among the warp's strips.
    static __device__ __forceinline__ uint32_t strip() { return min(threadIdx.x % WARP / STRIP_LANES, STRIPS - 1); }

    // Rows with one scale, and columns after a row's end, use the last scale.
    __device__ __forceinline__ void next(typename Stage::Strip& to) {
        const uint32_t from = min((step >> shift) + group(), last_group) * 8, at = threadIdx.x % 2 * 4;
        if (active) cp_async_16(&to.scales[group()][at], scales + from, true);
        if (active && mins) cp_async_16(&to.mins[group()][at], mins + from, true);
        step += Stage::STEPS;
    }
};

// Copies a tile's activations, stage by stage; zeros for tokens after the last one.
template <class Shape, class Stage>
struct ActivationCopies {
    // Pieces of 16 bytes: a thread copies those at its column of every ROWS-th token.
    static constexpr int CHUNKS = Stage::COLS / 8, ROWS = Shape::THREADS / CHUNKS;
    static constexpr int COUNT = (Shape::TOKENS + ROWS - 1) / ROWS;
    static_assert(Shape::TOKENS % ROWS == 0 || COUNT == 1, "whole turns, or some threads idle");
    const __half* from;
    size_t distance;
    int tokens;  // left, from the thread's first on

    __device__ __forceinline__ ActivationCopies(const MatmulParams& p, uint32_t first_token, uint32_t stage) {
        const uint32_t token = first_token + threadIdx.x / CHUNKS;
        from = p.halves + static_cast<size_t>(token) * p.half_cols + stage * Stage::COLS + threadIdx.x % CHUNKS * 8;
        distance = static_cast<size_t>(ROWS) * p.half_cols;
        tokens = static_cast<int>(p.tokens - token);
    }

    __device__ __forceinline__ void next(Stage& to) {
        const uint32_t token = threadIdx.x / CHUNKS, col = threadIdx.x % CHUNKS * 8;
#pragma unroll
        for (int i = 0; i < COUNT; ++i)
            if (Shape::TOKENS >= ROWS || token < Shape::TOKENS)
                cp_async_16(&to.activations[token + i * ROWS][col], from + i * distance, i * ROWS < tokens);
        from += Stage::COLS;
    }
};

// The sums of the parts `part` to `part_end` of a tile.
template <class Shape, int BITS>
__device__ __forceinline__ void multiply(typename Shape::Sums& sums, const MatmulParams& p, const Tile& tile,
                                         uint32_t part, uint32_t part_end) {
    using Stage = ottava::Stage<Shape::TOKENS, BITS>;
    constexpr uint32_t STAGES = Shape::STAGES, COPIED = TILE_STRIPS / Shape::WARPS;
    extern __shared__ __align__(16) uint8_t ring[];
    auto* const slots = reinterpret_cast<Stage*>(ring);
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, t = lane % 4;
    const uint32_t row_warp = warp / Shape::TOKEN_WARPS, first_eight = warp % Shape::TOKEN_WARPS * Shape::EIGHTS;
    const uint32_t units = p.half_cols / UNIT_COLS;
    const auto first_stage = [&](uint32_t part) {
        return part_begin(part, p.parts, units) * (UNIT_STEPS / Stage::STEPS);
    };
    const uint32_t begin = first_stage(part), end = first_stage(part_end);

    CodeCopies<Stage, BITS> codes_of[COPIED];
#pragma unroll
    for (uint32_t i = 0; i < COPIED; ++i)
        codes_of[i] = {tile.matrix(warp * COPIED + i), tile.read_strip(warp * COPIED + i), begin};
    using Scales = ScaleCopies<Stage, COPIED>;
    const uint32_t scaled = warp * COPIED + Scales::strip();
    Scales scales(tile.matrix(scaled), tile.read_strip(scaled), begin);
    ActivationCopies<Shape, Stage> activations(p, tile.token, begin);
    const auto copy_weights = [&](Stage& to) {
#pragma unroll
        for (uint32_t i = 0; i < COPIED; ++i) codes_of[i].next(to.strips[warp * COPIED + i]);
        scales.next(to.strips[scaled]);
    };
    // Weights do not depend on earlier kernels, so the first ones are loaded before activations are
    // available.
#pragma unroll
    for (uint32_t i = 0; i < STAGES - 1; ++i)
        if (begin + i < end) copy_weights(slots[i]);
    wait_for_predecessor();
#pragma unroll
    for (uint32_t i = 0; i < STAGES - 1; ++i) {
        if (begin + i < end) activations.next(slots[i]);
        cp_async_commit();
    }

    uint32_t zeros[2], shifts[2];
    bool has_mins[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const Matrix& m = tile.matrix(2 * row_warp + i);
        zeros[i] = m.zero;
        shifts[i] = __ffs(m.group_steps) - 1;
        has_mins[i] = m.mins != nullptr;
    }
    typename Shape::Sums before = {};  // sums of the previous parts, in whole tiles
    uint32_t part_stages = first_stage(part + 1);
    for (uint32_t stage = begin, slot = 0; stage < end; ++stage, slot = slot + 1 < STAGES ? slot + 1 : 0) {
        cp_async_wait<STAGES - 2>();
        __syncthreads();
        // The previous slot is free.
        if (stage + STAGES - 1 < end) {
            Stage& freed = slots[slot > 0 ? slot - 1 : STAGES - 1];
            copy_weights(freed);
            activations.next(freed);
        }
        cp_async_commit();
        const auto* strips = &slots[slot].strips[2 * row_warp];
        Codes<BITS, Stage::STEPS> codes[2];
#pragma unroll
        for (int i = 0; i < 2 * Stage::LOADS; ++i) codes[i % 2].loads[i / 2] = strips[i % 2].codes[i / 2][lane];
#pragma unroll
        for (int step = 0; step < Stage::STEPS; ++step) {
            uint32_t a[2][4];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const uint32_t group = step >> shifts[i];
                const __half2 min = has_mins[i] ? strips[i].mins[group][g] : __float2half2_rn(0.0f);
                scaled_operand(a[i], codes[i], step, zeros[i], strips[i].scales[group][g], min);
            }
#pragma unroll
            for (int eight = 0; eight < Shape::EIGHTS; ++eight) {
                const auto& row = slots[slot].activations[8 * (first_eight + eight) + g];
                const uint2 pair = *reinterpret_cast<const uint2*>(&row[step * STEP_COLS + 4 * t]);
                const uint32_t b[2] = {pair.x, pair.y};
                mma_m16n8k16(sums[0][eight], a[0], b);
                mma_m16n8k16(sums[1][eight], a[1], b);
            }
        }
        if constexpr (Shape::WHOLE) {
            if (stage + 1 < part_stages) continue;
            part_stages = first_stage(++part + 1);
#pragma unroll
            for (int i = 0; i < 2 * Shape::EIGHTS * 4; ++i) {
                float& sum = sums[i / 4 / Shape::EIGHTS][i / 4 % Shape::EIGHTS][i % 4];
                before[i / 4 / Shape::EIGHTS][i / 4 % Shape::EIGHTS][i % 4] += sum;
                sum = 0.0f;
            }
        }
    }
    if constexpr (Shape::WHOLE) {
#pragma unroll
        for (int i = 0; i < 2 * Shape::EIGHTS * 4; ++i)
            sums[i / 4 / Shape::EIGHTS][i / 4 % Shape::EIGHTS][i % 4] =
                before[i / 4 / Shape::EIGHTS][i / 4 % Shape::EIGHTS][i % 4];
    }
}

// Stores the sums of a part of tile `index`; returns whether it was the tile's last part. In that case `sums`
// are those of all parts, added in order.
template <class Shape>
__device__ __forceinline__ bool join(typename Shape::Sums& sums, const MatmulParams& p, const Tile& tile, uint32_t index,
                                     uint32_t part) {
    constexpr int SLOTS = 2 * Shape::EIGHTS;
    __shared__ bool is_last;
    const auto slots_of = [&](uint32_t part) {
        return p.partial + static_cast<size_t>(index * p.parts + part) * (SLOTS * Shape::THREADS) + threadIdx.x;
    };
    float4* const own = slots_of(part);
#pragma unroll
    for (int i = 0; i < SLOTS; ++i) {
        const float(&sum)[4] = sums[i % 2][i / 2];
        if (tile.token + i / 2 * 8 < p.tokens) own[i * Shape::THREADS] = make_float4(sum[0], sum[1], sum[2], sum[3]);
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) is_last = atomicAdd(p.arrived + index, 1) == p.parts - 1;
    __syncthreads();
    if (!is_last) return false;
    if (threadIdx.x == 0) p.arrived[index] = 0;
    __threadfence();
#pragma unroll
    for (int i = 0; i < SLOTS * 4; ++i) sums[i / 4 % 2][i / 8][i % 4] = 0.0f;
    for (uint32_t other = 0; other < p.parts; ++other) {
        const float4* const slots = slots_of(other);
        // All loads of a part are in flight together: there is no branch among them, and they precede the
        // first sum.
        float4 values[SLOTS];
#pragma unroll
        for (int i = 0; i < SLOTS; ++i)
            values[i] = tile.token + i / 2 * 8 < p.tokens ? __ldcg(slots + i * Shape::THREADS) : make_float4(0, 0, 0, 0);
#pragma unroll
        for (int i = 0; i < SLOTS; ++i) {
            float(&sum)[4] = sums[i % 2][i / 2];
            sum[0] += values[i].x;
            sum[1] += values[i].y;
            sum[2] += values[i].z;
            sum[3] += values[i].w;
        }
    }
    return true;
}

// Writes a warp's part of a tile, eight tokens at a time; all reads of a group of eight precede its writes.
template <class Shape, Epilogue EPILOGUE>
__device__ __forceinline__ void store(const typename Shape::Sums& sums, const MatmulParams& p, const Tile& tile) {
    // A gate's second strip is the other matrix of the first.
    constexpr int STORED = EPILOGUE == Epilogue::Gated ? 1 : 2;
    const Product& product = *tile.product;
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, rows = product.matrix.rows;
    const uint32_t row = tile.strip_of(2 * (warp / Shape::TOKEN_WARPS)) * STRIP_ROWS + lane / 4;
    const uint32_t token = tile.token + warp % Shape::TOKEN_WARPS * 8 * Shape::EIGHTS + 2 * (lane % 4);
    float bias[STORED][2];
#pragma unroll
    for (int i = 0; i < 2 * STORED; ++i)
        bias[i / 2][i % 2] = product.bias && row + 8 * i < rows ? product.bias[row + 8 * i] : 0.0f;
#pragma unroll
    for (int eight = 0; eight < Shape::EIGHTS; ++eight) {
        float* const at = product.dst + static_cast<size_t>(token + 8 * eight) * rows + row;
        float before[STORED][4], inverse[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) inverse[i] = token + 8 * eight + i < p.tokens ? p.inverse[token + 8 * eight + i] : 0.0f;
#pragma unroll
        for (int i = 0; i < 4 * STORED; ++i) {
            const uint32_t below = i / 4 * STRIP_ROWS + i / 2 % 2 * 8, right = i % 2;
            const bool inside = token + 8 * eight + right < p.tokens && row + below < rows;
            before[i / 4][i % 4] = reads_dst(EPILOGUE) && inside ? at[static_cast<size_t>(right) * rows + below] : 0.0f;
        }
        [[maybe_unused]] float stored[STORED][4];
#pragma unroll
        for (int i = 0; i < 4 * STORED; ++i) {
            const uint32_t below = i / 4 * STRIP_ROWS + i / 2 % 2 * 8, right = i % 2;
            float y = __fmul_rn(sums[i / 4][eight][i % 4], inverse[right]);
            if (product.bias) y += bias[i / 4][i / 2 % 2];
            const float up = __fmul_rn(sums[1][eight][i % 4], inverse[right]);
            const float value = finished<EPILOGUE>(product.activation, y, before[i / 4][i % 4], up);
            if (token + 8 * eight + right < p.tokens && row + below < rows)
                at[static_cast<size_t>(right) * rows + below] = value;
            stored[i / 4][i % 4] = row + below < rows ? value : -INFINITY;
        }
        // Maxima are stored for the head only, and its epilogue is Store.
        if constexpr (EPILOGUE == Epilogue::Store) {
            if (!product.largest) continue;
#pragma unroll
            for (int i = 0; i < 2 * STORED; ++i) {
                const uint32_t strip = row / STRIP_ROWS + i / 2, of = token + 8 * eight + i % 2;
                note_largest(product.largest + static_cast<size_t>(of) * product.noted_strips + strip,
                             stored[i / 2][i % 2], stored[i / 2][i % 2 + 2], of < p.tokens && strip * STRIP_ROWS < rows);
            }
        }
    }
}

template <int TOKENS>
__device__ __forceinline__ void matmul_many(const MatmulParams& p) {
    using Shape = ManyTile<TOKENS>;
    const uint32_t splits = Shape::WHOLE ? 1 : p.parts, index = blockIdx.x / splits, part = blockIdx.x % splits;
    const uint32_t part_end = Shape::WHOLE ? p.parts : part + 1;
    const Tile tile(p, index, TOKENS);
    typename Shape::Sums sums = {};
    switch (tile.product->matrix.bits) {
        case 4: multiply<Shape, 4>(sums, p, tile, part, part_end); break;
        case 8: multiply<Shape, 8>(sums, p, tile, part, part_end); break;
        case 16: multiply<Shape, 16>(sums, p, tile, part, part_end); break;
    }
    if (splits > 1 && !join<Shape>(sums, p, tile, index, part)) return;
    switch (tile.product->epilogue) {
        case Epilogue::Store: store<Shape, Epilogue::Store>(sums, p, tile); break;
        case Epilogue::Add: store<Shape, Epilogue::Add>(sums, p, tile); break;
        case Epilogue::Gated: store<Shape, Epilogue::Gated>(sums, p, tile); break;
        case Epilogue::Multiply: store<Shape, Epilogue::Multiply>(sums, p, tile); break;
    }
}

}  // namespace ottava

// Number of blocks that must fit on a multiprocessor; registers limit them.
#define OTTAVA_MATMUL_MANY(TOKENS, BLOCKS)                                                    \
    extern "C" __global__ void __launch_bounds__(ottava::ManyTile<TOKENS>::THREADS, BLOCKS)   \
        matmul_many_##TOKENS(const __grid_constant__ ottava::MatmulParams p) {                \
        ottava::matmul_many<TOKENS>(p);                                                       \
    }
OTTAVA_MATMUL_MANY(16, 4)
OTTAVA_MATMUL_MANY(32, 4)
OTTAVA_MATMUL_MANY(64, 3)
OTTAVA_MATMUL_MANY(128, 1)
#undef OTTAVA_MATMUL_MANY
