//! Pairs of f16, and squares of matrices of f16 or bf16, with AVX-512.

use std::arch::x86_64::*;
use std::hint::black_box;

use super::lanes::{LANES, Lane, Registers, Stored};
use super::matrix::{Rows, Unfolded};
use crate::decode::Slot;

/// Eight pairs rounded to nearest even; NaN is the canonical one.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) fn pack(values: __m512) -> [u32; 8] {
    let bits = _mm512_cvtps_ph::<0>(values);
    // NaN keeps its payload in the instruction; PTX says the canonical one.
    let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(values, values);
    let mut pairs = [0; 8];
    // SAFETY: `pairs` has room for the vector.
    unsafe {
        let bits = _mm256_mask_blend_epi16(nan, bits, _mm256_set1_epi16(0x7fff));
        _mm256_storeu_si256(pairs.as_mut_ptr().cast(), bits);
    }
    pairs
}

/// As [`super::x86_half::fuse_pairs`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) fn fuse_pairs(a: &[u32; LANES], b: &[u32; LANES], c: &[u32; LANES]) -> Option<[u32; LANES]> {
    let mut d = [0; LANES];
    // Of all results, how near the dropped bits come to the middle, and how small they are but for zero.
    let (mut nearest, mut least) = (_mm512_set1_epi32(-1), _mm512_set1_epi32(-1));
    for (part, d) in d.as_chunks_mut().0.iter_mut().enumerate() {
        let factor = |pairs: &[u32; LANES]| {
            // SAFETY: eight elements of a part lie inside of the arrays.
            widen::<false>(unsafe { _mm256_loadu_si256(pairs.as_ptr().add(8 * part).cast()) })
        };
        // Not by `map`, which may become a function without these instructions.
        let values = _mm512_fmadd_ps(factor(a), factor(b), factor(c));
        let bits = _mm512_castps_si512(values);
        let dropped = _mm512_and_si512(bits, _mm512_set1_epi32(0x1fff));
        nearest = _mm512_min_epu32(nearest, _mm512_xor_si512(dropped, _mm512_set1_epi32(0x1000)));
        let magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fff_ffff));
        least = _mm512_min_epu32(least, _mm512_sub_epi32(magnitude, _mm512_set1_epi32(1)));
        *d = pack(values);
    }
    let middle = _mm512_testn_epi32_mask(nearest, nearest);
    let small = _mm512_cmplt_epu32_mask(least, _mm512_set1_epi32(0x3880_0000 - 1));
    (middle | small == 0).then_some(d)
}

/// As [`super::x86_lanes::extend`].
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn extend(values: &[u32; 8]) -> [u64; 8] {
    let mut wide = [0; 8];
    // SAFETY: eight values are loaded, and as many stored.
    unsafe {
        let values = _mm256_loadu_si256(values.as_ptr().cast());
        _mm512_storeu_si512(wide.as_mut_ptr().cast(), _mm512_cvtepi32_epi64(values));
    }
    wide
}

/// As [`super::isa::Isa::pick`].
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn pick<T: Lane>(chosen: u32, a: &Stored<T>, b: &Stored<T>) -> Stored<T> {
    const { assert!(matches!(size_of::<T::Stored>(), 4 | 8)) };
    let mut d = [T::Stored::default(); LANES];
    let lanes = 64 / size_of::<T::Stored>();
    for first in (0..LANES).step_by(lanes) {
        let chosen = chosen >> first;
        // SAFETY: 64 bytes from `first` on lie inside of the registers; any bits are a value.
        unsafe {
            let (a, b) = (a.as_ptr().add(first).cast(), b.as_ptr().add(first).cast());
            let (a, b) = (_mm512_loadu_si512(a), _mm512_loadu_si512(b));
            let picked = if lanes == 16 {
                _mm512_mask_blend_epi32(chosen as u16, b, a)
            } else {
                _mm512_mask_blend_epi64(chosen as u8, b, a)
            };
            _mm512_storeu_si512(d.as_mut_ptr().add(first).cast(), picked);
        }
    }
    d
}

/// As [`super::isa::Isa::signs`]. Always inline: there are many, which the compiler would call.
///
/// # Safety
/// The processor has AVX-512.
#[inline(always)]
pub(super) unsafe fn signs(values: &[u32; LANES]) -> u32 {
    // SAFETY: there are two times sixteen values; the caller has AVX-512.
    unsafe {
        let parts = values.as_ptr().cast::<__m512i>();
        let (low, high) = (_mm512_loadu_si512(parts), _mm512_loadu_si512(parts.add(1)));
        u32::from(_mm512_movepi32_mask(low)) | u32::from(_mm512_movepi32_mask(high)) << 16
    }
}

/// As [`super::isa::Isa::join`].
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn join(rows: [&[[u8; 4]; 4]; 4]) -> [[u8; 4]; 16] {
    let mut joined = [[0; 4]; 16];
    // SAFETY: rows have 16 bytes, and `joined` has those of four.
    unsafe {
        let load = |row: usize| _mm_loadu_si128(rows[row].as_ptr().cast());
        let (ab, cd) = (_mm256_set_m128i(load(1), load(0)), _mm256_set_m128i(load(3), load(2)));
        let all = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(ab), cd);
        _mm512_storeu_si512(joined.as_mut_ptr().cast(), all);
    }
    joined
}

/// Where [`columns_of`] finds its first four columns: words of four rows and of the four below.
const COLUMNS: [u16; 32] = {
    let mut words = [0; 32];
    let mut word = 0;
    while word < 32 {
        // Pairs go to a vector's lanes so that its halves are columns once pairs have met the other rows'.
        let (part, pair) = (word / 8, word / 2 % 4);
        let (column, row) = (part / 2 + 2 * (pair / 2), 2 * (part % 2) + pair % 2);
        words[word] = (32 * (word % 2) + 8 * row + column) as u16;
        word += 1;
    }
    words
};

/// Sixteen values in f32.
#[inline]
#[target_feature(enable = "avx512f")]
fn widen<const BF16: bool>(halves: __m256i) -> __m512 {
    if BF16 {
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(halves)))
    } else {
        _mm512_cvtph_ps(halves)
    }
}

/// The eight columns of sixteen rows, which two registers hold. Element 4 · j + i of each is row 4 · i + j.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn columns_of<const BF16: bool>(upper: &[u32; LANES], lower: &[u32; LANES]) -> [__m512; 8] {
    // SAFETY: registers have 32 elements, and so has the table.
    let (rows, first) = unsafe {
        let fours = |register: &[u32; LANES], at: usize| _mm512_loadu_si512(register.as_ptr().add(at).cast());
        let rows = [fours(upper, 0), fours(upper, 16), fours(lower, 0), fours(lower, 16)];
        (rows, _mm512_loadu_si512(COLUMNS.as_ptr().cast()))
    };
    let mut columns = [_mm512_setzero_ps(); 8];
    for (half, columns) in columns.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let from = _mm512_add_epi16(first, _mm512_set1_epi16(4 * half as i16));
        let upper = _mm512_permutex2var_epi16(rows[0], from, rows[1]);
        let lower = _mm512_permutex2var_epi16(rows[2], from, rows[3]);
        let pairs = [_mm512_unpacklo_epi32(upper, lower), _mm512_unpackhi_epi32(upper, lower)];
        for (columns, pair) in columns.as_chunks_mut::<2>().0.iter_mut().zip(pairs) {
            columns[0] = widen::<BF16>(_mm512_castsi512_si256(pair));
            columns[1] = widen::<BF16>(_mm512_extracti64x4_epi64::<1>(pair));
        }
    }
    columns
}

/// Finishes with a · b of the registers of A and B, as those of an accumulator, which no memory has held: a column
/// of A at a time, for all sixteen rows, by an element of B that a multiplication repeats as it loads it.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn product<const BF16: bool>(
    r: &mut Registers,
    a: &[Slot],
    b: &[Slot],
    b_columns: &mut [Rows; 2],
    finish: impl FnOnce(&mut Registers, [[__m512; 2]; 4]),
) {
    let register = |slot: Slot| &r.narrow[slot as usize].0;
    // Of B the columns, one after another, first: when elements are loaded, they are in the cache.
    for (slot, columns) in b.iter().zip(&mut *b_columns) {
        let columns = columns.as_chunks_mut::<16>().0;
        for (pairs, columns) in register(*slot).as_chunks::<8>().0.iter().zip(columns) {
            // SAFETY: eight pairs are loaded, which are two columns, and as many values stored.
            unsafe {
                let values = widen::<BF16>(_mm256_loadu_si256(pairs.as_ptr().cast()));
                _mm512_storeu_ps(columns.as_mut_ptr(), values);
            }
        }
    }
    // Out of sight, so that they are loaded, and not taken out of vectors.
    let b_columns = black_box(&*b_columns);
    let mut lines = [_mm512_setzero_ps(); 8];
    for (slots, b_columns) in a.as_chunks::<2>().0.iter().zip(b_columns) {
        for (n, a) in columns_of::<BF16>(register(slots[0]), register(slots[1])).into_iter().enumerate() {
            for (line, b) in lines.iter_mut().zip(b_columns.as_chunks::<8>().0) {
                *line = _mm512_fmadd_ps(a, _mm512_set1_ps(b[n]), *line);
            }
        }
    }
    // Of even columns, then of odd ones, four a row.
    let mut sums = [[_mm512_setzero_ps(); 2]; 4];
    for odd in 0..2 {
        let [c, d, e, f] = [lines[odd], lines[2 + odd], lines[4 + odd], lines[6 + odd]];
        let pairs = |[a, b]: [__m512; 2]| {
            [_mm512_castps_pd(_mm512_unpacklo_ps(a, b)), _mm512_castps_pd(_mm512_unpackhi_ps(a, b))]
        };
        let ([left, left_below], [right, right_below]) = (pairs([c, d]), pairs([e, f]));
        let rows = [
            _mm512_unpacklo_pd(left, right),
            _mm512_unpackhi_pd(left, right),
            _mm512_unpacklo_pd(left_below, right_below),
            _mm512_unpackhi_pd(left_below, right_below),
        ];
        for (n, rows) in rows.into_iter().enumerate() {
            sums[odd + n / 2 * 2][n % 2] = _mm512_castpd_ps(rows);
        }
    }
    finish(r, sums);
}

/// a · b as [`super::isa::Isa::multiply`] has it, of registers.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn multiply_halves<const BF16: bool>(
    r: &mut Registers,
    a: &[Slot],
    b: &[Slot],
    scratch: &mut Unfolded,
) {
    let Unfolded { b: b_columns, sums: to, .. } = scratch;
    product::<BF16>(r, a, b, b_columns, |_, sums| {
        to.iter_mut().zip(sums).for_each(|(to, sums)| store(to.as_chunks_mut().0, sums));
    });
}

/// As [`super::isa::Isa::multiply_add_halves`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn multiply_add_halves<const BF16: bool>(
    r: &mut Registers,
    slots: &[Slot; 14],
    scratch: &mut Unfolded,
) {
    product::<BF16>(r, &slots[4..8], &slots[8..10], &mut scratch.b, |r, mut sums| {
        for (sums, c) in sums.iter_mut().zip(&slots[10..]) {
            for (sums, c) in sums.iter_mut().zip(f32::stored(r, *c).as_chunks::<16>().0) {
                // SAFETY: there are sixteen values.
                *sums = _mm512_add_ps(*sums, unsafe { _mm512_loadu_ps(c.as_ptr().cast()) });
            }
        }
        // D may be registers of C, in any order: all were read.
        for (sums, d) in sums.into_iter().zip(slots) {
            store(f32::stored_mut(r, *d).as_chunks_mut().0, sums);
        }
    });
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store<T>(to: &mut [[T; 16]], sums: [__m512; 2]) {
    const { assert!(size_of::<T>() == 4, "there is room for sixteen values each") };
    for (to, sums) in to.iter_mut().zip(sums) {
        // SAFETY: see above; any bits are a number, of integers and floats.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr().cast(), sums) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::{Files, MmaKind, Rounding};
    use crate::device::Vectors;
    use crate::exec::isa::{Isa, Portable, detected};
    use crate::exec::matrix::products;
    use crate::exec::number::{F16, fma_odd};
    use crate::exec::x86::X86;
    use crate::ptx::Type;
    use crate::random::Random;

    /// Random halves, a third of them zeros, subnormals, infinities, NaNs and others at the ends of ranges.
    fn word(random: &mut Random) -> u32 {
        random.below(1 << 32) as u32
    }

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
            assert_eq!(I::pick::<u32>(lanes, &a, &b), Portable::pick::<u32>(lanes, &a, &b));
            let [first, second] = &wide;
            assert_eq!(I::pick::<u64>(lanes, first, second), Portable::pick::<u64>(lanes, first, second));
            let bytes = a.map(u32::to_le_bytes);
            let rows = [4, 0, 6, 3].map(|row| &bytes.as_chunks().0[row]);
            assert_eq!(I::join(rows), Portable::join(rows));
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
                // Of 16 columns now: added to C, to whose registers they go in another order.
                let terms: [_; 4] = std::array::from_fn(|n| f32::get(&r, 6 + n as Slot));
                let slots = [7, 6, 9, 8, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9];
                if I::multiply_add_halves(&mut r, &slots, ty == Type::Bf16, &mut scratch[1]) {
                    for (n, (d, c)) in slots[..4].iter().zip(terms).enumerate() {
                        let mut all = f32::get(&r, *d).into_iter().zip(c).zip(scratch[0].sums[n]);
                        assert!(all.all(|((found, c), sum)| same(found, sum + c)), "{ty:?}, register {n}");
                    }
                }
            }
        }
    }

    #[test]
    fn avx2_computes_what_the_portable_version_does() {
        if detected() < Vectors::Avx2 {
            return eprintln!("skipped: the processor has no AVX2");
        }
        agrees::<X86<false>>();
    }

    #[test]
    fn avx512_computes_what_the_portable_version_does() {
        if detected() < Vectors::Widest {
            return eprintln!("skipped: the processor has no AVX-512");
        }
        agrees::<X86<true>>();
    }
}
