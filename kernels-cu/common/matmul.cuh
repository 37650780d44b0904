// Code shared by the matrix product kernels: parameters, epilogues, and the conversion of f32 activations to
// f16.
#pragma once

#include "math.cuh"
#include "matrix.cuh"
#include "reduce.cuh"

namespace ottava {

// `ir::Epilogue`, and Multiply: dst = activation(dst) · y, the second half of a gate with matrices of
// different formats.
enum class Epilogue : uint32_t { Store = 0, Add = 1, Gated = 2, Multiply = 3 };

// One product of a launch. Mirrored by `backend::cuda::params::Product`.
struct Product {
    Matrix matrix;
    Matrix up;             // second matrix of a gated product
    const float* bias;     // [matrix.rows], or null
    float* dst;            // [tokens, matrix.rows]
    uint32_t first_block;  // row blocks of the previous products, see MatmulParams
    Epilogue epilogue;
    Activation activation;
    uint32_t noted_strips;  // strips per row of `largest`
    uint32_t* largest;      // [tokens, noted_strips]: maxima for sampling (order.cuh), for the head; or null
};
static_assert(sizeof(Product) == 136, "the host's struct has no other padding");

constexpr int PRODUCTS_MAX = 4;
// Bytes per load of a warp.
constexpr uint32_t LOAD_BYTES = WARP * sizeof(uint4);
// Columns per slab of activations: [half_cols / 64][slab_tokens][64], 128 bytes per token.
constexpr int SLAB_COLS = 64;

// Tokens of a slab, rounded up to whole tiles of the largest shape.
__device__ __forceinline__ size_t slab_tokens(uint32_t tokens) { return (tokens + 127) / 128 * 128; }

// Mirrored by `backend::cuda::params::Matmul`. Rows are distributed in row blocks: strips of 16 rows in
// matmul_few.cu, a tile's rows in the other kernels.
struct MatmulParams {
    const float* src;      // [tokens, cols]
    const float* norm;     // [cols], or null
    float eps;
    uint32_t tokens;
    uint32_t cols;
    uint32_t row_blocks;   // of all products
    uint32_t product_count;
    uint32_t parts;        // number of parts of a row's units, see part_begin
    const __half* halves;  // tiles: src as f16, [tokens, half_cols] or slabs, written by `activations`
    const float* inverse;  // tiles: factor for a row's results, [tokens]
    uint32_t half_cols;    // cols rounded up to whole units
    uint32_t ring_slices;       // matmul_few.cu: slices per warp's ring, 8, 4 or 2
    uint32_t ring_scale_bytes;  // matmul_few.cu: size of a unit's scales and minimums
    uint32_t unused;
    float4* partial;       // tiles: partial sums of tiles that blocks share
    uint32_t* arrived;     // tiles: number of parts stored for a tile; zero before and after
    Product products[PRODUCTS_MAX];
};
static_assert(sizeof(MatmulParams) == 88 + 136 * PRODUCTS_MAX, "the host's struct has no other padding");

// The product of a row block.
__device__ __forceinline__ const Product& product_of(const MatmulParams& p, uint32_t row_block) {
    uint32_t index = 0;
    while (index + 1 < p.product_count && row_block >= p.products[index + 1].first_block) ++index;
    return p.products[index];
}

constexpr uint32_t PARTS_MAX = 8;

// The first unit of a part. A row's units are divided into `parts` runs of equal length, as far as possible.
// The sum over a row is that of the parts' sums, each a single chain of mma instructions, added in the order
// of the columns. matmul_few.cu and matmul_many.cu both use this order, with a number of parts that does not
// depend on the number of tokens. So a token's result has the same bits in either.
__device__ __forceinline__ uint32_t part_begin(uint32_t part, uint32_t parts, uint32_t units) {
    return part * units / parts;
}

// Conversion of a row of activations to f16: normalised, and scaled by a power of two that brings its largest
// value into [1024, 2048). Nothing overflows, and values down to 2^-25 of the largest keep 11 bits.
struct RowScale {
    float factor;   // factor for activations
    float inverse;  // factor for results
};

// Four columns of a row from `col` on, zeros after its end. With FOURS, a row is whole aligned fours. Such a
// load has no branch, so the loads of an iteration are in flight together.
template <bool FOURS>
__device__ __forceinline__ float4 load_four(const float* row, uint32_t col, uint32_t cols) {
    if constexpr (FOURS) return col < cols ? *reinterpret_cast<const float4*>(row + col) : make_float4(0, 0, 0, 0);
    return {col < cols ? row[col] : 0.0f, col + 1 < cols ? row[col + 1] : 0.0f,
            col + 2 < cols ? row[col + 2] : 0.0f, col + 3 < cols ? row[col + 3] : 0.0f};
}

__device__ __forceinline__ float4 times(float4 a, float4 b) {
    return {a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w};
}

__device__ __forceinline__ float4 times(float4 a, float b) { return {a.x * b, a.y * b, a.z * b, a.w * b}; }

// One part's contribution to a row's scale. A row has ROW_PARTS parts, each with every ROW_PARTS-th block of
// 128 columns. So the sums, and all bits that depend on them, are the same for any number of warps per row.
struct RowPart {
    float squares, largest;
};
constexpr int ROW_PARTS = 8;
constexpr uint32_t PART_COLS = 4 * WARP;

// Adds four columns to a part: `x` as they are, `y` times the norm's weights.
__device__ __forceinline__ void add_four(RowPart& part, float4 x, float4 y) {
    float& sum = part.squares;
    sum = fmaf(x.x, x.x, fmaf(x.y, x.y, fmaf(x.z, x.z, fmaf(x.w, x.w, sum))));
    part.largest = fmaxf(part.largest, fmaxf(fmaxf(fabsf(y.x), fabsf(y.y)), fmaxf(fabsf(y.z), fabsf(y.w))));
}

__device__ __forceinline__ uint2 half_four(float4 x) {
    const __half2 low = __floats2half2_rn(x.x, x.y), high = __floats2half2_rn(x.z, x.w);
    return {*reinterpret_cast<const uint32_t*>(&low), *reinterpret_cast<const uint32_t*>(&high)};
}

// Fours of a row that a lane loads at a time, and as many of the norm's weights: with few threads, a row is
// read at the pace of memory latency.
template <bool FOURS>
constexpr int FOURS_AHEAD = FOURS ? 4 : 1;

template <int WARPS, bool FOURS>
__device__ __forceinline__ void row_parts_of(RowPart (&parts)[ROW_PARTS], const float* row, const float* weight,
                                             uint32_t cols, uint32_t own) {
    constexpr int OWN = ROW_PARTS / WARPS, AHEAD = FOURS_AHEAD<FOURS>;
    constexpr int TURNS = AHEAD > OWN ? AHEAD / OWN : 1, COUNT = TURNS * OWN;
    const uint32_t lane = threadIdx.x % WARP;
    RowPart sums[OWN] = {};
#pragma unroll 1
    for (uint32_t start = 0; start < cols; start += TURNS * ROW_PARTS * PART_COLS) {
        // Within an iteration the parts are WARPS times PART_COLS columns apart, and so are its last part and
        // the next iteration's first.
        const uint32_t first = start + own * PART_COLS + 4 * lane;
        float4 x[COUNT], y[COUNT];
#pragma unroll
        for (int i = 0; i < COUNT; ++i) y[i] = x[i] = load_four<FOURS>(row, first + i * WARPS * PART_COLS, cols);
        if (weight) {
            float4 weights[COUNT];
#pragma unroll
            for (int i = 0; i < COUNT; ++i) weights[i] = load_four<FOURS>(weight, first + i * WARPS * PART_COLS, cols);
#pragma unroll
            for (int i = 0; i < COUNT; ++i) y[i] = times(x[i], weights[i]);
        }
#pragma unroll
        for (int i = 0; i < COUNT; ++i) add_four(sums[i % OWN], x[i], y[i]);
    }
#pragma unroll
    for (int i = 0; i < OWN; ++i) {
        const RowPart part = {warp_sum(sums[i].squares), warp_max(sums[i].largest)};
        if (lane == 0) parts[own + i * WARPS] = part;
    }
}

// Computes parts `own`, `own + WARPS`, ... of a row, in one of the WARPS warps that share it. `weight` is
// null without a norm.
template <int WARPS>
__device__ __forceinline__ void row_parts(RowPart (&parts)[ROW_PARTS], const float* row, const float* weight,
                                          uint32_t cols, uint32_t own) {
    if (cols % 4 == 0)
        row_parts_of<WARPS, true>(parts, row, weight, cols, own);
    else
        row_parts_of<WARPS, false>(parts, row, weight, cols, own);
}

__device__ __forceinline__ RowScale row_scale(const RowPart (&parts)[ROW_PARTS], bool normed, float eps,
                                              uint32_t cols) {
    float squares = 0.0f, largest = 0.0f;
#pragma unroll
    for (int i = 0; i < ROW_PARTS; ++i) {
        squares += parts[i].squares;
        largest = fmaxf(largest, parts[i].largest);
    }
    const float gain = normed ? rsqrtf(squares / static_cast<float>(cols) + eps) : 1.0f;
    int exponent = 0;
    frexpf(largest * gain, &exponent);
    // Rows of zeros and rows with a value that is not finite are not scaled.
    const bool scaled = largest > 0.0f && isfinite(largest * gain);
    // The shift is bounded so that the factor is finite in f32: largest values below 2^-89 stay small.
    const int shift = scaled ? min(11 - exponent, 100) : 0;
    return {ldexpf(gain, shift), ldexpf(1.0f, -shift)};
}

template <bool FOURS, typename Store>
__device__ __forceinline__ void halves_of(const float* row, const float* weight, float factor, uint32_t first,
                                          uint32_t distance, uint32_t end, uint32_t cols, Store store) {
    constexpr int AHEAD = FOURS_AHEAD<FOURS>;
#pragma unroll 1
    for (uint32_t start = first; start < end; start += AHEAD * distance) {
        float4 x[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) x[i] = load_four<FOURS>(row, start + i * distance, cols);
        if (weight) {
            float4 weights[AHEAD];
#pragma unroll
            for (int i = 0; i < AHEAD; ++i) weights[i] = load_four<FOURS>(weight, start + i * distance, cols);
#pragma unroll
            for (int i = 0; i < AHEAD; ++i) x[i] = times(times(x[i], factor), weights[i]);
        } else {
#pragma unroll
            for (int i = 0; i < AHEAD; ++i) x[i] = times(x[i], factor);
        }
#pragma unroll
        for (int i = 0; i < AHEAD; ++i)
            if (start + i * distance < end) store(start + i * distance, half_four(x[i]));
    }
}

// Calls `store(col, four)` with four converted columns at a time: from `first` to `end`, `distance` columns
// apart.
template <typename Store>
__device__ __forceinline__ void for_each_half_four(const float* row, const float* weight, float factor, uint32_t first,
                                                   uint32_t distance, uint32_t end, uint32_t cols, Store store) {
    if (cols % 4 == 0)
        halves_of<true>(row, weight, factor, first, distance, end, cols, store);
    else
        halves_of<false>(row, weight, factor, first, distance, end, cols, store);
}

__device__ __forceinline__ constexpr bool reads_dst(Epilogue epilogue) {
    return epilogue == Epilogue::Add || epilogue == Epilogue::Multiply;
}

// The new value of a product's element: `before` is the old value of dst if the epilogue reads it, `up` is
// used by gates only.
template <Epilogue EPILOGUE>
__device__ __forceinline__ float finished(Activation activation, float y, float before, float up) {
    if constexpr (EPILOGUE == Epilogue::Gated) return activate(activation, y) * up;
    if constexpr (EPILOGUE == Epilogue::Multiply) return activate(activation, before) * y;
    if constexpr (EPILOGUE == Epilogue::Add) return before + y;
    return y;
}

// Writes one element of a product, and returns its value if the epilogue is Store.
__device__ __forceinline__ float finish(const Product& product, uint32_t token, uint32_t row, float y, float up) {
    float* dst = product.dst + static_cast<size_t>(token) * product.matrix.rows + row;
    if (product.epilogue == Epilogue::Gated) {
        *dst = finished<Epilogue::Gated>(product.activation, y, 0.0f, up);
        return y;
    }
    if (product.epilogue == Epilogue::Multiply) {
        *dst = finished<Epilogue::Multiply>(product.activation, y, *dst, up);
        return y;
    }
    if (product.bias) y += product.bias[row];
    *dst = product.epilogue == Epilogue::Add ? finished<Epilogue::Add>(product.activation, y, *dst, up) : y;
    return y;
}

}  // namespace ottava
