// dst (+)= src / sqrt(mean(src²) + eps) · weight, over each row of [rows, cols].
//
// Launch: one block of 256 threads per row. `dst` may be `src`.

#include "common/reduce.cuh"

namespace ottava {

// Mirrored by `backend::cuda::params::RmsNorm`.
struct RmsNormParams {
    float* dst;           // [rows, cols]
    const float* src;     // [rows, cols]
    const float* weight;  // [cols]
    float eps;
    uint32_t cols;
    uint32_t add;  // 1: the result is added to dst
    uint32_t unused;
};
static_assert(sizeof(RmsNormParams) == 40, "the host's struct has no other padding");

}  // namespace ottava

extern "C" __global__ void __launch_bounds__(256) rms_norm(const __grid_constant__ ottava::RmsNormParams p) {
    using namespace ottava;
    __shared__ float scratch[WARP];
    wait_for_predecessor();
    const size_t start = static_cast<size_t>(blockIdx.x) * p.cols;
    float squares = 0.0f;
    for (uint32_t col = threadIdx.x; col < p.cols; col += blockDim.x) {
        const float x = p.src[start + col];
        squares += x * x;
    }
    const float gain = rsqrtf(block_sum(squares, scratch) / static_cast<float>(p.cols) + p.eps);
    for (uint32_t col = threadIdx.x; col < p.cols; col += blockDim.x) {
        const float y = p.src[start + col] * gain * p.weight[col];
        p.dst[start + col] = p.add ? p.dst[start + col] + y : y;
    }
}
