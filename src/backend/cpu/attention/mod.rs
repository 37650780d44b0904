//! [`Attention`]: flash attention over pages, for prompts and decodes alike.
//!
//! A tile is a set of rows (token × query head) of one sequence that share a key head. It walks the
//! sequence's pages in splits of [`SPLIT`] positions: the split's scores, their softmax, its weighted values.
//! Splits are joined by their maxima and sums (Milakov and Gimelshein 2018; Dao et al. 2022). A work item is
//! a tile. With too few tiles for the threads, as when one sequence decodes, it is one split of a tile.
//! Splits are then joined in the same order when all are done.
//!
//! A row's bits depend on the row and its past alone. Splits begin at fixed positions, and within one every
//! row goes through the same operations in the same order, independent of other rows and threads. `tile` has
//! the walk over splits, `split` the arithmetic.

mod prefetch;
mod split;
#[cfg(test)]
mod tests;
mod tile;

use crate::backend::cpu::Cpu;
use crate::backend::cpu::isa::{Kernel, LANES, Lanes};
use crate::backend::cpu::memory::{Buffer, KvLayer, Rows};
use crate::backend::cpu::ops::append::check_heads;
use crate::backend::{BackendError, Frame, overlap_error};
use crate::ir::{Attention, Heads, Operation, PAGE_TOKENS, PageRef, StepInput, StepSequence};
use tile::{Next, OnlineSoftmax, Tile, blend};

const OP: &str = "attention";
/// Maximum rows per tile; they share the split's data while it is in the cache.
const TILE_ROWS: usize = 64;
/// Positions of a split: few enough that one short sequence has work for several threads.
const SPLIT: u32 = 128;
const SPLIT_PAGES: usize = SPLIT as usize / PAGE_TOKENS;
/// Minimum items per thread; with fewer, tiles are split.
const ITEMS_PER_THREAD: usize = 4;
/// Memory for the results of splits, resident only where it is touched. If a step needs more, its items are
/// whole tiles.
const PARTIAL_BYTES: usize = 32 << 20;
/// Rows per chunk of the joining.
const ROWS_PER_CHUNK: usize = 64;

const _: () = assert!(PAGE_TOKENS == LANES, "the keys of a page are one vector");

/// Scratch for the results of splits.
pub(crate) fn partials(used: bool) -> Result<Buffer, BackendError> {
    Buffer::sparse(if used { PARTIAL_BYTES } else { 0 }, "partial attention")
}

/// See [`Attention`].
pub(crate) fn attention(cpu: &Cpu, op: &Attention, frame: &mut Frame<'_, Cpu>) -> Result<(), BackendError> {
    let (q, dst) = (frame.arena.rows(OP, &op.q, frame.step)?, frame.arena.rows(OP, &op.dst, frame.step)?);
    check_heads(OP, op.heads, &[(q, op.heads.query), (dst, op.heads.query)], frame.step)?;
    if q.overlaps(&dst) {
        return Err(overlap_error(OP, [q, dst]));
    }
    op.check()?;
    let layer = frame.kv.layer_for(OP, op.layer, op.heads)?;
    let mut items = Items { op, q, dst, layer, step: frame.step, tile_rows: TILE_ROWS, partials: None };
    items.divide(cpu.threads(), &mut frame.arena.partials);
    let count = frame.step.sequences.iter().map(|sequence| items.of(sequence)).sum();
    // SAFETY: shapes are checked; an item writes the outputs of its own rows or its own partial
    // results, pages are only read.
    unsafe { cpu.parallel(&items, count) };
    if let Some(partials) = items.partials {
        let rows = q.rows * op.heads.query;
        let join = Join { dst, heads: op.heads, rows, partials, positions: &frame.step.positions };
        // SAFETY: all partial results are written; a chunk writes the outputs of its own rows.
        unsafe { cpu.parallel(&join, rows.div_ceil(ROWS_PER_CHUNK)) };
    }
    Ok(())
}

/// Layout of the splits' results: `[row][split]`, each with its values followed by its state.
#[derive(Clone, Copy)]
struct Partials {
    base: *mut f32,
    splits: usize,
    /// Elements per result.
    stride: usize,
}

impl Partials {
    fn at(&self, row: usize, split: usize) -> *mut f32 {
        self.base.wrapping_add((row * self.splits + split) * self.stride)
    }
}

/// The work of one operation.
struct Items<'a> {
    op: &'a Attention,
    q: Rows,
    dst: Rows,
    layer: KvLayer,
    step: &'a StepInput,
    tile_rows: usize,
    /// Set if tiles are split.
    partials: Option<Partials>,
}

// SAFETY: pointers into the arena; `run` says which parts an item writes.
unsafe impl Sync for Items<'_> {}

impl Items<'_> {
    /// Splits tiles if there are too few of them for `threads`.
    fn divide(&mut self, threads: usize, scratch: &mut Buffer) {
        let tiles = |items: &Self| -> usize { self.step.sequences.iter().map(|s| items.of(s)).sum() };
        if threads == 1 || tiles(self) >= threads * ITEMS_PER_THREAD {
            return;
        }
        let rows = self.q.rows * self.op.heads.query;
        let splits = self.step.sequences.iter().map(|s| splits_of(self.pages(s))).max().unwrap_or(0);
        let stride = self.op.heads.dim.next_multiple_of(LANES) + LANES;
        if splits > 1 && rows * splits * stride * size_of::<f32>() <= scratch.bytes() {
            self.partials = Some(Partials { base: scratch.as_mut_ptr().cast(), splits, stride });
        } else {
            self.tile_rows = rows.div_ceil(threads).clamp(1, TILE_ROWS);
        }
    }

    fn pages(&self, sequence: &StepSequence) -> &[PageRef] {
        &self.step.pages[sequence.pages.start as usize..sequence.pages.end as usize]
    }

    fn group(&self) -> usize {
        self.op.heads.query / self.op.heads.kv
    }

    /// Items of a sequence: `[tile][split][key head]`.
    fn of(&self, sequence: &StepSequence) -> usize {
        let tiles = (sequence.rows.len() * self.group()).div_ceil(self.tile_rows);
        tiles * self.op.heads.kv * self.splits(sequence)
    }

    fn splits(&self, sequence: &StepSequence) -> usize {
        if self.partials.is_some() { splits_of(self.pages(sequence)) } else { 1 }
    }
}

/// Number of splits up to the last of these pages.
fn splits_of(pages: &[PageRef]) -> usize {
    pages.last().map_or(0, |last| (last.start / SPLIT) as usize + 1)
}

fn pages_of_split(pages: &[PageRef], split: usize) -> &[PageRef] {
    let before = |split: usize| pages.partition_point(|page| ((page.start / SPLIT) as usize) < split);
    &pages[before(split)..before(split + 1)]
}

impl Kernel for Items<'_> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(&self, chunk: usize, _worker: usize) {
        let mut index = chunk;
        for sequence in &self.step.sequences {
            let count = self.of(sequence);
            if index >= count {
                index -= count;
                continue;
            }
            let (kv_head, rest) = (index % self.op.heads.kv, index / self.op.heads.kv);
            let (split, tile) = (rest % self.splits(sequence), rest / self.splits(sequence));
            let tile = Tile::new(self, sequence, kv_head, tile, split);
            let (all, of_split) = (self.pages(sequence), |split| pages_of_split(self.pages(sequence), split));
            let next = |pages, rest| match kv_head + 1 < self.op.heads.kv {
                true => Next { pages, kv_head: kv_head + 1 },
                false => Next { pages: rest, kv_head: 0 },
            };
            // SAFETY: the tile is one of this sequence's; its outputs are this chunk's.
            unsafe {
                match self.partials {
                    None => tile.whole::<L>(all, next(all, &[])),
                    Some(_) => tile.part::<L>(of_split(split), next(of_split(split), of_split(split + 1))),
                }
            }
            return;
        }
    }
}

/// Joins the splits of rows, oldest first, in the order of a whole tile.
struct Join<'a> {
    dst: Rows,
    heads: Heads,
    /// Tokens times query heads.
    rows: usize,
    partials: Partials,
    positions: &'a [u32],
}

// SAFETY: `run` says which rows a chunk writes.
unsafe impl Sync for Join<'_> {}

impl Kernel for Join<'_> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(&self, chunk: usize, _worker: usize) {
        let (first, dim) = (chunk * ROWS_PER_CHUNK, self.heads.dim);
        for row in first..(first + ROWS_PER_CHUNK).min(self.rows) {
            let splits = self.positions[row / self.heads.query] / SPLIT + 1;
            // SAFETY: rows of `dst` are contiguous; every split up to a row's position was written.
            unsafe {
                let out = self.dst.ptr.add(row * dim);
                out.write_bytes(0, dim);
                let mut state = OnlineSoftmax::EMPTY;
                for split in 0..splits as usize {
                    let part = self.partials.at(row, split);
                    let factors = state.join::<L>(OnlineSoftmax::load(part.add(dim)));
                    for col in (0..dim).step_by(LANES) {
                        let n = (dim - col).min(LANES);
                        blend::<L>(out.add(col), n, L::load_n(part.add(col), n), factors);
                    }
                }
                state.finish::<L>(out, dim);
            }
        }
    }
}
