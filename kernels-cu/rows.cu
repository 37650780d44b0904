// Operations on whole rows: embedding from a packed table, gathering the output rows, softmax,
// transposition.

#include "common/kv.cuh"
#include "common/matrix.cuh"
#include "common/sampled.cuh"

namespace ottava {

// Mirrored by `backend::cuda::params::Embed`.
struct EmbedParams {
    Step step;
    Matrix table;  // [vocabulary, cols]
    float* dst;    // [tokens, cols]
    Sampled sampled;
    float scale;
    uint32_t unused;
};
static_assert(sizeof(EmbedParams) == 136, "the host's struct has no other padding");

// Mirrored by `backend::cuda::params::Gather`.
struct GatherParams {
    Step step;
    float* dst;        // [outputs, cols]
    const float* src;  // [tokens, cols]
    uint32_t cols;
    uint32_t unused;
};
static_assert(sizeof(GatherParams) == 80, "the host's struct has no other padding");

// Mirrored by `backend::cuda::params::Rows`, for softmax and transposition.
struct RowsParams {
    float* dst;
    const float* src;  // [rows, cols]
    uint32_t rows;
    uint32_t cols;
};
static_assert(sizeof(RowsParams) == 24, "the host's struct has no other padding");

// A packed weight's code, converted through f16, minus its zero point; common/matrix.cuh describes its
// position.
__device__ __forceinline__ float code_at(const Matrix& m, uint32_t row, uint32_t col) {
    const uint32_t step = col / STEP_COLS, t = col % STEP_COLS / 4, pair = col % 4 / 2, second = col % 2;
    const uint32_t lane = row % 8 * 4 + t, lower = row % STRIP_ROWS / 8;
    // Index among the lane's eight weights of the step: registers 0 and 1 hold the first pair of columns.
    const uint32_t reg = 2 * pair + lower;
    const uint32_t load_steps = 16 / m.bits, load_cols = load_steps * STEP_COLS;
    const uint32_t loads = (m.cols + load_cols - 1) / load_cols;
    const size_t load = (static_cast<size_t>(row / STRIP_ROWS) * loads + step / load_steps) * 32 + lane;
    const auto* bytes = reinterpret_cast<const uint8_t*>(m.codes + load);
    const float zero = __half2float(__ushort_as_half(static_cast<uint16_t>(m.zero)));
    if (m.bits == 16) return __half2float(reinterpret_cast<const __half*>(bytes)[2 * reg + second]);
    if (m.bits == 8) return 1024.0f + bytes[step % 2 * 8 + 2 * reg + second] - zero;
    const uint32_t word = reinterpret_cast<const uint32_t*>(bytes)[step % 4];
    return 1024.0f + static_cast<float>(word >> (4 * reg + 16 * second) & 15) - zero;
}

__device__ __forceinline__ float weight_at(const Matrix& m, uint32_t row, uint32_t col) {
    const uint32_t group = min(col / (m.group_steps * STEP_COLS), m.groups - 1);
    const size_t index = (static_cast<size_t>(row / STRIP_ROWS) * m.groups + group) * 8 + row % 8;
    const bool lower = row % STRIP_ROWS >= 8;
    const __half2 scale = m.scales[index];
    float value = code_at(m, row, col) * __half2float(lower ? __high2half(scale) : __low2half(scale));
    if (m.mins) value += __half2float(lower ? __high2half(m.mins[index]) : __low2half(m.mins[index]));
    return value;
}

}  // namespace ottava

// dst[t] = table[token t] · scale. Launch: one block of 256 threads per token.
extern "C" __global__ void __launch_bounds__(256) embed(const __grid_constant__ ottava::EmbedParams p) {
    ottava::wait_for_predecessor();
    if (blockIdx.x >= p.step.counts[0]) return;
    const uint32_t row = ottava::token_of(p.step.tokens[blockIdx.x], p.sampled, p.step.counts, p.table.rows);
    float* dst = p.dst + static_cast<size_t>(blockIdx.x) * p.table.cols;
    for (uint32_t col = threadIdx.x; col < p.table.cols; col += blockDim.x)
        dst[col] = ottava::weight_at(p.table, row, col) * p.scale;
}

// dst[i] = src[outputs[i]]. Launch: one block of 256 threads per output.
extern "C" __global__ void __launch_bounds__(256) gather_outputs(const __grid_constant__ ottava::GatherParams p) {
    ottava::wait_for_predecessor();
    if (blockIdx.x >= p.step.counts[2]) return;
    const float* src = p.src + static_cast<size_t>(p.step.outputs[blockIdx.x]) * p.cols;
    float* dst = p.dst + static_cast<size_t>(blockIdx.x) * p.cols;
    for (uint32_t col = threadIdx.x; col < p.cols; col += blockDim.x) dst[col] = src[col];
}

// dst = softmax(src) over each row; dst may be src. Launch: one block of 256 threads per row.
extern "C" __global__ void __launch_bounds__(256) softmax(const __grid_constant__ ottava::RowsParams p) {
    using namespace ottava;
    __shared__ float scratch[WARP];
    wait_for_predecessor();
    const float* src = p.src + static_cast<size_t>(blockIdx.x) * p.cols;
    float* dst = p.dst + static_cast<size_t>(blockIdx.x) * p.cols;
    float largest = -INFINITY, sum = 0.0f;
    for (uint32_t col = threadIdx.x; col < p.cols; col += blockDim.x) largest = fmaxf(largest, src[col]);
    largest = block_max(largest, scratch);
    for (uint32_t col = threadIdx.x; col < p.cols; col += blockDim.x) sum += expf(src[col] - largest);
    const float inverse = 1.0f / block_sum(sum, scratch);
    for (uint32_t col = threadIdx.x; col < p.cols; col += blockDim.x) dst[col] = expf(src[col] - largest) * inverse;
}

// dst[c][r] = src[r][c], through tiles of 32 x 32 so that both sides are accessed by rows. Launch: grid [cols
// / 32, rows / 32] rounded up, block [32, 8].
extern "C" __global__ void __launch_bounds__(256) transpose(const __grid_constant__ ottava::RowsParams p) {
    __shared__ float tile[32][33];
    ottava::wait_for_predecessor();
    const uint32_t col = blockIdx.x * 32 + threadIdx.x, row = blockIdx.y * 32 + threadIdx.x;
    for (uint32_t i = threadIdx.y; i < 32; i += blockDim.y) {
        const uint32_t r = blockIdx.y * 32 + i;
        if (r < p.rows && col < p.cols) tile[i][threadIdx.x] = p.src[static_cast<size_t>(r) * p.cols + col];
    }
    __syncthreads();
    for (uint32_t i = threadIdx.y; i < 32; i += blockDim.y) {
        const uint32_t c = blockIdx.x * 32 + i;
        if (c < p.cols && row < p.rows) p.dst[static_cast<size_t>(c) * p.rows + row] = tile[threadIdx.x][i];
    }
}
