//! The backend contract: fused inference operations over buffers that the backend owns.
//!
//! The operations and the steps that they run over are data of [`ir`](crate::ir). `memory` is what a device's memory
//! does, `queue` steps that end later, `health` what a device says of itself, `source` where weights come from,
//! `sidecar` where they may be kept. Implementations: `reference` (f64, the specification), `cpu` (portable, AVX2,
//! AVX-VNNI, AVX-512, AMX, NEON), `cuda` (NVIDIA GPUs; feature `cuda`). A backend knows nothing of models,
//! sequences or text.

pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
mod error;
mod health;
mod memory;
mod place;
mod queue;
mod reference;
mod sidecar;
mod source;
mod states;

use std::sync::Arc;

use crate::ir::{KvLayout, Op, Precision, RowSampling, StepInput, StepLimits};
pub use error::BackendError;
pub use health::*;
pub use memory::{ArenaMemory, PageMemory, PreparedMatrix, StateMemory};
use place::{overlap_error, shape_error};
pub use queue::StepQueue;
pub use reference::Reference;
pub use sidecar::{MatrixShape, NoSidecar, PackedFiles, Sidecar};
pub use source::MatrixSource;

/// A model's weights in a backend's own form; ids index into it.
#[derive(Debug)]
pub struct Weights<B: Backend> {
    /// By [`MatrixId`](crate::ir::MatrixId).
    pub matrices: Vec<B::Matrix>,
    /// By [`VectorId`](crate::ir::VectorId).
    pub vectors: Vec<B::Vector>,
}

/// What an operation works on.
#[derive(Debug)]
pub struct Frame<'a, B: Backend> {
    /// Matrices and vectors.
    pub weights: &'a Weights<B>,
    /// All intermediate values; every [`Place`](crate::ir::Place) lies in it.
    pub arena: &'a mut B::Arena,
    /// Keys and values, and states.
    pub kv: &'a mut B::KvPool,
    /// The rows. [`StepInput::check`] has accepted it.
    pub step: &'a StepInput,
}

impl<B: Backend> Frame<'_, B> {
    /// Takes up the step. Called once before its operations.
    ///
    /// # Errors
    /// As [`StepQueue::begin`].
    pub fn begin(&mut self, backend: &B) -> Result<(), BackendError> {
        backend.queue().map_or(Ok(()), |queue| queue.begin(self))
    }

    /// Runs a plan over the step that [`Frame::begin`] took up.
    ///
    /// # Errors
    /// The index of an operation, with what [`Backend::execute`] says of it; their number, where what
    /// failed is all of them in one.
    pub fn run(&mut self, backend: &B, ops: &[Op]) -> Result<(), (usize, BackendError)> {
        if let Some(queue) = backend.queue() {
            return queue.run(ops, self);
        }
        let mut ops = ops.iter().enumerate();
        ops.try_for_each(|(index, op)| backend.execute(op, self).map_err(|error| (index, error)))
    }
}

/// Memory of a device at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Bytes of it.
    pub bytes: u64,
    /// Bytes that can be had.
    pub free_bytes: u64,
}

/// A device that runs plans.
///
/// # What a device must do
/// Four types of memory, and [`describe`](Backend::describe), [`element_bytes`](Backend::element_bytes),
/// [`upload_vector`](Backend::upload_vector), [`prepare`](Backend::prepare), [`arena`](Backend::arena),
/// [`kv_pool`](Backend::kv_pool), [`samples`](Backend::samples) and [`execute`](Backend::execute).
///
/// # What only some can do
/// | capability | reached by | without it |
/// |---|---|---|
/// | [`Monitor`]: tells of its health | [`Backend::monitor`] | [`NoHealth`] says why |
/// | [`PackedFiles`]: keeps prepared matrices in files | [`Backend::packed_files`] | each load prepares them |
/// | [`StepQueue`]: runs ahead of the host | [`Backend::queue`] | operations run one by one, and have ended |
/// | [`StateMemory`]: keeps states of sequences | [`PageMemory::states`] | recurrent layers are refused |
/// | layers of several heads | [`PageMemory::add_layers`] | plans that have them are refused |
/// | [`DeviceMemory`]: tells what is free | [`Backend::memory`] | budgets do not look at it |
/// | kernels for all operations | [`Backend::check_kernel`] | models that need others are refused |
///
/// # Contract
/// Running a step allocates nothing, and computes each row from that row (and its sequence's pages and state)
/// alone: a row's result has the same bits whatever other rows are in the step. On CUDA that holds for
/// products in steps of any length, but on Hopper apart in steps of up to 64 tokens and in longer ones; and for
/// attention apart in steps where the row is alone in its sequence and in others. Those have kernels of their
/// own, which round otherwise.
pub trait Backend: std::fmt::Debug + Send + Sync + Sized + 'static {
    /// Memory for intermediate values.
    type Arena: ArenaMemory;
    /// An f32 vector, ready to use.
    type Vector: std::fmt::Debug + Send + Sync;
    /// A weight matrix in the backend's own order.
    type Matrix: PreparedMatrix;
    /// Memory for what is kept of sequences: keys and values, and states.
    type KvPool: PageMemory;

    /// Default number of prompt tokens per step: large enough to saturate the matrix products, small enough
    /// not to delay running answers.
    const PREFILL_CHUNK: usize = 256;

    /// One line for people: device, instruction set, threads, modes.
    fn describe(&self) -> String;

    /// What it is set to that keys and values depend on. A saved prompt belongs to one such setting.
    fn arithmetic(&self) -> &'static str {
        ""
    }

    /// Bytes that an arena element asked for in `precision` takes.
    fn element_bytes(&self, precision: Precision) -> usize;

    /// Uploads a vector.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    fn upload_vector(&self, values: &[f32]) -> Result<Self::Vector, BackendError>;

    /// Repacks a matrix into the backend's order, once, at load.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`], [`BackendError::Unavailable`]; what the source has against a row (of
    /// several, the first block's).
    fn prepare<S: MatrixSource>(&self, matrix: &S) -> Result<Self::Matrix, S::Error>;

    /// About what a matrix takes once it is prepared, computed without reading it; padding does not count.
    fn matrix_bytes(&self, shape: MatrixShape) -> usize {
        shape.form.bytes(shape.rows, shape.cols)
    }

    /// Allocates an arena of `bytes` (from `Plan::arena_bytes`) for steps within
    /// `limits`, and whatever scratch the plan's operations need beside it.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    fn arena(&self, bytes: usize, ops: &[Op], limits: StepLimits) -> Result<Self::Arena, BackendError>;

    /// Allocates `pages` pages, zeroed.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    fn kv_pool(&self, layout: KvLayout, pages: usize) -> Result<Self::KvPool, BackendError>;

    /// Whether [`Op::Sample`] takes rows with this sampling itself, and does not leave them to the caller.
    fn samples(&self, sampling: &RowSampling, vocab: usize) -> bool;

    /// Runs one operation of the step that [`Frame::begin`] took up. With a [`StepQueue`] it may end later.
    ///
    /// # Errors
    /// [`BackendError::Shape`] if operands do not fit each other, the arena or the weights.
    fn execute(&self, op: &Op, frame: &mut Frame<'_, Self>) -> Result<(), BackendError>;

    /// Whether there is a kernel for an operation of this kind.
    ///
    /// # Errors
    /// [`BackendError::Unavailable`] names what there is no kernel for.
    fn check_kernel(&self, op: &Op) -> Result<(), BackendError> {
        let _ = op;
        Ok(())
    }

    /// The memory of the device, where it says.
    fn memory(&self) -> Option<DeviceMemory> {
        None
    }

    /// What tells of the device's health while it works.
    ///
    /// # Errors
    /// [`NoHealth`]: there is nothing to ask. It keeps nobody from running.
    fn monitor(&self) -> Result<Arc<dyn Monitor>, NoHealth> {
        Err(NoHealth::Cpu)
    }

    /// Files of prepared matrices, if the device keeps any.
    fn packed_files(&self) -> Option<&dyn PackedFiles<Self::Matrix>> {
        None
    }

    /// Steps that end later than the calls that start them, if the device has such.
    fn queue(&self) -> Option<&dyn StepQueue<Self>> {
        None
    }
}
