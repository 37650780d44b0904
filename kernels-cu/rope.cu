// Rotary embedding: the angles of a step, and the rotation of heads in place. (Su et al. 2021.)

#include "common/kv.cuh"

namespace ottava {

// Mirrored by `backend::cuda::params::RopeAngles`.
struct RopeAnglesParams {
    Step step;
    float* dst;              // [tokens, 2 · half]: cosines, then sines
    const double* inv_freq;  // [half], radians per position
    float magnitude;
    uint32_t half;
};
static_assert(sizeof(RopeAnglesParams) == 80, "the host's struct has no other padding");

// Mirrored by `backend::cuda::params::Rope`.
struct RopeParams {
    float* x;             // [tokens, cols], in place
    const float* angles;  // [tokens, 2 · half]
    uint32_t tokens;
    uint32_t cols;
    uint32_t head_dim;
    uint32_t half;
    uint32_t interleaved;  // 1: pairs (2i, 2i + 1); 0: (i, i + half)
    uint32_t unused;
};
static_assert(sizeof(RopeParams) == 40, "the host's struct has no other padding");

}  // namespace ottava

// Angles are reduced in f64, so they are exact at any position. Launch: one block per token.
extern "C" __global__ void __launch_bounds__(128) rope_angles(const __grid_constant__ ottava::RopeAnglesParams p) {
    ottava::wait_for_predecessor();
    if (blockIdx.x >= p.step.counts[0]) return;
    const double position = p.step.positions[blockIdx.x];
    float* row = p.dst + static_cast<size_t>(blockIdx.x) * 2 * p.half;
    for (uint32_t i = threadIdx.x; i < p.half; i += blockDim.x) {
        // The remainder after whole turns, exact because the turn is subtracted in two parts (Cody and Waite
        // 1980). For such a small angle, f32 functions are exact to the last bits.
        const double angle = position * p.inv_freq[i], turns = rint(angle * 0.15915494309189535);
        const double rest = fma(-turns, 2.4492935982947064e-16, fma(-turns, 6.283185307179586, angle));
        float sine, cosine;
        sincospif(static_cast<float>(rest * 0.3183098861837907), &sine, &cosine);
        row[i] = cosine * p.magnitude;
        row[p.half + i] = sine * p.magnitude;
    }
}

// Launch: grid [tokens, heads], 64 threads.
extern "C" __global__ void __launch_bounds__(64) rope(const __grid_constant__ ottava::RopeParams p) {
    ottava::wait_for_predecessor();
    float* head = p.x + static_cast<size_t>(blockIdx.x) * p.cols + blockIdx.y * p.head_dim;
    const float* angles = p.angles + static_cast<size_t>(blockIdx.x) * 2 * p.half;
    for (uint32_t i = threadIdx.x; i < p.half; i += blockDim.x) {
        const uint32_t first = p.interleaved ? 2 * i : i, second = p.interleaved ? 2 * i + 1 : i + p.half;
        const float x = head[first], y = head[second], cosine = angles[i], sine = angles[p.half + i];
        head[first] = x * cosine - y * sine;
        head[second] = y * cosine + x * sine;
    }
}
