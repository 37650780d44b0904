//! Moves of lanes, and inside of them, with AVX2. Those with many callers are always inline, with what is
//! around them: as functions with features of their own the compiler would call them.

use std::arch::x86_64::*;

use super::lanes::LANES;

/// Each value as a signed number of 64 bits.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn extend(values: &[u32; 8]) -> [u64; 8] {
    let mut wide = [0; 8];
    for (values, wide) in values.as_chunks::<4>().0.iter().zip(wide.as_chunks_mut::<4>().0) {
        // SAFETY: four values are loaded, and as many stored.
        unsafe {
            let values = _mm_loadu_si128(values.as_ptr().cast());
            _mm256_storeu_si256(wide.as_mut_ptr().cast(), _mm256_cvtepi32_epi64(values));
        }
    }
    wide
}

/// As [`super::isa::Isa::permute`].
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
pub(super) unsafe fn permute(a: &[u32; LANES], sources: &[u32; LANES]) -> [u32; LANES] {
    let mut d = [0; LANES];
    for chunk in (0..LANES).step_by(8) {
        // SAFETY: eight elements from `chunk` on lie inside of the arrays; the caller has AVX2.
        unsafe {
            let index = _mm256_loadu_si256(sources.as_ptr().add(chunk).cast());
            let parts = a.as_ptr().cast::<f32>();
            let part0 = _mm256_permutevar8x32_ps(_mm256_loadu_ps(parts), index);
            let part1 = _mm256_permutevar8x32_ps(_mm256_loadu_ps(parts.add(8)), index);
            let part2 = _mm256_permutevar8x32_ps(_mm256_loadu_ps(parts.add(16)), index);
            let part3 = _mm256_permutevar8x32_ps(_mm256_loadu_ps(parts.add(24)), index);
            // Bits 3 and 4 choose among the parts, as signs.
            let (low, high) = (_mm256_slli_epi32::<28>(index), _mm256_slli_epi32::<27>(index));
            let (low, high) = (_mm256_castsi256_ps(low), _mm256_castsi256_ps(high));
            let first = _mm256_blendv_ps(part0, part1, low);
            let second = _mm256_blendv_ps(part2, part3, low);
            _mm256_storeu_ps(d.as_mut_ptr().add(chunk).cast(), _mm256_blendv_ps(first, second, high));
        }
    }
    d
}

/// As [`super::isa::Isa::pick_bytes`].
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
pub(super) unsafe fn pick_bytes(a: &[u32; LANES], b: &[u32; LANES], picks: [u8; 4]) -> [u32; LANES] {
    // Of each byte of a lane, which one it is of `a`'s and of `b`'s; from 0x80 on it is zero.
    let of_a = u32::from_le_bytes(picks.map(|pick| if pick < 4 { pick } else { 0x80 }));
    let of_b = u32::from_le_bytes(picks.map(|pick| if pick < 4 { 0x80 } else { pick & 3 }));
    let mut d = [0; LANES];
    for chunk in (0..LANES).step_by(8) {
        // SAFETY: eight elements from `chunk` on lie inside of the arrays; the caller has AVX2.
        unsafe {
            // Bytes are numbered inside of 16.
            let word = _mm256_set_epi32(
                0x0c0c_0c0c,
                0x0808_0808,
                0x0404_0404,
                0,
                0x0c0c_0c0c,
                0x0808_0808,
                0x0404_0404,
                0,
            );
            let of_a = _mm256_or_si256(_mm256_set1_epi32(of_a as i32), word);
            let of_b = _mm256_or_si256(_mm256_set1_epi32(of_b as i32), word);
            let (a, b) = (a.as_ptr().add(chunk).cast(), b.as_ptr().add(chunk).cast());
            let a = _mm256_shuffle_epi8(_mm256_loadu_si256(a), of_a);
            let b = _mm256_shuffle_epi8(_mm256_loadu_si256(b), of_b);
            _mm256_storeu_si256(d.as_mut_ptr().add(chunk).cast(), _mm256_or_si256(a, b));
        }
    }
    d
}

/// As [`super::isa::Isa::split_pairs`].
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
pub(super) unsafe fn split_pairs(pairs: &[f32; 2 * LANES]) -> [[f32; LANES]; 2] {
    let mut split = [[0.0; LANES]; 2];
    for chunk in (0..LANES).step_by(8) {
        // SAFETY: eight elements from `chunk` on, and sixteen from twice that, lie inside of the
        // arrays; the caller has AVX2.
        unsafe {
            let a = _mm256_loadu_ps(pairs.as_ptr().add(2 * chunk));
            let b = _mm256_loadu_ps(pairs.as_ptr().add(2 * chunk + 8));
            let even = _mm256_castps_pd(_mm256_shuffle_ps::<0b1000_1000>(a, b));
            let odd = _mm256_castps_pd(_mm256_shuffle_ps::<0b1101_1101>(a, b));
            let (even, odd) =
                (_mm256_permute4x64_pd::<0b1101_1000>(even), _mm256_permute4x64_pd::<0b1101_1000>(odd));
            _mm256_storeu_pd(split[0].as_mut_ptr().add(chunk).cast(), even);
            _mm256_storeu_pd(split[1].as_mut_ptr().add(chunk).cast(), odd);
        }
    }
    split
}
