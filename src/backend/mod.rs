//! The backend contract: fused inference operations over buffers that the backend owns.
//!
//! Operations and steps are plain data in [`ir`](crate::ir). `memory` has the traits of a device's memory,
//! `queue` steps that complete asynchronously, `health` monitoring of a device. `source` is the reader of
//! canonical weights, `sidecar` the cache file for prepared ones. Implementations: `reference` (f64, the
//! specification), `cpu` (portable, AVX2, AVX-VNNI, AVX-512, AMX, NEON), `cuda` (NVIDIA GPUs; feature
//! `cuda`). A backend has no notion of models, sequences or text.

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
    /// Indexed by [`MatrixId`](crate::ir::MatrixId).
    pub matrices: Vec<B::Matrix>,
    /// Indexed by [`VectorId`](crate::ir::VectorId).
    pub vectors: Vec<B::Vector>,
}

/// The operands of an operation: weights, intermediate values, cache and step.
#[derive(Debug)]
pub struct Frame<'a, B: Backend> {
    /// Matrices and vectors.
    pub weights: &'a Weights<B>,
    /// All intermediate values; every [`Place`](crate::ir::Place) lies in it.
    pub arena: &'a mut B::Arena,
    /// Keys and values, and recurrent states.
    pub kv: &'a mut B::KvPool,
    /// The step's rows, accepted by [`StepInput::check`].
    pub step: &'a StepInput,
}

impl<B: Backend> Frame<'_, B> {
    /// Begins the step. Called once before its operations.
    ///
    /// # Errors
    /// As [`StepQueue::begin`].
    pub fn begin(&mut self, backend: &B) -> Result<(), BackendError> {
        backend.queue().map_or(Ok(()), |queue| queue.begin(self))
    }

    /// Runs a plan over the step that [`Frame::begin`] began.
    ///
    /// # Errors
    /// The index of the failed operation and the error of [`Backend::execute`]. The index is `ops.len()` if
    /// the operations ran as one unit and the unit failed.
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
    /// Total bytes.
    pub bytes: u64,
    /// Bytes available for allocation.
    pub free_bytes: u64,
}

/// A device that runs plans.
///
/// # Required capabilities
/// Four types of memory, and [`describe`](Backend::describe), [`element_bytes`](Backend::element_bytes),
/// [`upload_vector`](Backend::upload_vector), [`prepare`](Backend::prepare), [`arena`](Backend::arena),
/// [`kv_pool`](Backend::kv_pool), [`samples`](Backend::samples) and [`execute`](Backend::execute).
///
/// # Optional capabilities
/// | capability | reached by | without it |
/// |---|---|---|
/// | [`Monitor`]: reports health | [`Backend::monitor`] | [`NoHealth`] gives the reason |
/// | [`PackedFiles`]: stores prepared matrices | [`Backend::packed_files`] | each load prepares them |
/// | [`StepQueue`]: runs ahead of the host | [`Backend::queue`] | operations run synchronously, one by one |
/// | [`StateMemory`]: holds recurrent states | [`PageMemory::states`] | recurrent layers are refused |
/// | layers with different heads | [`PageMemory::add_layers`] | plans that have them are refused |
/// | [`DeviceMemory`]: reports free memory | [`Backend::memory`] | budgets ignore it |
/// | kernels for all operations | [`Backend::check_kernel`] | models that need others are refused |
///
/// # Contract
/// Running a step allocates nothing. Each row is computed from that row (and its sequence's pages and state)
/// alone: its result has the same bits whatever other rows are in the step. CUDA has two exceptions, in which
/// kernels with different rounding take over. On Hopper, products in steps of up to 64 tokens differ from
/// those in longer steps. Attention differs between steps where the row is its sequence's only one and other
/// steps.
pub trait Backend: std::fmt::Debug + Send + Sync + Sized + 'static {
    /// Memory for intermediate values.
    type Arena: ArenaMemory;
    /// An f32 vector, ready to use.
    type Vector: std::fmt::Debug + Send + Sync;
    /// A weight matrix in the backend's own order.
    type Matrix: PreparedMatrix;
    /// Memory for sequences: keys and values, and recurrent states.
    type KvPool: PageMemory;

    /// Default number of prompt tokens per step: large enough to saturate the matrix products, small enough
    /// not to delay running answers.
    const PREFILL_CHUNK: usize = 256;

    /// One line for display: device, instruction set, threads, modes.
    fn describe(&self) -> String;

    /// The setting that keys and values depend on. A saved prompt is valid for one such setting only.
    fn arithmetic(&self) -> &'static str {
        ""
    }

    /// Bytes per arena element of the requested `precision`.
    fn element_bytes(&self, precision: Precision) -> usize;

    /// Uploads a vector.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    fn upload_vector(&self, values: &[f32]) -> Result<Self::Vector, BackendError>;

    /// Repacks a matrix into the backend's order, once, at load.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`], [`BackendError::Unavailable`], or the source's error for a row (the
    /// first failing block's, if there are several).
    fn prepare<S: MatrixSource>(&self, matrix: &S) -> Result<Self::Matrix, S::Error>;

    /// Approximate size of a prepared matrix, without padding and without reading the matrix.
    fn matrix_bytes(&self, shape: MatrixShape) -> usize {
        shape.form.bytes(shape.rows, shape.cols)
    }

    /// Allocates an arena of `bytes` (from `Plan::arena_bytes`) for steps within `limits`, and the scratch
    /// memory that the plan's operations need.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    fn arena(&self, bytes: usize, ops: &[Op], limits: StepLimits) -> Result<Self::Arena, BackendError>;

    /// Allocates `pages` pages, zeroed.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    fn kv_pool(&self, layout: KvLayout, pages: usize) -> Result<Self::KvPool, BackendError>;

    /// Whether [`Op::Sample`] supports this sampling. Otherwise the caller samples the row.
    fn samples(&self, sampling: &RowSampling, vocab: usize) -> bool;

    /// Runs one operation of the step that [`Frame::begin`] began. With a [`StepQueue`] it may complete
    /// later.
    ///
    /// # Errors
    /// [`BackendError::Shape`] if operands are inconsistent with each other, the arena or the weights.
    fn execute(&self, op: &Op, frame: &mut Frame<'_, Self>) -> Result<(), BackendError>;

    /// Whether there is a kernel for an operation of this kind.
    ///
    /// # Errors
    /// [`BackendError::Unavailable`] names the missing kernel.
    fn check_kernel(&self, op: &Op) -> Result<(), BackendError> {
        let _ = op;
        Ok(())
    }

    /// Memory of the device, if it can be queried.
    fn memory(&self) -> Option<DeviceMemory> {
        None
    }

    /// A monitor for the device's health, usable while the device works.
    ///
    /// # Errors
    /// [`NoHealth`] if the device has no monitor. The backend runs without one.
    fn monitor(&self) -> Result<Arc<dyn Monitor>, NoHealth> {
        Err(NoHealth::Cpu)
    }

    /// Cache files of prepared matrices, if the backend supports them.
    fn packed_files(&self) -> Option<&dyn PackedFiles<Self::Matrix>> {
        None
    }

    /// The asynchronous step queue, if the device has one.
    fn queue(&self) -> Option<&dyn StepQueue<Self>> {
        None
    }
}
