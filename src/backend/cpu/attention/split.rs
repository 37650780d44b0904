//! The arithmetic of a tile's rows on one split: scores, softmax, weighted values. Keys and values are f16,
//! or int8 with scales; sums are f32.
//!
//! A kernel processes `R` rows at once, the keys of `P` pages for the scores and `C` vectors of columns for
//! the values. These blocks use all registers for sums, so that each load is used often.

// Register blocks are indexed on purpose: the loops unroll into registers, and the index names the register.
#![allow(clippy::needless_range_loop)]

use half::f16;

use super::prefetch::{Blocks, prefetch_each, prefetch_line};
use super::tile::{Next, OnlineSoftmax, Tile, WHOLE, blend, hide};
use super::{SPLIT, SPLIT_PAGES};
use crate::backend::cpu::isa::{LANES, Lanes};
use crate::backend::cpu::ops::elementwise::soft_cap;
use crate::ir::{KV_SCALE_GROUP, KvDtype, PAGE_TOKENS, PageRef};

/// A value per key of a split: first its score, then its weight.
type Keys = [f32; SPLIT as usize];

/// The pages of a split that are visible to any row of a block.
struct Seen<const R: usize> {
    count: usize,
    blocks: Blocks,
    /// The blocks of the next split, for prefetching.
    next: Blocks,
    /// Per row: bitmask of visible keys.
    keys: [[u32; SPLIT_PAGES]; R],
}

impl<const R: usize> Seen<R> {
    /// Keys of a page visible to all rows.
    #[inline(always)]
    fn by_all(&self, page: usize) -> u32 {
        self.keys.iter().fold(WHOLE, |all, keys| all & keys[page])
    }

    /// Keys of a page visible to any row.
    #[inline(always)]
    fn by_any(&self, page: usize) -> u32 {
        self.keys.iter().fold(0, |any, keys| any | keys[page])
    }
}

impl Tile<'_> {
    /// Computes rows `row .. row + R` on the pages of one split; returns `R`.
    ///
    /// # Safety
    /// The rows are the tile's, the pages the sequence's and of one split, the CPU has the features
    /// of `L`.
    #[inline(always)]
    pub(super) unsafe fn rows_on_split<L: Lanes, const R: usize, const P: usize, const C: usize>(
        &mut self,
        pages: &[PageRef],
        next: Next<'_>,
        row: usize,
    ) -> usize {
        let seen = self.seen::<R>(pages, next, row);
        if seen.count == 0 {
            return R;
        }
        let mut keys = [[0.0; SPLIT as usize]; R];
        // SAFETY: the caller promises rows, pages and features; every index below comes from them.
        unsafe {
            for first in (0..seen.count).step_by(P) {
                self.scores::<L, R, P>(&seen, first, row, &mut keys);
            }
            let mut factors = [[0.0; 2]; R];
            for r in 0..R {
                let state = self.softmax::<L>(&mut keys[r], &seen.keys[r][..seen.count]);
                factors[r] = self.state[row + r].join::<L>(state);
            }
            let dim = self.op.heads.dim;
            match self.layer.shape.dtype {
                KvDtype::F16 => {
                    for col in (0..dim).step_by(C * LANES) {
                        let values = self.values_f16::<L, R, C>(&seen, col, &keys);
                        self.put::<L, R, C>(row, col, values, &factors);
                    }
                }
                KvDtype::Int8 => {
                    for col in (0..dim).step_by(KV_SCALE_GROUP) {
                        let values = self.values_int8::<L, R>(&seen, col, &keys);
                        self.put::<L, R, 2>(row, col, values, &factors);
                    }
                }
            }
        }
        R
    }

    #[inline(always)]
    fn seen<const R: usize>(&self, pages: &[PageRef], next: Next<'_>, row: usize) -> Seen<R> {
        let blocks = [std::ptr::null(); SPLIT_PAGES];
        let mut seen = Seen { count: 0, blocks, next: blocks, keys: [[0; SPLIT_PAGES]; R] };
        for page in pages.iter().take(SPLIT_PAGES) {
            let keys: [u32; R] = std::array::from_fn(|r| self.visible(row + r, page.start));
            if keys.iter().any(|&keys| keys != 0) {
                seen.blocks[seen.count] = self.layer.block(page.page, self.kv_head);
                for r in 0..R {
                    seen.keys[r][seen.count] = keys[r];
                }
                seen.count += 1;
            }
        }
        seen.next = next.blocks::<R>(self, row, seen.blocks);
        seen
    }

    /// `q · k` for the keys of `P` pages from `first` on. If fewer pages are left, the last one is computed
    /// again.
    #[inline(always)]
    unsafe fn scores<L: Lanes, const R: usize, const P: usize>(
        &self,
        seen: &Seen<R>,
        first: usize,
        row: usize,
        keys: &mut [Keys; R],
    ) {
        let (dim, shape) = (self.op.heads.dim, self.layer.shape);
        let blocks: [*const u8; P] = std::array::from_fn(|p| seen.blocks[(first + p).min(seen.count - 1)]);
        let q: [*const f32; R] = std::array::from_fn(|r| self.q[row + r]);
        // SAFETY: keys are `[dim][16]`, a row of q has `dim` elements, scales are `[groups][16]`.
        unsafe {
            let mut total = [[L::splat(0.0); P]; R];
            match shape.dtype {
                KvDtype::F16 => {
                    for d in 0..dim {
                        prefetch_each::<R, P>(blocks, shape.values + d * PAGE_TOKENS * 2);
                        for p in 0..P {
                            let k = L::load_f16(blocks[p].cast::<f16>().add(d * PAGE_TOKENS));
                            for r in 0..R {
                                total[r][p] = L::fma(L::splat(*q[r].add(d)), k, total[r][p]);
                            }
                        }
                    }
                }
                KvDtype::Int8 => {
                    for group in 0..shape.groups {
                        let first = group * KV_SCALE_GROUP;
                        let mut sums = [[L::splat(0.0); P]; R];
                        for d in first..(first + KV_SCALE_GROUP).min(dim) {
                            prefetch_each::<R, P>(blocks, shape.values + d * PAGE_TOKENS);
                            for p in 0..P {
                                let k = L::load_i8(blocks[p].cast::<i8>().add(d * PAGE_TOKENS));
                                for r in 0..R {
                                    sums[r][p] = L::fma(L::splat(*q[r].add(d)), k, sums[r][p]);
                                }
                            }
                        }
                        let at = group * PAGE_TOKENS;
                        for p in 0..P {
                            let scale = L::load_f16(blocks[p].add(shape.key_scales).cast::<f16>().add(at));
                            for r in 0..R {
                                total[r][p] = L::fma(sums[r][p], scale, total[r][p]);
                            }
                        }
                    }
                }
            }
            for p in 0..P.min(seen.count - first) {
                for r in 0..R {
                    L::store(keys[r][(first + p) * LANES..].as_mut_ptr(), total[r][p]);
                }
            }
        }
    }

    /// Turns scores into weights `e^(score - max)`, 0 for hidden keys.
    #[inline(always)]
    unsafe fn softmax<L: Lanes>(&self, keys: &mut Keys, seen: &[u32]) -> OnlineSoftmax {
        // SAFETY: a vector a page, on the stack.
        unsafe {
            let mut largest = L::splat(f32::NEG_INFINITY);
            for (scores, &seen) in keys.chunks_exact_mut(LANES).zip(seen) {
                let mut s = L::mul(L::load(scores.as_ptr()), L::splat(self.op.scale));
                if let Some(cap) = self.op.soft_cap {
                    s = soft_cap::<L>(s, cap);
                }
                L::store(scores.as_mut_ptr(), s);
                if seen != WHOLE {
                    hide(scores, seen);
                    s = L::load(scores.as_ptr());
                }
                largest = L::max(s, largest);
            }
            let max = L::reduce_max(largest);
            // A row that sees no key has weights and a sum of 0.
            let base = L::splat(if max == f32::NEG_INFINITY { 0.0 } else { max });
            let mut sum = L::splat(0.0);
            for scores in keys.chunks_exact_mut(LANES).take(seen.len()) {
                let weights = L::exp(L::sub(L::load(scores.as_ptr()), base));
                L::store(scores.as_mut_ptr(), weights);
                sum = L::add(sum, weights);
            }
            OnlineSoftmax { max, sum: L::reduce_add(sum) }
        }
    }

    /// `weights · v`, `C` vectors of columns from `col` on.
    #[inline(always)]
    unsafe fn values_f16<L: Lanes, const R: usize, const C: usize>(
        &self,
        seen: &Seen<R>,
        col: usize,
        weights: &[Keys; R],
    ) -> [[L::F; C]; R] {
        // SAFETY: values are `[16][dim]`; a last vector may read past a row, into the next or the layer's
        // slack, and those elements are not stored.
        unsafe {
            let mut sums = [[L::splat(0.0); C]; R];
            for page in 0..seen.count {
                let weights =
                    Weights { first: weights.as_ptr().cast::<f32>().add(page * LANES), row: SPLIT as usize };
                let values =
                    Values::new(seen, page, self.layer.shape.values, [2 * col, 2 * self.op.heads.dim]);
                add_page::<L, R, C, false>(&mut sums, seen, page, weights, values);
            }
            sums
        }
    }

    /// [`Tile::values_f16`] for 32 int8 columns that share a scale.
    #[inline(always)]
    unsafe fn values_int8<L: Lanes, const R: usize>(
        &self,
        seen: &Seen<R>,
        col: usize,
        weights: &[Keys; R],
    ) -> [[L::F; 2]; R] {
        let shape = self.layer.shape;
        // SAFETY: as for f16; scales are `[groups][16]`.
        unsafe {
            let mut sums = [[L::splat(0.0); 2]; R];
            for page in 0..seen.count {
                let scales = seen.blocks[page].add(shape.value_scales).cast::<f16>();
                let scale = L::load_f16(scales.add(col / KV_SCALE_GROUP * PAGE_TOKENS));
                let mut scaled = [[0.0f32; LANES]; R];
                for r in 0..R {
                    let weights = L::load(weights[r][page * LANES..].as_ptr());
                    L::store(scaled[r].as_mut_ptr(), L::mul(weights, scale));
                }
                let weights = Weights { first: scaled.as_ptr().cast(), row: LANES };
                let values = Values::new(seen, page, shape.values, [col, self.op.heads.dim]);
                add_page::<L, R, 2, true>(&mut sums, seen, page, weights, values);
            }
            sums
        }
    }

    /// Joins a split's values with the outputs so far.
    #[inline(always)]
    unsafe fn put<L: Lanes, const R: usize, const C: usize>(
        &self,
        row: usize,
        col: usize,
        values: [[L::F; C]; R],
        factors: &[[f32; 2]; R],
    ) {
        for r in 0..R {
            for c in 0..C {
                let at = col + c * LANES;
                let n = self.op.heads.dim.saturating_sub(at).min(LANES);
                // SAFETY: within the row's output; a last vector may have no elements in it.
                unsafe { blend::<L>(self.out[row + r].wrapping_add(at), n, values[r][c], factors[r]) };
            }
        }
    }
}

/// The weights of a page's keys: `[row][16]`, with a stride between rows.
#[derive(Clone, Copy)]
struct Weights {
    first: *const f32,
    row: usize,
}

/// The values of a page's keys, f16 or codes, from a given column on.
#[derive(Clone, Copy)]
struct Values {
    first: *const u8,
    /// Byte stride between keys.
    key: usize,
    /// This offset in the next block, for prefetching.
    next: *const u8,
}

impl Values {
    /// The values of page `page`: `offset` bytes into its block, then `at` bytes into each key's values.
    #[inline(always)]
    fn new<const R: usize>(seen: &Seen<R>, page: usize, offset: usize, [at, key]: [usize; 2]) -> Values {
        let first = seen.blocks[page].wrapping_add(offset + at);
        Values { first, key, next: seen.next[page].wrapping_add(at) }
    }
}

/// `sums[r][c] += weights[r][key] · values[key][c]` for all keys of a page, oldest first.
#[inline(always)]
unsafe fn add_page<L: Lanes, const R: usize, const C: usize, const INT8: bool>(
    sums: &mut [[L::F; C]; R],
    seen: &Seen<R>,
    page: usize,
    weights: Weights,
    values: Values,
) {
    // SAFETY: a page has sixteen keys; the caller vouches for the rest.
    unsafe {
        if seen.by_all(page) == WHOLE {
            for key in 0..PAGE_TOKENS {
                for line in 0..(C / 2).max(1) {
                    prefetch_line::<R>(values.next.wrapping_add(key * values.key + 64 * line));
                }
                add_key::<L, R, C, INT8>(sums, [true; R], weights, key, values.first.add(key * values.key));
            }
            return;
        }
        let mut left = seen.by_any(page);
        while left != 0 {
            let key = left.trailing_zeros() as usize;
            let mut by = [false; R];
            for r in 0..R {
                by[r] = seen.keys[r][page] >> key & 1 == 1;
            }
            add_key::<L, R, C, INT8>(sums, by, weights, key, values.first.add(key * values.key));
            left &= left - 1;
        }
    }
}

/// [`add_page`] for one key and the rows that see it. Rows that do not see it skip its values, which may be
/// NaN.
#[inline(always)]
unsafe fn add_key<L: Lanes, const R: usize, const C: usize, const INT8: bool>(
    sums: &mut [[L::F; C]; R],
    by: [bool; R],
    weights: Weights,
    key: usize,
    values: *const u8,
) {
    // SAFETY: `C` vectors of values, a weight for each row.
    unsafe {
        let mut v = [L::splat(0.0); C];
        for c in 0..C {
            v[c] = match INT8 {
                true => L::load_i8(values.cast::<i8>().add(c * LANES)),
                false => L::load_f16(values.cast::<f16>().add(c * LANES)),
            };
        }
        for r in 0..R {
            if by[r] {
                let weight = L::splat(*weights.first.add(r * weights.row + key));
                for c in 0..C {
                    sums[r][c] = L::fma(weight, v[c], sums[r][c]);
                }
            }
        }
    }
}
