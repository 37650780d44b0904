//! Integer codes times f32 activations.

// Register blocks are indexed by tile and token on purpose: the loops unroll into registers, and the index
// names the register.
#![allow(clippy::needless_range_loop)]

use std::hint::black_box;

use super::{Format, Operand, columns, factor, quant};
use crate::backend::cpu::isa::{Lanes, for_each};
use crate::backend::cpu::memory::prefetch::Prefetch;
use crate::backend::cpu::pack::{FloatGroup, Layout, QUADS};

/// Products of codes with f32 activations.
pub(crate) struct Float<const BITS: usize, const MINS: bool, const HALVES: bool>;

impl<const BITS: usize, const MINS: bool, const HALVES: bool> Format for Float<BITS, MINS, HALVES> {
    const LAYOUT: Layout = quant(BITS, MINS, HALVES);
    type Record = FloatGroup;
    const ON_CODES: bool = BITS == 8;

    #[inline(always)]
    unsafe fn group<L: Lanes, P: Prefetch, const T: usize, const M: usize>(
        weights: *const u8,
        _later: *const u8,
        tile: usize,
        activations: &Operand<FloatGroup>,
        sums: &mut [[L::F; M]; T],
    ) {
        let activations = activations.first;
        // SAFETY: all reads stay within the group and the records.
        unsafe {
            // Unpacked through memory, so that the code after it is a small loop: it is instantiated per
            // format, instruction set and block.
            let mut codes = [[L::bytes(weights); T]; QUADS];
            for_each!([0 1 2 3 4 5 6 7] KQ => {
                for t in 0..T {
                    codes[KQ][t] = columns::<L, BITS, KQ, { KQ / 2 * 2 }, { KQ / 2 * 2 + 1 }>(weights, tile + t);
                }
            });
            let bias = if BITS == 8 { i32::from(L::BYTE_BIAS) } else { 0 };
            let zero = L::splat((Self::LAYOUT.zero_point() - bias) as f32);
            let per_half = if HALVES { QUADS / 2 } else { QUADS };
            for (half, codes) in black_box(&codes).chunks_exact(per_half).enumerate() {
                let mut products = [[L::splat(0.0); M]; T];
                for (quad, codes) in codes.iter().enumerate() {
                    let column = 4 * (half * per_half + quad);
                    for_each!([0 1 2 3] K => {
                        for t in 0..T {
                            let weight = L::sub(L::to_f32(L::widen::<K>(codes[t])), zero);
                            for m in 0..M {
                                let x = L::splat((*activations.add(m)).values[column + K]);
                                products[t][m] = L::fma(weight, x, products[t][m]);
                            }
                        }
                    });
                }
                for t in 0..T {
                    let scale = factor::<L>(Self::LAYOUT, weights, half, tile + t);
                    for m in 0..M {
                        sums[t][m] = L::fma(products[t][m], scale, sums[t][m]);
                    }
                    if MINS {
                        let min = factor::<L>(Self::LAYOUT, weights, 1 + HALVES as usize + half, tile + t);
                        for m in 0..M {
                            let [low, high] = (*activations.add(m)).sums;
                            let total = if !HALVES { low + high } else { [low, high][half] };
                            sums[t][m] = L::fma(min, L::splat(total), sums[t][m]);
                        }
                    }
                }
            }
        }
    }
}
