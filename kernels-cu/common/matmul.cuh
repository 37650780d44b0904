// What the matrix product kernels share: their parameters, their epilogues, and how f32 activations
// become the f16 ones that are multiplied.
#pragma once

#include "math.cuh"
#include "matrix.cuh"
#include "reduce.cuh"

namespace ottava {

// backend::Epilogue, and Multiply: dst = activation(dst) · y, the second half of a gate whose
// matrices have different formats.
enum class Epilogue : uint32_t { Store = 0, Add = 1, Gated = 2, Multiply = 3 };

// One product of a launch. Mirrored by `backend::cuda::params::Product`.
struct Product {
    Matrix matrix;
    Matrix up;             // of a gated product
    const float* bias;     // [matrix.rows], or null
    float* dst;            // [tokens, matrix.rows]
    uint32_t first_strip;  // strips of the products before this one
    Epilogue epilogue;
    Activation activation;
    uint32_t unused;
};
static_assert(sizeof(Product) == 128, "the host's struct has no other padding");

constexpr int PRODUCTS_MAX = 4;

// Mirrored by `backend::cuda::params::Matmul`.
struct MatmulParams {
    const float* src;      // [tokens, cols]
    const float* norm;     // [cols], or null
    float eps;
    uint32_t tokens;
    uint32_t cols;
    uint32_t strips;       // of all products
    uint32_t product_count;
    uint32_t chunk_units;  // few tokens: units of columns that are in shared memory at a time
    const __half* halves;  // many tokens: src as f16, [tokens, half_cols], made by `activations`
    const float* inverse;  // many tokens: what a row's results are multiplied with, [tokens]
    uint32_t half_cols;    // cols rounded up to whole units
    uint32_t unused;
    Product products[PRODUCTS_MAX];
};
static_assert(sizeof(MatmulParams) == 64 + 128 * PRODUCTS_MAX, "the host's struct has no other padding");

// How a row of activations is turned to f16: normalised, and by a power of two so that its largest
// value is in [1024, 2048). Nothing overflows, and what is 2^-25 of the largest keeps 11 bits.
struct RowScale {
    float factor;   // what activations are multiplied with
    float inverse;  // what results are multiplied with
};

// For one row by one warp. `weight` is null without a norm.
__device__ __forceinline__ RowScale row_scale(const float* row, const float* weight, float eps, uint32_t cols) {
    float squares = 0.0f, largest = 0.0f;
    for (uint32_t col = threadIdx.x % WARP; col < cols; col += WARP) {
        const float x = row[col];
        squares += x * x;
        largest = fmaxf(largest, fabsf(weight ? x * weight[col] : x));
    }
    squares = warp_sum(squares);
    largest = warp_max(largest);
    const float gain = weight ? rsqrtf(squares / static_cast<float>(cols) + eps) : 1.0f;
    int exponent = 0;
    frexpf(largest * gain, &exponent);
    // A row of zeros, and one with a value that is not finite, stay as they are.
    const bool scaled = largest > 0.0f && isfinite(largest * gain);
    // A factor that f32 has: what is smaller than 2^-89 stays small.
    const int shift = scaled ? min(11 - exponent, 100) : 0;
    return {ldexpf(gain, shift), ldexpf(1.0f, -shift)};
}

// What becomes of one element of a product, by the product's epilogue; `up` is read by gates only.
__device__ __forceinline__ void finish(const Product& product, uint32_t token, uint32_t row, float y, float up) {
    float* dst = product.dst + static_cast<size_t>(token) * product.matrix.rows + row;
    if (product.epilogue == Epilogue::Gated) {
        *dst = activate(product.activation, y) * up;
        return;
    }
    if (product.epilogue == Epilogue::Multiply) {
        *dst = activate(product.activation, *dst) * y;
        return;
    }
    if (product.bias) y += product.bias[row];
    *dst = product.epilogue == Epilogue::Add ? *dst + y : y;
}

}  // namespace ottava
