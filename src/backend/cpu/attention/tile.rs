//! A tile: rows of one sequence that share a key head, and their walk through the splits.

use super::{Items, SPLIT, TILE_ROWS};
use crate::backend::cpu::isa::{LANES, Lanes};
use crate::backend::cpu::memory::KvLayer;
use crate::ir::{Attention, Heads, PAGE_TOKENS, PageRef, StepSequence};

/// All keys of a page.
pub(super) const WHOLE: u32 = (1 << PAGE_TOKENS) - 1;

/// The pages read after a split, for prefetching.
#[derive(Clone, Copy)]
pub(super) struct Next<'a> {
    pub(super) pages: &'a [PageRef],
    pub(super) kv_head: usize,
}

/// A row's running softmax: the largest score so far, and the sum of `e^(score - max)`.
#[derive(Clone, Copy)]
pub(super) struct OnlineSoftmax {
    pub(super) max: f32,
    pub(super) sum: f32,
}

/// Factors for the values so far, and for the values that join them.
pub(super) type Factors = [f32; 2];

impl OnlineSoftmax {
    /// No keys yet.
    pub(super) const EMPTY: OnlineSoftmax = OnlineSoftmax { max: f32::NEG_INFINITY, sum: 0.0 };

    /// Adds the keys of `other`.
    #[inline(always)]
    pub(super) unsafe fn join<L: Lanes>(&mut self, other: OnlineSoftmax) -> Factors {
        if other.sum == 0.0 {
            return [1.0, 0.0];
        }
        let max = self.max.max(other.max);
        // SAFETY: register arithmetic. The lanes' own polynomial, so that it agrees with the weights'; it
        // gives 0 for a state without keys.
        let factors = unsafe { [exp::<L>(self.max - max), exp::<L>(other.max - max)] };
        *self = OnlineSoftmax { max, sum: self.sum * factors[0] + other.sum * factors[1] };
        factors
    }

    /// Divides the values by the sum; a row without keys gets 0.
    #[inline(always)]
    pub(super) unsafe fn finish<L: Lanes>(&self, out: *mut f32, dim: usize) {
        let inverse = if self.sum == 0.0 { 0.0 } else { 1.0 / self.sum };
        for col in (0..dim).step_by(LANES) {
            // SAFETY: within the row's `dim` values.
            unsafe {
                let (p, n) = (out.add(col), (dim - col).min(LANES));
                L::store_n(p, n, L::mul(L::load_n(p, n), L::splat(inverse)));
            }
        }
    }

    #[inline(always)]
    pub(super) unsafe fn load(p: *const f32) -> OnlineSoftmax {
        // SAFETY: two elements by contract.
        unsafe { OnlineSoftmax { max: *p, sum: *p.add(1) } }
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: two elements by contract.
        unsafe { (*p, *p.add(1)) = (self.max, self.sum) }
    }
}

/// `out = out · factors[0] + values · factors[1]`, the first `n` elements.
#[inline(always)]
pub(super) unsafe fn blend<L: Lanes>(out: *mut f32, n: usize, values: L::F, factors: Factors) {
    // SAFETY: `n` elements by contract.
    unsafe {
        let [old, new] = [L::splat(factors[0]), L::splat(factors[1])];
        L::store_n(out, n, L::fma(values, new, L::mul(L::load_n(out, n), old)));
    }
}

#[inline(always)]
unsafe fn exp<L: Lanes>(x: f32) -> f32 {
    // SAFETY: register arithmetic; the caller vouches for the CPU's features.
    unsafe { L::reduce_max(L::exp(L::splat(x))) }
}

/// Rows of one sequence that share a key head.
pub(super) struct Tile<'a> {
    pub(super) layer: KvLayer,
    pub(super) op: &'a Attention,
    sequence: &'a StepSequence,
    pub(super) kv_head: usize,
    pub(super) rows: usize,
    pub(super) q: [*const f32; TILE_ROWS],
    /// `dim` values per row, not yet divided by the sum.
    pub(super) out: [*mut f32; TILE_ROWS],
    position: [u32; TILE_ROWS],
    pub(super) state: [OnlineSoftmax; TILE_ROWS],
}

impl<'a> Tile<'a> {
    /// Tile `tile` of a sequence and a key head. It writes the operation's outputs, or the partial results of
    /// `split` if splits are joined later.
    #[inline(always)]
    pub(super) fn new(
        items: &Items<'a>,
        sequence: &'a StepSequence,
        kv_head: usize,
        tile: usize,
        split: usize,
    ) -> Tile<'a> {
        let Heads { query, dim, .. } = items.op.heads;
        let group = items.group();
        let first = tile * items.tile_rows;
        let end = (first + items.tile_rows).min(sequence.rows.len() * group);
        let mut made = Tile {
            layer: items.layer,
            op: items.op,
            sequence,
            kv_head,
            rows: end - first,
            q: [std::ptr::null(); TILE_ROWS],
            out: [std::ptr::null_mut(); TILE_ROWS],
            position: [0; TILE_ROWS],
            state: [OnlineSoftmax::EMPTY; TILE_ROWS],
        };
        for (i, row) in (first..end).enumerate() {
            let token = sequence.rows.start as usize + row / group;
            let row = token * query + kv_head * group + row % group;
            made.q[i] = items.q.ptr.wrapping_add(row * dim);
            made.out[i] = match items.partials {
                None => items.dst.ptr.wrapping_add(row * dim),
                Some(partials) => partials.at(row, split),
            };
            made.position[i] = items.step.positions[token];
        }
        made
    }

    /// Walks all splits of these pages. `next` is prefetched.
    ///
    /// # Safety
    /// The pages are the sequence's, the CPU has the features of `L`.
    #[inline(always)]
    pub(super) unsafe fn whole<L: Lanes>(mut self, pages: &[PageRef], next: Next<'_>) {
        // SAFETY: the caller promises pages of this sequence and the CPU's features, as `split` wants.
        unsafe {
            self.clear();
            let mut splits = pages.chunk_by(|a, b| a.start / SPLIT == b.start / SPLIT).peekable();
            while let Some(split) = splits.next() {
                let rest = splits.peek().map(|&pages| Next { pages, kv_head: self.kv_head });
                self.split::<L>(split, rest.unwrap_or(next));
            }
            for row in 0..self.rows {
                self.state[row].finish::<L>(self.out[row], self.op.heads.dim);
            }
        }
    }

    /// Walks the pages of one split and stores the state after the values. `next` is prefetched.
    ///
    /// # Safety
    /// As for [`Tile::whole`]; outputs have room for the state.
    #[inline(always)]
    pub(super) unsafe fn part<L: Lanes>(mut self, pages: &[PageRef], next: Next<'_>) {
        // SAFETY: the caller promises pages of one split and the CPU's features, as `split` wants.
        unsafe {
            self.clear();
            self.split::<L>(pages, next);
            for row in 0..self.rows {
                self.state[row].store(self.out[row].add(self.op.heads.dim));
            }
        }
    }

    unsafe fn clear(&mut self) {
        for out in &self.out[..self.rows] {
            // SAFETY: each output has `dim` elements and is this tile's.
            unsafe { out.write_bytes(0, self.op.heads.dim) };
        }
    }

    /// Computes all rows on the pages of one split, in blocks that fit the registers.
    #[inline(always)]
    unsafe fn split<L: Lanes>(&mut self, pages: &[PageRef], next: Next<'_>) {
        let mut row = 0;
        while row < self.rows {
            // SAFETY: the rows exist. A `const` condition keeps the compiler from making blocks
            // that no instruction set with few registers ever runs.
            row += unsafe {
                match self.rows - row {
                    8.. if const { L::WIDE } => self.rows_on_split::<L, 8, 2, 2>(pages, next, row),
                    4.. if const { L::WIDE } => self.rows_on_split::<L, 4, 4, 4>(pages, next, row),
                    3 if const { L::WIDE } => self.rows_on_split::<L, 3, 4, 4>(pages, next, row),
                    2.. => self.rows_on_split::<L, 2, 2, 2>(pages, next, row),
                    _ => self.rows_on_split::<L, 1, 2, 2>(pages, next, row),
                }
            };
        }
    }

    /// Bitmask of the keys of a page that are visible to a row.
    #[inline(always)]
    pub(super) fn visible(&self, row: usize, start: u32) -> u32 {
        let position = self.position[row];
        // Bits below `n` positions after the page's start.
        let below = |n: u32| (1u32 << n.min(PAGE_TOKENS as u32)) - 1;
        let from = |oldest: u32| WHOLE & !below(oldest.saturating_sub(start));
        let past = below((position + 1).saturating_sub(start));
        let layer = self.op.window.map_or(WHOLE, |window| from((position + 1).saturating_sub(window)));
        let sequence = self.sequence.window.map_or(WHOLE, |window| {
            from((position + 1).saturating_sub(window.window)) | below(window.sinks.saturating_sub(start))
        });
        past & layer & sequence
    }
}

/// Sets scores of hidden keys to minus infinity, whatever they were.
pub(super) fn hide(scores: &mut [f32], seen: u32) {
    for (key, score) in scores.iter_mut().enumerate() {
        if seen >> key & 1 == 0 {
            *score = f32::NEG_INFINITY;
        }
    }
}
