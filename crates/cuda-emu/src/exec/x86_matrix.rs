//! Squares of matrices, with vectors.

use std::arch::x86_64::*;
use std::hint::black_box;

use super::matrix::Rows;

/// Rows as columns.
#[inline]
#[target_feature(enable = "avx")]
pub(super) fn transpose(rows: &[[f32; 8]; 8]) -> [[f32; 8]; 8] {
    let mut columns = [[0.0; 8]; 8];
    // Pairs of rows, then fours of them, then both halves of the vectors.
    let mut fours = [_mm256_setzero_pd(); 8];
    for (rows, fours) in rows.as_chunks::<4>().0.iter().zip(fours.as_chunks_mut::<4>().0) {
        let mut row = [_mm256_setzero_ps(); 4];
        for (row, values) in row.iter_mut().zip(rows) {
            // SAFETY: rows have eight elements.
            *row = unsafe { _mm256_loadu_ps(values.as_ptr()) };
        }
        let a = _mm256_castps_pd(_mm256_unpacklo_ps(row[0], row[1]));
        let b = _mm256_castps_pd(_mm256_unpackhi_ps(row[0], row[1]));
        let c = _mm256_castps_pd(_mm256_unpacklo_ps(row[2], row[3]));
        let d = _mm256_castps_pd(_mm256_unpackhi_ps(row[2], row[3]));
        fours[0] = _mm256_unpacklo_pd(a, c);
        fours[1] = _mm256_unpackhi_pd(a, c);
        fours[2] = _mm256_unpacklo_pd(b, d);
        fours[3] = _mm256_unpackhi_pd(b, d);
    }
    for n in 0..4 {
        let (low, high) = (_mm256_castpd_ps(fours[n]), _mm256_castpd_ps(fours[n + 4]));
        // SAFETY: columns have eight elements.
        unsafe {
            _mm256_storeu_ps(columns[n].as_mut_ptr(), _mm256_permute2f128_ps::<0x20>(low, high));
            _mm256_storeu_ps(columns[n + 4].as_mut_ptr(), _mm256_permute2f128_ps::<0x31>(low, high));
        }
    }
    columns
}

/// a · b
#[inline]
#[target_feature(enable = "avx,fma")]
pub(super) fn multiply<const W: usize>(a: &[Rows], b: &[Rows]) -> [f32; 64] {
    // Eight rows at a time: their sums stay in registers, and do not wait for each other.
    let mut lines = [_mm256_setzero_ps(); 8];
    for (a, b) in a.iter().zip(b) {
        // Out of sight, so that elements are loaded: a load repeats one in a vector by itself, while
        // taking it out of a vector needs the units that multiply.
        let a = black_box(a).as_chunks::<W>().0;
        for (n, b) in b.as_chunks::<8>().0.iter().enumerate().take(W) {
            // SAFETY: rows have eight elements.
            let b = unsafe { _mm256_loadu_ps(b.as_ptr()) };
            for (line, a) in lines.iter_mut().zip(a) {
                *line = _mm256_fmadd_ps(_mm256_broadcast_ss(&a[n]), b, *line);
            }
        }
    }
    let mut sums = [0.0; 64];
    for (sums, line) in sums.as_chunks_mut::<8>().0.iter_mut().zip(lines) {
        // SAFETY: as above.
        unsafe { _mm256_storeu_ps(sums.as_mut_ptr(), line) };
    }
    sums
}
