//! The run loop with AVX2, FMA and F16C, and the pieces of it that are written with intrinsics.

use std::arch::x86_64::*;

use super::isa::{Compute, Isa};
use super::lanes::{LANES, Registers};
use super::matrix::Rows;
use super::scalar::Scalar;
use super::x86_entry::{compute, with_features};
use super::x86_half::{fuse_pairs, pack};
use super::x86_lanes;
use super::x86_loads::{load, load_fours, load_words};
use super::x86_matrix::{multiply, transpose};
use crate::decode::{Inst, Slot};

/// AVX2, FMA, F16C, BMI1, BMI2, POPCNT and LZCNT; used only after all of them were detected.
pub(super) struct X86;

impl Isa for X86 {
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
    fn widen_pairs(pairs: &[u32; 8]) -> [f32; 16] {
        let mut values = [0.0; 16];
        for part in 0..2 {
            // SAFETY: four pairs and eight values a part lie inside of the arrays, and the processor
            // has F16C, since this version runs.
            unsafe {
                let bits = _mm_loadu_si128(pairs.as_ptr().add(4 * part).cast());
                _mm256_storeu_ps(values.as_mut_ptr().add(8 * part), _mm256_cvtph_ps(bits));
            }
        }
        values
    }

    #[inline(always)]
    fn narrow_pairs(values: &[f32; 16]) -> [u32; 8] {
        // SAFETY: eight values a part lie inside of the array, and the processor has AVX2 and F16C, since
        // this version runs.
        unsafe { pack([0, 8].map(|first| _mm256_loadu_ps(values.as_ptr().add(first)))) }
    }

    #[inline(always)]
    fn fuse_pairs(a: &[u32; LANES], b: &[u32; LANES], c: &[u32; LANES]) -> Option<[u32; LANES]> {
        // SAFETY: the processor has AVX2, FMA and F16C, since this version runs.
        unsafe { fuse_pairs(a, b, c) }
    }

    #[inline(always)]
    unsafe fn load_run<T: Scalar>(address: u64) -> [T; LANES] {
        let mut values = [T::default(); LANES];
        let to = values.as_mut_ptr().cast::<__m256i>();
        for part in 0..size_of_val(&values) / 32 {
            // SAFETY: the caller's bytes, and `values` has as many; any bits are an integer.
            unsafe { _mm256_storeu_si256(to.add(part), load(address + 32 * part as u64)) };
        }
        values
    }

    #[inline(always)]
    unsafe fn gather<T: Scalar>(addresses: &[u64; LANES], behind: u64) -> [T; LANES] {
        if size_of::<T>() != 4 {
            return Self::assemble(
                #[inline(always)]
                // SAFETY: the caller's bytes.
                |lane| unsafe { T::load(addresses[lane] + behind) },
            );
        }
        let mut values = [T::default(); LANES];
        let to = values.as_mut_ptr().cast::<__m256i>();
        for (part, addresses) in addresses.as_chunks().0.iter().enumerate() {
            // SAFETY: the caller's addresses; `values` has eight elements of four bytes a part, and any bits are
            // a scalar.
            unsafe { _mm256_storeu_si256(to.add(part), load_words(addresses, behind)) };
        }
        values
    }

    #[inline(always)]
    unsafe fn load_fours(addresses: &[u64; LANES]) -> [[u32; LANES]; 4] {
        let mut words = [[0; LANES]; 4];
        for (part, addresses) in addresses.as_chunks().0.iter().enumerate() {
            // SAFETY: the caller's addresses, and each of `words` has eight elements a part.
            unsafe {
                let columns = load_fours(addresses);
                for (words, column) in words.iter_mut().zip(columns) {
                    _mm256_storeu_si256(words.as_mut_ptr().add(8 * part).cast(), column);
                }
            }
        }
        words
    }

    #[inline(always)]
    fn add_narrow(values: &[u32; LANES], number: u32) -> [u64; LANES] {
        let mut sums = [0; LANES];
        for chunk in (0..LANES).step_by(4) {
            // SAFETY: four elements from `chunk` on lie inside of both arrays, and the processor has AVX2,
            // since this version runs.
            unsafe {
                let values = _mm_loadu_si128(values.as_ptr().add(chunk).cast());
                let sum = _mm256_cvtepu32_epi64(_mm_add_epi32(values, _mm_set1_epi32(number as i32)));
                _mm256_storeu_si256(sums.as_mut_ptr().add(chunk).cast(), sum);
            }
        }
        sums
    }

    #[inline(always)]
    fn add_wide(values: &[u64; LANES], number: u64) -> [u64; LANES] {
        let mut sums = [0; LANES];
        for chunk in (0..LANES).step_by(4) {
            // SAFETY: as above.
            unsafe {
                let values = _mm256_loadu_si256(values.as_ptr().add(chunk).cast());
                let sum = _mm256_add_epi64(values, _mm256_set1_epi64x(number as i64));
                _mm256_storeu_si256(sums.as_mut_ptr().add(chunk).cast(), sum);
            }
        }
        sums
    }

    #[inline(always)]
    fn extend(values: &[u32; LANES]) -> [u64; LANES] {
        let mut wide = [0; LANES];
        for (values, wide) in values.as_chunks::<8>().0.iter().zip(wide.as_chunks_mut::<8>().0) {
            // SAFETY: the processor has AVX2, since this version runs.
            *wide = unsafe { x86_lanes::extend(values) };
        }
        wide
    }

    #[inline(always)]
    fn assemble<T: Scalar>(value: impl Fn(usize) -> T) -> [T; LANES] {
        let mut values = [T::default(); LANES];
        let (to, per_word) = (values.as_mut_ptr().cast::<__m256i>(), 8 / size_of::<T>());
        // Put together in registers: a vector read of what was written piece by piece has to wait
        // until the pieces have reached the cache.
        for part in 0..size_of_val(&values) / 32 {
            let mut words = [0; 4];
            for (n, word) in words.iter_mut().enumerate() {
                for lane in 0..per_word {
                    let value = value((4 * part + n) * per_word + lane).widen(false);
                    *word |= (value << (lane * 8 * size_of::<T>())) as i64;
                }
            }
            let [a, b, c, d] = words;
            // SAFETY: `values` has this part, and the processor has AVX, since this version runs.
            unsafe { _mm256_storeu_si256(to.add(part), _mm256_set_epi64x(d, c, b, a)) };
        }
        values
    }

    #[inline(always)]
    fn permute(a: &[u32; LANES], sources: &[u32; LANES]) -> [u32; LANES] {
        // SAFETY: the processor has AVX2, since this version runs.
        unsafe { x86_lanes::permute(a, sources) }
    }

    #[inline(always)]
    fn all_equal(values: &[u32; LANES]) -> bool {
        // SAFETY: eight elements from each chunk on lie inside of the array, and the processor has
        // AVX2, since this version runs.
        unsafe {
            let first = _mm256_set1_epi32(values[0] as i32);
            let mut different = _mm256_setzero_si256();
            for chunk in (0..LANES).step_by(8) {
                let values = _mm256_loadu_si256(values.as_ptr().add(chunk).cast());
                different = _mm256_or_si256(different, _mm256_xor_si256(values, first));
            }
            _mm256_testz_si256(different, different) != 0
        }
    }

    #[inline(always)]
    fn in_steps(values: &[u64; LANES], step: u64) -> bool {
        if values[1] != values[0].wrapping_add(step) {
            return false;
        }
        // SAFETY: four elements from each chunk on lie inside of the array, and the processor has
        // AVX2, since this version runs.
        unsafe {
            let steps = [0, 1, 2, 3].map(|lane| values[0].wrapping_add(lane * step) as i64);
            let mut expected = _mm256_set_epi64x(steps[3], steps[2], steps[1], steps[0]);
            let next = _mm256_set1_epi64x((4 * step) as i64);
            let mut different = _mm256_setzero_si256();
            for chunk in (0..LANES).step_by(4) {
                let values = _mm256_loadu_si256(values.as_ptr().add(chunk).cast());
                different = _mm256_or_si256(different, _mm256_xor_si256(values, expected));
                expected = _mm256_add_epi64(expected, next);
            }
            _mm256_testz_si256(different, different) != 0
        }
    }

    #[inline(always)]
    fn bounds(values: &[[u64; 4]], start: u64, last: u64) -> (bool, u64) {
        // SAFETY: there are four elements each, and the processor has AVX2, since this version runs.
        unsafe {
            let (start, last) = (_mm256_set1_epi64x(start as i64), _mm256_set1_epi64x(last as i64));
            let (mut outside, mut bits) = (_mm256_setzero_si256(), _mm256_setzero_si256());
            for values in values {
                let values = _mm256_loadu_si256(values.as_ptr().cast());
                let offset = _mm256_sub_epi64(values, start);
                let left = _mm256_sub_epi64(last, offset);
                outside = _mm256_or_si256(outside, _mm256_or_si256(offset, left));
                bits = _mm256_or_si256(bits, values);
            }
            let half = _mm_or_si128(_mm256_castsi256_si128(bits), _mm256_extracti128_si256::<1>(bits));
            let bits = _mm_cvtsi128_si64(half) | _mm_extract_epi64::<1>(half);
            (_mm256_movemask_pd(_mm256_castsi256_pd(outside)) != 0, bits as u64)
        }
    }

    #[inline(always)]
    fn signs(values: &[u32; LANES]) -> u32 {
        let mut mask = 0;
        for chunk in (0..LANES).step_by(8) {
            // SAFETY: as above.
            let signs = unsafe { _mm256_movemask_ps(_mm256_loadu_ps(values.as_ptr().add(chunk).cast())) };
            mask |= (signs as u32) << chunk;
        }
        mask
    }

    #[inline(always)]
    fn pick_bytes(a: &[u32; LANES], b: &[u32; LANES], picks: [u8; 4]) -> [u32; LANES] {
        // SAFETY: the processor has AVX2, since this version runs.
        unsafe { x86_lanes::pick_bytes(a, b, picks) }
    }

    #[inline(always)]
    fn transpose(rows: &[[f32; 8]; 8]) -> [[f32; 8]; 8] {
        // SAFETY: the processor has AVX, since this version runs.
        unsafe { transpose(rows) }
    }

    #[inline(always)]
    fn multiply<const W: usize>(a: &[Rows], b: &[Rows]) -> [f32; 64] {
        // SAFETY: the processor has AVX and FMA, since this version runs.
        unsafe { multiply::<W>(a, b) }
    }

    #[inline(always)]
    fn split_pairs(pairs: &[f32; 2 * LANES]) -> [[f32; LANES]; 2] {
        // SAFETY: the processor has AVX2, since this version runs.
        unsafe { x86_lanes::split_pairs(pairs) }
    }

    #[inline(always)]
    fn run<R>(work: impl FnOnce() -> R) -> R {
        // SAFETY: this version runs only where the features are there.
        unsafe { with_features(work) }
    }

    fn compile<F: Fn(&mut Registers, &Inst, &[Slot], u32) + Copy + 'static>(_: F) -> Compute {
        compute::<F>
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::{Files, MmaKind, Rounding};
    use crate::device::Vectors;
    use crate::exec::isa::{Portable, detected};
    use crate::exec::matrix::{Unfolded, products};
    use crate::exec::number::{F16, fma_odd};
    use crate::ptx::Type;
    use crate::random::Random;

    fn word(random: &mut Random) -> u32 {
        random.below(1 << 32) as u32
    }

    /// Random halves, a third of them zeros, subnormals, infinities, NaNs and others at the ends of ranges.
    fn half(random: &mut Random) -> u32 {
        const ENDS: [u32; 12] =
            [0, 1, 0x3ff, 0x400, 0x7bff, 0x7c00, 0x7c01, 0x7fff, 0x3c00, 0x3c01, 0x7f7f, 0x7f80];
        let (kind, sign) = (random.below(6), word(random) & 0x8000);
        match kind {
            0 | 1 => ENDS[random.below(ENDS.len())] | sign,
            // Around one: sums of such meet the middle between two halves often.
            2 => 0x3800 | (word(random) % 0x800) | sign,
            _ => word(random) & 0xffff,
        }
    }

    fn register(random: &mut Random) -> [u32; LANES] {
        std::array::from_fn(|_| half(random) | half(random) << 16)
    }

    /// a · b + c of pairs, rounded once.
    fn fused(operands: [[u32; LANES]; 3]) -> [u32; LANES] {
        let half = |n: usize, shift: u32| {
            let [a, b, c] = operands.map(|pairs| F16.decode(pairs[n] >> shift & 0xffff) as f32);
            F16.encode(fma_odd(a, b, c), Rounding::Nearest, false) << shift
        };
        std::array::from_fn(|n| half(n, 0) | half(n, 16))
    }

    /// The same value, or both NaN.
    fn same(a: f32, b: f32) -> bool {
        a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
    }

    /// Sums of addresses, strided loads, pairs of f16 and products of matrices are what the portable version says
    /// they are, over random values.
    fn agrees<I: Isa>() {
        let mut random = Random::new(1);
        let mut scratch = [(); 2].map(|()| Unfolded::new());
        for _ in 0..3000 {
            let [a, b, c] = [(); 3].map(|()| register(&mut random));
            let lanes = word(&mut random);
            let wide = [a, b].map(|values| values.map(|value| u64::from(value) << 32 | u64::from(!value)));
            assert_eq!(I::add_narrow(&a, lanes), Portable::add_narrow(&a, lanes));
            assert_eq!(I::add_wide(&wide[0], wide[1][0]), Portable::add_wide(&wide[0], wide[1][0]));
            assert_eq!(I::extend(&a), Portable::extend(&a));
            assert_eq!(I::signs(&a), Portable::signs(&a));
            let places =
                std::array::from_fn(|lane| (&raw const b[31 & a[lane] as usize] as u64).wrapping_sub(8));
            // SAFETY: eight bytes behind them are places of `b`, which has a word at each.
            let found: [u32; LANES] = unsafe { I::gather(&places, 8) };
            assert_eq!(found, a.map(|place| b[31 & place as usize]));
            for part in a.as_chunks::<8>().0 {
                let (values, wanted) = (I::widen_pairs(part), Portable::widen_pairs(part));
                assert!(values.into_iter().zip(wanted).all(|(value, wanted)| same(value, wanted)));
                let sums = std::array::from_fn(|n| wanted[n] * 1.000_3 + wanted[15 - n]);
                assert_eq!(I::narrow_pairs(&sums), Portable::narrow_pairs(&sums));
            }
            // Of numbers from one to two with two bits behind the point nothing is doubtful.
            let few_bits = [a, b, c].map(|pairs| pairs.map(|pair| pair & 0x8300_8300 | 0x3c00_3c00));
            assert_eq!(I::fuse_pairs(&few_bits[0], &few_bits[1], &few_bits[2]), Some(fused(few_bits)));
            // Of one that is, among others of that kind, nothing is said that is wrong.
            let mut one_of_all = few_bits;
            let lane = lanes as usize % LANES;
            one_of_all.iter_mut().zip([a, b, c]).for_each(|(to, from)| to[lane] = from[lane]);
            let [a, b, c] = &one_of_all;
            assert!(I::fuse_pairs(a, b, c).is_none_or(|found| found == fused(one_of_all)));
            let mut r = Registers::new(Files { narrow: 10, ..Files::default() });
            r.narrow.iter_mut().for_each(|to| to.0 = register(&mut random));
            for ty in [Type::F16, Type::Bf16] {
                for (k, registers) in [(8, 2), (16, 4)] {
                    let kind = MmaKind { a: ty, b: ty, acc: Type::F32, k, sat: false };
                    let (a, b) = (&[0, 1, 2, 3][..registers], &[4, 5][..registers / 2]);
                    products::<Portable, 8>(&mut r, kind, a, b, &mut scratch[0]);
                    products::<I, 8>(&mut r, kind, a, b, &mut scratch[1]);
                    let [wanted, found] = scratch.each_ref().map(|scratch| scratch.sums.as_flattened());
                    let different =
                        wanted.iter().zip(found).position(|(wanted, found)| !same(*wanted, *found));
                    assert_eq!(different, None, "{ty:?}, {k} columns");
                }
            }
        }
    }

    #[test]
    fn avx2_computes_what_the_portable_version_does() {
        if detected() < Vectors::Avx2 {
            return eprintln!("skipped: the processor has no AVX2");
        }
        agrees::<X86>();
    }
}
