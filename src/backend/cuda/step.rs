//! A step in device memory: rows, page tables and outputs as kernels read them, in one upload.

use std::sync::Arc;

use super::driver::Context;
use super::memory::{DeviceBuffer, HostBuffer};
use super::params::{RowSampling, Sequence, Step};
use super::sample::FED;
use crate::backend::{self, BackendError, PAGE_TOKENS, StepError, StepInput, StepLimits, StepSequence};

/// Rows of a block of `attention_prefill.cu`.
pub(super) const TILE_ROWS: u32 = 64;
/// Blocks of `attention_decode.cu` that share a sequence at most, and warps of a block.
const SPLITS_MAX: usize = 16;
const DECODE_WARPS: usize = 4;
/// Splits of all rows of a prompt that a launch of `attention_decode.cu` takes.
const ROW_SPLITS_MAX: usize = 1024;
/// Entries that the page table has room for at first.
const PAGES_MIN: usize = 1024;

/// Where the parts of a step lie, in words from the start. The page table is last, and behind it the
/// adjustments: they alone grow.
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

    /// Where the adjustments of a step lie, aligned to one of them.
    fn adjustments(&self, step: &StepInput) -> usize {
        (self.pages + 2 * step.pages.len()).next_multiple_of(ADJUSTMENT_WORDS)
    }

    /// Writes how each output is sampled, and the adjustments.
    fn fill_sampling(&self, step: &StepInput, words: &mut [u32]) {
        let first = self.adjustments(step);
        let greedy = backend::RowSampling::default();
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

/// What launches need to know of the step that is on the device.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Shape {
    /// Its sequences.
    pub(super) sequences: usize,
    /// Whether there are sequences of one row.
    pub(super) decodes: bool,
    /// In batch-invariant mode, where some have more: the step's rows, which attend one by one.
    pub(super) by_rows: Option<usize>,
    /// Blocks of rows of sequences with more rows than one.
    pub(super) tiles: usize,
    /// Whether attention can append its keys itself: all sequences have one row, and no page that one
    /// writes is another's too.
    pub(super) appends: bool,
    /// Splits of the longest past of a row that attends by itself, rounded up to a power of two: few
    /// shapes, so that graphs are found again.
    pub(super) splits: usize,
}

/// Blocks that share so many pages, as `split_pages` in `attention_decode.cu` has it.
fn splits(pages: usize) -> usize {
    pages.div_ceil(pages.div_ceil(SPLITS_MAX * DECODE_WARPS).max(1) * DECODE_WARPS)
}

impl Shape {
    /// Whether all sequences have one row.
    pub(super) fn decodes_only(&self) -> bool {
        self.decodes && self.tiles == 0 && self.by_rows.is_none()
    }

    /// Sequences or rows that a launch of `attention_decode.cu` takes.
    pub(super) fn decodes_a_launch(&self) -> usize {
        self.by_rows.map_or(self.sequences, |rows| rows.min(ROW_SPLITS_MAX / self.splits))
    }
}

/// A step's place on the device, filled once a step.
#[derive(Debug)]
pub(super) struct StepBuffers {
    context: Arc<Context>,
    layout: Layout,
    limits: StepLimits,
    batch_invariant: bool,
    /// By the turns of `sample`.
    hosts: [HostBuffer; 2],
    device: DeviceBuffer,
    shape: Shape,
    /// By page: how many sequences write it. Zero between steps.
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

    /// Copies a step to the device, through a buffer whose last copy is over. Allocates only where its
    /// page tables are longer, or name a later page, than any before.
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
                // Rows of a prompt have no more pages than this, and may have more splits.
                let first_pages = sequence.pages.len().saturating_sub((rows.len() - 1).div_ceil(PAGE_TOKENS));
                let most = (first_pages..=sequence.pages.len()).map(splits).max();
                shape.splits = shape.splits.max(most.unwrap_or(1));
                continue;
            }
            for first in (0..rows.len() as u32).step_by(TILE_ROWS as usize) {
                let at = tiles + 2 * shape.tiles;
                words[at..at + 2].copy_from_slice(&[index as u32, first]);
                shape.tiles += 1;
            }
        }
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

    /// Whether each page that a sequence writes is in no other's table, where all have one row.
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

    /// The address of how outputs are sampled.
    pub(super) fn sampling(&self) -> u64 {
        self.address(self.layout.sampling)
    }

    /// The address of the blocks of rows of prompts.
    pub(super) fn tiles(&self) -> u64 {
        self.address(self.layout.tiles)
    }
}
