// dst = epilogue(x · matrixᵀ) for many tokens, from activations that `activations` has turned to f16.
//
// A block computes 8 strips of 16 rows by 16 · TILES tokens: four warps along the rows, two along the
// tokens, each with two strips. Activations go through a ring of shared memory by cp.async; weights go
// straight to registers, since no other warp of the block needs them, one stage ahead. A gated
// product's two strips are the same rows of its two matrices. Scales and minimums are applied to the
// operand in f16, so sums stay in the accumulators from the first column to the last.
//
// Launch: grid [row blocks of all products, token blocks], 256 threads, dynamic shared memory
// STAGES · 16 · TILES · 160 bytes.

#include "common/matmul.cuh"

namespace ottava {

constexpr int MANY_STAGES = 4;
constexpr int STAGE_STEPS = 4;
constexpr int STAGE_COLS = STAGE_STEPS * STEP_COLS;
// Elements between tokens in shared memory: an odd multiple of 32 bytes, see matmul_few.cu.
constexpr int STAGE_STRIDE = STAGE_COLS + 16;
constexpr int BLOCK_STRIPS = 8;

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

    __device__ __forceinline__ StripStream(const Matrix& m, uint32_t strip) : matrix(&m) {
        loads = row_loads(m.cols, BITS);
        row = m.codes + static_cast<size_t>(strip) * loads * WARP + threadIdx.x % WARP;
        scale_row = static_cast<size_t>(strip) * m.groups;
        group_shift = __ffs(m.group_steps) - 1;
        load(0);
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

// Starts the copy of a stage's activations: tokens beyond the last, columns beyond the padding are zero.
template <int TILES>
__device__ __forceinline__ void copy_stage(__half* ring, const MatmulParams& p, uint32_t first_token,
                                           uint32_t stage, uint32_t stages) {
    constexpr uint32_t TOKENS = 16 * TILES, CHUNKS = STAGE_COLS / 8;
    if (stage < stages) {
        __half* slot = ring + stage % MANY_STAGES * (TOKENS * STAGE_STRIDE);
        for (uint32_t i = threadIdx.x; i < TOKENS * CHUNKS; i += blockDim.x) {
            const uint32_t token = i / CHUNKS, col = i % CHUNKS * 8;
            const bool inside = first_token + token < p.tokens;
            const size_t row = inside ? first_token + token : 0;
            cp_async_16(slot + token * STAGE_STRIDE + col, p.halves + row * p.half_cols + stage * STAGE_COLS + col,
                        inside);
        }
    }
    cp_async_commit();
}

template <int TILES, int BITS>
__device__ __forceinline__ void matmul_many(const MatmulParams& p, const Product& product, uint32_t strip) {
    extern __shared__ __align__(16) __half ring[];
    constexpr uint32_t TOKENS = 16 * TILES;
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, t = lane % 4;
    const bool gated = product.epilogue == Epilogue::Gated;
    const uint32_t last_strip = (product.matrix.rows + STRIP_ROWS - 1) / STRIP_ROWS - 1;
    // Beyond the last strip the work is done again, and its result dropped.
    const uint32_t own[2] = {strip + warp / 2 * (gated ? 1 : 2), strip + warp / 2 * (gated ? 1 : 2) + (gated ? 0 : 1)};
    StripStream<BITS> first(product.matrix, min(own[0], last_strip));
    StripStream<BITS> second(gated ? product.up : product.matrix, min(own[1], last_strip));
    const uint32_t first_token = blockIdx.y * TOKENS, stages = p.half_cols / STAGE_COLS;
    float sums[2][TILES][4] = {};
    const uint32_t column = (warp % 2 * 8 * TILES + g) * STAGE_STRIDE + 4 * t;

    wait_for_predecessor();
#pragma unroll
    for (int stage = 0; stage < MANY_STAGES - 1; ++stage) copy_stage<TILES>(ring, p, first_token, stage, stages);
    for (uint32_t stage = 0; stage < stages; ++stage) {
        cp_async_wait<MANY_STAGES - 2>();
        __syncthreads();
        copy_stage<TILES>(ring, p, first_token, stage + MANY_STAGES - 1, stages);
        const StageCodes<BITS> first_codes = first.next, second_codes = second.next;
        first.load(stage + 1);
        second.load(stage + 1);
        const __half* slot = ring + stage % MANY_STAGES * (TOKENS * STAGE_STRIDE) + column;
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
    }
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const uint32_t token = first_token + warp % 2 * 8 * TILES + 8 * tile + 2 * t + i % 2;
            if (token >= p.tokens) continue;
            const float inverse = p.inverse[token];
            const float values[2] = {sums[0][tile][i] * inverse, sums[1][tile][i] * inverse};
#pragma unroll
            for (int which = 0; which < 2; ++which) {
                const uint32_t row = own[which] * STRIP_ROWS + g + i / 2 * 8;
                if (row >= product.matrix.rows || (gated && which == 1)) continue;
                finish(product, token, row, values[which], values[1]);
            }
        }
    }
}

template <int TILES>
__device__ __forceinline__ void matmul_many(const MatmulParams& p) {
    // Row blocks count through the products: `first_strip` is in blocks here.
    uint32_t index = 0;
    while (index + 1 < p.product_count && blockIdx.x >= p.products[index + 1].first_strip) ++index;
    const Product& product = p.products[index];
    const uint32_t strips = product.epilogue == Epilogue::Gated ? BLOCK_STRIPS / 2 : BLOCK_STRIPS;
    const uint32_t strip = (blockIdx.x - product.first_strip) * strips;
    switch (product.matrix.bits) {
        case 4: matmul_many<TILES, 4>(p, product, strip); break;
        case 8: matmul_many<TILES, 8>(p, product, strip); break;
        case 16: matmul_many<TILES, 16>(p, product, strip); break;
    }
    release_dependents();
}

}  // namespace ottava

#define OTTAVA_MATMUL_MANY(TOKENS)                                                            \
    extern "C" __global__ void __launch_bounds__(256, 1)                                      \
        matmul_many_##TOKENS(const __grid_constant__ ottava::MatmulParams p) {                \
        ottava::matmul_many<TOKENS / 16>(p);                                                  \
    }
// Tokens of a block.
OTTAVA_MATMUL_MANY(64)
OTTAVA_MATMUL_MANY(128)
