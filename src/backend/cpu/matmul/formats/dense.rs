//! Floats times f32 activations.

// Register blocks are indexed by tile and token on purpose: the loops unroll into registers, and
// the index says which of them.
#![allow(clippy::needless_range_loop)]

use std::marker::PhantomData;

use half::{bf16, f16};

use super::{Format, Operand};
use crate::backend::cpu::isa::{LANES, Lanes};
use crate::backend::cpu::pack::{FloatGroup, GROUP, Layout, PANEL};

/// `Dense<f32>`, `Dense<f16>`, `Dense<bf16>`.
pub(crate) struct Dense<E>(PhantomData<E>);

/// An element of a dense matrix.
pub(crate) trait Element: Copy + Sync {
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
                // SAFETY: the caller promises sixteen readable elements.
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
        _later: *const u8,
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
