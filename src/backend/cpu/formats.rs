//! How one group of 32 columns is multiplied, for each weight format: codes with int8 activations,
//! codes with f32 activations, dense floats. The loop over groups, and what becomes of the sums,
//! are in `panel`; the packed order is in `pack`.

// Register blocks are indexed by tile and token on purpose: the loops unroll into registers, and
// the index says which of them.
#![allow(clippy::needless_range_loop)]

use std::hint::black_box;
use std::marker::PhantomData;

use half::{bf16, f16};

use super::activations::{FloatGroup, GROUP, Int8Group, SECOND_BITS};
use super::lanes::{LANES, Lanes, for_each};
use super::pack::{Layout, PANEL};
use crate::quant::Bits;

/// A block's activations of one group, a record a token; with two terms those of the second as well.
pub(super) struct Operand<R> {
    pub(super) first: *const R,
    /// Nothing that may be read unless `two`.
    pub(super) second: *const R,
    pub(super) two: bool,
}

/// How one group of a panel is multiplied.
pub(super) trait Format: Sync {
    /// The packed order.
    const LAYOUT: Layout;
    /// The activations that it reads.
    type Record;

    /// `sums[t][m] += tile (tile + t) of the group · activations[m]`
    ///
    /// # Safety
    /// `weights` is a group of `LAYOUT`, `activations` are `M` records a term, the CPU has `L`'s features.
    unsafe fn group<L: Lanes, const T: usize, const M: usize>(
        weights: *const u8,
        tile: usize,
        activations: &Operand<Self::Record>,
        sums: &mut [[L::F; M]; T],
    );
}

const fn quant(four: bool, mins: bool, halves: bool) -> Layout {
    Layout::Quant { bits: if four { Bits::Four } else { Bits::Eight }, mins, halves }
}

/// Codes times int8 activations.
pub(super) struct Int8<const FOUR: bool, const MINS: bool, const HALVES: bool>;

impl<const FOUR: bool, const MINS: bool, const HALVES: bool> Format for Int8<FOUR, MINS, HALVES> {
    const LAYOUT: Layout = quant(FOUR, MINS, HALVES);
    type Record = Int8Group;

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

impl<const FOUR: bool, const MINS: bool, const HALVES: bool> Int8<FOUR, MINS, HALVES> {
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
            Self::dots::<L, T, M, HALF>(weights, tile, first, &mut dots);
            if two {
                for m in 0..M {
                    let start = Self::start::<L>(second.add(m), HALF);
                    for t in 0..T {
                        dots[t][m] = L::add_i32(L::shl::<SECOND_BITS>(dots[t][m]), start);
                    }
                }
                // Many tokens leave no registers for a group's codes between the terms: the compiler
                // shall read them again and not store what it has unpacked.
                let again = if M > 2 { black_box(weights) } else { weights };
                Self::dots::<L, T, M, HALF>(again, tile, second, &mut dots);
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
            if FOUR {
                for_each!([0 1 2 3] Q => {
                    for t in 0..T {
                        let (low, high) = L::nibbles(quad(weights, tile + t, Q));
                        for m in 0..M {
                            if !HALVES || HALF == 0 {
                                dots[t][m] = L::dot_nibbles::<Q>(dots[t][m], low, a[0][m]);
                            }
                            if !HALVES || HALF == 1 {
                                dots[t][m] = L::dot_nibbles::<Q>(dots[t][m], high, a[1][m]);
                            }
                        }
                    }
                });
            } else {
                for_each!([0 1 2 3 4 5 6 7] KQ => {
                    if !HALVES || HALF == KQ / 4 {
                        for t in 0..T {
                            let codes = L::bytes(quad(weights, tile + t, KQ));
                            for m in 0..M {
                                dots[t][m] = L::dot_bytes::<{ KQ % 4 }>(dots[t][m], codes, a[KQ / 4][m]);
                            }
                        }
                    }
                });
            }
        }
    }

    /// Minus the zero point, as the dot product sees it, times the sum of activations.
    #[inline(always)]
    unsafe fn start<L: Lanes>(record: *const Int8Group, half: usize) -> L::I {
        // SAFETY: a whole record.
        unsafe {
            let bias = if FOUR { 0 } else { i32::from(L::BYTE_BIAS) };
            let zero = L::splat_i32(0);
            match (Self::LAYOUT.zero_point() - bias, HALVES) {
                (8, false) => L::splat_i32((*record).neg_sum_8),
                (128, false) => L::splat_i32((*record).neg_sum_128),
                (-128, false) => L::sub_i32(zero, L::splat_i32((*record).neg_sum_128)),
                (8, true) => L::shl::<3>(L::splat_i32((*record).neg_halves[half])),
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

/// Codes times f32 activations.
pub(super) struct Float<const FOUR: bool, const MINS: bool, const HALVES: bool>;

impl<const FOUR: bool, const MINS: bool, const HALVES: bool> Format for Float<FOUR, MINS, HALVES> {
    const LAYOUT: Layout = quant(FOUR, MINS, HALVES);
    type Record = FloatGroup;

    #[inline(always)]
    unsafe fn group<L: Lanes, const T: usize, const M: usize>(
        weights: *const u8,
        tile: usize,
        activations: &Operand<FloatGroup>,
        sums: &mut [[L::F; M]; T],
    ) {
        let activations = activations.first;
        // SAFETY: all reads stay within the group and the records.
        unsafe {
            let halves = 1 + HALVES as usize;
            for half in 0..halves {
                let mut products = [[L::splat(0.0); M]; T];
                for kq in half * 4..half * 4 + 8 / halves {
                    for t in 0..T {
                        let at = if FOUR { kq % 4 } else { kq };
                        let p = quad(weights, tile + t, at);
                        let codes = match (FOUR, kq / 4) {
                            (false, _) => L::bytes(p),
                            (true, 0) => L::nibbles(p).0,
                            (true, _) => L::nibbles(p).1,
                        };
                        let lanes = Self::lanes::<L>(codes);
                        for (k, weight) in lanes.into_iter().enumerate() {
                            for m in 0..M {
                                let x = L::splat((*activations.add(m)).values[4 * kq + k]);
                                products[t][m] = L::fma(weight, x, products[t][m]);
                            }
                        }
                    }
                }
                for t in 0..T {
                    let scale = factor::<L>(Self::LAYOUT, weights, half, tile + t);
                    for m in 0..M {
                        sums[t][m] = L::fma(products[t][m], scale, sums[t][m]);
                    }
                    if MINS {
                        let min = factor::<L>(Self::LAYOUT, weights, halves + half, tile + t);
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

impl<const FOUR: bool, const MINS: bool, const HALVES: bool> Float<FOUR, MINS, HALVES> {
    /// Codes less their zero point, a vector for each of four columns.
    #[inline(always)]
    unsafe fn lanes<L: Lanes>(codes: L::C) -> [L::F; 4] {
        let bias = if FOUR { 0 } else { i32::from(L::BYTE_BIAS) };
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

/// 64 bytes of codes of a tile: its columns `4 kq ..`.
#[inline(always)]
unsafe fn quad(weights: *const u8, tile: usize, kq: usize) -> *const u8 {
    // SAFETY: within the group's codes.
    unsafe { weights.add((2 * kq + tile) * 4 * LANES) }
}

/// The scales (sets 0..) or mins (after them) of a tile.
#[inline(always)]
unsafe fn factor<L: Lanes>(layout: Layout, weights: *const u8, set: usize, tile: usize) -> L::F {
    // SAFETY: within the group, behind its codes.
    unsafe { L::load_f16(weights.add(layout.code_bytes() + 2 * (set * PANEL + tile * LANES)).cast::<f16>()) }
}

/// Floats times f32 activations; `Dense<f32>`, `Dense<f16>`, `Dense<bf16>`.
pub(super) struct Dense<E>(PhantomData<E>);

/// An element of a dense matrix.
pub(super) trait Element: Copy + Sync {
    const LAYOUT: Layout;
    /// Sixteen elements, widened.
    unsafe fn load<L: Lanes>(p: *const Self) -> L::F;
}

macro_rules! elements {
    ($($element:ty, $layout:ident, $load:ident;)*) => {$(
        impl Element for $element {
            const LAYOUT: Layout = Layout::$layout;
            #[inline(always)]
            unsafe fn load<L: Lanes>(p: *const Self) -> L::F {
                // SAFETY: the same contract.
                unsafe { L::$load(p) }
            }
        }
    )*};
}

elements! {
    f32, F32, load;
    f16, F16, load_f16;
    bf16, Bf16, load_bf16;
}

impl<E: Element> Format for Dense<E> {
    const LAYOUT: Layout = E::LAYOUT;
    type Record = FloatGroup;

    #[inline(always)]
    unsafe fn group<L: Lanes, const T: usize, const M: usize>(
        weights: *const u8,
        tile: usize,
        activations: &Operand<FloatGroup>,
        sums: &mut [[L::F; M]; T],
    ) {
        let activations = activations.first;
        let weights = weights.cast::<E>();
        // SAFETY: all reads stay within the group and the records.
        unsafe {
            let mut products = [[L::splat(0.0); M]; T];
            for k in 0..GROUP {
                for t in 0..T {
                    let weight = E::load::<L>(weights.add(k * PANEL + (tile + t) * LANES));
                    for m in 0..M {
                        let x = L::splat((*activations.add(m)).values[k]);
                        products[t][m] = L::fma(weight, x, products[t][m]);
                    }
                }
            }
            for t in 0..T {
                for m in 0..M {
                    sums[t][m] = L::add(sums[t][m], products[t][m]);
                }
            }
        }
    }
}
