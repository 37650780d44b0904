//! Codes times int8 activations, summed exactly over the columns that share a scale.

// Register blocks are indexed by tile and token on purpose: the loops unroll into registers, and
// the index selects the register.
#![allow(clippy::needless_range_loop)]

use std::hint::black_box;
use std::slice;

use super::{Format, Operand, code_line, columns, factor, quad, quant};
use crate::backend::cpu::isa::{LANES, Lanes, Tile, for_each};
use crate::backend::cpu::memory::prefetch::{LINE, Off, Prefetch};
use crate::backend::cpu::pack::{Int8Group, Layout, QUADS, SECOND_BITS};

/// Codes times int8 activations.
pub(crate) struct Int8<const BITS: usize, const MINS: bool, const HALVES: bool>;

impl<const BITS: usize, const MINS: bool, const HALVES: bool> Format for Int8<BITS, MINS, HALVES> {
    const LAYOUT: Layout = quant(BITS, MINS, HALVES);
    type Record = Int8Group;
    const ON_CODES: bool = true;
    const PREFETCHES: bool = true;
    // 8-bit codes take the fewest instructions per byte; with 6 KiB one thread loses 1 %.
    const AHEAD: usize = if BITS == 8 { 9 << 10 } else { 6 << 10 };
    const AHEAD_LONG: usize = if BITS == 4 { 4608 } else { Self::AHEAD };

    #[inline(always)]
    unsafe fn group<L: Lanes, P: Prefetch, const T: usize, const M: usize>(
        weights: *const u8,
        later: *const u8,
        tile: usize,
        activations: &Operand<Int8Group>,
        sums: &mut [[L::F; M]; T],
    ) {
        // SAFETY: `Format::group` promises a whole group and `M` records, with a byte each.
        unsafe {
            let outliers = slice::from_raw_parts(activations.outliers, M);
            // One branch for all tokens: residual codes are rare.
            let any = outliers.iter().fold(0, |any, outlier| any | outlier);
            let second = (any != 0).then_some((activations.second, outliers));
            if const { HALVES && M == 4 } && second.is_none() {
                // This call has no branch between the halves. With one, the compiler keeps the first half's
                // dot products until the second's are done, and there are no registers for both.
                Self::parts::<L, P, T, M>(weights, later, tile, activations, None, sums);
            } else {
                Self::parts::<L, P, T, M>(weights, later, tile, activations, second, sums);
            }
        }
    }

    #[inline(always)]
    unsafe fn blocks<L: Lanes>(
        weights: *const u8,
        next: *const u8,
        groups: usize,
        activations: &Operand<Int8Group>,
        sums: &mut [[Tile<f32>; 2]],
    ) {
        // SAFETY: `Format::blocks` promises whole groups and records for each token.
        unsafe { Self::tile_blocks::<L>(weights, next, groups, activations, sums) }
    }
}

impl<const BITS: usize, const MINS: bool, const HALVES: bool> Int8<BITS, MINS, HALVES> {
    /// All rows times all columns, with residual codes if there are any.
    #[inline(always)]
    unsafe fn parts<L: Lanes, P: Prefetch, const T: usize, const M: usize>(
        weights: *const u8,
        later: *const u8,
        tile: usize,
        activations: &Operand<Int8Group>,
        second: Option<(*const Int8Group, &[u8])>,
        sums: &mut [[L::F; M]; T],
    ) {
        for_each!([0 1] HALF => {
            for_each!([0 1] PART => {
                if const { HALF <= HALVES as usize && PART < L::PARTS } {
                    // SAFETY: the caller promises a whole group and `M` records.
                    unsafe { Self::part::<L, P, T, M, HALF, PART>(weights, later, tile, activations, second, sums) }
                }
            });
        });
    }

    /// The rows of part `PART` times half `HALF` of the columns, or all columns.
    #[inline(always)]
    unsafe fn part<
        L: Lanes,
        P: Prefetch,
        const T: usize,
        const M: usize,
        const HALF: usize,
        const PART: usize,
    >(
        weights: *const u8,
        later: *const u8,
        tile: usize,
        activations: &Operand<Int8Group>,
        second: Option<(*const Int8Group, &[u8])>,
        sums: &mut [[L::F; M]; T],
    ) {
        // SAFETY: all reads stay within the group and the records.
        unsafe {
            let first = activations.first;
            let mut dots = [Self::starts::<L, M>(first, HALF); T];
            let again = if const { M == 1 && L::WIDE } { activations.again } else { first };
            Self::dots::<L, P, T, M, HALF>(weights, tile, [first, again], later, &mut dots);
            if let Some((second, outliers)) = second {
                // With one token, the weight codes stay unpacked for the residual product, which is
                // independent of the first one. With several tokens there are no registers for that.
                let weights = if M == 1 { weights } else { black_box(weights) };
                let low = if const { L::PAIRS && M > 1 } {
                    Self::term::<L, T, M, 2, HALF>(weights, tile, second, outliers)
                } else {
                    Self::term::<L, T, M, 1, HALF>(weights, tile, second, outliers)
                };
                join::<L, T, M>(&mut dots, &low);
            }
            if const { L::PAIRS && M > 1 } {
                for [low, high] in dots.as_flattened_mut().as_chunks_mut().0 {
                    [*low, *high] = L::unpair(*low, *high);
                }
            }
            let scales = second.map_or(first, |(second, _)| second);
            for t in 0..T {
                let scale = factor::<L>(Self::LAYOUT, weights, HALF, tile + t);
                let mut new = sums[t];
                for m in 0..M {
                    let value = L::mul(L::to_f32(dots[t][m]), scale);
                    let activation_scale = L::splat((*scales.add(m)).scale);
                    new[m] = L::fma(value, activation_scale, new[m]);
                }
                if MINS {
                    let min = factor::<L>(Self::LAYOUT, weights, 1 + HALVES as usize + HALF, tile + t);
                    for m in 0..M {
                        let total = Self::scaled_sum(first.add(m), HALF);
                        new[m] = L::fma(min, L::splat(total), new[m]);
                    }
                }
                for m in 0..M {
                    sums[t][m] = L::merge::<PART>(sums[t][m], new[m]);
                }
            }
        }
    }

    /// The integer sums of residual codes, `N` tokens at a time; 0 if none of the `N` has any, the usual
    /// case.
    #[inline(always)]
    unsafe fn term<L: Lanes, const T: usize, const M: usize, const N: usize, const HALF: usize>(
        weights: *const u8,
        tile: usize,
        second: *const Int8Group,
        outliers: &[u8],
    ) -> [[L::I; M]; T] {
        // SAFETY: as `dots`, for `N` of the block's tokens.
        unsafe {
            let mut sums = [[L::splat_i32(0); M]; T];
            for (i, outliers) in outliers.chunks_exact(N).enumerate() {
                if outliers.iter().any(|&outlier| outlier != 0) {
                    let records = second.add(i * N);
                    let mut dots = [Self::starts::<L, N>(records, HALF); T];
                    Self::dots::<L, Off, T, N, HALF>(weights, tile, [records; 2], weights, &mut dots);
                    for t in 0..T {
                        sums[t][i * N..][..N].copy_from_slice(&dots[t]);
                    }
                }
            }
            sums
        }
    }

    /// Initial values of the tokens' integer sums, in the accumulators' order.
    #[inline(always)]
    pub(super) unsafe fn starts<L: Lanes, const M: usize>(
        records: *const Int8Group,
        half: usize,
    ) -> [L::I; M] {
        // SAFETY: `M` records.
        unsafe {
            let mut starts = [L::splat_i32(0); M];
            for m in 0..M {
                starts[m] = Self::start::<L>(records.add(m), half);
            }
            if const { L::PAIRS && M > 1 } {
                for [first, second] in starts.as_chunks_mut().0 {
                    [*first, *second] = L::pair(*first, *second);
                }
            }
            starts
        }
    }

    /// Adds the integer products of half `HALF` of the columns, or of all columns. Prefetches the group
    /// at `later` by `P`.
    ///
    /// The records are passed once per tile, so that each tile's dot products take them as memory operands.
    /// Shared loads would add half as many instructions again.
    #[inline(always)]
    pub(super) unsafe fn dots<L: Lanes, P: Prefetch, const T: usize, const M: usize, const HALF: usize>(
        weights: *const u8,
        tile: usize,
        activations: [*const Int8Group; 2],
        later: *const u8,
        dots: &mut [[L::I; M]; T],
    ) {
        // SAFETY: all reads stay within the group and the records.
        unsafe {
            let codes = |t: usize, m: usize| (&raw const (*activations[t].add(m)).codes).cast::<i8>();
            let mut a = [[L::activations(codes(0, 0)); M]; T];
            if const { L::PAIRS && M > 1 } {
                for_each!([0 1 2 3] OCTET => {
                    if !HALVES || HALF == OCTET / 2 {
                        // Codes of two tokens alternate, eight columns each.
                        for m in 0..M / 2 {
                            a[0][m] = L::activations(codes(0, 2 * m + OCTET / 2).add(OCTET % 2 * LANES));
                        }
                        for t in 0..T {
                            let codes = [
                                quad::<L, BITS, { 2 * OCTET }>(weights, tile + t),
                                quad::<L, BITS, { 2 * OCTET + 1 }>(weights, tile + t),
                            ];
                            for m in 0..M {
                                dots[t][m] = L::dot_pair(dots[t][m], codes[m % 2], a[0][m / 2]);
                            }
                        }
                    }
                });
                return;
            }
            let mut upper = [[L::splat_i32(0); M]; T];
            for_each!([0 1 2 3 4 5 6 7] KQ => {
                if !HALVES || HALF == KQ / 4 {
                    for t in 0..T {
                        if KQ.is_multiple_of(4) {
                            for m in 0..M {
                                a[t][m] = L::activations(codes(t, m).add(KQ / 4 * LANES));
                            }
                        }
                        Self::prefetch::<P>(later, KQ * T + t, QUADS * T);
                        if const { BITS == 4 && M == 1 && L::UPPER && KQ % 2 == 1 } {
                            let codes = L::upper::<4>(L::bytes(code_line(weights, tile + t, KQ / 2)));
                            upper[t][0] = L::dot_bytes::<{ KQ % 4 }>(upper[t][0], codes, a[t][0]);
                            continue;
                        }
                        let codes = columns::<L, BITS, KQ, { KQ / 2 * 2 }, { KQ / 2 * 2 + 1 }>(weights, tile + t);
                        for m in 0..M {
                            dots[t][m] = match BITS {
                                8 => L::dot_bytes::<{ KQ % 4 }>(dots[t][m], codes, a[t][m]),
                                _ => L::dot_small::<{ KQ % 4 }>(dots[t][m], codes, a[t][m]),
                            };
                        }
                    }
                }
            });
            if const { BITS == 4 && M == 1 && L::UPPER } {
                for t in 0..T {
                    dots[t][0] = L::add_i32(dots[t][0], L::shr::<4>(upper[t][0]));
                }
            }
        }
    }

    /// Prefetches one step's share of the lines of a later group. All lines at once would delay the loads of
    /// codes.
    #[inline(always)]
    fn prefetch<P: Prefetch>(group: *const u8, step: usize, steps: usize) {
        let lines = Self::LAYOUT.group_bytes() / LINE;
        for line in step * lines / steps..(step + 1) * lines / steps {
            P::line(group.wrapping_add(LINE * line));
        }
    }

    /// Minus the zero point of the codes in the dot product, times the sum of the activation's codes.
    #[inline(always)]
    unsafe fn start<L: Lanes>(record: *const Int8Group, half: usize) -> L::I {
        // SAFETY: a whole record.
        unsafe {
            let bias = if BITS == 8 { i32::from(L::BYTE_BIAS) } else { 0 };
            let zero = L::splat_i32(0);
            match (Self::LAYOUT.zero_point() - bias, HALVES) {
                (8, false) => L::splat_i32((*record).neg_sum_8),
                (16, false) => L::shl::<1>(L::splat_i32((*record).neg_sum_8)),
                (128, false) => L::splat_i32((*record).neg_sum_128),
                (-128, false) => L::sub_i32(zero, L::splat_i32((*record).neg_sum_128)),
                (8, true) => L::splat_i32((*record).neg_halves_32[half] >> 2),
                (16, true) => L::splat_i32((*record).neg_halves_32[half] >> 1),
                (32, true) => L::splat_i32((*record).neg_halves_32[half]),
                (128, true) => L::shl::<2>(L::splat_i32((*record).neg_halves_32[half])),
                (-128, true) => L::sub_i32(zero, L::shl::<2>(L::splat_i32((*record).neg_halves_32[half]))),
                _ => zero,
            }
        }
    }

    /// The activation's scale times the sum of its codes.
    #[inline(always)]
    pub(super) unsafe fn scaled_sum(record: *const Int8Group, half: usize) -> f32 {
        // SAFETY: a whole record.
        unsafe {
            match HALVES {
                false => (*record).scaled_sum,
                true => (*record).scaled_halves[half],
            }
        }
    }
}

/// Shifts the sums of the codes by [`SECOND_BITS`], and adds those of the residual codes.
#[inline(always)]
unsafe fn join<L: Lanes, const T: usize, const M: usize>(
    first: &mut [[L::I; M]; T],
    second: &[[L::I; M]; T],
) {
    for t in 0..T {
        for m in 0..M {
            // SAFETY: register arithmetic.
            first[t][m] = unsafe { L::add_i32(L::shl::<SECOND_BITS>(first[t][m]), second[t][m]) };
        }
    }
}
