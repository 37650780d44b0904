//! The run loop in versions: plain, and with the processor's vector instructions, found at run
//! time. The code is the same; the compiler makes other instructions of it. Only the conversions of
//! f16 are written with intrinsics.

use super::Env;
use super::interpret;
use super::lanes::LANES;
use super::number::F16;
use super::trap::Step;
use super::warp::{Pause, Warp};
use crate::decode::Rounding;

/// What differs between versions.
pub(super) trait Isa {
    /// f16 values, in the low halves, to f32; the high halves do not matter.
    fn widen(halves: &[u32; LANES]) -> [f32; LANES];
    /// f32 to f16, to nearest even, in the low halves.
    fn narrow(values: &[f32; LANES]) -> [u32; LANES];
    /// a · b + c, where it does not matter whether the product is rounded: it is exact.
    fn multiply_add(a: f32, b: f32, c: f32) -> f32;
    /// The low and high halves of each lane to f32, in the order of memory.
    fn widen_pairs(pairs: &[u32; LANES]) -> [f32; 2 * LANES];
    /// As `narrow`, to pairs in the order of memory.
    fn narrow_pairs(values: &[f32; 2 * LANES]) -> [u32; LANES];
    /// Runs a piece of work with this version's instructions: as a function of its own, because one
    /// function with all loops takes the compiler forever. The closure must be `#[inline(always)]`.
    fn run<R>(work: impl FnOnce() -> R) -> R;
}

/// Runs a warp until it pauses.
pub(super) type RunWarp = fn(&mut Env, &mut Warp) -> Step<Pause>;

/// The best version that this processor can run.
pub(super) fn run_warp(portable: bool) -> RunWarp {
    #[cfg(target_arch = "x86_64")]
    if !portable
        && is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("lzcnt")
    {
        return x86::run;
    }
    let _ = portable;
    interpret::run::<Portable>
}

/// Any processor.
pub(super) struct Portable;

impl Isa for Portable {
    #[inline(always)]
    fn widen(halves: &[u32; LANES]) -> [f32; LANES] {
        halves.map(|half| {
            // Exponent and mantissa move into place; the multiplication corrects the bias, also for
            // subnormal numbers.
            let magnitude = (half & 0x7fff) << 13;
            let value = f32::from_bits(magnitude) * f32::from_bits(0x7780_0000);
            let value = if half & 0x7c00 == 0x7c00 { magnitude | 0x7f80_0000 } else { value.to_bits() };
            f32::from_bits(value | (half & 0x8000) << 16)
        })
    }

    #[inline(always)]
    fn narrow(values: &[f32; LANES]) -> [u32; LANES] {
        values.map(|value| F16.encode(f64::from(value), Rounding::Nearest, false))
    }

    #[inline(always)]
    fn multiply_add(a: f32, b: f32, c: f32) -> f32 {
        a * b + c
    }

    #[inline(always)]
    fn widen_pairs(pairs: &[u32; LANES]) -> [f32; 2 * LANES] {
        let (low, high) = (Self::widen(pairs), Self::widen(&pairs.map(|pair| pair >> 16)));
        std::array::from_fn(|n| if n % 2 == 0 { low[n / 2] } else { high[n / 2] })
    }

    #[inline(always)]
    fn narrow_pairs(values: &[f32; 2 * LANES]) -> [u32; LANES] {
        let half = |value: f32| F16.encode(f64::from(value), Rounding::Nearest, false);
        std::array::from_fn(|n| half(values[2 * n]) | half(values[2 * n + 1]) << 16)
    }

    #[inline(never)]
    fn run<R>(work: impl FnOnce() -> R) -> R {
        work()
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{Env, Isa, LANES, Pause, Step, Warp, interpret};

    /// AVX2, FMA and F16C; used only after all three were detected.
    struct Avx2;

    impl Isa for Avx2 {
        #[inline(always)]
        fn widen(halves: &[u32; LANES]) -> [f32; LANES] {
            let mut values = [0.0; LANES];
            for chunk in (0..LANES).step_by(8) {
                // SAFETY: eight elements from `chunk` on lie inside of both arrays, and the
                // processor has AVX2 and F16C, since this version runs.
                unsafe {
                    let bits = _mm256_loadu_si256(halves.as_ptr().add(chunk).cast());
                    let low = _mm256_and_si256(bits, _mm256_set1_epi32(0xffff));
                    let packed = _mm256_permute4x64_epi64::<0b1000>(_mm256_packus_epi32(low, low));
                    let singles = _mm256_cvtph_ps(_mm256_castsi256_si128(packed));
                    _mm256_storeu_ps(values.as_mut_ptr().add(chunk), singles);
                }
            }
            values
        }

        #[inline(always)]
        fn narrow(values: &[f32; LANES]) -> [u32; LANES] {
            let mut halves = [0; LANES];
            for chunk in (0..LANES).step_by(8) {
                // SAFETY: as above.
                unsafe {
                    let singles = _mm256_loadu_ps(values.as_ptr().add(chunk));
                    let bits = _mm256_cvtepu16_epi32(_mm256_cvtps_ph::<0>(singles));
                    // NaN keeps its payload in the instruction; PTX says the canonical one.
                    let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(singles, singles));
                    let bits = _mm256_blendv_epi8(bits, _mm256_set1_epi32(0x7fff), nan);
                    _mm256_storeu_si256(halves.as_mut_ptr().add(chunk).cast(), bits);
                }
            }
            halves
        }

        #[inline(always)]
        fn multiply_add(a: f32, b: f32, c: f32) -> f32 {
            a.mul_add(b, c)
        }

        #[inline(always)]
        fn widen_pairs(pairs: &[u32; LANES]) -> [f32; 2 * LANES] {
            let mut values = [0.0; 2 * LANES];
            for chunk in (0..LANES).step_by(4) {
                // SAFETY: four pairs from `chunk` on, and eight values from twice that, lie inside of
                // the arrays, and the processor has F16C, since this version runs.
                unsafe {
                    let bits = _mm_loadu_si128(pairs.as_ptr().add(chunk).cast());
                    _mm256_storeu_ps(values.as_mut_ptr().add(2 * chunk), _mm256_cvtph_ps(bits));
                }
            }
            values
        }

        #[inline(always)]
        fn narrow_pairs(values: &[f32; 2 * LANES]) -> [u32; LANES] {
            let mut pairs = [0; LANES];
            for chunk in (0..LANES).step_by(4) {
                // SAFETY: as above, the other way round.
                unsafe {
                    let singles = _mm256_loadu_ps(values.as_ptr().add(2 * chunk));
                    // The NaN whose upper bits are those of the canonical one.
                    let canonical = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fff_e000));
                    let nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(singles, singles);
                    let bits = _mm256_cvtps_ph::<0>(_mm256_blendv_ps(singles, canonical, nan));
                    _mm_storeu_si128(pairs.as_mut_ptr().add(chunk).cast(), bits);
                }
            }
            pairs
        }

        #[inline(always)]
        fn run<R>(work: impl FnOnce() -> R) -> R {
            // SAFETY: this version runs only where the features are there.
            unsafe { with_features(work) }
        }
    }

    #[inline(never)]
    #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt,lzcnt")]
    fn with_features<R>(work: impl FnOnce() -> R) -> R {
        work()
    }

    pub(super) fn run(env: &mut Env, warp: &mut Warp) -> Step<Pause> {
        // SAFETY: `run_warp` gives this function out only where the features are there.
        unsafe { run_avx2(env, warp) }
    }

    #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt,lzcnt")]
    fn run_avx2(env: &mut Env, warp: &mut Warp) -> Step<Pause> {
        interpret::run::<Avx2>(env, warp)
    }
}
