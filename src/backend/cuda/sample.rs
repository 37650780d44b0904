//! [`Op::Sample`](crate::ir::Op::Sample) and the transfer of its tokens: to the host, which may read them one
//! step later, and to the next step's embedding, which need not wait for the host.
//!
//! Steps alternate between two slots. Each slot has ids on the device, a copy of them on the host, and an
//! event after that copy; `step` alternates its page-locked tables in the same way.

use std::sync::Arc;

use super::driver::{Context, Event};
use super::kernels::{Grid, Kernel};
use super::memory::{DeviceBuffer, HostBuffer};
use super::pack::STRIP_ROWS;
use super::params;
use super::{Cuda, overlap_error, shape_error};
use crate::backend::{BackendError, Frame};
use crate::ir::{
    Epilogue, LogitAdjustment, Op, Place, Product, RowSampling, SampleRows, StepLimits, WriteMode,
};
use crate::token::TokenId;

const OP: &str = "sample";
/// Threads per block of sample.cu.
const THREADS: u32 = 512;
/// As in sampled.cuh: marks an id as an output of the previous step.
pub(super) const FED: u32 = 1 << 31;
/// As in sampled.cuh: the id of a row without a token.
const NO_TOKEN: u32 = u32::MAX;
/// As in sample.cu: maximum number of columns that the kernel draws from.
const DRAW_COLS_MAX: usize = 1 << 18;
/// As in logits.cuh: columns that a block reads per iteration.
const TURN_COLS: usize = 2048;
/// Size of candidates.cuh's `SharedBins`.
const BINS_BYTES: usize = 4 * (2 * 2048 + 4);
/// Maximum blocks per row: each of them reads all maxima that the head stored for the row.
const PARTS_MAX: usize = 8;
const STORE: Epilogue = Epilogue::Write(WriteMode::Store);

/// State of a slot's work on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// No work in flight.
    Done,
    /// Work without an event after it.
    Open,
    /// Work that ends with the slot's event.
    Copying,
}

#[derive(Debug)]
struct Slot {
    host: HostBuffer,
    copied: Event,
    work: Work,
    outputs: usize,
}

/// The tokens of the last two steps.
#[derive(Debug)]
pub(super) struct Sampled {
    context: Arc<Context>,
    /// `[2, outputs_max]`
    ids: DeviceBuffer,
    outputs_max: usize,
    slots: [Slot; 2],
    /// Slot of the last step.
    current: usize,
}

impl Sampled {
    pub(super) fn new(context: &Arc<Context>, outputs_max: usize) -> Result<Sampled, BackendError> {
        let slot = || -> Result<Slot, BackendError> {
            let host = HostBuffer::zeroed(context, outputs_max)?;
            Ok(Slot { host, copied: Event::untimed(context)?, work: Work::Done, outputs: 0 })
        };
        Ok(Sampled {
            context: Arc::clone(context),
            ids: DeviceBuffer::zeroed(context, 8 * outputs_max, "sampled tokens")?,
            outputs_max,
            slots: [slot()?, slot()?],
            current: 0,
        })
    }

    pub(super) fn params(&self) -> params::Sampled {
        params::Sampled { ids: self.ids.address(), outputs_max: self.outputs_max as u32, unused: 0 }
    }

    /// The slot for the next step, after its previous step has completed.
    pub(super) fn free_slot(&mut self) -> Result<usize, BackendError> {
        let next = 1 - self.current;
        self.finish(next)?;
        self.slots[next].work = Work::Open;
        Ok(next)
    }

    /// Notes that the next step has begun.
    pub(super) fn begin(&mut self, outputs: usize) {
        self.current = 1 - self.current;
        self.slots[self.current].outputs = outputs;
    }

    /// Notes that the last step has failed, and has no tokens.
    pub(super) fn fail(&mut self) {
        self.slots[self.current].outputs = 0;
    }

    fn finish(&mut self, slot: usize) -> Result<(), BackendError> {
        match self.slots[slot].work {
            Work::Done => return Ok(()),
            Work::Open => self.context.wait()?,
            Work::Copying => self.slots[slot].copied.wait()?,
        }
        self.slots[slot].work = Work::Done;
        Ok(())
    }

    /// Starts the copy of the last step's tokens to the host.
    pub(super) fn copy(&mut self) -> Result<(), BackendError> {
        self.copy_slot(self.current)
    }

    fn copy_slot(&mut self, index: usize) -> Result<(), BackendError> {
        let slot = &mut self.slots[index];
        self.ids.download_pinned(4 * index * self.outputs_max, &mut slot.host, 4 * slot.outputs)?;
        slot.copied.record()?;
        slot.work = Work::Copying;
        Ok(())
    }

    /// The tokens of a step's first outputs, after the step has completed.
    pub(super) fn tokens(
        &mut self,
        steps_back: usize,
        out: &mut [Option<TokenId>],
    ) -> Result<(), BackendError> {
        // Steps alternate: the one before the last has the other slot.
        let index = self.current ^ steps_back;
        let outputs = self.slots.get(index).map_or(0, |slot| slot.outputs);
        if steps_back > 1 || out.len() > outputs {
            let found = format!("{} outputs {steps_back} steps back", out.len());
            return Err(shape_error(OP, format!("at most {outputs} outputs of the last two steps"), found));
        }
        if self.slots[index].work == Work::Open {
            // Its operations were run one by one, so no copy was started.
            self.copy_slot(index)?;
        }
        self.finish(index)?;
        for (to, &id) in out.iter_mut().zip(self.slots[index].host.words()) {
            *to = (id != NO_TOKEN).then_some(TokenId(id));
        }
        Ok(())
    }
}

/// Values that the head's product stores for the sampling after it: the largest logit per strip of each row.
/// With them, a greedy row need not be read again.
#[derive(Debug)]
pub(super) struct StripMaxima {
    logits: Place,
    /// `[rows, strips]`; strips after a row's last one are never written.
    largest: DeviceBuffer,
    strips: usize,
    /// Bins of rows shared by several blocks: zero between operations.
    bins: DeviceBuffer,
    /// Whether the head's last launch has stored maxima that no sampling has used yet.
    fresh: bool,
}

impl StripMaxima {
    /// For a plan that samples directly after a product, with no other operation in between.
    pub(super) fn of_plan(
        context: &Arc<Context>,
        ops: &[Op],
        limits: StepLimits,
    ) -> Result<Option<StripMaxima>, BackendError> {
        let logits = ops.windows(2).find_map(|pair| match pair {
            [Op::Matmul(head), Op::Sample(SampleRows { src, .. })] => {
                let stores = |product: &&Product| product.dst == *src && product.epilogue == STORE;
                head.products.iter().find(stores).map(|product| product.dst)
            }
            _ => None,
        });
        let Some(logits) = logits.filter(|logits| logits.cols <= DRAW_COLS_MAX) else { return Ok(None) };
        let strips = logits.cols.next_multiple_of(TURN_COLS) / STRIP_ROWS;
        let rows = logits.rows.max(limits);
        let largest = DeviceBuffer::zeroed(context, rows.saturating_mul(4 * strips), "largest logits")?;
        let shared = rows.min(context.info().multiprocessors);
        let bins = DeviceBuffer::zeroed(context, shared * BINS_BYTES, "sums of shared rows")?;
        Ok(Some(StripMaxima { logits, largest, strips, bins, fresh: false }))
    }

    /// Makes the launch of a product store the maxima, if it is the head's.
    pub(super) fn store_in(&mut self, op: &Product, product: &mut params::Product) {
        if op.dst == self.logits && op.epilogue == STORE {
            product.largest = self.largest.address();
            product.noted_strips = self.strips as u32;
            self.fresh = true;
        }
    }

    /// Passes the maxima to the sampling kernel, if they belong to these logits.
    fn take(&mut self, logits: &Place, params: &mut params::Sample) {
        if std::mem::take(&mut self.fresh) && *logits == self.logits {
            params.largest = self.largest.address();
            params.noted_strips = self.strips as u32;
            params.bins = self.bins.address();
        }
    }
}

/// Number of blocks per row: as many as find free multiprocessors, up to the maximum.
fn parts(rows: usize, multiprocessors: usize) -> usize {
    (multiprocessors / rows.max(1)).clamp(1, PARTS_MAX)
}

/// Refuses adjustments of tokens outside the row.
pub(super) fn check_adjustments(entries: &[LogitAdjustment], cols: usize) -> Result<(), BackendError> {
    match entries.iter().find(|entry| entry.token.index() >= cols) {
        Some(entry) => Err(shape_error(OP, format!("tokens below {cols}"), format!("{}", entry.token))),
        None => Ok(()),
    }
}

impl Cuda {
    pub(super) fn sample(
        &self,
        [dst, src]: [&Place; 2],
        frame: &mut Frame<'_, Cuda>,
    ) -> Result<(), BackendError> {
        let Frame { arena, step, .. } = frame;
        let (to, from) = (arena.rows(OP, dst, step)?, arena.rows(OP, src, step)?);
        if (to.rows, to.cols) != (from.rows, 1) {
            let expected = format!("dst [{}, 1]", from.rows);
            return Err(shape_error(OP, expected, format!("[{}, {}]", to.rows, to.cols)));
        }
        if to.overlaps(&from) {
            return Err(overlap_error(OP, [dst, src]));
        }
        check_adjustments(&step.adjustments, from.cols)?;
        let tables = arena.step.params();
        let mut params = params::Sample {
            dst: to.address,
            src: from.address,
            sampling: arena.step.sampling(),
            tables: tables.tokens,
            counts: tables.counts,
            sampled: arena.sampled.params(),
            cols: from.cols as u32,
            ..params::Sample::default()
        };
        if let Some(maxima) = &mut arena.maxima {
            maxima.take(src, &mut params);
        }
        let shared =
            if params.largest == 0 { 1 } else { parts(to.rows, self.context.info().multiprocessors) };
        let grid = Grid { blocks: [to.rows, shared, 1], ..Grid::line(to.rows, THREADS) };
        // SAFETY: shapes, places and ids are checked, the tables by the step.
        unsafe { self.kernels.launch(Kernel::Sample, grid, &params) }
    }

    /// Whether the kernel supports rows with this sampling.
    pub(super) fn takes(sampling: &RowSampling, vocab: usize) -> bool {
        sampling.temperature == 0.0 || sampling.top_k == 1 || vocab <= DRAW_COLS_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_share_rows_while_there_are_multiprocessors() {
        assert_eq!([1, 16, 17, 66, 67, 500].map(|rows| parts(rows, 132)), [8, 8, 7, 2, 1, 1]);
        // Rows shared by several blocks must have bins.
        assert!((1..1000).all(|rows| parts(rows, 132) == 1 || rows <= 132));
    }
}
