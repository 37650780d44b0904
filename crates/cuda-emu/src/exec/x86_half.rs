//! Pairs of f16, with vectors.

use std::arch::x86_64::*;

use super::lanes::LANES;

/// Eight pairs rounded to nearest even; NaN is the canonical one.
#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn pack([low, high]: [__m256; 2]) -> [u32; 8] {
    let bits = _mm256_set_m128i(_mm256_cvtps_ph::<0>(high), _mm256_cvtps_ph::<0>(low));
    // NaN keeps its payload in the instruction; PTX says the canonical one.
    let (canonical, infinity) = (_mm256_set1_epi16(0x7fff), _mm256_set1_epi16(0x7c00));
    let nan = _mm256_cmpgt_epi16(_mm256_and_si256(bits, canonical), infinity);
    let mut pairs = [0; 8];
    // SAFETY: `pairs` has room for the vector.
    unsafe { _mm256_storeu_si256(pairs.as_mut_ptr().cast(), _mm256_blendv_epi8(bits, canonical, nan)) };
    pairs
}

/// a · b + c by way of f32, unless a result there lies where it may have been rounded to, so that
/// rounding it once more may go wrong: in the middle between two f16, or below their normal numbers.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn fuse_pairs(a: &[u32; LANES], b: &[u32; LANES], c: &[u32; LANES]) -> Option<[u32; LANES]> {
    let mut d = [0; LANES];
    let mut doubtful = _mm256_setzero_si256();
    for (part, d) in d.as_chunks_mut().0.iter_mut().enumerate() {
        let mut values = [_mm256_setzero_ps(); 2];
        for (half, value) in values.iter_mut().enumerate() {
            let first = 8 * part + 4 * half;
            // SAFETY: four elements from `first` on lie inside of the arrays.
            let [a, b, c] = unsafe {
                [
                    _mm256_cvtph_ps(_mm_loadu_si128(a.as_ptr().add(first).cast())),
                    _mm256_cvtph_ps(_mm_loadu_si128(b.as_ptr().add(first).cast())),
                    _mm256_cvtph_ps(_mm_loadu_si128(c.as_ptr().add(first).cast())),
                ]
            };
            *value = _mm256_fmadd_ps(a, b, c);
            let bits = _mm256_castps_si256(*value);
            let dropped = _mm256_and_si256(bits, _mm256_set1_epi32(0x1fff));
            let middle = _mm256_cmpeq_epi32(dropped, _mm256_set1_epi32(0x1000));
            let magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fff_ffff));
            let below = _mm256_cmpgt_epi32(_mm256_set1_epi32(0x3880_0000), magnitude);
            let small = _mm256_and_si256(below, _mm256_cmpgt_epi32(magnitude, _mm256_setzero_si256()));
            doubtful = _mm256_or_si256(doubtful, _mm256_or_si256(middle, small));
        }
        *d = pack(values);
    }
    (_mm256_testz_si256(doubtful, doubtful) != 0).then_some(d)
}
