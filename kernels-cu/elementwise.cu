// Operations on single elements: unary functions, sums and products. f32 throughout.
//
// Launch: 256 threads per block, one element per thread.

#include <cuda_bf16.h>

#include "common/math.cuh"
#include "common/reduce.cuh"

namespace ottava {

// Mirrors `ir::UnaryFn`.
enum class Unary : uint32_t { Silu = 0, GeluTanh = 1, Scale = 2, SoftCap = 3, CastF32 = 4, CastF16 = 5, CastBf16 = 6 };

// Mirrored by `backend::cuda::params::Unary`.
struct UnaryParams {
    float* dst;        // [count], may be src
    const float* src;  // [count]
    uint64_t count;
    Unary function;
    float argument;  // the factor or the cap
};
static_assert(sizeof(UnaryParams) == 32, "the host's struct has no other padding");

// Mirrored by `backend::cuda::params::Binary`.
struct BinaryParams {
    float* dst;      // [count], may be a
    const float* a;  // [count]
    const float* b;  // [b_count]: repeated, so a single row is broadcast
    uint64_t count;
    uint64_t b_count;
    uint32_t multiply;  // 1: product, 0: sum
    uint32_t unused;
};
static_assert(sizeof(BinaryParams) == 48, "the host's struct has no other padding");

__device__ __forceinline__ uint64_t element_index() {
    return static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}

__device__ __forceinline__ float apply(Unary function, float argument, float x) {
    switch (function) {
        case Unary::Silu: return silu(x);
        case Unary::GeluTanh: return gelu_tanh(x);
        case Unary::Scale: return x * argument;
        case Unary::SoftCap: return soft_cap(x, argument);
        case Unary::CastF16: return __half2float(__float2half_rn(x));
        case Unary::CastBf16: return __bfloat162float(__float2bfloat16_rn(x));
        default: return x;
    }
}

}  // namespace ottava

extern "C" __global__ void __launch_bounds__(256) unary(const __grid_constant__ ottava::UnaryParams p) {
    ottava::wait_for_predecessor();
    const uint64_t i = ottava::element_index();
    if (i < p.count) p.dst[i] = ottava::apply(p.function, p.argument, p.src[i]);
}

extern "C" __global__ void __launch_bounds__(256) binary(const __grid_constant__ ottava::BinaryParams p) {
    ottava::wait_for_predecessor();
    const uint64_t i = ottava::element_index();
    if (i < p.count) {
        const float a = p.a[i], b = p.b[p.b_count == p.count ? i : i % p.b_count];
        p.dst[i] = p.multiply ? a * b : a + b;
    }
}
