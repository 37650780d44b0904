//! The arena in device memory, the step's tables, and scratch memory for operations. All places are checked
//! here, on the host; kernels get addresses.

use std::sync::Arc;

use super::Cuda;
use super::driver::Context;
use super::graph::Graphs;
use super::many::scratch_bytes;
use super::memory::DeviceBuffer;
use super::pack::half_cols;
use super::params::{Address, SLAB_TOKENS, SM90_TOKENS_MIN};
use super::sample::{Sampled, StripMaxima};
use super::step::StepBuffers;
use super::view::Rows;
use crate::backend::{ArenaMemory, BackendError, shape_error};
use crate::ir::{Op, Place, StepInput, StepLimits};

/// Values are f32.
const ELEMENT_BYTES: usize = 4;

/// Intermediate values and scratch of one plan.
#[derive(Debug)]
pub struct Arena {
    context: Arc<Context>,
    values: DeviceBuffer,
    pub(super) step: StepBuffers,
    /// Packed activations of a product, f16, and their rows' scales.
    pub(super) halves: DeviceBuffer,
    pub(super) inverse: DeviceBuffer,
    /// Partial sums of tiles shared by several blocks, and per tile the number of blocks that have stored
    /// theirs: zero between operations.
    pub(super) sums: DeviceBuffer,
    pub(super) sums_arrived: DeviceBuffer,
    /// Partial results of split attention, and per head the number that have arrived: zero between
    /// operations.
    pub(super) partial: DeviceBuffer,
    pub(super) arrived: DeviceBuffer,
    /// Sampled tokens of the last two steps.
    pub(super) sampled: Sampled,
    /// Per-strip maxima of the logits, stored by the head's product for sampling.
    pub(super) maxima: Option<StripMaxima>,
    /// Whether the plan samples.
    pub(super) samples: bool,
    /// Recorded decode steps.
    pub(super) graphs: Graphs,
    /// The frequencies of the plan's rotations.
    frequencies: Vec<(Arc<[f64]>, DeviceBuffer)>,
    /// Floats in `partial` per split of a sequence, for the largest attention of the plan.
    partial_floats: usize,
}

impl Arena {
    pub(super) fn new(
        cuda: &Cuda,
        bytes: usize,
        ops: &[Op],
        limits: StepLimits,
    ) -> Result<Arena, BackendError> {
        let context = &cuda.context;
        let (mut halves, mut rows, mut partial_floats, mut heads) = (0usize, 0, 0, 0);
        let mut frequencies: Vec<(Arc<[f64]>, DeviceBuffer)> = Vec::new();
        for op in ops {
            match op {
                Op::Matmul(op) if cuda.few_bytes(op.src.rows.max(limits), op.src.cols).is_none() => {
                    rows = rows.max(op.src.rows.max(limits));
                    let slab = op.src.rows.max(limits).next_multiple_of(SLAB_TOKENS);
                    halves = halves.max(slab.saturating_mul(half_cols(op.src.cols)));
                }
                Op::Attention(op) => {
                    partial_floats = partial_floats.max(op.heads.query * (op.heads.dim + 2));
                    heads = heads.max(op.heads.query);
                }
                Op::RopeAngles(op) if !frequencies.iter().any(|(known, _)| *known == op.inv_freq) => {
                    let buffer = DeviceBuffer::of(context, &op.inv_freq, "frequencies")?;
                    frequencies.push((Arc::clone(&op.inv_freq), buffer));
                }
                _ => {}
            }
        }
        // Steps with more tokens on Hopper use kernels of their own.
        let tiled = if cuda.is_sm90(rows) { rows.min(SM90_TOKENS_MIN - 1) } else { rows };
        let (sums, sums_arrived) = scratch_bytes(tiled, context.info().multiprocessors);
        let samples = ops.iter().filter(|op| matches!(op, Op::Sample(_))).count();
        if samples > 1 {
            return Err(shape_error("sample", "one such operation in a plan".into(), format!("{samples}")));
        }
        let zeroed = |bytes, what| DeviceBuffer::zeroed(context, bytes, what);
        Ok(Arena {
            context: Arc::clone(context),
            values: zeroed(bytes, "intermediate values")?,
            step: StepBuffers::new(context, limits, cuda.batch_invariant)?,
            halves: zeroed(halves.saturating_mul(2), "activations in f16")?,
            inverse: zeroed(4 * rows, "activation scales")?,
            sums: zeroed(sums, "sums of shared tiles")?,
            sums_arrived: zeroed(sums_arrived, "sums of shared tiles")?,
            partial: zeroed(0, "split attention")?,
            arrived: zeroed(4 * heads * limits.tokens_max, "split attention")?,
            sampled: Sampled::new(context, limits.outputs_max)?,
            maxima: StripMaxima::of_plan(context, ops, limits)?,
            samples: samples > 0,
            graphs: Graphs::default(),
            frequencies,
            partial_floats,
        })
    }

    /// Whether this memory belongs to `context`, and so to its stream.
    pub(super) fn is_of(&self, context: &Arc<Context>) -> bool {
        Arc::ptr_eq(&self.context, context)
    }

    /// Begins a step: uploads its tables and makes room for split attention.
    pub(super) fn begin(&mut self, step: &StepInput) -> Result<(), BackendError> {
        let slot = self.sampled.free_slot()?;
        self.step.upload(step, slot)?;
        let shape = self.step.shape();
        let parts = if shape.splits > 1 { shape.decodes_a_launch() * shape.splits } else { 0 };
        let bytes = parts.saturating_mul(4 * self.partial_floats);
        if bytes > self.partial.bytes() {
            self.partial = DeviceBuffer::zeroed(&self.context, bytes.next_power_of_two(), "split attention")?;
        }
        self.sampled.begin(step.outputs.len());
        Ok(())
    }

    /// The rows of `place` in this step.
    pub(super) fn rows(
        &self,
        op: &'static str,
        place: &Place,
        step: &StepInput,
    ) -> Result<Rows, BackendError> {
        let rows = place.rows.count(step);
        let range = place.range(op, rows, ELEMENT_BYTES, self.values.bytes())?;
        Ok(Rows { address: self.values.address() + range.start as u64, rows, cols: place.cols })
    }

    /// The address of a rotation's frequencies.
    pub(super) fn frequencies(&self, op: &'static str, wanted: &Arc<[f64]>) -> Result<Address, BackendError> {
        let same = |known: &Arc<[f64]>| Arc::ptr_eq(known, wanted) || known == wanted;
        let found = self.frequencies.iter().find(|(known, _)| same(known));
        found.map(|(_, buffer)| buffer.address()).ok_or_else(|| BackendError::Shape {
            op,
            expected: "frequencies of an operation that the arena was made for".into(),
            found: format!("{} others", wanted.len()),
        })
    }
}

impl ArenaMemory for Arena {
    fn write(&mut self, place: &Place, values: &[f32]) -> Result<(), BackendError> {
        let rows = place.whole_rows("write", values.len())?;
        let range = place.range("write", rows, ELEMENT_BYTES, self.values.bytes())?;
        self.values.upload(range.start, values)
    }

    fn read(&self, place: &Place, first_row: usize, out: &mut [f32]) -> Result<(), BackendError> {
        let rows = first_row.saturating_add(place.whole_rows("read", out.len())?);
        let range = place.range("read", rows, ELEMENT_BYTES, self.values.bytes())?;
        self.values.download(range.end - size_of_val(out), out)
    }
}
