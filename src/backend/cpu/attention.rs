//! [`Attention`]: flash attention over pages, for prompts and decodes alike.
//!
//! A work item is a tile: rows (token × query head) of one sequence that read one key head. It
//! walks the sequence's pages once; of each page it computes the scores of all rows (one vector of
//! 16 keys a row, without horizontal sums, since keys lie transposed), updates the running maximum
//! and sum (Milakov and Gimelshein 2018; Dao et al. 2022), and adds the weighted values to the
//! output, which is the accumulator.
//!
//! A row's bits depend on the row and its past alone: rows that see a whole page are worked off in
//! blocks with the same arithmetic as one by one; a row that sees part of a page is worked off
//! alone, over the keys it sees; a row that sees none of it skips the page.

#[cfg(test)]
mod tests;

use half::f16;

use super::append::check_heads;
use super::arena::{Rows, overlap};
use super::dispatch::Kernel;
use super::elementwise::soft_cap;
use super::kv::KvLayer;
use super::lanes::{LANES, Lanes};
use super::{Cpu, shape_error};
use crate::backend::{
    Attention, BackendError, Frame, Heads, KV_SCALE_GROUP, KvDtype, PAGE_TOKENS, PageRef, StepInput,
    StepSequence,
};

const OP: &str = "attention";
/// Rows of a tile at most: they share what is read of a page while it is in the cache.
const TILE_ROWS: usize = 64;
/// All keys of a page.
const WHOLE: u32 = (1 << PAGE_TOKENS) - 1;

const _: () = assert!(PAGE_TOKENS == LANES, "the keys of a page are one vector");

/// See [`Attention`].
pub(super) fn attention(cpu: &Cpu, op: &Attention, frame: &mut Frame<'_, Cpu>) -> Result<(), BackendError> {
    let (q, dst) = (frame.arena.rows(OP, &op.q, frame.step)?, frame.arena.rows(OP, &op.dst, frame.step)?);
    check_heads(OP, op.heads, &[(q, op.heads.query), (dst, op.heads.query)], frame.step)?;
    if q.overlaps(&dst) {
        return Err(overlap(OP, [q, dst]));
    }
    if op.soft_cap.is_some_and(|cap| cap <= 0.0) {
        return Err(shape_error(OP, "a positive soft cap".into(), format!("{:?}", op.soft_cap)));
    }
    let layer = frame.kv.layer_for(OP, op.layer, op.heads)?;
    // Few rows are spread over all threads; many make full tiles.
    let rows = q.rows * op.heads.query;
    let tile_rows = rows.div_ceil(cpu.threads()).clamp(1, TILE_ROWS);
    let kernel = Tiles { op, q, dst, layer, step: frame.step, tile_rows };
    let tiles = frame.step.sequences.iter().map(|sequence| kernel.tiles_of(sequence) * op.heads.kv).sum();
    // SAFETY: shapes are checked; a tile writes the outputs of its own rows, pages are only read.
    unsafe { cpu.parallel(&kernel, tiles) };
    Ok(())
}

struct Tiles<'a> {
    op: &'a Attention,
    q: Rows,
    dst: Rows,
    layer: KvLayer,
    step: &'a StepInput,
    tile_rows: usize,
}

impl Tiles<'_> {
    fn group(&self) -> usize {
        self.op.heads.query / self.op.heads.kv
    }

    /// Tiles of a sequence and one key head.
    fn tiles_of(&self, sequence: &StepSequence) -> usize {
        (sequence.rows.len() * self.group()).div_ceil(self.tile_rows)
    }
}

impl Kernel for Tiles<'_> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(&self, chunk: usize, _worker: usize) {
        let mut index = chunk;
        for sequence in &self.step.sequences {
            let tiles = self.tiles_of(sequence) * self.op.heads.kv;
            if index < tiles {
                let (kv_head, tile) = (index % self.op.heads.kv, index / self.op.heads.kv);
                // SAFETY: the tile is one of this sequence's; its rows are this chunk's.
                unsafe { Tile::new(self, sequence, kv_head, tile).run::<L>() };
                return;
            }
            index -= tiles;
        }
    }
}

/// Rows of one sequence that read one key head.
struct Tile<'a> {
    layer: KvLayer,
    pages: &'a [PageRef],
    positions: &'a [u32],
    op: &'a Attention,
    sequence: &'a StepSequence,
    kv_head: usize,
    rows: usize,
    q: [*const f32; TILE_ROWS],
    out: [*mut f32; TILE_ROWS],
    position: [u32; TILE_ROWS],
    max: [f32; TILE_ROWS],
    sum: [f32; TILE_ROWS],
}

impl<'a> Tile<'a> {
    #[inline(always)]
    fn new(tiles: &Tiles<'a>, sequence: &'a StepSequence, kv_head: usize, tile: usize) -> Tile<'a> {
        let Heads { dim, .. } = tiles.op.heads;
        let group = tiles.group();
        let first = tile * tiles.tile_rows;
        let end = (first + tiles.tile_rows).min(sequence.rows.len() * group);
        let (pages, rows) = (sequence.pages.clone(), sequence.rows.clone());
        let mut made = Tile {
            layer: tiles.layer,
            pages: &tiles.step.pages[pages.start as usize..pages.end as usize],
            positions: &tiles.step.positions[rows.start as usize..rows.end as usize],
            op: tiles.op,
            sequence,
            kv_head,
            rows: end - first,
            q: [std::ptr::null(); TILE_ROWS],
            out: [std::ptr::null_mut(); TILE_ROWS],
            position: [0; TILE_ROWS],
            max: [f32::NEG_INFINITY; TILE_ROWS],
            sum: [0.0; TILE_ROWS],
        };
        for (i, row) in (first..end).enumerate() {
            let (token, head) = (row / group, kv_head * group + row % group);
            let at = (rows.start as usize + token) * tiles.q.cols + head * dim;
            made.q[i] = tiles.q.ptr.wrapping_add(at);
            made.out[i] = tiles.dst.ptr.wrapping_add(at);
            made.position[i] = made.positions[token];
        }
        made
    }

    #[inline(always)]
    unsafe fn run<L: Lanes>(mut self) {
        let dim = self.op.heads.dim;
        for row in 0..self.rows {
            // SAFETY: each output has `dim` elements and is this tile's.
            unsafe { self.out[row].write_bytes(0, dim) };
        }
        for page in self.pages {
            // SAFETY: the page belongs to the sequence.
            unsafe { self.page::<L>(page) };
        }
        for row in 0..self.rows {
            let inverse = if self.sum[row] == 0.0 { 0.0 } else { 1.0 / self.sum[row] };
            for col in (0..dim).step_by(LANES) {
                // SAFETY: within the row's output.
                unsafe {
                    let (p, n) = (self.out[row].add(col), (dim - col).min(LANES));
                    L::store_n(p, n, L::mul(L::load_n(p, n), L::splat(inverse)));
                }
            }
        }
    }

    /// Which keys of a page a row sees, as bits.
    #[inline(always)]
    fn visible(&self, row: usize, start: u32) -> u32 {
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

    #[inline(always)]
    unsafe fn page<L: Lanes>(&mut self, page: &PageRef) {
        let block = self.layer.block(page.page, self.kv_head).cast_const();
        // The block that one kernel call takes; on AVX2 more would not fit in registers.
        let most = if L::TOKENS >= 4 { 8 } else { 2 };
        let mut row = 0;
        while row < self.rows {
            let seen = self.visible(row, page.start);
            let mut run = 1;
            if seen == WHOLE {
                while run < most && row + run < self.rows && self.visible(row + run, page.start) == WHOLE {
                    run += 1;
                }
            }
            // SAFETY: the rows exist; those of a run see the whole page.
            row += unsafe {
                match (seen, run) {
                    (0, _) => 1,
                    (_, 8) => self.rows_on_page::<L, 8>(block, row, seen),
                    (_, 4..) => self.rows_on_page::<L, 4>(block, row, seen),
                    (_, 2 | 3) => self.rows_on_page::<L, 2>(block, row, seen),
                    _ => self.rows_on_page::<L, 1>(block, row, seen),
                }
            };
        }
    }

    /// `R` rows on one page, all of which see the keys `seen`; gives `R`.
    #[inline(always)]
    unsafe fn rows_on_page<L: Lanes, const R: usize>(
        &mut self,
        block: *const u8,
        row: usize,
        seen: u32,
    ) -> usize {
        let mut weights = [[0.0f32; LANES]; R];
        let mut correction = [0.0f32; R];
        // SAFETY: a block of the layer's shape; stores go to the stack.
        unsafe {
            let scores = self.scores::<L, R>(block, row);
            for r in 0..R {
                let mut s = L::mul(scores[r], L::splat(self.op.scale));
                if let Some(cap) = self.op.soft_cap {
                    s = soft_cap::<L>(s, cap);
                }
                if seen != WHOLE {
                    s = hide::<L>(s, seen);
                }
                let max = self.max[row + r].max(L::reduce_max(s));
                let p = L::exp(L::sub(s, L::splat(max)));
                // The first page's correction of minus infinity is 0, as it should be.
                correction[r] = exp_scalar::<L>(self.max[row + r] - max);
                self.sum[row + r] = self.sum[row + r] * correction[r] + L::reduce_add(p);
                self.max[row + r] = max;
                L::store(weights[r].as_mut_ptr(), p);
            }
            match self.layer.shape.dtype {
                KvDtype::F16 => self.values_f16::<L, R>(block, row, seen, &weights, &correction),
                KvDtype::Int8 => self.values_int8::<L, R>(block, row, seen, &weights, &correction),
            }
        }
        R
    }

    /// `q · k` of the page's 16 keys, in two strands of columns.
    #[inline(always)]
    unsafe fn scores<L: Lanes, const R: usize>(&self, block: *const u8, row: usize) -> [L::F; R] {
        let (dim, shape) = (self.op.heads.dim, self.layer.shape);
        // SAFETY: keys are `[dim][16]`, `dim` is even, a row of q has `dim` elements.
        unsafe {
            let zero = L::splat(0.0);
            match shape.dtype {
                KvDtype::F16 => {
                    let keys = block.cast::<f16>();
                    let mut strands = [[zero; R]; 2];
                    for d in 0..dim {
                        let k = L::load_f16(keys.add(d * PAGE_TOKENS));
                        self.accumulate::<L, R>(&mut strands[d % 2], row, d, k);
                    }
                    join::<L, R>(strands)
                }
                KvDtype::Int8 => {
                    let (keys, scales) = (block.cast::<i8>(), block.add(shape.key_scales).cast::<f16>());
                    let mut total = [zero; R];
                    for group in 0..shape.groups {
                        let first = group * KV_SCALE_GROUP;
                        let mut strands = [[zero; R]; 2];
                        for d in first..(first + KV_SCALE_GROUP).min(dim) {
                            let k = L::load_i8(keys.add(d * PAGE_TOKENS));
                            self.accumulate::<L, R>(&mut strands[d % 2], row, d, k);
                        }
                        let (sums, scale) =
                            (join::<L, R>(strands), L::load_f16(scales.add(group * PAGE_TOKENS)));
                        for r in 0..R {
                            total[r] = L::fma(sums[r], scale, total[r]);
                        }
                    }
                    total
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn accumulate<L: Lanes, const R: usize>(
        &self,
        sums: &mut [L::F; R],
        row: usize,
        d: usize,
        k: L::F,
    ) {
        for (sum, q) in sums.iter_mut().zip(&self.q[row..]) {
            // SAFETY: `d` is below the head's dimension.
            *sum = unsafe { L::fma(L::splat(*q.add(d)), k, *sum) };
        }
    }

    #[inline(always)]
    unsafe fn values_f16<L: Lanes, const R: usize>(
        &self,
        block: *const u8,
        row: usize,
        seen: u32,
        weights: &[[f32; LANES]; R],
        correction: &[f32; R],
    ) {
        let dim = self.op.heads.dim;
        // SAFETY: values are `[16][dim]`; a last vector may read past a row, into the next or the
        // layer's slack, and what it reads there is not stored.
        unsafe {
            let values = block.add(self.layer.shape.values).cast::<f16>();
            for col in (0..dim).step_by(LANES) {
                let mut out = self.corrected::<L, R>(row, col, correction);
                for_each_key(seen, |key| {
                    let v = L::load_f16(values.add(key * dim + col));
                    for r in 0..R {
                        out[r] = L::fma(L::splat(weights[r][key]), v, out[r]);
                    }
                });
                self.put::<L, R>(row, col, out);
            }
        }
    }

    #[inline(always)]
    unsafe fn values_int8<L: Lanes, const R: usize>(
        &self,
        block: *const u8,
        row: usize,
        seen: u32,
        weights: &[[f32; LANES]; R],
        correction: &[f32; R],
    ) {
        let (dim, shape) = (self.op.heads.dim, self.layer.shape);
        // SAFETY: as for f16; scales are `[groups][16]`.
        unsafe {
            let values = block.add(shape.values).cast::<i8>();
            let scales = block.add(shape.value_scales).cast::<f16>();
            let mut scaled = [[0.0f32; LANES]; R];
            for col in (0..dim).step_by(LANES) {
                if col % KV_SCALE_GROUP == 0 {
                    let scale = L::load_f16(scales.add(col / KV_SCALE_GROUP * PAGE_TOKENS));
                    for r in 0..R {
                        L::store(scaled[r].as_mut_ptr(), L::mul(L::load(weights[r].as_ptr()), scale));
                    }
                }
                let mut out = self.corrected::<L, R>(row, col, correction);
                for_each_key(seen, |key| {
                    let v = L::load_i8(values.add(key * dim + col));
                    for r in 0..R {
                        out[r] = L::fma(L::splat(scaled[r][key]), v, out[r]);
                    }
                });
                self.put::<L, R>(row, col, out);
            }
        }
    }

    /// What the outputs hold, scaled to the new maximum.
    #[inline(always)]
    unsafe fn corrected<L: Lanes, const R: usize>(&self, row: usize, col: usize, by: &[f32; R]) -> [L::F; R] {
        let n = (self.op.heads.dim - col).min(LANES);
        // SAFETY: within each row's output.
        std::array::from_fn(|r| unsafe { L::mul(L::load_n(self.out[row + r].add(col), n), L::splat(by[r])) })
    }

    #[inline(always)]
    unsafe fn put<L: Lanes, const R: usize>(&self, row: usize, col: usize, out: [L::F; R]) {
        let n = (self.op.heads.dim - col).min(LANES);
        for (r, value) in out.into_iter().enumerate() {
            // SAFETY: within the row's output.
            unsafe { L::store_n(self.out[row + r].add(col), n, value) };
        }
    }
}

/// Calls `f` for each key whose bit is set, the oldest first.
#[inline(always)]
fn for_each_key(seen: u32, mut f: impl FnMut(usize)) {
    if seen == WHOLE {
        for key in 0..PAGE_TOKENS {
            f(key);
        }
        return;
    }
    let mut left = seen;
    while left != 0 {
        f(left.trailing_zeros() as usize);
        left &= left - 1;
    }
}

#[inline(always)]
unsafe fn join<L: Lanes, const R: usize>([even, odd]: [[L::F; R]; 2]) -> [L::F; R] {
    // SAFETY: register arithmetic; the caller vouches for the CPU's features.
    std::array::from_fn(|r| unsafe { L::add(even[r], odd[r]) })
}

/// Scores of keys that are not seen become minus infinity, whatever they were.
#[inline(always)]
unsafe fn hide<L: Lanes>(scores: L::F, seen: u32) -> L::F {
    let mut lanes = [0.0f32; LANES];
    // SAFETY: sixteen elements on the stack.
    unsafe {
        L::store(lanes.as_mut_ptr(), scores);
        for (key, lane) in lanes.iter_mut().enumerate() {
            if seen >> key & 1 == 0 {
                *lane = f32::NEG_INFINITY;
            }
        }
        L::load(lanes.as_ptr())
    }
}

/// `e^x` with the lanes' own polynomial, so that it agrees with the weights'.
#[inline(always)]
unsafe fn exp_scalar<L: Lanes>(x: f32) -> f32 {
    // SAFETY: register arithmetic; the caller vouches for the CPU's features.
    unsafe { L::reduce_max(L::exp(L::splat(x))) }
}
