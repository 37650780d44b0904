//! Codes times int8 activations, summed exactly within a group.

// Register blocks are indexed by tile and token on purpose: the loops unroll into registers, and
// the index says which of them.
#![allow(clippy::needless_range_loop)]

use std::hint::black_box;

use super::{Format, Operand, factor, quad, quant};
use crate::backend::cpu::activations::{Int8Group, SECOND_BITS};
use crate::backend::cpu::lanes::{LANES, Lanes, for_each};
use crate::backend::cpu::pack::Layout;

/// Codes times int8 activations.
pub(in crate::backend::cpu) struct Int8<const BITS: usize, const MINS: bool, const HALVES: bool>;

impl<const BITS: usize, const MINS: bool, const HALVES: bool> Format for Int8<BITS, MINS, HALVES> {
    const LAYOUT: Layout = quant(BITS, MINS, HALVES);
    type Record = Int8Group;
    const ON_CODES: bool = true;

    #[inline(always)]
    unsafe fn group<L: Lanes, const T: usize, const M: usize>(
        weights: *const u8,
        tile: usize,
        activations: &Operand<Int8Group>,
        sums: &mut [[L::F; M]; T],
    ) {
        // SAFETY: the same contract.
        unsafe {
            for_each!([0 1] HALF => {
                for_each!([0 1] PART => {
                    if const { HALF <= HALVES as usize && PART < L::PARTS } {
                        Self::part::<L, T, M, HALF, PART>(weights, tile, activations, sums);
                    }
                });
            });
        }
    }
}

impl<const BITS: usize, const MINS: bool, const HALVES: bool> Int8<BITS, MINS, HALVES> {
    /// The rows of part `PART` times half `HALF` of the columns, or all columns.
    #[inline(always)]
    unsafe fn part<L: Lanes, const T: usize, const M: usize, const HALF: usize, const PART: usize>(
        weights: *const u8,
        tile: usize,
        activations: &Operand<Int8Group>,
        sums: &mut [[L::F; M]; T],
    ) {
        // SAFETY: all reads stay within the group and the records.
        unsafe {
            let Operand { first, second, two } = *activations;
            let mut dots = [[L::splat_i32(0); M]; T];
            for m in 0..M {
                let start = Self::start::<L>(first.add(m), HALF);
                for t in 0..T {
                    dots[t][m] = start;
                }
            }
            if const { M > 1 } {
                let (mut term, mut last) = (first, !two);
                loop {
                    // One loop for both terms, and the compiler shall not unpack a group's codes before it:
                    // there are no registers for them.
                    Self::dots::<L, T, M, HALF>(black_box(weights), tile, term, &mut dots);
                    if last {
                        break;
                    }
                    Self::next_term::<L, T, M, HALF>(second, &mut dots);
                    (term, last) = (second, true);
                }
            } else {
                // Codes stay unpacked from one term to the other, whose sums wait for nothing of the first's.
                Self::dots::<L, T, M, HALF>(weights, tile, first, &mut dots);
                if two {
                    let mut low = [[Self::start::<L>(second, HALF); M]; T];
                    Self::dots::<L, T, M, HALF>(weights, tile, second, &mut low);
                    for t in 0..T {
                        dots[t][0] = L::add_i32(L::shl::<SECOND_BITS>(dots[t][0]), low[t][0]);
                    }
                }
            }
            for t in 0..T {
                let scale = factor::<L>(Self::LAYOUT, weights, HALF, tile + t);
                let mut new = sums[t];
                for m in 0..M {
                    let value = L::mul(L::to_f32(dots[t][m]), scale);
                    let activation_scale = L::splat((*first.add(m)).scale);
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

    /// Makes room below the first term's sums for those of the second, and starts these.
    #[inline(always)]
    unsafe fn next_term<L: Lanes, const T: usize, const M: usize, const HALF: usize>(
        second: *const Int8Group,
        dots: &mut [[L::I; M]; T],
    ) {
        // SAFETY: `M` records.
        unsafe {
            for m in 0..M {
                let start = Self::start::<L>(second.add(m), HALF);
                for t in 0..T {
                    dots[t][m] = L::add_i32(L::shl::<SECOND_BITS>(dots[t][m]), start);
                }
            }
        }
    }

    /// Adds the integer products of half `HALF` of the columns, or of all columns.
    #[inline(always)]
    unsafe fn dots<L: Lanes, const T: usize, const M: usize, const HALF: usize>(
        weights: *const u8,
        tile: usize,
        activations: *const Int8Group,
        dots: &mut [[L::I; M]; T],
    ) {
        // SAFETY: all reads stay within the group and the records.
        unsafe {
            let codes = |m: usize| (&raw const (*activations.add(m)).codes).cast::<i8>();
            let mut a = [[L::activations(codes(0)); M]; 2];
            for m in 0..M {
                a[0][m] = L::activations(codes(m));
                a[1][m] = L::activations(codes(m).add(LANES));
            }
            for_each!([0 1 2 3 4 5 6 7] KQ => {
                if !HALVES || HALF == KQ / 4 {
                    for t in 0..T {
                        let codes = quad::<L, BITS, KQ>(weights, tile + t);
                        for m in 0..M {
                            let (dot, a) = (dots[t][m], a[KQ / 4][m]);
                            dots[t][m] = match BITS {
                                8 => L::dot_bytes::<{ KQ % 4 }>(dot, codes, a),
                                _ => L::dot_small::<{ KQ % 4 }>(dot, codes, a),
                            };
                        }
                    }
                }
            });
        }
    }

    /// Minus the zero point, as the dot product sees it, times the sum of activations.
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
                (8, true) => L::shl::<3>(L::splat_i32((*record).neg_halves[half])),
                (32, true) => L::shl::<5>(L::splat_i32((*record).neg_halves[half])),
                (128, true) => L::shl::<7>(L::splat_i32((*record).neg_halves[half])),
                (-128, true) => L::sub_i32(zero, L::shl::<7>(L::splat_i32((*record).neg_halves[half]))),
                _ => zero,
            }
        }
    }

    /// The activation's scale times the sum of its codes.
    #[inline(always)]
    unsafe fn scaled_sum(record: *const Int8Group, half: usize) -> f32 {
        // SAFETY: a whole record.
        unsafe {
            match HALVES {
                false => (*record).scaled_sum,
                true => (*record).scaled_halves[half],
            }
        }
    }
}
