//! The backend contract: fused inference operations over buffers that the backend owns.
//!
//! The operations and the steps that they run over are data of [`ir`](crate::ir). `health` is what a device says of
//! itself, `source` where weights come from, `sidecar` where they may be kept. Implementations: `reference` (f64, the
//! specification), `cpu` (portable, AVX2, AVX-VNNI, AVX-512, AMX, NEON), `cuda` (NVIDIA GPUs; feature `cuda`). A
//! backend knows nothing of models, sequences or text.

pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
mod health;
mod place;
mod reference;
mod sidecar;
mod source;
mod states;

use std::sync::Arc;

use crate::ir::{
    KvLayout, Op, PageId, Place, Precision, RowSampling, StateSlot, StepError, StepInput, StepLimits,
};
use crate::kind::ErrorKind;
use crate::token::TokenId;
pub use health::*;
use place::{overlap_error, shape_error};
pub use reference::Reference;
pub use sidecar::{MatrixShape, NoSidecar, Sidecar};
pub use source::MatrixSource;

/// Why a backend refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// An operation's operands do not fit each other.
    #[error("{op}: expected {expected}, found {found}")]
    Shape {
        /// The operation.
        op: &'static str,
        /// What its contract asks for.
        expected: String,
        /// What it was given.
        found: String,
    },
    /// No memory for an allocation; nothing changed.
    #[error("no memory for {bytes} bytes of {what}")]
    OutOfMemory {
        /// Bytes asked for.
        bytes: usize,
        /// What they were for.
        what: &'static str,
    },
    /// A number that was asked for is beyond its range.
    #[error("{what}: expected 1 to {most}, found {found}")]
    Count {
        /// What is counted.
        what: &'static str,
        /// The largest number.
        most: usize,
        /// What was asked for.
        found: usize,
    },
    /// The system gave no thread; those that had been started have ended.
    #[error("thread {number} of {threads} could not start: {reason}; fewer threads may do")]
    Thread {
        /// Which one, from 1.
        number: usize,
        /// How many there were to be.
        threads: usize,
        /// The system's reason.
        reason: String,
    },
    /// The machine lacks what was asked for.
    #[error("{what} is not available: {reason}")]
    Unavailable {
        /// What was asked for.
        what: String,
        /// Why there is none.
        reason: String,
    },
    /// A device's driver reports an error, of this call or of earlier work.
    #[error("{device}: {call}: {error}{}", if *.lost { "; the device is lost until the process is restarted" } else { "" })]
    Device {
        /// Which device.
        device: String,
        /// The call or the kernel.
        call: &'static str,
        /// The driver's name of it.
        error: String,
        /// Whether the device refuses all further work.
        lost: bool,
    },
    /// The step breaks its rules; nothing was run.
    #[error(transparent)]
    Step(#[from] StepError),
}

impl BackendError {
    /// What to do about it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            BackendError::Count { .. } => ErrorKind::Invalid,
            BackendError::OutOfMemory { .. } | BackendError::Thread { .. } => ErrorKind::OutOfMemory,
            BackendError::Unavailable { .. } => ErrorKind::NoDevice,
            BackendError::Device { lost: true, .. } => ErrorKind::DeviceLost,
            BackendError::Device { .. } | BackendError::Shape { .. } | BackendError::Step(_) => {
                ErrorKind::Internal
            }
        }
    }

    /// The setting that is at fault.
    pub fn field(&self) -> Option<&'static str> {
        if let BackendError::Count { what, .. } = self { Some(what) } else { None }
    }
}

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
    /// All intermediate values; every [`Place`] lies in it.
    pub arena: &'a mut B::Arena,
    /// Keys and values, and states.
    pub kv: &'a mut B::KvPool,
    /// The rows. [`StepInput::check`] has accepted it.
    pub step: &'a StepInput,
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
/// # Contract
/// `execute` allocates nothing, and computes each row from that row (and its sequence's pages and state)
/// alone: a row's result has the same bits whatever other rows are in the step. On CUDA that holds for
/// products in steps of any length, but on Hopper apart in steps of up to 64 tokens and in longer ones; and for
/// attention apart in steps where the row is alone in its sequence and in others. Those have kernels of their
/// own, which round otherwise.
pub trait Backend: std::fmt::Debug + Send + Sync + Sized + 'static {
    /// Memory for intermediate values.
    type Arena: std::fmt::Debug + Send;
    /// An f32 vector, ready to use.
    type Vector: std::fmt::Debug + Send + Sync;
    /// A weight matrix in the backend's own order.
    type Matrix: std::fmt::Debug + Send + Sync;
    /// Memory for what is kept of sequences: keys and values, and states.
    type KvPool: std::fmt::Debug + Send;

    /// Whether a step may be taken up before the tokens of the one before were asked for, and may be fed
    /// them ([`StepInput::fed`]).
    const RUNS_AHEAD: bool = false;
    /// Default number of prompt tokens per step: large enough to saturate the matrix products, small enough
    /// not to delay running answers.
    const PREFILL_CHUNK: usize = 256;

    /// One line for people: device, instruction set, threads, modes.
    fn describe(&self) -> String;

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

    /// Whether there is a kernel for an operation of this kind.
    ///
    /// # Errors
    /// [`BackendError::Unavailable`] names what there is no kernel for.
    fn check_kernel(&self, op: &Op) -> Result<(), BackendError> {
        let _ = op;
        Ok(())
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

    /// The matrices that [`Backend::keep`] wrote, in their order, in place of preparing them.
    ///
    /// # Errors
    /// [`NoSidecar`] says why the file cannot be used; nothing of it is.
    fn restore(&self, sidecar: &Sidecar<'_>) -> Result<Vec<Self::Matrix>, NoSidecar> {
        let _ = sidecar;
        Err(NoSidecar::Unsupported)
    }

    /// Writes prepared matrices, of the sidecar's shapes and in their order, for [`Backend::restore`]. What
    /// is there under that name is replaced at once, at the end.
    ///
    /// # Errors
    /// [`NoSidecar`]; then all is as it was.
    fn keep(&self, sidecar: &Sidecar<'_>, matrices: &[Self::Matrix]) -> Result<(), NoSidecar> {
        let _ = (sidecar, matrices);
        Err(NoSidecar::Unsupported)
    }

    /// Bytes that a prepared matrix keeps resident.
    fn matrix_bytes(&self, matrix: &Self::Matrix) -> usize;

    /// Whether its products are of int8 weights and int8 activations: which of a device's peaks they are
    /// held against.
    fn multiplies_int8(&self, matrix: &Self::Matrix) -> bool {
        let _ = matrix;
        false
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

    /// Adds layers of other heads to a pool, behind those that it has: each page has a part in them, too.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`]; [`BackendError::Unavailable`] on a backend whose layers are all alike.
    fn add_kv_layers(&self, pool: &mut Self::KvPool, layout: KvLayout) -> Result<(), BackendError> {
        let _ = pool;
        let reason = format!("on {} they are all alike", self.describe());
        Err(BackendError::Unavailable {
            what: format!("layers of other keys and values, {layout:?}"),
            reason,
        })
    }

    /// Copies one page onto another, in all layers.
    ///
    /// # Errors
    /// [`BackendError::Shape`] if a page is outside the pool.
    fn copy_page(&self, pool: &mut Self::KvPool, from: PageId, to: PageId) -> Result<(), BackendError>;

    /// Appends a page's [`KvLayout::page_bytes`] bytes, those of each layout, little-endian, to `out`. The
    /// bytes mean something to the same backend and layout only.
    ///
    /// # Errors
    /// [`BackendError::Shape`] if the page is outside the pool.
    fn export_page(&self, pool: &Self::KvPool, page: PageId, out: &mut Vec<u8>) -> Result<(), BackendError>;

    /// Fills a page with what [`Backend::export_page`] gave.
    ///
    /// # Errors
    /// [`BackendError::Shape`] if the page is outside the pool or the length is wrong.
    fn import_page(&self, pool: &mut Self::KvPool, page: PageId, bytes: &[u8]) -> Result<(), BackendError>;

    /// Gives a pool `slots` slots of state, of `elements` each, in place of those that it has.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`]; [`BackendError::Unavailable`] on a backend that keeps no states.
    fn add_states(&self, pool: &mut Self::KvPool, elements: usize, slots: usize) -> Result<(), BackendError> {
        let _ = (pool, elements, slots);
        Err(no_states(self))
    }

    /// Copies a slot of state out, rounded to f32 where it is kept wider.
    ///
    /// # Errors
    /// [`BackendError::Shape`] if there is no such slot or `out` is not as long;
    /// [`BackendError::Unavailable`] on a backend that keeps no states.
    fn read_state(&self, pool: &Self::KvPool, slot: StateSlot, out: &mut [f32]) -> Result<(), BackendError> {
        let _ = (pool, slot, out);
        Err(no_states(self))
    }

    /// Fills a slot of state with what [`Backend::read_state`] gave.
    ///
    /// # Errors
    /// As [`Backend::read_state`].
    fn write_state(
        &self,
        pool: &mut Self::KvPool,
        slot: StateSlot,
        values: &[f32],
    ) -> Result<(), BackendError> {
        let _ = (pool, slot, values);
        Err(no_states(self))
    }

    /// Copies rows of a value in, widened or narrowed as stored: `values` is `[n, place.cols]`,
    /// written from row 0.
    ///
    /// # Errors
    /// [`BackendError::Shape`] if the rows do not fit the arena.
    fn write(&self, arena: &mut Self::Arena, place: &Place, values: &[f32]) -> Result<(), BackendError>;

    /// Copies rows of a value out: `out` is `[n, place.cols]`, read from row `first_row`.
    ///
    /// # Errors
    /// [`BackendError::Shape`] if the rows are outside the arena.
    fn read(
        &self,
        arena: &Self::Arena,
        place: &Place,
        first_row: usize,
        out: &mut [f32],
    ) -> Result<(), BackendError>;

    /// Takes up a step. Called once before its operations; a device copies the step's tables.
    ///
    /// # Errors
    /// [`BackendError::Shape`] if the step is beyond the arena's limits,
    /// [`BackendError::OutOfMemory`], [`BackendError::Device`].
    fn begin(&self, frame: &mut Frame<'_, Self>) -> Result<(), BackendError> {
        let _ = frame;
        Ok(())
    }

    /// Waits for the work so far, where `execute` only starts it.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    fn wait(&self) -> Result<(), BackendError> {
        Ok(())
    }

    /// Runs a plan over the step that [`Backend::begin`] took up. With one arena come always the same
    /// operations, weights and pool: a device may keep what it has recorded of them.
    ///
    /// # Errors
    /// The index of an operation, with what [`Backend::execute`] says of it; their number, where what
    /// failed is all of them in one.
    fn run(&self, ops: &[Op], frame: &mut Frame<'_, Self>) -> Result<(), (usize, BackendError)> {
        ops.iter()
            .enumerate()
            .try_for_each(|(index, op)| self.execute(op, frame).map_err(|error| (index, error)))
    }

    /// Whether [`Op::Sample`] takes rows with this sampling itself, and does not leave them to the caller.
    fn samples(&self, sampling: &RowSampling, vocab: usize) -> bool;

    /// What [`Op::Sample`] wrote to `place` for the first `out.len()` rows, `steps_back` steps before the
    /// last one taken up: 0, or up to 1 on a backend that runs ahead. Waits for that step alone.
    ///
    /// # Errors
    /// [`BackendError::Shape`] if there are no such rows or steps, [`BackendError::Device`].
    fn sampled(
        &self,
        arena: &mut Self::Arena,
        place: &Place,
        steps_back: usize,
        out: &mut [Option<TokenId>],
    ) -> Result<(), BackendError> {
        if steps_back > 0 {
            return Err(shape_error("sampled", "the last step".into(), format!("{steps_back} steps back")));
        }
        let mut ids = [0.0; 64];
        for (first, part) in (0..).step_by(ids.len()).zip(out.chunks_mut(ids.len())) {
            let ids = &mut ids[..part.len()];
            self.read(arena, place, first, ids)?;
            for (to, &id) in part.iter_mut().zip(&*ids) {
                *to = (id >= 0.0).then_some(TokenId(id as u32));
            }
        }
        Ok(())
    }

    /// Runs one operation of the step that [`Backend::begin`] took up; it may end later.
    ///
    /// # Errors
    /// [`BackendError::Shape`] if operands do not fit each other, the arena or the weights.
    fn execute(&self, op: &Op, frame: &mut Frame<'_, Self>) -> Result<(), BackendError>;
}

fn no_states(backend: &impl Backend) -> BackendError {
    let reason = format!("{} keeps none", backend.describe());
    BackendError::Unavailable { what: "the state of recurrent layers".into(), reason }
}
