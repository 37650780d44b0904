//! Codes times f32 activations.

// Register blocks are indexed by tile and token on purpose: the loops unroll into registers, and
// the index says which of them.
#![allow(clippy::needless_range_loop)]

use super::{Format, Operand, factor, quad, quant};
use crate::backend::cpu::activations::FloatGroup;
use crate::backend::cpu::lanes::{Lanes, for_each};
use crate::backend::cpu::pack::Layout;

/// Codes times f32 activations.
pub(in crate::backend::cpu) struct Float<const BITS: usize, const MINS: bool, const HALVES: bool>;

impl<const BITS: usize, const MINS: bool, const HALVES: bool> Format for Float<BITS, MINS, HALVES> {
    const LAYOUT: Layout = quant(BITS, MINS, HALVES);
    type Record = FloatGroup;
    const ON_CODES: bool = BITS == 8;

    #[inline(always)]
    unsafe fn group<L: Lanes, const T: usize, const M: usize>(
        weights: *const u8,
        tile: usize,
        activations: &Operand<FloatGroup>,
        sums: &mut [[L::F; M]; T],
    ) {
        let activations = activations.first;
        // SAFETY: the same contract.
        unsafe {
            for_each!([0 1] HALF => {
                if const { HALF <= HALVES as usize } {
                    Self::half::<L, T, M, HALF>(weights, tile, activations, sums);
                }
            });
        }
    }
}

impl<const BITS: usize, const MINS: bool, const HALVES: bool> Float<BITS, MINS, HALVES> {
    /// Half `HALF` of the columns, or all columns.
    #[inline(always)]
    unsafe fn half<L: Lanes, const T: usize, const M: usize, const HALF: usize>(
        weights: *const u8,
        tile: usize,
        activations: *const FloatGroup,
        sums: &mut [[L::F; M]; T],
    ) {
        // SAFETY: all reads stay within the group and the records.
        unsafe {
            let mut products = [[L::splat(0.0); M]; T];
            for_each!([0 1 2 3 4 5 6 7] KQ => {
                if !HALVES || HALF == KQ / 4 {
                    for t in 0..T {
                        let lanes = Self::lanes::<L>(quad::<L, BITS, KQ>(weights, tile + t));
                        for (k, weight) in lanes.into_iter().enumerate() {
                            for m in 0..M {
                                let x = L::splat((*activations.add(m)).values[4 * KQ + k]);
                                products[t][m] = L::fma(weight, x, products[t][m]);
                            }
                        }
                    }
                }
            });
            for t in 0..T {
                let scale = factor::<L>(Self::LAYOUT, weights, HALF, tile + t);
                for m in 0..M {
                    sums[t][m] = L::fma(products[t][m], scale, sums[t][m]);
                }
                if MINS {
                    let min = factor::<L>(Self::LAYOUT, weights, 1 + HALVES as usize + HALF, tile + t);
                    for m in 0..M {
                        let [low, high] = (*activations.add(m)).sums;
                        let total = if !HALVES { low + high } else { [low, high][HALF] };
                        sums[t][m] = L::fma(min, L::splat(total), sums[t][m]);
                    }
                }
            }
        }
    }

    /// Codes less their zero point, a vector for each of four columns.
    #[inline(always)]
    unsafe fn lanes<L: Lanes>(codes: L::C) -> [L::F; 4] {
        let bias = if BITS == 8 { i32::from(L::BYTE_BIAS) } else { 0 };
        // SAFETY: register arithmetic.
        unsafe {
            let zero = L::splat((Self::LAYOUT.zero_point() - bias) as f32);
            [
                L::sub(L::to_f32(L::widen::<0>(codes)), zero),
                L::sub(L::to_f32(L::widen::<1>(codes)), zero),
                L::sub(L::to_f32(L::widen::<2>(codes)), zero),
                L::sub(L::to_f32(L::widen::<3>(codes)), zero),
            ]
        }
    }
}
