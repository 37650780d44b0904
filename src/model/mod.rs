//! Models: what a file says becomes a decoder that runs steps.
//!
//! `family` is the table of supported architectures, each put together of the parts in `recipe`. `hyper` makes a
//! configuration of a file's hyperparameters: `known` lists their keys, `keys` reads them, `tensors` holds them
//! against the tensors, and `rotation`, `scaling` and `rope` turn bases and scaling schemes into frequencies.
//! `decoder` builds the graph. `load`, by its `options` and with pages for a `budget`, compiles it, and `upload` brings
//! the weights to a backend, `sidecar` from a file of prepared ones. `own` makes a model of a graph that no file describes.
//! [`Decoder`] is all that the engine sees of a model; sequences and sampling are not here.

#![forbid(unsafe_code)]

mod budget;
mod config;
mod decoder;
mod family;
mod hyper;
mod keys;
mod known;
mod load;
mod options;
mod own;
mod recipe;
mod rope;
mod rotation;
mod scaling;
mod sidecar;
mod source;
mod tensors;
mod upload;

use std::path::PathBuf;

use crate::backend::BackendError;
use crate::checkpoint::{Checkpoint, WeightsError, shown, shown_path};
use crate::graph::GraphError;
use crate::ir::{KvLayout, PageId, RowSampling, StateLayout, StateSlot, StepInput, StepLimits};
pub use crate::ir::{OpKind, OpTime, OpTimes, Work};
use crate::kind::ErrorKind;
use crate::quant::QuantError;
use crate::session::SessionError;
use crate::token::TokenId;
pub use config::{Experts, LocalAttention, ModelConfig, Rotations};
pub use family::{FAMILIES, Family};
pub use load::Model;
pub use options::{KvBudget, LoadOptions};
pub use own::OwnModel;
pub use recipe::{
    AttentionRecipe, EmbedRecipe, ExpertWeights, ExpertsRecipe, HeadRecipe, LayerRecipe, LocalLayers,
    LocalRope, LogitScale, MlpRecipe, NormPlacement, QueryKeyNorms, RotatedLayers,
};
pub use sidecar::SidecarUse;
pub use upload::LoadProgress;

/// Why a model could not be made, or could not run a step.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The file that is refused, and why: any of the others.
    #[error("{}: {reason}", shown_path(file))]
    File {
        /// The model file.
        file: PathBuf,
        /// Why it is refused.
        #[source]
        reason: Box<ModelError>,
    },
    /// No such family.
    #[error("architecture {:?} is not supported; supported: {supported}", shown(found))]
    Architecture {
        /// `general.architecture` of the file.
        found: String,
        /// The families there are.
        supported: String,
    },
    /// A hyperparameter is missing, absurd, or contradicts another or the tensors.
    #[error("{}: expected {expected}, found {}", shown(key), shown(found))]
    Key {
        /// The metadata key.
        key: String,
        /// What it must be.
        expected: String,
        /// What the file says.
        found: String,
    },
    /// The model is a mixture of experts, which its family is not.
    #[error("experts are not supported in this family: {}", shown(shown_by))]
    Experts {
        /// The key or the tensor that shows it.
        shown_by: String,
    },
    /// The model needs a tensor that the file lacks.
    #[error("tensor {tensor} is missing: expected {expected}")]
    MissingTensor {
        /// Its name.
        tensor: String,
        /// The shape that the hyperparameters ask for, `[rows, columns]`.
        expected: String,
    },
    /// A tensor's shape contradicts the hyperparameters.
    #[error("tensor {}: expected {expected}, found {found}", shown(tensor))]
    TensorShape {
        /// Its name.
        tensor: String,
        /// The shape that the hyperparameters ask for, `[rows, columns]`.
        expected: String,
        /// Its shape in the file.
        found: String,
    },
    /// The file has a tensor that the family has no use for: its model is another one.
    #[error("tensor {} has no place in a {family} model", shown(tensor))]
    UnusedTensor {
        /// Its name.
        tensor: String,
        /// The family.
        family: &'static str,
    },
    /// A float matrix could not be quantised.
    #[error("tensor {tensor}: {source}")]
    Quantise {
        /// Its name.
        tensor: String,
        /// Why not.
        source: QuantError,
    },
    /// A context that the model was not made for.
    #[error("a context of {asked} tokens: expected 1 to {trained}, the trained context")]
    Context {
        /// Tokens asked for.
        asked: usize,
        /// Tokens it was trained for.
        trained: usize,
    },
    /// The KV budget does not hold one sequence of the longest context.
    #[error("a KV budget of {bytes} bytes: a context of {context_max} tokens needs {bytes_needed} bytes")]
    KvBudget {
        /// The budget.
        bytes: usize,
        /// The least budget for the context.
        bytes_needed: usize,
        /// The context asked for, in tokens.
        context_max: usize,
    },
    /// The device has less memory than keys and values are to take.
    #[error("keys and values of {bytes} bytes: the device has {bytes_free} bytes free")]
    KvMemory {
        /// Bytes of the pool.
        bytes: u64,
        /// Bytes that are free.
        bytes_free: u64,
    },
    /// A share that is none.
    #[error("a KV budget as a share of free memory: expected above 0 and at most 1, found {found}")]
    KvShare {
        /// What was given.
        found: f32,
    },
    /// A share of free memory where nobody knows how much that is.
    #[error("a KV budget as a share of free memory: the system does not say how much is free; give bytes")]
    NoFreeMemory,
    /// A buffer for logits of another length.
    #[error("a buffer of {found} logits, expected {expected}")]
    Logits {
        /// The vocabulary's size.
        expected: usize,
        /// Elements of the buffer.
        found: usize,
    },
    /// The file could not be read.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The graph could not be built or compiled.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// The plan could not be bound or run.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The backend refused.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// An output was read that the last step did not compute.
    #[error("output {found} of a step with {outputs} outputs")]
    Output {
        /// The output asked for.
        found: usize,
        /// Outputs of the last step.
        outputs: usize,
    },
}

impl ModelError {
    /// What to do about it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            ModelError::File { reason, .. } => reason.kind(),
            ModelError::Architecture { .. } | ModelError::Experts { .. } => ErrorKind::Unsupported,
            ModelError::Context { .. } | ModelError::KvBudget { .. } | ModelError::KvShare { .. } => {
                ErrorKind::Invalid
            }
            ModelError::KvMemory { .. } => ErrorKind::OutOfMemory,
            ModelError::NoFreeMemory => ErrorKind::Unsupported,
            ModelError::Logits { .. } | ModelError::Output { .. } | ModelError::Graph(_) => {
                ErrorKind::Internal
            }
            ModelError::Weights(error) => error.kind(),
            ModelError::Session(error) => error.kind(),
            ModelError::Backend(error) => error.kind(),
            _ => ErrorKind::BadModel,
        }
    }

    /// The setting that is at fault.
    pub fn field(&self) -> Option<&'static str> {
        match self {
            ModelError::Context { .. } => Some("context_max"),
            ModelError::KvBudget { .. }
            | ModelError::KvMemory { .. }
            | ModelError::KvShare { .. }
            | ModelError::NoFreeMemory => Some("kv"),
            ModelError::Backend(error) => error.field(),
            _ => None,
        }
    }

    /// The error with its file, unless it is of no file or names it already.
    fn of(self, checkpoint: &dyn Checkpoint) -> ModelError {
        let file = match &self {
            ModelError::File { .. }
            | ModelError::Context { .. }
            | ModelError::KvBudget { .. }
            | ModelError::KvMemory { .. }
            | ModelError::KvShare { .. }
            | ModelError::NoFreeMemory
            | ModelError::Logits { .. }
            | ModelError::Weights(_)
            | ModelError::Backend(_)
            | ModelError::Output { .. } => return self,
            ModelError::Architecture { .. } | ModelError::Key { .. } => checkpoint.metadata().file(),
            _ => checkpoint.path(),
        };
        ModelError::File { file: file.to_owned(), reason: Box::new(self) }
    }
}

fn key_error(key: &str, expected: &str, found: &str) -> ModelError {
    ModelError::Key { key: key.into(), expected: expected.into(), found: found.into() }
}

fn missing(tensor: &str, expected: &str) -> ModelError {
    ModelError::MissingTensor { tensor: tensor.into(), expected: expected.into() }
}

/// Bytes that a decoder allocates when it is loaded, and keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct DecoderMemory {
    /// Weights, as the backend keeps them.
    pub weight_bytes: usize,
    /// The arena of a step's intermediates; the scratch of single operations is not counted.
    pub arena_bytes: usize,
    /// The KV pool.
    pub kv_bytes: usize,
}

impl DecoderMemory {
    /// All of it.
    pub fn bytes(&self) -> usize {
        self.weight_bytes.saturating_add(self.arena_bytes).saturating_add(self.kv_bytes)
    }
}

/// A loaded model, as the engine drives it: steps in, logits out.
pub trait Decoder: Send {
    /// What a step may hold.
    fn limits(&self) -> StepLimits;

    /// Logits of an output row; token ids are below it.
    fn vocab_size(&self) -> usize;

    /// Most tokens of a sequence.
    fn context_max(&self) -> usize;

    /// Pages of the KV pool.
    fn pages(&self) -> usize;

    /// The shape of the KV pool.
    fn kv_layout(&self) -> KvLayout;

    /// What it keeps of sequences beside pages, if it has recurrent layers.
    fn states(&self) -> StateLayout {
        StateLayout::default()
    }

    /// What it keeps in memory.
    fn memory(&self) -> DecoderMemory;

    /// Runs one step over all layers: writes the keys and values of its rows to their pages and
    /// computes the logits of its outputs.
    ///
    /// # Errors
    /// A malformed step changes nothing; after a backend's failure the rows' pages are undefined.
    fn step(&mut self, step: &StepInput) -> Result<(), ModelError>;

    /// As [`Decoder::step`], operation by operation, each of which adds its time and work to those of its
    /// kind; a decoder may have nothing to add.
    ///
    /// # Errors
    /// As [`Decoder::step`].
    fn step_timed(&mut self, step: &StepInput, times: &mut OpTimes) -> Result<(), ModelError> {
        let _ = times;
        self.step(step)
    }

    /// Copies out the logits, `[vocab_size]`, of output number `output` of the last step.
    ///
    /// # Errors
    /// [`ModelError::Output`] if the last step had no such output, [`ModelError::Logits`] if `out`
    /// is not as long as the vocabulary.
    fn logits(&self, output: usize, out: &mut [f32]) -> Result<(), ModelError>;

    /// Whether steps sample such outputs themselves, so that [`Decoder::sampled`] has their tokens.
    fn samples(&self, sampling: &RowSampling) -> bool {
        let _ = sampling;
        false
    }

    /// Whether a step may come before the tokens of the one before were asked for, and may be fed them
    /// ([`StepInput::fed`]).
    fn runs_ahead(&self) -> bool {
        false
    }

    /// Steps taken up so far.
    fn steps(&self) -> u64;

    /// The tokens that the outputs of step number `step` (counted by [`Decoder::steps`]: the last one
    /// taken up, or with [`Decoder::runs_ahead`] the one before) were given by their
    /// [`StepInput::sampling`]; none where a logit is NaN or +∞ or all are −∞. Waits for that step.
    ///
    /// # Errors
    /// [`ModelError::Output`] if `out` is longer than the step's outputs, [`ModelError::Backend`].
    fn sampled(&mut self, step: u64, out: &mut [Option<TokenId>]) -> Result<(), ModelError>;

    /// Copies one page onto another, in all layers.
    ///
    /// # Errors
    /// [`ModelError::Backend`] if a page is outside the pool.
    fn copy_page(&mut self, from: PageId, to: PageId) -> Result<(), ModelError>;

    /// Appends a page's bytes to `out`, for [`Decoder::import_page`] of the same fingerprint.
    ///
    /// # Errors
    /// [`ModelError::Backend`] if the page is outside the pool.
    fn export_page(&self, page: PageId, out: &mut Vec<u8>) -> Result<(), ModelError>;

    /// Fills a page with what [`Decoder::export_page`] gave.
    ///
    /// # Errors
    /// [`ModelError::Backend`] if the page is outside the pool or the length is wrong.
    fn import_page(&mut self, page: PageId, bytes: &[u8]) -> Result<(), ModelError>;

    /// Copies out a slot of state.
    ///
    /// # Errors
    /// [`ModelError::Backend`] if there is no such slot or `out` is not as long.
    fn read_state(&self, slot: StateSlot, out: &mut [f32]) -> Result<(), ModelError> {
        let _ = out;
        Err(no_such_slot(slot))
    }

    /// Fills a slot of state with what [`Decoder::read_state`] gave.
    ///
    /// # Errors
    /// [`ModelError::Backend`] if there is no such slot or the length is wrong.
    fn write_state(&mut self, slot: StateSlot, values: &[f32]) -> Result<(), ModelError> {
        let _ = values;
        Err(no_such_slot(slot))
    }

    /// Identifies the model together with everything that its stored keys and values depend on.
    fn fingerprint(&self) -> [u8; 32];
}

fn no_such_slot(slot: StateSlot) -> ModelError {
    let (expected, found) = ("a slot of state".into(), format!("slot {} of none", slot.0));
    ModelError::Backend(BackendError::Shape { op: "state", expected, found })
}
