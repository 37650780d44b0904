//! Lanes on aarch64: four registers per vector. [`Dotprod`] multiplies signed bytes (`sdot`). [`I8mm`]
//! multiplies unsigned codes by signed activations (`usdot`, and for two tokens at once `usmmla`). They share
//! everything else.
//!
//! The dot products and half-precision conversions have no stable intrinsics; `instructions` defines them.

mod instructions;

use core::arch::aarch64::*;

use half::{bf16, f16};
use instructions::{fcvtl, fcvtn, sdot, top_signed, top_unsigned, usdot, usmmla};

use super::{Lanes, Order, kernel_entry};

/// NEON with `sdot`.
#[derive(Clone, Copy)]
pub(crate) struct Dotprod;

/// NEON with `usdot`.
#[derive(Clone, Copy)]
pub(crate) struct I8mm;

kernel_entry!(run_dotprod, Dotprod, "neon,dotprod");
kernel_entry!(run_i8mm, I8mm, "neon,dotprod,i8mm");

type F = [float32x4_t; 4];
type I = [int32x4_t; 4];
type C = [uint8x16_t; 4];

/// Applies an instruction to all four registers of a vector.
macro_rules! each {
    ($f:expr; $a:expr) => {
        unsafe { [$f($a[0]), $f($a[1]), $f($a[2]), $f($a[3])] }
    };
    ($f:expr; $a:expr, $b:expr) => {
        unsafe { [$f($a[0], $b[0]), $f($a[1], $b[1]), $f($a[2], $b[2]), $f($a[3], $b[3])] }
    };
    ($f:expr; $a:expr, $b:expr, $c:expr) => {
        unsafe {
            [
                $f($a[0], $b[0], $c[0]),
                $f($a[1], $b[1], $c[1]),
                $f($a[2], $b[2], $c[2]),
                $f($a[3], $b[3], $c[3]),
            ]
        }
    };
}

macro_rules! neon_lanes {
    ($name:ident, $order:expr, dot $dot:ident, top $top:ident, $($pairs:item)*) => {
        // SAFETY of every method below: the trait's contract gives the features and the pointers.
        #[allow(clippy::undocumented_unsafe_blocks)]
        impl Lanes for $name {
            type F = F;
            type I = I;
            type C = C;
            type A = int8x16_t;

            const TOKENS: usize = 6;
            const WIDE: bool = false;
            // Eight rows times six tokens leave registers for all the tokens' codes.
            const PARTS: usize = 2;
            const ORDER: Order = $order;

            #[inline(always)]
            unsafe fn splat(x: f32) -> F {
                unsafe { [vdupq_n_f32(x); 4] }
            }
            #[inline(always)]
            unsafe fn load(p: *const f32) -> F {
                unsafe { [vld1q_f32(p), vld1q_f32(p.add(4)), vld1q_f32(p.add(8)), vld1q_f32(p.add(12))] }
            }
            #[inline(always)]
            unsafe fn store(p: *mut f32, v: F) {
                unsafe {
                    vst1q_f32(p, v[0]);
                    vst1q_f32(p.add(4), v[1]);
                    vst1q_f32(p.add(8), v[2]);
                    vst1q_f32(p.add(12), v[3]);
                }
            }
            #[inline(always)]
            unsafe fn add(a: F, b: F) -> F {
                each!(vaddq_f32; a, b)
            }
            #[inline(always)]
            unsafe fn sub(a: F, b: F) -> F {
                each!(vsubq_f32; a, b)
            }
            #[inline(always)]
            unsafe fn mul(a: F, b: F) -> F {
                each!(vmulq_f32; a, b)
            }
            #[inline(always)]
            unsafe fn div(a: F, b: F) -> F {
                each!(vdivq_f32; a, b)
            }
            #[inline(always)]
            unsafe fn fma(a: F, b: F, c: F) -> F {
                each!(vfmaq_f32; c, a, b)
            }
            // A select instead of `fmin`, which returns NaN if either operand is NaN.
            #[inline(always)]
            unsafe fn min(a: F, b: F) -> F {
                let less = each!(vcltq_f32; a, b);
                each!(vbslq_f32; less, a, b)
            }
            #[inline(always)]
            unsafe fn max(a: F, b: F) -> F {
                let more = each!(vcgtq_f32; a, b);
                each!(vbslq_f32; more, a, b)
            }
            #[inline(always)]
            unsafe fn abs(a: F) -> F {
                each!(vabsq_f32; a)
            }
            #[inline(always)]
            unsafe fn round(a: F) -> F {
                each!(vrndnq_f32; a)
            }
            #[inline(always)]
            unsafe fn exp2_int(n: F) -> F {
                let n = each!(vcvtq_s32_f32; n);
                let bias = unsafe { [vdupq_n_s32(127); 4] };
                let biased = each!(vaddq_s32; n, bias);
                let bits = each!(vshlq_n_s32::<23>; biased);
                each!(vreinterpretq_f32_s32; bits)
            }
            #[inline(always)]
            unsafe fn zero_below(v: F, x: F, limit: F) -> F {
                let below = each!(vcltq_f32; x, limit);
                let bits = each!(vreinterpretq_u32_f32; v);
                let kept = each!(vbicq_u32; bits, below);
                each!(vreinterpretq_f32_u32; kept)
            }
            #[inline(always)]
            unsafe fn reduce_add(a: F) -> f32 {
                unsafe { vaddvq_f32(vaddq_f32(vaddq_f32(a[0], a[2]), vaddq_f32(a[1], a[3]))) }
            }
            #[inline(always)]
            unsafe fn reduce_max(a: F) -> f32 {
                unsafe {
                    vmaxnmvq_f32(vmaxnmq_f32(vmaxnmq_f32(a[0], a[2]), vmaxnmq_f32(a[1], a[3])))
                }
            }

            #[inline(always)]
            unsafe fn load_f16(p: *const f16) -> F {
                let bits = unsafe {
                    let p = p.cast::<u16>();
                    [vld1_u16(p), vld1_u16(p.add(4)), vld1_u16(p.add(8)), vld1_u16(p.add(12))]
                };
                each!(fcvtl; bits)
            }
            #[inline(always)]
            unsafe fn store_f16(p: *mut f16, v: F) {
                let bounded = unsafe {
                    let high = Self::min(Self::splat(65504.0), v);
                    Self::max(Self::splat(-65504.0), high)
                };
                let bits = each!(fcvtn; bounded);
                unsafe {
                    let p = p.cast::<u16>();
                    vst1_u16(p, bits[0]);
                    vst1_u16(p.add(4), bits[1]);
                    vst1_u16(p.add(8), bits[2]);
                    vst1_u16(p.add(12), bits[3]);
                }
            }
            #[inline(always)]
            unsafe fn load_bf16(p: *const bf16) -> F {
                let bits = unsafe {
                    let p = p.cast::<u16>();
                    [vld1_u16(p), vld1_u16(p.add(4)), vld1_u16(p.add(8)), vld1_u16(p.add(12))]
                };
                let wide = each!(vshll_n_u16::<16>; bits);
                each!(vreinterpretq_f32_u32; wide)
            }
            #[inline(always)]
            unsafe fn load_e4m3(p: *const u8) -> F {
                unsafe {
                    let bytes = vld1q_s8(p.cast());
                    let words = [vmovl_s8(vget_low_s8(bytes)), vmovl_s8(vget_high_s8(bytes))];
                    // The shift leaves a copy of the sign in the new exponent's first bit.
                    let halves = words.map(|words| {
                        vandq_u16(vreinterpretq_u16_s16(vshlq_n_s16::<7>(words)), vdupq_n_u16(0xbfff))
                    });
                    [
                        fcvtl(vget_low_u16(halves[0])),
                        fcvtl(vget_high_u16(halves[0])),
                        fcvtl(vget_low_u16(halves[1])),
                        fcvtl(vget_high_u16(halves[1])),
                    ]
                }
            }
            #[inline(always)]
            unsafe fn load_i8(p: *const i8) -> F {
                let bytes = unsafe { vld1q_s8(p) };
                let words = unsafe { [vmovl_s8(vget_low_s8(bytes)), vmovl_s8(vget_high_s8(bytes))] };
                let wide = unsafe {
                    [
                        vmovl_s16(vget_low_s16(words[0])),
                        vmovl_s16(vget_high_s16(words[0])),
                        vmovl_s16(vget_low_s16(words[1])),
                        vmovl_s16(vget_high_s16(words[1])),
                    ]
                };
                each!(vcvtq_f32_s32; wide)
            }

            #[inline(always)]
            unsafe fn splat_i32(x: i32) -> I {
                unsafe { [vdupq_n_s32(x); 4] }
            }
            #[inline(always)]
            unsafe fn add_i32(a: I, b: I) -> I {
                each!(vaddq_s32; a, b)
            }
            #[inline(always)]
            unsafe fn sub_i32(a: I, b: I) -> I {
                each!(vsubq_s32; a, b)
            }
            #[inline(always)]
            unsafe fn shl<const BITS: u32>(a: I) -> I {
                let count = unsafe { [vdupq_n_s32(BITS as i32); 4] };
                each!(vshlq_s32; a, count)
            }
            #[inline(always)]
            unsafe fn to_f32(a: I) -> F {
                each!(vcvtq_f32_s32; a)
            }
            #[inline(always)]
            unsafe fn to_i32(a: F) -> I {
                each!(vcvtnq_s32_f32; a)
            }
            #[inline(always)]
            unsafe fn reduce_add_i32(a: I) -> i32 {
                unsafe { vaddvq_s32(vaddq_s32(vaddq_s32(a[0], a[2]), vaddq_s32(a[1], a[3]))) }
            }
            #[inline(always)]
            unsafe fn store_i8(p: *mut i8, v: I) {
                let words = each!(vqmovn_s32; v);
                unsafe {
                    let low = vqmovn_s16(vcombine_s16(words[0], words[1]));
                    let high = vqmovn_s16(vcombine_s16(words[2], words[3]));
                    vst1q_s8(p, vcombine_s8(low, high));
                }
            }

            #[inline(always)]
            unsafe fn merge<const PART: usize>(old: F, new: F) -> F {
                if PART == 0 { [new[0], new[1], old[2], old[3]] } else { [old[0], old[1], new[2], new[3]] }
            }
            #[inline(always)]
            unsafe fn bytes(p: *const u8) -> C {
                unsafe { [vld1q_u8(p), vld1q_u8(p.add(16)), vld1q_u8(p.add(32)), vld1q_u8(p.add(48))] }
            }
            #[inline(always)]
            unsafe fn low<const BITS: i32>(a: C) -> C {
                let mask = unsafe { [vdupq_n_u8((1 << BITS) - 1); 4] };
                each!(vandq_u8; a, mask)
            }
            #[inline(always)]
            unsafe fn high<const BITS: i32>(a: C) -> C {
                each!(vshrq_n_u8::<BITS>; a)
            }
            #[inline(always)]
            unsafe fn lookup(table: &[u8; 16], a: C) -> C {
                let table = unsafe { [vld1q_u8(table.as_ptr()); 4] };
                each!(vqtbl1q_u8; table, a)
            }
            #[inline(always)]
            unsafe fn splice<const KEEP: i32, const SHIFT: i32>(a: C, b: C) -> C {
                // `sri` keeps as many bits as it shifts by, so `b` is shifted up first.
                let up = unsafe { [vdupq_n_s8((KEEP - SHIFT) as i8); 4] };
                let b = if KEEP == SHIFT { b } else { each!(vshlq_u8; b, up) };
                each!(vsriq_n_u8::<KEEP>; a, b)
            }
            #[inline(always)]
            unsafe fn activations(p: *const i8) -> int8x16_t {
                unsafe { vld1q_s8(p) }
            }
            #[inline(always)]
            unsafe fn dot_bytes<const Q: usize>(acc: I, codes: C, a: int8x16_t) -> I {
                let a = [a; 4];
                each!($dot::<Q>; acc, codes, a)
            }
            #[inline(always)]
            unsafe fn dot_small<const Q: usize>(acc: I, codes: C, a: int8x16_t) -> I {
                unsafe { Self::dot_bytes::<Q>(acc, codes, a) }
            }
            #[inline(always)]
            unsafe fn widen<const K: usize>(codes: C) -> I {
                let up = unsafe { [vdupq_n_s32(24 - 8 * K as i32); 4] };
                let rows = each!(vreinterpretq_s32_u8; codes);
                let top = each!(vshlq_s32; rows, up);
                each!($top; top)
            }
            $($pairs)*
        }
    };
}

neon_lanes!(Dotprod, Order::Signed, dot sdot, top top_signed,);
neon_lanes! {
    I8mm, Order::Pairs, dot usdot, top top_unsigned,
    #[inline(always)]
    unsafe fn unpair_rows(a: C, b: C) -> [C; 2] {
        let (a, b) = (each!(vreinterpretq_s32_u8; a), each!(vreinterpretq_s32_u8; b));
        let [first, second] = unsafe { Self::unpair(a, b) };
        [each!(vreinterpretq_u8_s32; first), each!(vreinterpretq_u8_s32; second)]
    }
    #[inline(always)]
    unsafe fn dot_pair(acc: I, codes: C, a: int8x16_t) -> I {
        let a = [a; 4];
        each!(usmmla; acc, codes, a)
    }
    #[inline(always)]
    unsafe fn pair(a: I, b: I) -> [I; 2] {
        [each!(vzip1q_s32; a, b), each!(vzip2q_s32; a, b)]
    }
    #[inline(always)]
    unsafe fn unpair(a: I, b: I) -> [I; 2] {
        [each!(vuzp1q_s32; a, b), each!(vuzp2q_s32; a, b)]
    }
}
