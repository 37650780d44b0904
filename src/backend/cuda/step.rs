//! A step in device memory: rows, page tables and outputs in the kernels' format, in one upload.

use std::cmp::Reverse;
use std::sync::Arc;

use super::driver::Context;
use super::header::attention_constant;
use super::memory::{DeviceBuffer, HostBuffer};
use super::params::{RowSampling, Sequence, Step};
use super::sample::FED;
use crate::backend::BackendError;
use crate::ir::{self, PAGE_TOKENS, StepError, StepInput, StepLimits, StepSequence};

/// Rows per block of `attention_prefill.cu`.
pub(super) const TILE_ROWS: usize = attention_constant("TILE_ROWS");
/// Blocks of `attention_decode.cu` per sequence: the maximum, and the number for a short past.
const SPLITS_MAX: usize = attention_constant("SPLITS_MAX");
const SPLITS_SHORT: usize = attention_constant("SPLITS_SHORT");
/// Warps per block of `attention_decode.cu`.
pub(super) const DECODE_WARPS: usize = attention_constant("DECODE_WARPS");
/// Maximum splits per launch of `attention_decode.cu`, over all sequences or rows. Limits the memory for
/// partial results.
const SPLITS_A_LAUNCH: usize = 2048;
/// Initial capacity of the page table, in entries.
const PAGES_MIN: usize = 1024;

/// Offsets of a step's parts, in words. The page table and the adjustments after it are last, because only
/// they grow.
#[derive(Clone, Copy, Debug)]
struct Layout {
    positions: usize,
    sequence_of: usize,
    sequences: usize,
    outputs: usize,
    tiles: usize,
    counts: usize,
    sampling: usize,
    pages: usize,
}

impl Layout {
    fn new(limits: StepLimits) -> Layout {
        let room = |words: usize| words.next_multiple_of(4);
        let tokens = room(limits.tokens_max);
        let sequences = 3 * tokens;
        let outputs = sequences + room(SEQUENCE_WORDS * limits.tokens_max);
        let tiles = outputs + room(limits.outputs_max);
        let counts = tiles + room(2 * limits.tokens_max);
        let sampling = counts + 4;
        Layout {
            positions: tokens,
            sequence_of: 2 * tokens,
            sequences,
            outputs,
            tiles,
            counts,
            sampling,
            pages: sampling + SAMPLING_WORDS * limits.outputs_max,
        }
    }

    /// Offset of a step's adjustments, aligned to the size of one.
    fn adjustments(&self, step: &StepInput) -> usize {
        (self.pages + 2 * step.pages.len()).next_multiple_of(ADJUSTMENT_WORDS)
    }

    /// Writes the sampling parameters of each output, and the adjustments.
    fn fill_sampling(&self, step: &StepInput, words: &mut [u32]) {
        let first = self.adjustments(step);
        let greedy = ir::RowSampling::default();
        let rows = step.sampling.iter().chain(std::iter::repeat(&greedy)).take(step.outputs.len());
        for (to, row) in words[self.sampling..].chunks_exact_mut(SAMPLING_WORDS).zip(rows) {
            let entry = RowSampling {
                temperature: row.temperature,
                top_k: row.top_k,
                top_p: row.top_p,
                min_p: row.min_p,
                draw: row.draw,
                adjustments: (first / ADJUSTMENT_WORDS) as u32 + row.adjustments.start,
                adjustment_count: row.adjustments.len() as u32,
            };
            to.copy_from_slice(bytemuck::cast_slice(&[entry]));
        }
        for (to, entry) in words[first..].chunks_exact_mut(ADJUSTMENT_WORDS).zip(&step.adjustments) {
            let [bias, repetition, penalty] = [entry.bias, entry.repetition, entry.penalty].map(f32::to_bits);
            to.copy_from_slice(&[entry.token.0, bias, repetition, penalty]);
        }
    }

    fn end(&self, step: &StepInput) -> usize {
        self.adjustments(step) + ADJUSTMENT_WORDS * step.adjustments.len()
    }
}

const SEQUENCE_WORDS: usize = size_of::<Sequence>() / 4;
const SAMPLING_WORDS: usize = size_of::<RowSampling>() / 4;
const ADJUSTMENT_WORDS: usize = 4;

/// The properties of the current step that launches depend on.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Shape {
    /// Number of sequences.
    pub(super) sequences: usize,
    /// Whether there are sequences of one row.
    pub(super) decodes: bool,
    /// Number of rows, each of which attends separately: set in batch-invariant mode if a sequence has
    /// several rows.
    pub(super) by_rows: Option<usize>,
    /// Number of row blocks of sequences with several rows.
    pub(super) tiles: usize,
    /// Whether attention can append its keys itself: all sequences have one row, and no sequence writes a
    /// page of another.
    pub(super) appends: bool,
    /// Splits of the longest past among rows that attend separately, rounded up to a power of two, so that
    /// few shapes exist and graphs are reused.
    pub(super) splits: usize,
}

/// Rounds (of all its warps) per split of a past of `rounds` rounds, as in `split_pages` of
/// `attention_decode.cu`.
fn rounds_a_split(rounds: usize) -> usize {
    let mut each = 1;
    while SPLITS_SHORT * each < SPLITS_MAX && SPLITS_SHORT * each * each < rounds {
        each += 1;
    }
    each.max(rounds.div_ceil(SPLITS_MAX))
}

/// Maximum number of splits of a past of up to `pages` pages.
pub(super) fn splits_max(pages: usize) -> usize {
    let rounds = pages.div_ceil(DECODE_WARPS).max(1);
    let each = rounds_a_split(rounds);
    // The longest past with one round less per split has more splits than a slightly longer one.
    rounds.div_ceil(each).max(SPLITS_SHORT * (each - 1)).min(SPLITS_MAX)
}

/// Sorts tiles of prompts, given as (sequence, first row in it), by the number of visible keys, largest
/// first. A card runs blocks in order, and the last ones should be short.
fn heaviest_first(step: &StepInput, tiles: &mut [u32]) {
    let keys = |&[index, first]: &[u32; 2]| {
        let sequence = &step.sequences[index as usize];
        let last = (sequence.rows.start + first + TILE_ROWS as u32).min(sequence.rows.end) - 1;
        let seen = step.positions[last as usize] + 1;
        sequence.window.map_or(seen, |window| seen.min(window.window.saturating_add(window.sinks)))
    };
    let tiles: &mut [[u32; 2]] = bytemuck::cast_slice_mut(tiles);
    tiles.sort_unstable_by_key(|tile| (Reverse(keys(tile)), *tile));
}

impl Shape {
    /// Whether all sequences have one row.
    pub(super) fn decodes_only(&self) -> bool {
        self.decodes && self.tiles == 0 && self.by_rows.is_none()
    }

    /// Sequences or rows per launch of `attention_decode.cu`.
    pub(super) fn decodes_a_launch(&self) -> usize {
        self.by_rows.unwrap_or(self.sequences).min(SPLITS_A_LAUNCH / self.splits)
    }
}

/// A step's tables on the device, filled once per step.
#[derive(Debug)]
pub(super) struct StepBuffers {
    context: Arc<Context>,
    layout: Layout,
    limits: StepLimits,
    batch_invariant: bool,
    /// Used in turns, with the slots of `sample`.
    hosts: [HostBuffer; 2],
    device: DeviceBuffer,
    shape: Shape,
    /// By page: number of sequences that write it. Zero between steps.
    writers: Vec<u32>,
}

impl StepBuffers {
    pub(super) fn new(
        context: &Arc<Context>,
        limits: StepLimits,
        batch_invariant: bool,
    ) -> Result<StepBuffers, BackendError> {
        let layout = Layout::new(limits);
        let words = layout.pages + 2 * PAGES_MIN;
        let hosts = [HostBuffer::zeroed(context, words)?, HostBuffer::zeroed(context, words)?];
        let device = DeviceBuffer::zeroed(context, 4 * words, "a step's tables")?;
        Ok(StepBuffers {
            context: Arc::clone(context),
            layout,
            limits,
            hosts,
            batch_invariant,
            device,
            shape: Shape::default(),
            writers: Vec::new(),
        })
    }

    pub(super) fn shape(&self) -> Shape {
        self.shape
    }

    /// Copies a step to the device, from a host buffer without a copy in flight. Allocates only if its page
    /// tables are longer, or contain a higher page, than any before.
    pub(super) fn upload(&mut self, step: &StepInput, slot: usize) -> Result<(), BackendError> {
        let fits = step.tokens.len() <= self.limits.tokens_max
            && step.positions.len() == step.tokens.len()
            && step.sequences.len() <= self.limits.tokens_max
            && step.outputs.len() <= self.limits.outputs_max;
        if !fits {
            return Err(BackendError::Shape {
                op: "step",
                expected: format!("a step within {:?}", self.limits),
                found: format!(
                    "{} tokens, {} positions, {} outputs",
                    step.tokens.len(),
                    step.positions.len(),
                    step.outputs.len()
                ),
            });
        }
        let mut row = 0;
        for sequence in &step.sequences {
            let (rows, pages) = (&sequence.rows, &sequence.pages);
            let within = rows.end as usize <= step.tokens.len() && pages.end as usize <= step.pages.len();
            if rows.start != row || rows.end <= row || pages.end < pages.start || !within {
                let expected = format!("rows from {row} to {}, and pages of the step", step.tokens.len());
                return Err(BackendError::Shape { op: "step", expected, found: format!("{sequence:?}") });
            }
            row = rows.end;
        }
        step.check_sampling(usize::MAX).map_err(StepError)?;
        self.context.enter()?;
        self.make_room(self.layout.end(step))?;
        self.fill(step, slot);
        self.device.upload_pinned(&self.hosts[slot], 4 * self.layout.end(step))
    }

    fn make_room(&mut self, words: usize) -> Result<(), BackendError> {
        if words > self.hosts[0].words().len() {
            let words = words.next_power_of_two();
            let host = || HostBuffer::zeroed(&self.context, words);
            let hosts = [host()?, host()?];
            self.device = DeviceBuffer::zeroed(&self.context, 4 * words, "a step's tables")?;
            self.hosts = hosts;
        }
        Ok(())
    }

    fn fill(&mut self, step: &StepInput, slot: usize) {
        let Layout { positions, sequence_of, sequences, outputs, tiles, counts, pages, .. } = self.layout;
        let words = self.hosts[slot].words_mut();
        for (to, token) in words.iter_mut().zip(&step.tokens) {
            *to = token.0;
        }
        for fed in &step.fed {
            words[fed.row as usize] = FED | fed.output;
        }
        words[positions..][..step.positions.len()].copy_from_slice(&step.positions);
        words[outputs..][..step.outputs.len()].copy_from_slice(&step.outputs);
        let by_rows = self.batch_invariant && step.sequences.iter().any(|sequence| sequence.rows.len() > 1);
        let by_rows = by_rows.then_some(step.tokens.len());
        let mut shape = Shape { sequences: step.sequences.len(), splits: 1, by_rows, ..Shape::default() };
        for (index, sequence) in step.sequences.iter().enumerate() {
            let rows = sequence.rows.start as usize..sequence.rows.end as usize;
            words[sequence_of..][rows.clone()].fill(index as u32);
            let window = sequence.window.map_or((u32::MAX, 0), |window| (window.window, window.sinks));
            let entry = Sequence {
                rows_start: sequence.rows.start,
                rows_end: sequence.rows.end,
                pages_start: sequence.pages.start,
                pages_end: sequence.pages.end,
                window: window.0,
                sinks: window.1,
            };
            let at = sequences + SEQUENCE_WORDS * index;
            words[at..at + SEQUENCE_WORDS].copy_from_slice(bytemuck::cast_slice(&[entry]));
            if by_rows.is_some() || rows.len() == 1 {
                shape.decodes = true;
                shape.splits = shape.splits.max(splits_max(sequence.pages.len()));
                continue;
            }
            for first in (0..rows.len()).step_by(TILE_ROWS) {
                let at = tiles + 2 * shape.tiles;
                words[at..at + 2].copy_from_slice(&[index as u32, first as u32]);
                shape.tiles += 1;
            }
        }
        heaviest_first(step, &mut words[tiles..tiles + 2 * shape.tiles]);
        let numbers = [step.tokens.len(), step.sequences.len(), step.outputs.len(), slot];
        for (to, number) in words[counts..].iter_mut().zip(numbers) {
            *to = number as u32;
        }
        for (to, page) in words[pages..].chunks_exact_mut(2).zip(&step.pages) {
            to.copy_from_slice(&[page.page.0, page.start]);
        }
        self.layout.fill_sampling(step, words);
        shape.appends = shape.decodes_only() && self.writes_apart(step);
        self.shape = Shape { splits: shape.splits.next_power_of_two(), ..shape };
    }

    /// Whether no page that a sequence writes is in another sequence's table, if all have one row.
    fn writes_apart(&mut self, step: &StepInput) -> bool {
        let table =
            |sequence: &StepSequence| &step.pages[sequence.pages.start as usize..sequence.pages.end as usize];
        let written = |sequence: &StepSequence| {
            let start =
                step.positions[sequence.rows.start as usize] / PAGE_TOKENS as u32 * PAGE_TOKENS as u32;
            table(sequence).iter().rfind(|entry| entry.start <= start).map(|entry| entry.page.index())
        };
        let pages = step.pages.iter().map(|entry| entry.page.index() + 1).max().unwrap_or(0);
        if pages > self.writers.len() {
            self.writers.resize(pages.next_power_of_two(), 0);
        }
        let all_written = || step.sequences.iter().filter_map(written);
        all_written().for_each(|page| self.writers[page] += 1);
        let apart = step.sequences.iter().all(|sequence| {
            let own = written(sequence);
            let others = |page: usize| self.writers[page] - u32::from(own == Some(page));
            table(sequence).iter().all(|entry| others(entry.page.index()) == 0)
        });
        all_written().for_each(|page| self.writers[page] = 0);
        apart
    }

    fn address(&self, word: usize) -> u64 {
        self.device.address() + 4 * word as u64
    }

    /// The tables' addresses, for kernels.
    pub(super) fn params(&self) -> Step {
        Step {
            tokens: self.address(0),
            positions: self.address(self.layout.positions),
            sequence_of: self.address(self.layout.sequence_of),
            sequences: self.address(self.layout.sequences),
            pages: self.address(self.layout.pages),
            outputs: self.address(self.layout.outputs),
            counts: self.address(self.layout.counts),
        }
    }

    /// The address of the outputs' sampling parameters.
    pub(super) fn sampling(&self) -> u64 {
        self.address(self.layout.sampling)
    }

    /// The address of the row blocks of prompts.
    pub(super) fn tiles(&self) -> u64 {
        self.address(self.layout.tiles)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::Window;

    /// Number of splits of a row that sees `pages` pages.
    fn splits(pages: usize) -> usize {
        pages.div_ceil(DECODE_WARPS * rounds_a_split(pages.div_ceil(DECODE_WARPS)))
    }

    #[test]
    fn a_past_is_shared_by_more_blocks_as_it_grows() {
        // By tokens: 16, 512, 1024, 4096, 8192, 16384, 32768, 131072.
        let found = [1, 32, 64, 256, 512, 1024, 2048, 8192].map(splits);
        assert_eq!(found, [1, 8, 16, 32, 43, 64, 64, 64]);
    }

    #[test]
    fn a_launch_has_blocks_for_all_splits_of_a_past_or_a_shorter_one() {
        let mut most = 0;
        for pages in 1..5000 {
            most = most.max(splits(pages));
            assert_eq!(splits_max(pages), most, "{pages} pages");
        }
        assert_eq!(most, SPLITS_MAX);
    }

    #[test]
    fn tiles_that_see_most_keys_come_first() {
        let mut step = StepInput::default();
        let window = |window| Some(Window { window, sinks: 3 });
        for (positions, window) in [(0..130, None), (900..1010, window(50)), (300..302, None)] {
            let rows = step.positions.len() as u32..(step.positions.len() + positions.len()) as u32;
            step.positions.extend(positions);
            step.sequences.push(StepSequence { rows, pages: 0..0, window });
        }
        let mut tiles = [0, 0, 0, 64, 0, 128, 1, 0, 1, 64, 2, 0];
        heaviest_first(&step, &mut tiles);
        assert_eq!(tiles, [2, 0, 0, 128, 0, 64, 0, 0, 1, 0, 1, 64]);
    }
}
