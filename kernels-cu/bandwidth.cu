// Memory bandwidth: the ceilings for other kernels.
//
// Launch: as many blocks of 256 threads as fit on the device at a time, as reported by the driver.

#include "common/ptx.cuh"

namespace ottava {

// Mirrored by `backend::cuda::params::Bandwidth`.
struct BandwidthParams {
    const uint4* src;  // [count]
    uint4* dst;        // copies: [count]; reads: [1], never written
    uint64_t count;
};
static_assert(sizeof(BandwidthParams) == 24, "the host's struct has no other padding");

// Loads in flight per thread.
constexpr int LOADS = 8;

// Calls `use` for each 16 bytes, with their index.
template <typename Use>
__device__ __forceinline__ void stream(const BandwidthParams& p, Use use) {
    const uint64_t threads = static_cast<uint64_t>(gridDim.x) * blockDim.x;
    for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < p.count; i += LOADS * threads) {
        uint4 values[LOADS];
#pragma unroll
        for (int n = 0; n < LOADS; ++n)
            if (i + n * threads < p.count) values[n] = ld_stream(p.src + i + n * threads);
#pragma unroll
        for (int n = 0; n < LOADS; ++n)
            if (i + n * threads < p.count) use(i + n * threads, values[n]);
    }
}

}  // namespace ottava

extern "C" __global__ void __launch_bounds__(256) read_memory(const __grid_constant__ ottava::BandwidthParams p) {
    ottava::wait_for_predecessor();
    uint32_t common = ~0u;
    ottava::stream(p, [&](uint64_t, uint4 value) { common &= value.x & value.y & value.z & value.w; });
    // Never true, because every word is odd; the compiler cannot prove that.
    if (common == 0) p.dst[0] = make_uint4(0, 0, 0, 0);
}

extern "C" __global__ void __launch_bounds__(256) copy_memory(const __grid_constant__ ottava::BandwidthParams p) {
    ottava::wait_for_predecessor();
    ottava::stream(p, [&](uint64_t i, uint4 value) { p.dst[i] = value; });
}
