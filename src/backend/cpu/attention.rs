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
//! alone, over the keys it sees; a row that sees none of it skips the page. The arithmetic on a page
//! is in `page`.

mod page;
#[cfg(test)]
mod tests;

use super::append::check_heads;
use super::arena::Rows;
use super::dispatch::Kernel;
use super::kv::KvLayer;
use super::lanes::{LANES, Lanes};
use super::{Cpu, overlap_error};
use crate::backend::{Attention, BackendError, Frame, Heads, PAGE_TOKENS, PageRef, StepInput, StepSequence};

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
        return Err(overlap_error(OP, [q, dst]));
    }
    op.check()?;
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
}
