//! Loop nest of the matrix kernels: a panel of 32 weight rows times a block of tokens, and the epilogue.
//! `formats` multiplies one group, per weight format; `prefetch` has the prefetches.
//!
//! ```text
//! for K block (fits L1)               // more than one only with 8 to 16 tokens
//!   for block of ≤ 6 tokens           // f32 sums in registers; in memory between K blocks
//!     for group of 32 columns         // exact i32 dot products, then scale and add
//! ```
//!
//! The order of operations per output does not depend on the block's size, so a row's bits are independent of
//! its neighbours.

mod prefetch;

use std::hint::black_box;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::slice;

use super::formats::{Format, Operand};
use crate::backend::cpu::isa::{Isa, Kernel, LANES, Lanes, Tile, entry};
use crate::backend::cpu::memory::prefetch::{IntoL2, NonTemporal, Off, Prefetch};
use crate::backend::cpu::pack::{PANEL, Record, block_len, in_blocks, residuals};
use crate::backend::cpu::tuning::PrefetchHint;
use crate::ir::Activation;
use prefetch::Prefetcher;

/// With fewer tokens the first block prefetches all weights (if it has more than one token), and panels are
/// not cut into K blocks.
const FEW: usize = 8;
/// With more tokens panels are not cut either: storing and loading the sums would cost more than it
/// gains.
const SEVERAL: usize = 16;

/// Groups from which a panel is long. With shorter panels one token loses up to 1.6 % by a shorter prefetch
/// distance.
const LONG: usize = 64;

/// Blocks of sixteen tokens for which AMX unpacks a panel's codes once.
const BLOCKS: usize = 16;

/// Epilogue: the use of a kernel's sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finish {
    /// `dst = y`
    Store,
    /// `dst += y`
    Add,
    /// `dst *= y`
    Multiply,
    /// `dst = activation(dst)`, without a product
    Activate(Activation),
}

/// [`run_panel`] for one format, or [`activate_panel`]. The last argument is the address of the weights read
/// next.
pub(crate) type RunPanel = unsafe fn(&PanelArgs, Isa, usize, *const u8);

/// A product of all tokens with one packed matrix.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PanelArgs {
    pub(crate) run: RunPanel,
    pub(crate) weights: *const u8,
    pub(crate) panel_bytes: usize,
    /// Groups of 32 columns.
    pub(crate) groups: usize,
    /// Rows of the matrix.
    pub(crate) rows: usize,
    pub(crate) tokens: usize,
    /// Groups per K block: all blocks multiply one K block before the next begins ([`k_block_groups`]).
    pub(crate) k_block_groups: usize,
    /// Hint of a single token's prefetches, where its loop has them.
    pub(crate) hint: PrefetchHint,
    /// `[tokens · groups]` records of the format's kind. With int8, residual codes follow them
    /// ([`residuals`]).
    pub(crate) activations: *const u8,
    /// `[tokens, rows]`
    pub(crate) dst: *mut f32,
    /// `[rows]` or null.
    pub(crate) bias: *const f32,
    pub(crate) finish: Finish,
    /// Panels of the operation's products before this one.
    pub(crate) first_panel: usize,
}

// SAFETY: callers of [`Kernel::run`] promise that the pointers are valid on every thread.
unsafe impl Send for PanelArgs {}
// SAFETY: as above.
unsafe impl Sync for PanelArgs {}

impl PanelArgs {
    /// Which of this product's panels are among the operation's `panels`.
    pub(crate) fn own_panels(&self, panels: &Range<usize>) -> Range<usize> {
        let own = |panel: usize| panel.saturating_sub(self.first_panel).min(self.rows.div_ceil(PANEL));
        own(panels.start)..own(panels.end)
    }

    /// Where panel `panel` begins, if this product reads weights.
    pub(crate) fn weights_of(&self, panel: usize) -> Option<*const u8> {
        let reads = !matches!(self.finish, Finish::Activate(_));
        reads.then(|| self.weights.wrapping_add(panel * self.panel_bytes))
    }

    /// The K block from group `from` on.
    #[inline(always)]
    fn k_block_from(&self, from: usize) -> KBlock {
        KBlock { from, to: self.groups.min(from + self.k_block_groups), length: self.k_block_groups }
    }

    /// Arguments of a shape for tests, without memory; one row.
    #[cfg(test)]
    pub(crate) fn of_shape(tokens: usize, groups: usize, group_bytes: usize) -> PanelArgs {
        PanelArgs {
            run: activate_panel,
            weights: std::ptr::null(),
            panel_bytes: groups * group_bytes,
            groups,
            rows: 1,
            tokens,
            k_block_groups: k_block_groups(tokens, groups, group_bytes, 48 << 10),
            hint: PrefetchHint::L2,
            activations: std::ptr::null(),
            dst: std::ptr::null_mut(),
            bias: std::ptr::null(),
            finish: Finish::Store,
            first_panel: 0,
        }
    }

    /// Where its weights end.
    pub(crate) fn end(&self) -> *const u8 {
        self.weights.wrapping_add(self.rows.div_ceil(PANEL) * self.panel_bytes)
    }
}

/// Groups of a K block. A panel that fits L1 (of `cache` bytes) with the activations is one K block.
/// Otherwise a K block is at most a third of L1, so that the second block finds it there.
pub(crate) fn k_block_groups(tokens: usize, groups: usize, group_bytes: usize, cache: usize) -> usize {
    if (FEW..=SEVERAL).contains(&tokens) && groups * group_bytes > cache / 6 * 5 {
        let most = (cache / 3 / group_bytes).max(1);
        groups.div_ceil(groups.div_ceil(most))
    } else {
        groups
    }
}

/// Some of a panel's groups.
#[derive(Clone, Copy)]
struct KBlock {
    from: usize,
    to: usize,
    /// Groups of every K block but the last, which may have fewer.
    length: usize,
}

/// Multiplies one panel of a product with format `W` on instruction set `isa`. Prefetches
/// the panel at `next`, of the same length; `next` need not be valid.
///
/// # Safety
/// As [`Kernel::run`]: `isa` is available, the panel exists, the pointers are valid for the
/// shapes, and no other thread touches the panel's columns of `dst`.
pub(crate) unsafe fn run_panel<W: Format>(args: &PanelArgs, isa: Isa, panel: usize, next: *const u8) {
    let kernel = Panels::<W> { args, next, format: PhantomData };
    // SAFETY: the caller promises what `Kernel::run` wants of this panel.
    unsafe { entry::<Panels<'_, W>>(isa)(&kernel, panel, 0) }
}

/// The panels of one product.
struct Panels<'a, W> {
    args: &'a PanelArgs,
    next: *const u8,
    format: PhantomData<W>,
}

// SAFETY: as for `PanelArgs`; `next` is only prefetched.
unsafe impl<W> Sync for Panels<'_, W> {}

impl<W: Format> Kernel for Panels<'_, W> {
    const ON_CODES: bool = W::ON_CODES;

    #[inline(always)]
    unsafe fn run<L: Lanes>(&self, panel: usize, _worker: usize) {
        // SAFETY: `run_panel`'s caller promises the panel; tiles beyond the matrix's rows are left out.
        unsafe {
            if const { L::WIDE } {
                self.tokens::<L, 2>(panel, 0);
            } else {
                let rows = self.args.rows - panel * PANEL;
                // `black_box` hides the count from the compiler, which would otherwise copy all blocks' code
                // per tile.
                for tile in 0..black_box(if rows > LANES { 2 } else { 1 }) {
                    self.tokens::<L, 1>(panel, tile);
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
        if const { T == 2 && L::TILES && <W::Record as Record>::TILES } {
            start = self.args.tokens / LANES * LANES;
            // SAFETY: the first `start` tokens exist, and `run_panel`'s caller promises the panel.
            unsafe { self.tiles::<L>(panel, start) }
        }
        let mut kept = [const { MaybeUninit::<Sums<T>>::uninit() }; SEVERAL];
        let kept = kept.as_mut_ptr().cast::<Sums<T>>();
        let args = self.args;
        for from in (0..args.groups).step_by(args.k_block_groups) {
            let k_block = args.k_block_from(from);
            let mut token = start;
            while token < args.tokens {
                let len = block_len::<L, W::Record>(args.tokens - token);
                // SAFETY: the block lies within the tokens, and its sums within those kept, which are of all
                // tokens where there are several K blocks. A `const` condition keeps the compiler from making
                // blocks that an instruction set never runs.
                unsafe {
                    let kept = kept.add(if args.k_block_groups < args.groups { token - start } else { 0 });
                    match len {
                        6 if const { L::TOKENS == 6 } => {
                            self.block::<L, Off, T, 6>(panel, tile, token, k_block, kept)
                        }
                        4 if const { L::TOKENS >= 4 } => {
                            self.block::<L, Off, T, 4>(panel, tile, token, k_block, kept)
                        }
                        2 if const { L::TOKENS == 6 } => {
                            self.block::<L, Off, T, 2>(panel, tile, token, k_block, kept)
                        }
                        _ if const { !(L::WIDE && W::PREFETCHES) } => {
                            self.block::<L, Off, T, 1>(panel, tile, token, k_block, kept)
                        }
                        _ => match args.hint {
                            PrefetchHint::L2 => {
                                self.block::<L, IntoL2, T, 1>(panel, tile, token, k_block, kept)
                            }
                            PrefetchHint::NonTemporal => {
                                self.block::<L, NonTemporal, T, 1>(panel, tile, token, k_block, kept)
                            }
                        },
                    }
                }
                token += len;
            }
        }
    }

    /// The first `tokens`, a multiple of sixteen, times the panel.
    #[inline(always)]
    unsafe fn tiles<L: Lanes>(&self, panel: usize, tokens: usize) {
        let args = self.args;
        // SAFETY: as in `block`, of some blocks of sixteen tokens.
        unsafe {
            let weights = args.weights.add(panel * args.panel_bytes);
            let mut room = [const { MaybeUninit::<[Tile<f32>; 2]>::uninit() }; BLOCKS];
            for start in (0..tokens).step_by(BLOCKS * LANES) {
                let blocks = BLOCKS.min((tokens - start) / LANES);
                for sums in &mut room[..blocks] {
                    sums.write([Tile([[0.0; LANES]; LANES]); 2]);
                }
                let sums = slice::from_raw_parts_mut(room.as_mut_ptr().cast(), blocks);
                W::blocks::<L>(weights, self.next, args.groups, &self.activations(start), sums);
                for (block, sums) in sums.iter().enumerate() {
                    for (tile, sums) in sums.iter().enumerate() {
                        for (m, sums) in sums.0.iter().enumerate() {
                            let row = panel * PANEL + tile * LANES;
                            self.finish::<L>(row, start + block * LANES + m, L::load(sums.as_ptr()));
                        }
                    }
                }
            }
        }
    }

    /// The activations from token `start` on, the first of a block.
    #[inline(always)]
    fn activations(&self, start: usize) -> Operand<W::Record> {
        let first = self.args.activations.cast::<W::Record>();
        let (second, outliers) = residuals(first.cast_mut(), self.args.tokens * self.args.groups);
        let mut activations = Operand { first, again: black_box(first), second, outliers };
        activations.skip(start * self.args.groups);
        activations
    }

    /// `M` tokens times one K block of `T` tiles. `kept` holds their sums between K blocks.
    // Register blocks are indexed by tile and token on purpose, as in `formats`.
    #[allow(clippy::needless_range_loop)]
    #[inline(always)]
    unsafe fn block<L: Lanes, P: Prefetch, const T: usize, const M: usize>(
        &self,
        panel: usize,
        tile: usize,
        start: usize,
        k_block: KBlock,
        kept: *mut Sums<T>,
    ) {
        let args = self.args;
        let KBlock { from, to, .. } = k_block;
        // SAFETY: the panel is `groups` records of the format; the block's activations are
        // `groups · M` records from `start · groups` on, and in int8 as many residual records, with a byte
        // each; the tokens' rows of `dst` exist, and as many sums, which the first K block writes.
        unsafe {
            let kept_at = |t: usize, m: usize| (&raw mut (*kept.add(m))[t]).cast::<f32>();
            let mut sums = [[L::splat(0.0); M]; T];
            if from > 0 {
                for t in 0..T {
                    for m in 0..M {
                        sums[t][m] = L::load(kept_at(t, m));
                    }
                }
            }
            let group_bytes = W::LAYOUT.group_bytes();
            let whole = args.weights.add(panel * args.panel_bytes);
            let mut weights = whole.add(from * group_bytes);
            let mut activations = self.activations(start);
            activations.skip(from * M);
            // A single token prefetches inside `Format::group` where both tiles run at once. Where tiles run
            // one by one, the first prefetches for both.
            let mut prefetcher = match tile {
                0 if M > 1 || (const { !L::WIDE && W::PREFETCHES } && args.tokens == 1) => {
                    let sharing = in_blocks::<L>(args.tokens);
                    Prefetcher::of(args, group_bytes, [whole, self.next], [start, M, sharing], k_block)
                }
                _ => Prefetcher::none(),
            };
            // From group `last` on, prefetches reach the next panel. Two loops instead of a test
            // per group: a single token has so few instructions per group that a test would show.
            let long = M == 1 && args.groups >= LONG;
            let ahead = if long { W::AHEAD_LONG } else { W::AHEAD } / group_bytes;
            let last = args.groups.saturating_sub(ahead).clamp(from, to);
            let beyond = (last + ahead).saturating_sub(args.groups);
            for (groups, mut later) in [
                (from..last, weights.wrapping_add(ahead * group_bytes)),
                (last..to, self.next.wrapping_add(beyond * group_bytes)),
            ] {
                for _ in groups {
                    prefetcher.issue(later, group_bytes);
                    W::group::<L, P, T, M>(weights, later, tile, &activations, &mut sums);
                    weights = weights.add(group_bytes);
                    later = later.wrapping_add(group_bytes);
                    activations.skip(M);
                }
            }
            // Sums go through memory: the epilogue is one small loop instead of `T · M` unrolled copies.
            for t in 0..T {
                for m in 0..M {
                    L::store(kept_at(t, m), sums[t][m]);
                }
            }
            if to < args.groups {
                return;
            }
            for t in 0..T {
                let row = panel * PANEL + (tile + t) * LANES;
                for m in 0..M {
                    self.finish::<L>(row, start + m, L::load(kept_at(t, m)));
                }
            }
        }
    }

    /// Sixteen sums of one token, from matrix row `row` on.
    #[inline(always)]
    unsafe fn finish<L: Lanes>(&self, row: usize, token: usize, sums: L::F) {
        let args = self.args;
        let lanes = args.rows.saturating_sub(row).min(LANES);
        if lanes == 0 {
            return;
        }
        // SAFETY: `lanes` elements from `row` on exist in the token's row of `dst` and in the bias.
        unsafe {
            let dst = args.dst.add(token * args.rows + row);
            let mut y = sums;
            if !args.bias.is_null() {
                y = L::add(y, L::load_n(args.bias.add(row), lanes));
            }
            match args.finish {
                Finish::Store | Finish::Activate(_) => {}
                Finish::Add => y = L::add(L::load_n(dst, lanes), y),
                Finish::Multiply => y = L::mul(L::load_n(dst, lanes), y),
            }
            L::store_n(dst, lanes, y);
        }
    }
}

/// Sixteen sums of each of `T` tiles, of one token.
type Sums<const T: usize> = [[f32; LANES]; T];

/// Applies [`Finish::Activate`] to a panel's columns of `dst`.
///
/// # Safety
/// As [`run_panel`].
pub(crate) unsafe fn activate_panel(args: &PanelArgs, isa: Isa, panel: usize, _next: *const u8) {
    let Finish::Activate(activation) = args.finish else {
        unreachable!("{:?} has no activation", args.finish)
    };
    // SAFETY: the caller promises what `Kernel::run` wants of this panel.
    unsafe { entry::<Activate<'_>>(isa)(&Activate { args, activation }, panel, 0) }
}

struct Activate<'a> {
    args: &'a PanelArgs,
    activation: Activation,
}

impl Kernel for Activate<'_> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(&self, panel: usize, _worker: usize) {
        let args = self.args;
        let rows = panel * PANEL..((panel + 1) * PANEL).min(args.rows);
        for token in 0..args.tokens {
            for row in rows.clone().step_by(LANES) {
                let lanes = (rows.end - row).min(LANES);
                // SAFETY: `lanes` elements from `row` on exist in the token's row of `dst`.
                unsafe {
                    let dst = args.dst.add(token * args.rows + row);
                    let x = L::load_n(dst, lanes);
                    let y = match self.activation {
                        Activation::GeluTanh => L::gelu_tanh(x),
                        Activation::Gelu => L::gelu(x),
                        Activation::Silu => L::silu(x),
                    };
                    L::store_n(dst, lanes, y);
                }
            }
        }
    }
}
