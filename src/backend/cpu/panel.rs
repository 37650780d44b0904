//! The matrix kernels: a panel of 32 weight rows times a block of tokens, for each weight format,
//! in int8 or in f32, and what becomes of the products.
//!
//! A block's f32 sums stay in registers while the panel's groups stream by. Within a group int8
//! products are summed exactly in i32, starting at minus zero point times the sum of activations;
//! then the group's sum is scaled and added. Each element of a result goes through the same
//! operations in the same order whatever the block's size, so a row's bits do not depend on its
//! neighbours.

// Register blocks are indexed by tile and token on purpose: the loops unroll into registers, and
// the index says which of them.
#![allow(clippy::needless_range_loop)]

use std::marker::PhantomData;

use half::{bf16, f16};

use super::activations::{FloatGroup, GROUP, Int8Group, block_len};
use super::dispatch::{Isa, Kernel, entry};
use super::lanes::{LANES, Lanes};
use super::pack::{Layout, PANEL};
use crate::backend::Activation;
use crate::quant::Bits;

/// What a kernel does with its sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finish {
    /// `dst = y`
    Store,
    /// `dst += y`
    Add,
    /// `dst *= y`
    Multiply,
    /// `dst = activation(dst)`, without a product
    Activate(Activation),
}

/// A product of all tokens with one packed matrix.
#[derive(Clone, Copy, Debug)]
pub(super) struct PanelArgs {
    /// [`Panels`] of the matrix's format.
    pub(super) run: unsafe fn(&PanelArgs, Isa, usize),
    pub(super) weights: *const u8,
    pub(super) panel_bytes: usize,
    /// Groups of 32 columns.
    pub(super) groups: usize,
    /// Rows of the matrix.
    pub(super) rows: usize,
    /// Rows of activations: `terms` for each token.
    pub(super) tokens: usize,
    /// 2 where the product of every second row is added to that of the row before, else 1.
    pub(super) terms: usize,
    /// Of the kind that the format reads: [`Int8Group`] or [`FloatGroup`].
    pub(super) activations: *const u8,
    /// `[tokens / terms, rows]`
    pub(super) dst: *mut f32,
    /// `[rows]` or null.
    pub(super) bias: *const f32,
    pub(super) finish: Finish,
    /// Panels of the operation's products before this one.
    pub(super) first_panel: usize,
}

// SAFETY: whoever shares it vouches for its pointers ([`Kernel::run`]).
unsafe impl Send for PanelArgs {}
// SAFETY: as above.
unsafe impl Sync for PanelArgs {}

/// Does one panel of a product with format `W`, on instruction set `isa`.
///
/// # Safety
/// As [`Kernel::run`]: `isa` is available, the panel exists, the pointers are valid for the
/// shapes, and no other thread touches the panel's columns of `dst`.
pub(super) unsafe fn run_panel<W: Format>(args: &PanelArgs, isa: Isa, panel: usize) {
    let kernel = Panels::<W>(args, PhantomData);
    // SAFETY: the same contract.
    unsafe { entry::<Panels<'_, W>>(isa)(&kernel, panel, 0) }
}

/// The panels of one product.
struct Panels<'a, W>(&'a PanelArgs, PhantomData<W>);

impl<W: Format> Kernel for Panels<'_, W> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(&self, panel: usize, _worker: usize) {
        // SAFETY: the same contract; tiles beyond the matrix's rows are left out.
        unsafe {
            if L::BOTH_TILES {
                self.tokens::<L, 2>(panel, 0);
            } else {
                self.tokens::<L, 1>(panel, 0);
                if panel * PANEL + LANES < self.0.rows {
                    self.tokens::<L, 1>(panel, 1);
                }
            }
        }
    }
}

impl<W: Format> Panels<'_, W> {
    /// All tokens times `T` tiles from `tile` on.
    #[inline(always)]
    unsafe fn tokens<L: Lanes, const T: usize>(&self, panel: usize, tile: usize) {
        let mut start = 0;
        while start < self.0.tokens {
            let len = block_len::<L>(self.0.tokens - start);
            // SAFETY: the block lies within the tokens. A `const` condition keeps the compiler
            // from making blocks that no instruction set with few registers ever runs.
            unsafe {
                if const { L::TOKENS > 2 } && len > 2 {
                    match len {
                        4 => self.block::<L, T, 4>(panel, tile, start),
                        _ => self.block::<L, T, 6>(panel, tile, start),
                    }
                } else if len == 2 {
                    self.block::<L, T, 2>(panel, tile, start);
                } else {
                    self.block::<L, T, 1>(panel, tile, start);
                }
            }
            start += len;
        }
    }

    /// `M` tokens times `T` tiles.
    #[inline(always)]
    unsafe fn block<L: Lanes, const T: usize, const M: usize>(
        &self,
        panel: usize,
        tile: usize,
        start: usize,
    ) {
        let args = self.0;
        // SAFETY: the panel is `groups` records of the format; the block's activations are
        // `groups · M` records from `start · groups` on; the tokens' rows of `dst` exist.
        unsafe {
            let mut sums = [[L::splat(0.0); M]; T];
            let mut weights = args.weights.add(panel * args.panel_bytes);
            let mut activations = args.activations.cast::<W::Record>().add(start * args.groups);
            // The last of several blocks finds its weights in the cache and leaves the memory
            // idle: it asks for the next panel. Eight tokens of [960, 576] Q4_1 on one Zen 5 core:
            // 27 us without, 21 us with, 18 us with two blocks of 4 instead of 6 and 2.
            let last = start != 0 && start + M == args.tokens;
            let lines = if last { W::LAYOUT.group_bytes() / 64 } else { 0 };
            for _ in 0..args.groups {
                for line in 0..lines {
                    L::prefetch(weights.wrapping_add(args.panel_bytes + 64 * line));
                }
                W::group::<L, T, M>(weights, tile, activations, &mut sums);
                weights = weights.add(W::LAYOUT.group_bytes());
                activations = activations.add(M);
            }
            // Through memory, so that what follows is one small loop and not T · M copies of it.
            let mut results = [[[0.0f32; LANES]; M]; T];
            for t in 0..T {
                for m in 0..M {
                    L::store(results[t][m].as_mut_ptr(), sums[t][m]);
                }
            }
            for (t, results) in results.iter().enumerate() {
                let row = panel * PANEL + (tile + t) * LANES;
                for (m, result) in results.iter().enumerate() {
                    self.finish::<L>(row, start + m, L::load(result.as_ptr()));
                }
            }
        }
    }

    /// Sixteen sums of one token, from matrix row `row` on.
    #[inline(always)]
    unsafe fn finish<L: Lanes>(&self, row: usize, token: usize, sums: L::F) {
        let args = self.0;
        let lanes = args.rows.saturating_sub(row).min(LANES);
        if lanes == 0 {
            return;
        }
        // SAFETY: `lanes` elements from `row` on exist in the token's row of `dst` and in the bias.
        unsafe {
            let dst = args.dst.add(token / args.terms * args.rows + row);
            let mut y = sums;
            if token % args.terms != 0 {
                store_up_to::<L>(dst, lanes, L::add(load_up_to::<L>(dst, lanes), y));
                return;
            }
            if !args.bias.is_null() {
                y = L::add(y, load_up_to::<L>(args.bias.add(row), lanes));
            }
            match args.finish {
                Finish::Store | Finish::Activate(_) => {}
                Finish::Add => y = L::add(load_up_to::<L>(dst, lanes), y),
                Finish::Multiply => y = L::mul(load_up_to::<L>(dst, lanes), y),
            }
            store_up_to::<L>(dst, lanes, y);
        }
    }
}

/// The first `n` lanes, all of them on the fast path.
#[inline(always)]
unsafe fn load_up_to<L: Lanes>(p: *const f32, n: usize) -> L::F {
    // SAFETY: `n` elements are readable by contract.
    unsafe { if n == LANES { L::load(p) } else { L::load_partial(p, n) } }
}

/// The first `n` lanes, all of them on the fast path.
#[inline(always)]
unsafe fn store_up_to<L: Lanes>(p: *mut f32, n: usize, v: L::F) {
    // SAFETY: `n` elements are writable by contract.
    unsafe { if n == LANES { L::store(p, v) } else { L::store_partial(p, n, v) } }
}

/// Applies [`Finish::Activate`] to a panel's columns of `dst`.
///
/// # Safety
/// As [`run_panel`].
pub(super) unsafe fn activate_panel(args: &PanelArgs, isa: Isa, panel: usize) {
    // SAFETY: the same contract.
    unsafe { entry::<Activate<'_>>(isa)(&Activate(args), panel, 0) }
}

struct Activate<'a>(&'a PanelArgs);

impl Kernel for Activate<'_> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(&self, panel: usize, _worker: usize) {
        let args = self.0;
        let rows = panel * PANEL..((panel + 1) * PANEL).min(args.rows);
        for token in 0..args.tokens {
            for row in rows.clone().step_by(LANES) {
                let lanes = (rows.end - row).min(LANES);
                // SAFETY: `lanes` elements from `row` on exist in the token's row of `dst`.
                unsafe {
                    let dst = args.dst.add(token * args.rows + row);
                    let x = load_up_to::<L>(dst, lanes);
                    let y = match args.finish {
                        Finish::Activate(Activation::GeluTanh) => L::gelu_tanh(x),
                        _ => L::silu(x),
                    };
                    store_up_to::<L>(dst, lanes, y);
                }
            }
        }
    }
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
    /// `weights` is a group of `LAYOUT`, `activations` are `M` records, the CPU has `L`'s features.
    unsafe fn group<L: Lanes, const T: usize, const M: usize>(
        weights: *const u8,
        tile: usize,
        activations: *const Self::Record,
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
        activations: *const Int8Group,
        sums: &mut [[L::F; M]; T],
    ) {
        // SAFETY: all reads stay within the group and the records.
        unsafe {
            let halves = 1 + HALVES as usize;
            for half in 0..halves {
                let mut dots = [[L::splat_i32(0); M]; T];
                for m in 0..M {
                    let start = Self::start::<L>(activations.add(m), half);
                    for t in 0..T {
                        dots[t][m] = start;
                    }
                }
                if FOUR {
                    for j in 0..4 {
                        for t in 0..T {
                            let (low, high) = L::nibbles(quad(weights, tile + t, j));
                            for m in 0..M {
                                let codes = (&raw const (*activations.add(m)).codes).cast::<i8>();
                                if !HALVES || half == 0 {
                                    dots[t][m] = L::dot_nibbles(dots[t][m], low, codes.add(4 * j));
                                }
                                if !HALVES || half == 1 {
                                    dots[t][m] = L::dot_nibbles(dots[t][m], high, codes.add(4 * j + 16));
                                }
                            }
                        }
                    }
                } else {
                    for kq in half * 4..half * 4 + 8 / halves {
                        for t in 0..T {
                            let row_codes = L::bytes(quad(weights, tile + t, kq));
                            for m in 0..M {
                                let codes = (&raw const (*activations.add(m)).codes).cast::<i8>();
                                dots[t][m] = L::dot_bytes(dots[t][m], row_codes, codes.add(4 * kq));
                            }
                        }
                    }
                }
                for t in 0..T {
                    let scale = factor::<L>(Self::LAYOUT, weights, half, tile + t);
                    for m in 0..M {
                        let value = L::mul(L::to_f32(dots[t][m]), scale);
                        let activation_scale = L::splat((*activations.add(m)).scale);
                        sums[t][m] = L::fma(value, activation_scale, sums[t][m]);
                    }
                    if MINS {
                        let min = factor::<L>(Self::LAYOUT, weights, halves + half, tile + t);
                        for m in 0..M {
                            let total = Self::scaled_sum(activations.add(m), half);
                            sums[t][m] = L::fma(min, L::splat(total), sums[t][m]);
                        }
                    }
                }
            }
        }
    }
}

impl<const FOUR: bool, const MINS: bool, const HALVES: bool> Int8<FOUR, MINS, HALVES> {
    /// Minus the zero point, as the dot product sees it, times the sum of activations.
    #[inline(always)]
    unsafe fn start<L: Lanes>(record: *const Int8Group, half: usize) -> L::I {
        // SAFETY: a whole record.
        unsafe {
            let neg_sum = match (HALVES, half) {
                (false, _) => (*record).neg_sum,
                (true, 0) => (*record).neg_low,
                (true, _) => (*record).neg_sum.wrapping_sub((*record).neg_low),
            };
            let bias = if FOUR { 0 } else { L::BYTE_BIAS };
            match Self::LAYOUT.zero_point() - bias {
                8 => L::shl::<3>(L::splat_i32(neg_sum)),
                128 => L::shl::<7>(L::splat_i32(neg_sum)),
                -128 => L::sub_i32(L::splat_i32(0), L::shl::<7>(L::splat_i32(neg_sum))),
                _ => L::splat_i32(0),
            }
        }
    }

    /// The activation's scale times the sum of its codes.
    #[inline(always)]
    unsafe fn scaled_sum(record: *const Int8Group, half: usize) -> f32 {
        // SAFETY: a whole record.
        unsafe {
            match (HALVES, half) {
                (false, _) => (*record).scaled_sum,
                (true, 0) => -(*record).scale * (*record).neg_low as f32,
                (true, _) => -(*record).scale * (*record).neg_sum.wrapping_sub((*record).neg_low) as f32,
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
        activations: *const FloatGroup,
        sums: &mut [[L::F; M]; T],
    ) {
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
        let bias = if FOUR { 0 } else { L::BYTE_BIAS };
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
        activations: *const FloatGroup,
        sums: &mut [[L::F; M]; T],
    ) {
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
