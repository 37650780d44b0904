//! Floats times f32 activations: dense floats, and 8-bit floats with a scale per 32 columns.

// Register blocks are indexed by tile and token on purpose: the loops unroll into registers, and the index
// names the register.
#![allow(clippy::needless_range_loop)]

use std::marker::PhantomData;

use half::{bf16, f16};

use super::{E4M3, Format, Operand, factor, quant};
use crate::backend::cpu::isa::{LANES, Lanes};
use crate::backend::cpu::memory::prefetch::Prefetch;
use crate::backend::cpu::pack::{FloatGroup, GROUP, Layout, PANEL};

/// `Dense<f32>`, `Dense<f16>`, `Dense<bf16>`, `Dense<E4m3>`.
pub(crate) struct Dense<E>(PhantomData<E>);

/// An 8-bit float (E4M3).
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct E4m3(u8);

/// An element of a dense matrix.
pub(crate) trait Element: Copy + Sync {
    const LAYOUT: Layout;
    /// Whether a row's 32 elements share a scale.
    const SCALED: bool = matches!(Self::LAYOUT, Layout::Quant { .. });
    /// Sixteen elements, widened.
    unsafe fn load<L: Lanes>(p: *const Self) -> L::F;
}

macro_rules! elements {
    ($($element:ty, $layout:expr, $load:ident;)*) => {$(
        impl Element for $element {
            const LAYOUT: Layout = $layout;
            #[inline(always)]
            unsafe fn load<L: Lanes>(p: *const Self) -> L::F {
                // SAFETY: the caller promises sixteen readable elements.
                unsafe { L::$load(p.cast()) }
            }
        }
    )*};
}

elements! {
    f32, Layout::F32, load;
    f16, Layout::F16, load_f16;
    bf16, Layout::Bf16, load_bf16;
    E4m3, quant(E4M3, false, false), load_e4m3;
}

impl<E: Element> Format for Dense<E> {
    const LAYOUT: Layout = E::LAYOUT;
    type Record = FloatGroup;

    #[inline(always)]
    unsafe fn group<L: Lanes, P: Prefetch, const T: usize, const M: usize>(
        weights: *const u8,
        _later: *const u8,
        tile: usize,
        activations: &Operand<FloatGroup>,
        sums: &mut [[L::F; M]; T],
    ) {
        let activations = activations.first;
        let elements = weights.cast::<E>();
        // SAFETY: all reads stay within the group and the records.
        unsafe {
            let mut products = [[L::splat(0.0); M]; T];
            for k in 0..GROUP {
                for t in 0..T {
                    let weight = E::load::<L>(elements.add(k * PANEL + (tile + t) * LANES));
                    for m in 0..M {
                        let x = L::splat((*activations.add(m)).values[k]);
                        products[t][m] = L::fma(weight, x, products[t][m]);
                    }
                }
            }
            for t in 0..T {
                if E::SCALED {
                    let scale = factor::<L>(E::LAYOUT, weights, 0, tile + t);
                    for m in 0..M {
                        sums[t][m] = L::fma(products[t][m], scale, sums[t][m]);
                    }
                    continue;
                }
                for m in 0..M {
                    sums[t][m] = L::add(sums[t][m], products[t][m]);
                }
            }
        }
    }
}
