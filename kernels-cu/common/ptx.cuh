// All inline assembly, one instruction per function; names follow the PTX manual.
#pragma once

#include <cuda_fp16.h>
#include <stdint.h>

namespace ottava {

// Loads 16 bytes that are read once, bypassing L1, which activations need.
__device__ __forceinline__ uint4 ld_stream(const void* address) {
    uint4 value;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(address));
    return value;
}

// A 32-bit address in the shared window, for instructions on shared memory.
__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Starts a copy of 16 bytes to shared memory; writes zeros instead if `inside` is false.
__device__ __forceinline__ void cp_async_16(void* shared, const void* global, bool inside) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
                 "l"(global), "r"(inside ? 16 : 0)
                 : "memory");
}

// Starts a copy of 16 bytes to shared memory if `copies` is true, without a branch, so the warp does not
// diverge.
__device__ __forceinline__ void cp_async_16_if(bool copies, void* shared, const void* global) {
    asm volatile(
        "{\n.reg .pred copies;\nsetp.ne.u32 copies, %2, 0;\n"
        "@copies cp.async.cg.shared.global [%0], [%1], 16;\n}" ::"r"(shared_address(shared)),
        "l"(global), "r"(static_cast<uint32_t>(copies))
        : "memory");
}

__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most `PENDING` groups of this thread's copies are in flight.
template <int PENDING>
__device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// cp_async_wait if `waits` is true, without a branch.
template <int PENDING>
__device__ __forceinline__ void cp_async_wait_if(bool waits) {
    asm volatile(
        "{\n.reg .pred waits;\nsetp.ne.u32 waits, %1, 0;\n@waits cp.async.wait_group %0;\n}" ::"n"(PENDING),
        "r"(static_cast<uint32_t>(waits))
        : "memory");
}

// d += a · b for a [16, 16] of f16 by rows, b [16, 8] of f16 by columns, d [16, 8] of f32.
// With g = lane / 4 and t = lane % 4 a lane holds
//   a: (g, 2t..), (g + 8, 2t..), (g, 2t + 8..), (g + 8, 2t + 8..), two columns each
//   b: (2t.., g), (2t + 8.., g), two rows each
//   d: (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1)
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Loads four 8 x 8 matrices of f16; lane i provides the address of row i % 8 of matrix i / 8.
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&d)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(shared_address(row)));
}

// ldmatrix_x4 with each matrix transposed.
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&d)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(shared_address(row)));
}

// Bytes of a and b (numbered 0 to 7), selected by the nibbles of `selector`.
__device__ __forceinline__ uint32_t prmt(uint32_t a, uint32_t b, uint32_t selector) {
    uint32_t d;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(selector));
    return d;
}

// (a & b) | c
__device__ __forceinline__ uint32_t and_or(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t d;
    asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

// a - b, of two f16 each.
__device__ __forceinline__ uint32_t subtract(uint32_t a, uint32_t b) {
    uint32_t d;
    asm("sub.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}

// a · b + c, rounded once, of two f16 each.
__device__ __forceinline__ uint32_t multiply_add(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

// 2^x by the hardware approximation; results below the smallest normal number are zero.
__device__ __forceinline__ float ex2_approx_ftz(float x) {
    float d;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(d) : "f"(x));
    return d;
}

// 1 / x by the hardware approximation.
__device__ __forceinline__ float rcp_approx_ftz(float x) {
    float d;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(d) : "f"(x));
    return d;
}

// The larger of two numbers; NaN without a sign if either is NaN.
__device__ __forceinline__ float max_nan(float a, float b) {
    float d;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(d) : "f"(a), "f"(b));
    return d;
}

// Waits for the kernels that this one depends on (programmatic dependent launch); data written by them must
// not be read before. Kernels that depend on this one may start once all its blocks have reached this point;
// they wait here for its end in turn.
__device__ __forceinline__ void wait_for_predecessor() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Initialises a barrier in shared memory. Its phases end after `arrivals` arrivals and the bytes that those
// expect.
__device__ __forceinline__ void mbarrier_init(uint64_t* barrier, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

// Makes initialised barriers visible to copies that complete on them.
__device__ __forceinline__ void fence_mbarrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive(uint64_t* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Arrives if `arrives` is true, without a branch; a branch among wgmma would serialise them.
__device__ __forceinline__ void mbarrier_arrive_if(bool arrives, uint64_t* barrier) {
    asm volatile(
        "{\n.reg .pred arrives;\nsetp.ne.u32 arrives, %1, 0;\n"
        "@arrives mbarrier.arrive.shared::cta.b64 _, [%0];\n}" ::"r"(shared_address(barrier)),
        "r"(static_cast<uint32_t>(arrives))
        : "memory");
}

// Arrives, and adds `bytes` bytes of copies to those that the phase waits for.
__device__ __forceinline__ void mbarrier_arrive_expect_tx(uint64_t* barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}

// Waits for a limited time for the phase of this parity to end; returns whether it has.
__device__ __forceinline__ bool mbarrier_try_wait(uint64_t* barrier, uint32_t parity) {
    uint32_t ended;
    asm volatile(
        "{\n.reg .pred ended;\nmbarrier.try_wait.parity.shared::cta.b64 ended, [%1], %2;\n"
        "selp.u32 %0, 1, 0, ended;\n}"
        : "=r"(ended)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
    return ended;
}

// Starts a copy to shared memory that completes on a barrier; addresses and bytes are multiples of 16.
__device__ __forceinline__ void bulk_copy(void* shared, const void* global, uint32_t bytes, uint64_t* barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(shared)),
                 "l"(global), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
}

// Prevents the compiler from moving accesses of these registers across this line. Asynchronous instructions
// use registers in ways that the compiler cannot track.
template <int COUNT>
__device__ __forceinline__ void keep_order(uint32_t (&registers)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) asm volatile("" : "+r"(registers[i])::"memory");
}

template <int COUNT>
__device__ __forceinline__ void keep_order(float (&registers)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}

// Releases registers of the warpgroup's threads, down to REGISTERS each.
template <int REGISTERS>
__device__ __forceinline__ void setmaxnreg_dec() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

// Waits until the warpgroup's threads can have REGISTERS registers each.
template <int REGISTERS>
__device__ __forceinline__ void setmaxnreg_inc() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

// Required between the last access of registers and a wgmma that uses them.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most `PENDING` groups are in flight.
template <int PENDING>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// d += a · b for a [64, 16] of f16 by rows, 16 rows per warp; b [16, N] of f16 by columns, in shared memory
// in the layout of its descriptor; d [64, N] of f32. The layout of a in a lane is that of mma_m16n8k16, and
// that of d is the same for each 8 columns. Asynchronous: runs until it is waited for.
#define OTTAVA_SUMS(i)                                                                              \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]),     \
        "+f"(d[i + 6]), "+f"(d[i + 7])
__device__ __forceinline__ void wgmma_m64n64k16(float (&d)[32], const uint32_t (&a)[4], uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32, %33, %34, %35}, %36, 1, 1, 1, 0;"
        : OTTAVA_SUMS(0), OTTAVA_SUMS(8), OTTAVA_SUMS(16), OTTAVA_SUMS(24)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

__device__ __forceinline__ void wgmma_m64n128k16(float (&d)[64], const uint32_t (&a)[4], uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "{%64, %65, %66, %67}, %68, 1, 1, 1, 0;"
        : OTTAVA_SUMS(0), OTTAVA_SUMS(8), OTTAVA_SUMS(16), OTTAVA_SUMS(24), OTTAVA_SUMS(32), OTTAVA_SUMS(40),
          OTTAVA_SUMS(48), OTTAVA_SUMS(56)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
#undef OTTAVA_SUMS

}  // namespace ottava
