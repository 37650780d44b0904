//! The run loop in versions: plain, and with the processor's vector instructions, found at run
//! time. The code is the same; the compiler makes other instructions of it. Only what it does not
//! find by itself is written with intrinsics: conversions of f16, moves across lanes.

use super::Env;
use super::lanes::{LANES, Registers, mask_of};
use super::matrix::Rows;
use super::number::F16;
use super::scalar::Scalar;
use super::trap::Step;
use super::warp::{Pause, Warp};
use super::{arithmetic, interpret};
use crate::decode::{Inst, Rounding, Slot};
use crate::device::Vectors;

/// What differs between versions.
pub(super) trait Isa {
    /// f16 values, in the low halves, to f32; the high halves do not matter.
    fn widen(halves: &[u32; LANES]) -> [f32; LANES];
    /// f32 to f16, to nearest even, in the low halves.
    fn narrow(values: &[f32; LANES]) -> [u32; LANES];
    /// The low and high halves of eight lanes to f32, in the order of memory.
    fn widen_pairs(pairs: &[u32; 8]) -> [f32; 16];
    /// As `narrow`, to pairs in the order of memory.
    fn narrow_pairs(values: &[f32; 16]) -> [u32; 8];
    /// a · b + c of pairs, if it is certain that rounding to f32 first has changed no result.
    fn fuse_pairs(a: &[u32; LANES], b: &[u32; LANES], c: &[u32; LANES]) -> Option<[u32; LANES]>;
    /// Reads a value for each lane from places that follow each other.
    ///
    /// # Safety
    /// All bytes lie in a live allocation, and the address is aligned for one value.
    unsafe fn load_run<T: Scalar>(address: u64) -> [T; LANES];
    /// Reads a value for each lane, so many bytes behind its address.
    ///
    /// # Safety
    /// As for `load_run`, at each lane's place.
    unsafe fn gather<T: Scalar>(addresses: &[u64; LANES], behind: u64) -> [T; LANES];
    /// Reads four words for each lane: the first words of all lanes, then the second ones, and so on.
    ///
    /// # Safety
    /// As for `load_run`, at each lane's address.
    unsafe fn load_fours(addresses: &[u64; LANES]) -> [[u32; LANES]; 4];
    /// Each lane's value and a number added up, modulo 2^32.
    fn add_narrow(values: &[u32; LANES], number: u32) -> [u64; LANES];
    /// Each lane's value as a signed number of 64 bits.
    fn extend(values: &[u32; LANES]) -> [u64; LANES];
    /// Each lane's value and a number added up, modulo 2^64.
    fn add_wide(values: &[u64; LANES], number: u64) -> [u64; LANES];
    /// The lanes' values side by side.
    fn assemble<T: Scalar>(value: impl Fn(usize) -> T) -> [T; LANES];
    /// Each lane's value of `a` from the lane that the low five bits of `sources` name.
    fn permute(a: &[u32; LANES], sources: &[u32; LANES]) -> [u32; LANES];
    /// Whether all lanes have the same value.
    fn all_equal(values: &[u32; LANES]) -> bool;
    /// Whether each lane's value is that of the lane before and a step.
    fn in_steps(values: &[u64; LANES], step: u64) -> bool;
    /// Whether some value is before `start` or more than `last` behind it (all are if `last` is all
    /// ones), and the bits that any of them has.
    fn bounds(values: &[[u64; 4]], start: u64, last: u64) -> (bool, u64);
    /// The highest bit of each lane.
    fn signs(values: &[u32; LANES]) -> u32;
    /// Each lane's four bytes from those of `a` (0 to 3) and `b` (4 to 7).
    fn pick_bytes(a: &[u32; LANES], b: &[u32; LANES], picks: [u8; 4]) -> [u32; LANES];
    /// The first values of pairs, and the second ones.
    fn split_pairs(pairs: &[f32; 2 * LANES]) -> [[f32; LANES]; 2];
    /// Rows as columns.
    fn transpose(rows: &[[f32; 8]; 8]) -> [[f32; 8]; 8];
    /// The product of A, parts of [8, W] side by side, and B, parts of [W, 8] one below another, as rows of
    /// eight: one term after another, each rounded once; of factors with at most 12 bits.
    fn multiply<const W: usize>(a: &[Rows], b: &[Rows]) -> [f32; 64];
    /// Runs a piece of work with this version's instructions: as a function of its own, because one
    /// function with all loops takes the compiler forever. The closure must be `#[inline(always)]`.
    fn run<R>(work: impl FnOnce() -> R) -> R;
    /// A closure that captures nothing, likewise, as what an instruction of a program does.
    fn compile<F: Fn(&mut Registers, &Inst, &[Slot], u32) + Copy + 'static>(work: F) -> Compute;
}

/// What an instruction that only computes does with a warp's registers, of the lanes of a mask; lists
/// are the program's. It may be called where the processor can run the version that it is of.
pub(super) type Compute = unsafe fn(&mut Registers, &Inst, &[Slot], u32);

/// Makes a [`Compute`] of a closure that captures nothing.
macro_rules! compile {
    ($isa:ty, |$r:ident, $i:ident, $lists:pat_param, $mask:ident| $work:expr) => {
        <$isa>::compile(
            #[inline(always)]
            |$r, $i, $lists, $mask| $work,
        )
    };
}
pub(super) use compile;

/// Makes a [`Compute`] of what is done to each lane.
macro_rules! each_lane {
    ($isa:ty, $map:ident, $f:expr) => {
        compile!($isa, |r, i, _, mask| $map(r, i, mask, $f))
    };
}
pub(super) use each_lane;

/// A value of a type that has no content.
///
/// # Safety
/// There is a value of the type.
pub(super) unsafe fn nothing<F: Copy>() -> F {
    const { assert!(size_of::<F>() == 0, "the closure captures something") };
    // SAFETY: a copy of the value that there is: it has no bytes.
    unsafe { std::ptr::NonNull::dangling().read() }
}

/// [`mask_of`], for what vectors can tell.
#[inline(always)]
pub(super) fn mask_by<I: Isa>(truth: impl Fn(usize) -> bool) -> u32 {
    let mut lanes = [0; LANES];
    for (lane, value) in lanes.iter_mut().enumerate() {
        *value = u32::from(truth(lane)).wrapping_neg();
    }
    I::signs(&lanes)
}

/// A version of the run loop.
pub(super) struct Version {
    /// Runs a warp until it pauses.
    pub(super) run: fn(&mut Env, &mut Warp) -> Step<Pause>,
    /// What an instruction does, if it only computes.
    pub(super) compute: fn(&Inst) -> Option<Compute>,
}

/// The widest vector instructions of this processor that there is a version for.
pub(super) fn detected() -> Vectors {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("popcnt")
        && is_x86_feature_detected!("lzcnt")
    {
        return Vectors::Avx2;
    }
    Vectors::None
}

/// The best version that this processor can run, with no wider vectors than these.
pub(super) fn version(widest: Vectors) -> Version {
    match widest.min(detected()) {
        #[cfg(target_arch = "x86_64")]
        Vectors::Avx2 => super::x86_entry::VERSION,
        _ => Version { run: interpret::run::<Portable>, compute: arithmetic::compute::<Portable> },
    }
}

/// Says that an address will be read soon; any address will do.
#[inline(always)]
pub(super) fn prefetch(address: u64) {
    #[cfg(target_arch = "x86_64")]
    super::x86_loads::prefetch(address);
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Any processor.
pub(super) struct Portable;

impl Isa for Portable {
    #[inline(always)]
    fn widen(halves: &[u32; LANES]) -> [f32; LANES] {
        halves.map(widen)
    }

    #[inline(always)]
    fn narrow(values: &[f32; LANES]) -> [u32; LANES] {
        values.map(|value| F16.encode(f64::from(value), Rounding::Nearest, false))
    }

    #[inline(always)]
    fn widen_pairs(pairs: &[u32; 8]) -> [f32; 16] {
        std::array::from_fn(|n| widen(pairs[n / 2] >> (16 * (n % 2))))
    }

    #[inline(always)]
    fn narrow_pairs(values: &[f32; 16]) -> [u32; 8] {
        let half = |value: f32| F16.encode(f64::from(value), Rounding::Nearest, false);
        std::array::from_fn(|n| half(values[2 * n]) | half(values[2 * n + 1]) << 16)
    }

    #[inline(always)]
    fn fuse_pairs(_: &[u32; LANES], _: &[u32; LANES], _: &[u32; LANES]) -> Option<[u32; LANES]> {
        None
    }

    #[inline(always)]
    unsafe fn load_run<T: Scalar>(address: u64) -> [T; LANES] {
        // SAFETY: passed on to the caller.
        std::array::from_fn(|lane| unsafe { T::load(address + (lane * size_of::<T>()) as u64) })
    }

    #[inline(always)]
    unsafe fn gather<T: Scalar>(addresses: &[u64; LANES], behind: u64) -> [T; LANES] {
        // SAFETY: passed on to the caller.
        addresses.map(|address| unsafe { T::load(address + behind) })
    }

    #[inline(always)]
    unsafe fn load_fours(addresses: &[u64; LANES]) -> [[u32; LANES]; 4] {
        // SAFETY: passed on to the caller.
        std::array::from_fn(|n| addresses.map(|address| unsafe { u32::load(address + 4 * n as u64) }))
    }

    #[inline(always)]
    fn add_narrow(values: &[u32; LANES], number: u32) -> [u64; LANES] {
        values.map(|value| u64::from(value.wrapping_add(number)))
    }

    #[inline(always)]
    fn add_wide(values: &[u64; LANES], number: u64) -> [u64; LANES] {
        values.map(|value| value.wrapping_add(number))
    }

    #[inline(always)]
    fn extend(values: &[u32; LANES]) -> [u64; LANES] {
        values.map(|value| value as i32 as u64)
    }

    #[inline(always)]
    fn assemble<T: Scalar>(value: impl Fn(usize) -> T) -> [T; LANES] {
        std::array::from_fn(value)
    }

    #[inline(always)]
    fn permute(a: &[u32; LANES], sources: &[u32; LANES]) -> [u32; LANES] {
        sources.map(|source| a[source as usize & 31])
    }

    #[inline(always)]
    fn all_equal(values: &[u32; LANES]) -> bool {
        values.iter().fold(0, |different, value| different | (value ^ values[0])) == 0
    }

    #[inline(always)]
    fn in_steps(values: &[u64; LANES], step: u64) -> bool {
        let expected = |lane: usize| values[0].wrapping_add(lane as u64 * step);
        (0..LANES).fold(0, |different, lane| different | (values[lane] ^ expected(lane))) == 0
    }

    #[inline(always)]
    fn bounds(values: &[[u64; 4]], start: u64, last: u64) -> (bool, u64) {
        // Without branches: the sign bit of an offset, or of what is left behind it, is set outside.
        let (mut outside, mut bits) = (0, 0);
        for value in values.as_flattened() {
            let offset = value.wrapping_sub(start);
            outside |= offset | last.wrapping_sub(offset);
            bits |= value;
        }
        (outside >> 63 != 0, bits)
    }

    #[inline(always)]
    fn signs(values: &[u32; LANES]) -> u32 {
        mask_of(|lane| values[lane] >> 31 != 0)
    }

    #[inline(always)]
    fn pick_bytes(a: &[u32; LANES], b: &[u32; LANES], picks: [u8; 4]) -> [u32; LANES] {
        let mut d = [0; LANES];
        for (lane, d) in d.iter_mut().enumerate() {
            let both = u64::from(b[lane]) << 32 | u64::from(a[lane]);
            *d = u32::from_le_bytes(picks.map(|pick| (both >> (8 * (pick & 7))) as u8));
        }
        d
    }

    #[inline(always)]
    fn split_pairs(pairs: &[f32; 2 * LANES]) -> [[f32; LANES]; 2] {
        std::array::from_fn(|n| std::array::from_fn(|lane| pairs[2 * lane + n]))
    }

    #[inline(always)]
    fn transpose(rows: &[[f32; 8]; 8]) -> [[f32; 8]; 8] {
        std::array::from_fn(|column| std::array::from_fn(|row| rows[row][column]))
    }

    #[inline(always)]
    fn multiply<const W: usize>(a: &[Rows], b: &[Rows]) -> [f32; 64] {
        let mut sums = [0.0; 64];
        for (a, b) in a.iter().zip(b) {
            for (a, sums) in a.as_chunks::<W>().0.iter().zip(sums.as_chunks_mut::<8>().0) {
                for (a, b) in a.iter().zip(b.as_chunks::<8>().0) {
                    sums.iter_mut().zip(b).for_each(|(sum, b)| *sum = multiply_add(*a, *b, *sum));
                }
            }
        }
        sums
    }

    #[inline(never)]
    fn run<R>(work: impl FnOnce() -> R) -> R {
        work()
    }

    fn compile<F: Fn(&mut Registers, &Inst, &[Slot], u32) + Copy + 'static>(_: F) -> Compute {
        |r, i, lists, mask| {
            // SAFETY: `compile` was given one.
            let work = unsafe { nothing::<F>() };
            work(r, i, lists, mask);
        }
    }
}

/// The f16 in the low half as f32.
#[inline(always)]
fn widen(half: u32) -> f32 {
    // Exponent and mantissa move into place; the multiplication corrects the bias, also for
    // subnormal numbers.
    let magnitude = (half & 0x7fff) << 13;
    let value = f32::from_bits(magnitude) * f32::from_bits(0x7780_0000);
    let value = if half & 0x7c00 == 0x7c00 { magnitude | 0x7f80_0000 } else { value.to_bits() };
    f32::from_bits(value | (half & 0x8000) << 16)
}

/// a · b + c, rounded once; of factors with at most 12 bits.
#[inline(always)]
fn multiply_add(a: f32, b: f32, c: f32) -> f32 {
    // The product is exact, unless its exponent is none of f32: bf16 and tf32 have such.
    let product = a * b;
    if product.is_normal() || a == 0.0 || b == 0.0 { product + c } else { a.mul_add(b, c) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_that_are_too_small_for_f32_are_not_rounded() {
        let (a, b) = (f32::from_bits(27 << 23), f32::from_bits(67 << 23));
        assert_eq!(a * b, 0.0);
        assert_eq!(multiply_add(-a, b, 0.0).to_bits(), (-0f32).to_bits());
        assert_eq!(multiply_add(a, 2.0, 1.0), 1.0);
        assert_eq!(multiply_add(f32::MAX, 2.0, -f32::MAX), f32::MAX);
    }
}
