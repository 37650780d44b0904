// A packed weight matrix, and its unpacking to the A operand of mma.m16n8k16.
//
// Rows are divided into strips of 16, columns into steps of 16. A step of a strip is one A operand: 256
// weights, 8 per lane. Let g = lane / 4 and t = lane % 4. The lane's rows are g and g + 8, its columns of
// step s are 16 s + 4 t + {0, 1, 2, 3}. The B operand is read in the same order, so that its four values are
// adjacent. The lanes' weights of `16 / bits` steps are stored together as 16 bytes, 512 bytes per
// warp: one load instruction.
//
//   bits  steps in 16 bytes  order of a lane's weights of a step
//   16    1                  (g; 0, 1) (g+8; 0, 1) (g; 2, 3) (g+8; 2, 3)
//   8     2                  the same order, one byte each
//   4     4                  nibbles 0..3: the first of each pair; 4..7: the second
//
// Codes are stored as unsigned numbers with a zero point. The bits 0x6400 turn a code into the f16 number
// 1024 + code; one exact subtraction removes both 1024 and the zero point. A high nibble needs no shift: the
// same bits turn it into 1024 + 16 code, and one exact multiply-add by 1/16 removes 64 and the zero point.
#pragma once

#include "ptx.cuh"

namespace ottava {

constexpr int STRIP_ROWS = 16;
constexpr int STEP_COLS = 16;
// Steps that a warp loads and multiplies at a time, 128 columns; no group is longer, except a whole row.
constexpr int UNIT_STEPS = 8;
constexpr int UNIT_COLS = UNIT_STEPS * STEP_COLS;

// Mirrored by `backend::cuda::params::Matrix`.
struct Matrix {
    const uint4* codes;    // [strips][loads of a row][32 lanes]
    const __half2* scales; // [strips][groups][8]: rows g and g + 8
    const __half2* mins;   // as scales, or null
    uint32_t rows;
    uint32_t cols;
    uint32_t bits;         // 4, 8 or 16
    uint32_t group_steps;  // steps per scale: 1, 2, 4 or 8
    uint32_t groups;       // per row; 1 if a row has one scale
    uint32_t zero;         // 1024 + zero point as f16, in both halves
};
static_assert(sizeof(Matrix) == 48, "the host's struct has no other padding");

// Steps in a lane's 16 bytes.
template <int BITS>
constexpr int LOAD_STEPS = 16 / BITS;

// Loads per row of `cols` columns; a load has 256 bits of each row of the strip.
__device__ __forceinline__ uint32_t row_loads(uint32_t cols, uint32_t bits) { return (cols * bits + 255) / 256; }

// A lane's codes of STEPS steps.
template <int BITS, int STEPS>
struct Codes {
    static constexpr int LOADS = STEPS / LOAD_STEPS<BITS>;
    static_assert(LOADS * LOAD_STEPS<BITS> == STEPS, "whole loads");
    uint4 loads[LOADS];
};

// The A operand of one step, without scales.
template <int BITS, int STEPS>
__device__ __forceinline__ void step_operand(uint32_t (&a)[4], const Codes<BITS, STEPS>& codes, int step,
                                             uint32_t zero) {
    constexpr uint32_t EXPONENT = 0x64006400;
    const uint4 load = codes.loads[step / LOAD_STEPS<BITS>];
    const uint32_t words[4] = {load.x, load.y, load.z, load.w};
    if constexpr (BITS == 16) {
#pragma unroll
        for (int i = 0; i < 4; ++i) a[i] = words[i];
    } else if constexpr (BITS == 8) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const uint32_t word = words[step % 2 * 2 + i];
            a[2 * i] = subtract(prmt(word, EXPONENT, 0x5150), zero);
            a[2 * i + 1] = subtract(prmt(word, EXPONENT, 0x5352), zero);
        }
    } else {
        constexpr uint32_t SIXTEENTH = 0x2c002c00, F16_960 = 0x63806380;
        const uint32_t minus_high_zero = subtract(F16_960, zero);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const uint32_t word = words[step % 4] >> 8 * i;
            a[2 * i] = subtract(and_or(word, 0x000f000f, EXPONENT), zero);
            a[2 * i + 1] = multiply_add(and_or(word, 0x00f000f0, EXPONENT), SIXTEENTH, minus_high_zero);
        }
    }
}

// Scales an operand in f16: `scale` and `min` are those of rows g and g + 8. Registers 0 and 2 hold row g, 1
// and 3 row g + 8.
__device__ __forceinline__ void scale_operand(uint32_t (&a)[4], __half2 scale, __half2 min) {
    const __half2 scales[2] = {__low2half2(scale), __high2half2(scale)};
    const __half2 mins[2] = {__low2half2(min), __high2half2(min)};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const __half2 scaled = __hfma2(*reinterpret_cast<__half2*>(&a[i]), scales[i % 2], mins[i % 2]);
        a[i] = *reinterpret_cast<const uint32_t*>(&scaled);
    }
}

// The scaled operand of a step.
template <int BITS, int STEPS>
__device__ __forceinline__ void scaled_operand(uint32_t (&a)[4], const Codes<BITS, STEPS>& codes, int step,
                                               uint32_t zero, __half2 scale, __half2 min) {
    step_operand(a, codes, step, zero);
    scale_operand(a, scale, min);
}

}  // namespace ottava
