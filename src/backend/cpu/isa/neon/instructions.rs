//! Instructions without stable intrinsics, one function each, and extraction of a lane's top byte.

use core::arch::aarch64::*;
use core::arch::asm;

/// The top byte of each lane, sign-extended.
#[inline(always)]
pub(super) unsafe fn top_signed(a: int32x4_t) -> int32x4_t {
    // SAFETY: NEON is part of every aarch64 that this file runs on.
    unsafe { vshrq_n_s32::<24>(a) }
}

/// The top byte of each lane, zero-extended.
#[inline(always)]
pub(super) unsafe fn top_unsigned(a: int32x4_t) -> int32x4_t {
    // SAFETY: NEON is part of every aarch64 that this file runs on.
    unsafe { vreinterpretq_s32_u32(vshrq_n_u32::<24>(vreinterpretq_u32_s32(a))) }
}

/// `acc[i] += sum of codes[4i..4i+4] · a[4Q..4Q+4]`; codes are signed for `sdot` and unsigned for `usdot`.
macro_rules! dot_product {
    ($name:ident $features:literal) => {
        #[inline]
        #[target_feature(enable = $features)]
        pub(super) unsafe fn $name<const Q: usize>(
            mut acc: int32x4_t,
            codes: uint8x16_t,
            a: int8x16_t,
        ) -> int32x4_t {
            // SAFETY: one instruction on registers; the caller vouches for the feature.
            unsafe {
                asm!(concat!(stringify!($name), " {0:v}.4s, {1:v}.16b, {2:v}.4b[{3}]"), inout(vreg) acc,
                    in(vreg) codes, in(vreg) a, const Q, options(pure, nomem, nostack, preserves_flags));
            }
            acc
        }
    };
}

dot_product!(sdot "neon,dotprod");
dot_product!(usdot "neon,i8mm");

/// `acc[2i + j] += sum over k of codes[8i + k] · a[8j + k]`, `i` and `j` in 0..2.
#[inline]
#[target_feature(enable = "neon,i8mm")]
pub(super) unsafe fn usmmla(mut acc: int32x4_t, codes: uint8x16_t, a: int8x16_t) -> int32x4_t {
    // SAFETY: one instruction on registers; the caller vouches for the feature.
    unsafe {
        asm!("usmmla {0:v}.4s, {1:v}.16b, {2:v}.16b", inout(vreg) acc, in(vreg) codes, in(vreg) a,
            options(pure, nomem, nostack, preserves_flags));
    }
    acc
}

/// Four half-precision values, widened.
#[inline]
#[target_feature(enable = "neon")]
pub(super) unsafe fn fcvtl(bits: uint16x4_t) -> float32x4_t {
    let out: float32x4_t;
    // SAFETY: one instruction of base NEON on registers.
    unsafe {
        asm!("fcvtl {0:v}.4s, {1:v}.4h", out(vreg) out, in(vreg) bits,
            options(pure, nomem, nostack, preserves_flags));
    }
    out
}

/// Four values rounded to half precision, ties to even.
#[inline]
#[target_feature(enable = "neon")]
pub(super) unsafe fn fcvtn(v: float32x4_t) -> uint16x4_t {
    let out: uint16x4_t;
    // SAFETY: one instruction of base NEON on registers.
    unsafe {
        asm!("fcvtn {0:v}.4h, {1:v}.4s", out(vreg) out, in(vreg) v,
            options(pure, nomem, nostack, preserves_flags));
    }
    out
}
