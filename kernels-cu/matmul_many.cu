// dst = epilogue(x · matrixᵀ) for many tokens, from activations that `activations` has turned to f16.
//
// A tile is 8 strips of 16 rows by 16 · TILES tokens, for a block of four warps along the rows, two along the
// tokens, each with two strips. Activations go through a ring of shared memory by cp.async; weights go
// straight to registers, since no other warp of the block needs them, one stage ahead. A gated
// product's two strips are the same rows of its two matrices. Scales and minimums are applied to the
// operand in f16, so sums stay in the accumulators from the first column to the last.
//
// In batch-invariant mode a row's columns are added up in the parts that matmul_few.cu's warps make of
// them, and the parts in its order: the bits are the same.
//
// Where tiles do not fill the multiprocessors, all tiles' stages are dealt out evenly ("stream-K", Osama et
// al. 2023): a block ends one tile, may have whole ones, and begins one more. The sums of a tile with
// several blocks go through memory; the block that comes last adds them up in the order of the columns,
// so bits depend on the shape and the number of blocks, and on nothing else.
//
// Launch: `ManyShape` in src/backend/cuda/many.rs; any number of blocks up to all stages, 256 threads, dynamic
// shared memory STAGES · 16 · TILES · 160 bytes. `partial` and `arrived` are needed unless each block
// has one tile.

#include "common/matmul.cuh"

namespace ottava {

constexpr int MANY_STAGES = 4;
constexpr int STAGE_STEPS = 4;
constexpr int STAGE_COLS = STAGE_STEPS * STEP_COLS;
// Elements between tokens in shared memory: an odd multiple of 32 bytes, see matmul_few.cu.
constexpr int STAGE_STRIDE = STAGE_COLS + 16;
constexpr int BLOCK_STRIPS = 8;
constexpr uint32_t MANY_THREADS = 256;

// The order in which the stages of a row are multiplied: as they lie; INVARIANT: the units of one part,
// every PARTS-th, then those of the next.
template <bool INVARIANT>
struct StageOrder {
    static constexpr uint32_t PARTS = 8, UNIT_STAGES = UNIT_STEPS / STAGE_STEPS;
    static_assert(UNIT_STAGES == 2, "the second half of a unit is the odd stage");
    // From the end of a unit to the next of its part.
    static constexpr uint32_t TO_NEXT = (PARTS - 1) * UNIT_STAGES + 1;
    uint32_t stage, stages;

    __device__ __forceinline__ bool ends_part() const {
        return stage % UNIT_STAGES != 0 && stage + TO_NEXT >= stages;
    }

    __device__ __forceinline__ void next() {
        if (!INVARIANT || stage % UNIT_STAGES == 0)
            ++stage;
        else if (ends_part())
            stage = (stage + 1) % (PARTS * UNIT_STAGES);
        else
            stage += TO_NEXT;
    }
};

// A lane's codes of one stage, with the scale and the minimum of each step.
template <int BITS>
struct StageCodes {
    Codes<BITS, STAGE_STEPS> codes;
    __half2 scales[STAGE_STEPS], mins[STAGE_STEPS];
};

// A warp's strip of one matrix, one stage ahead.
template <int BITS>
struct StripStream {
    const Matrix* matrix;
    const uint4* row;
    size_t scale_row;
    uint32_t loads;
    int group_shift;  // of a step, to its group: groups are 1, 2, 4 or 8 steps
    StageCodes<BITS> next;

    __device__ __forceinline__ StripStream(const Matrix& m, uint32_t strip, uint32_t stage) : matrix(&m) {
        loads = row_loads(m.cols, BITS);
        row = m.codes + static_cast<size_t>(strip) * loads * WARP + threadIdx.x % WARP;
        scale_row = static_cast<size_t>(strip) * m.groups;
        group_shift = __ffs(m.group_steps) - 1;
        load(stage);
    }

    __device__ __forceinline__ void load(uint32_t stage) {
        next.codes = load_codes<BITS, STAGE_STEPS>(row, stage * STAGE_STEPS, loads);
#pragma unroll
        for (int step = 0; step < STAGE_STEPS; ++step) {
            const uint32_t group = min((stage * STAGE_STEPS + step) >> group_shift, matrix->groups - 1);
            const size_t at = (scale_row + group) * 8 + threadIdx.x % WARP / 4;
            next.scales[step] = matrix->scales[at];
            next.mins[step] = matrix->mins ? matrix->mins[at] : __float2half2_rn(0.0f);
        }
    }

    // The operand of a step of a stage, scaled.
    __device__ __forceinline__ void operand(uint32_t (&a)[4], const StageCodes<BITS>& stage, int step) const {
        scaled_operand(a, stage.codes, step, matrix->zero, stage.scales[step], stage.mins[step]);
    }
};

// Starts the copy of a stage's activations to the ring's place for the `count`-th, unless that were one too
// many: tokens beyond the last, columns beyond the padding are zero.
template <int TILES>
__device__ __forceinline__ void copy_stage(__half* ring, const MatmulParams& p, uint32_t first_token,
                                           uint32_t stage, uint32_t count, uint32_t counts) {
    constexpr uint32_t TOKENS = 16 * TILES, CHUNKS = STAGE_COLS / 8;
    if (count < counts) {
        __half* slot = ring + count % MANY_STAGES * (TOKENS * STAGE_STRIDE);
        for (uint32_t i = threadIdx.x; i < TOKENS * CHUNKS; i += MANY_THREADS) {
            const uint32_t token = i / CHUNKS, col = i % CHUNKS * 8;
            const bool inside = first_token + token < p.tokens;
            const size_t row = inside ? first_token + token : 0;
            cp_async_16(slot + token * STAGE_STRIDE + col, p.halves + row * p.half_cols + stage * STAGE_COLS + col,
                        inside);
        }
    }
    cp_async_commit();
}

// An output tile: rows of a product by tokens.
struct Tile {
    const Product* product;
    uint32_t first_token;
    // A warp's two strips and its first token.
    uint32_t strips[2], warp_token;

    // Tiles count through the row blocks of all products, then through the tokens.
    __device__ __forceinline__ Tile(const MatmulParams& p, uint32_t index, uint32_t tokens) {
        const uint32_t row_block = index % p.strips, warp = threadIdx.x / WARP;
        uint32_t own = 0;
        while (own + 1 < p.product_count && row_block >= p.products[own + 1].first_strip) ++own;
        product = &p.products[own];
        const uint32_t block = row_block - product->first_strip;
        strips[0] = gated() ? block * (BLOCK_STRIPS / 2) + warp / 2 : block * BLOCK_STRIPS + warp / 2 * 2;
        strips[1] = strips[0] + (gated() ? 0 : 1);
        first_token = index / p.strips * tokens;
        warp_token = first_token + warp % 2 * (tokens / 2);
    }

    __device__ __forceinline__ bool gated() const { return product->epilogue == Epilogue::Gated; }
};

// A warp's sums: of its two strips, of eights of tokens.
template <int TILES>
using Sums = float[2][TILES][4];

// Adds the products of the stages from `begin` to `end`, of a row of `stages`.
template <int TILES, bool INVARIANT, int BITS>
__device__ __forceinline__ void multiply(Sums<TILES>& sums, const MatmulParams& p, const Tile& tile, uint32_t begin,
                                         uint32_t end, uint32_t stages) {
    extern __shared__ __align__(16) __half ring[];
    constexpr uint32_t TOKENS = 16 * TILES;
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, t = lane % 4;
    const Matrix& matrix = tile.product->matrix;
    // Beyond the last strip the work is done again, and its result dropped.
    const uint32_t last_strip = (matrix.rows + STRIP_ROWS - 1) / STRIP_ROWS - 1;
    StripStream<BITS> first(matrix, min(tile.strips[0], last_strip), begin);
    StripStream<BITS> second(tile.gated() ? tile.product->up : matrix, min(tile.strips[1], last_strip), begin);
    // Of the parts before the one at hand, where a row has parts.
    float before[2][INVARIANT ? TILES : 1][4] = {};
    StageOrder<INVARIANT> copied = {begin, stages}, loaded = copied, multiplied = copied;
    const uint32_t column = (warp % 2 * 8 * TILES + g) * STAGE_STRIDE + 4 * t, counts = end - begin;

    wait_for_predecessor();
    __syncthreads();
#pragma unroll
    for (int count = 0; count < MANY_STAGES - 1; ++count, copied.next())
        copy_stage<TILES>(ring, p, tile.first_token, copied.stage, count, counts);
    for (uint32_t count = 0; count < counts; ++count, copied.next(), multiplied.next()) {
        cp_async_wait<MANY_STAGES - 2>();
        __syncthreads();
        copy_stage<TILES>(ring, p, tile.first_token, copied.stage, count + MANY_STAGES - 1, counts);
        const StageCodes<BITS> first_codes = first.next, second_codes = second.next;
        loaded.next();
        // The stage after the last is another block's to read.
        if (count + 1 < counts) {
            first.load(loaded.stage);
            second.load(loaded.stage);
        }
        const __half* slot = ring + count % MANY_STAGES * (TOKENS * STAGE_STRIDE) + column;
#pragma unroll
        for (int step = 0; step < STAGE_STEPS; ++step) {
            uint32_t a[2][4];
            first.operand(a[0], first_codes, step);
            second.operand(a[1], second_codes, step);
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile) {
                const uint2 pair = *reinterpret_cast<const uint2*>(slot + 8 * tile * STAGE_STRIDE + step * STEP_COLS);
                const uint32_t b[2] = {pair.x, pair.y};
                mma_m16n8k16(sums[0][tile], a[0], b);
                mma_m16n8k16(sums[1][tile], a[1], b);
            }
        }
        if constexpr (INVARIANT) {
            if (!multiplied.ends_part()) continue;
#pragma unroll
            for (int i = 0; i < 2 * TILES * 4; ++i) {
                float& sum = sums[i / 4 / TILES][i / 4 % TILES][i % 4];
                before[i / 4 / TILES][i / 4 % TILES][i % 4] += sum;
                sum = 0.0f;
            }
        }
    }
    if constexpr (INVARIANT) {
#pragma unroll
        for (int i = 0; i < 2 * TILES * 4; ++i)
            sums[i / 4 / TILES][i / 4 % TILES][i % 4] = before[i / 4 / TILES][i / 4 % TILES][i % 4];
    }
}

// The blocks' shares of all tiles' stages, one after the other and as equal as can be.
struct Shares {
    uint32_t size, longer;  // the first `longer` blocks have one stage more

    __device__ __forceinline__ uint32_t begin(uint32_t block) const { return block * size + min(block, longer); }
    __device__ __forceinline__ uint32_t block_of(uint32_t stage) const {
        const uint32_t in_longer = longer * (size + 1);
        return stage < in_longer ? stage / (size + 1) : longer + (stage - in_longer) / size;
    }
};

// Where blocks share a tile, whose stages are those from `start` on: hands in this block's sums, and
// tells whether they were the last. Then `sums` are those of all, added in the order of the columns.
template <int TILES>
__device__ __forceinline__ bool join(Sums<TILES>& sums, const MatmulParams& p, const Tile& tile, const Shares& shares,
                                     uint32_t start, uint32_t stages) {
    __shared__ bool is_last;
    const uint32_t head = shares.block_of(start), tail = shares.block_of(start + stages - 1);
    // A block shares two tiles at most: one that began in a block before it, and one that it begins.
    const auto slot_of = [&](uint32_t block) {
        const uint32_t slot = 2 * block + (block == head && shares.begin(block) < start ? 1 : 0);
        return p.partial + static_cast<size_t>(slot) * (2 * TILES * 256) + threadIdx.x;
    };
    // One tile at most begins in a block and ends in another.
    uint32_t* arrived = p.arrived + head;
    // The block that begins the tile ends its share with it and so is often the last: then it keeps its
    // sums, which are the first in order.
    if (threadIdx.x == 0)
        is_last = blockIdx.x == head && *static_cast<volatile uint32_t*>(arrived) == tail - head;
    __syncthreads();
    const bool kept = is_last;
    if (!kept) {
        float4* own = slot_of(blockIdx.x);
#pragma unroll
        for (int i = 0; i < 2 * TILES; ++i) {
            const float(&sum)[4] = sums[i / TILES][i % TILES];
            if (tile.warp_token + i % TILES * 8 < p.tokens) own[i * 256] = make_float4(sum[0], sum[1], sum[2], sum[3]);
        }
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) is_last = atomicAdd(arrived, 1) == tail - head;
        __syncthreads();
        if (!is_last) return false;
        // What any number added to gives that number.
#pragma unroll
        for (int i = 0; i < 2 * TILES * 4; ++i) sums[i / 4 / TILES][i / 4 % TILES][i % 4] = -0.0f;
    }
    if (threadIdx.x == 0) *arrived = 0;
    __threadfence();
    for (uint32_t block = kept ? head + 1 : head; block <= tail; ++block) {
        const float4* part = slot_of(block);
#pragma unroll
        for (int i = 0; i < 2 * TILES; ++i) {
            if (tile.warp_token + i % TILES * 8 >= p.tokens) continue;
            const float4 values = __ldcg(part + i * 256);
            float(&sum)[4] = sums[i / TILES][i % TILES];
            sum[0] += values.x;
            sum[1] += values.y;
            sum[2] += values.z;
            sum[3] += values.w;
        }
    }
    return true;
}

template <int TILES>
__device__ __forceinline__ void finish_tile(const Sums<TILES>& sums, const MatmulParams& p, const Tile& at) {
    const uint32_t lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const uint32_t token = at.warp_token + 8 * tile + 2 * t + i % 2;
            if (token >= p.tokens) continue;
            const float inverse = p.inverse[token];
            const float values[2] = {__fmul_rn(sums[0][tile][i], inverse), __fmul_rn(sums[1][tile][i], inverse)};
#pragma unroll
            for (int which = 0; which < 2; ++which) {
                const uint32_t row = at.strips[which] * STRIP_ROWS + g + i / 2 * 8;
                if (row >= at.product->matrix.rows || (at.gated() && which == 1)) continue;
                finish(*at.product, token, row, values[which], values[1]);
            }
        }
    }
}

template <int TILES, bool INVARIANT>
__device__ __forceinline__ void matmul_many(const MatmulParams& p) {
    constexpr uint32_t TOKENS = 16 * TILES;
    const uint32_t stages = p.half_cols / STAGE_COLS, all = p.strips * ((p.tokens + TOKENS - 1) / TOKENS) * stages;
    const Shares shares = {all / gridDim.x, all % gridDim.x};
    const uint32_t end = shares.begin(blockIdx.x + 1);
    for (uint32_t at = shares.begin(blockIdx.x), next; at < end; at = next) {
        const uint32_t first = at % stages, start = at - first;
        next = min(start + stages, end);
        const Tile tile(p, at / stages, TOKENS);
        Sums<TILES> sums = {};
        switch (tile.product->matrix.bits) {
            case 4: multiply<TILES, INVARIANT, 4>(sums, p, tile, first, next - start, stages); break;
            case 8: multiply<TILES, INVARIANT, 8>(sums, p, tile, first, next - start, stages); break;
            case 16: multiply<TILES, INVARIANT, 16>(sums, p, tile, first, next - start, stages); break;
        }
        const bool whole = next - at == stages;
        if (whole || (!INVARIANT && join<TILES>(sums, p, tile, shares, start, stages))) finish_tile<TILES>(sums, p, tile);
    }
}

}  // namespace ottava

#define OTTAVA_MATMUL_MANY(NAME, TOKENS, INVARIANT)                                           \
    extern "C" __global__ void __launch_bounds__(ottava::MANY_THREADS, 1)                     \
        NAME(const __grid_constant__ ottava::MatmulParams p) {                                \
        ottava::matmul_many<TOKENS / 16, INVARIANT>(p);                                       \
    }
OTTAVA_MATMUL_MANY(matmul_many_64, 64, false)
OTTAVA_MATMUL_MANY(matmul_many_128, 128, false)
OTTAVA_MATMUL_MANY(matmul_many_invariant_64, 64, true)
