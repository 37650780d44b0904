//! Models: from a checkpoint to a decoder that runs steps.
//!
//! `family` is the table of supported architectures, assembled from the parts in `recipe`. `hyper` reads a
//! file's hyperparameters into a `config`. For it, `known` lists the metadata keys, `keys` reads them, and
//! `tensors` checks them against the tensors. `rotation`, `scaling` and `rope` compute rotary frequencies.
//! `decoder` builds the graph. `load` compiles it according to `options` and sizes the KV pool by the
//! `budget`. `upload` brings the weights of a `source` to the backend, or `sidecar` reads them prepared.
//! `own` makes a model from a user-built graph. `encoder` makes text encoders: see [`TextEncoder`].
//!
//! [`Decoder`] is the engine's interface to a model. Sequences and sampling parameters are not here.

#![forbid(unsafe_code)]

mod budget;
mod config;
mod decoder;
mod encoder;
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
pub use crate::backend::{PageMemory, StateMemory};
use crate::checkpoint::{Checkpoint, WeightsError, shown, shown_path};
use crate::graph::GraphError;
use crate::ir::{KvLayout, RowSampling, StateLayout, StateSlot, StepInput, StepLimits};
pub use crate::ir::{OpKind, OpTime, OpTimes, Work};
use crate::kind::ErrorKind;
use crate::quant::QuantError;
use crate::session::SessionError;
use crate::token::TokenId;
pub use config::{Experts, LocalAttention, ModelConfig, Rotations};
pub use encoder::{Encoder, EncoderConfig, EncoderOptions, Pooling, TextEncoder, TextTokens};
pub use family::{ENCODERS, FAMILIES, Family};
pub use load::Model;
pub use options::{KvBudget, LoadOptions};
pub use own::OwnModel;
pub use recipe::{
    AttentionRecipe, EmbedRecipe, EncoderRecipe, ExpertsRecipe, GlobalLayer, HeadRecipe, LayerRecipe,
    LocalRope, LogitScale, MlpRecipe, NormPlacement, QueryKeyNorms, RotatedLayers, RouterNorm,
    SlidingWindowLayers,
};
pub use sidecar::SidecarUse;
pub use upload::LoadProgress;

/// Error of loading a model or of running a step.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// Rejected file, with the reason.
    #[error("{}: {reason}", shown_path(file))]
    File {
        /// Path of the model file.
        file: PathBuf,
        /// Reason for the rejection.
        #[source]
        reason: Box<ModelError>,
    },
    /// Unsupported architecture.
    #[error("architecture {:?} is not supported; supported: {supported}", shown(found))]
    Architecture {
        /// Value of `general.architecture` in the file.
        found: String,
        /// Names of the supported families.
        supported: String,
    },
    /// A hyperparameter is missing, out of range, or contradicts another one or the tensors.
    #[error("{}: expected {expected}, found {}", shown(key), shown(found))]
    Key {
        /// Metadata key.
        key: String,
        /// Expected value.
        expected: String,
        /// Value in the file.
        found: String,
    },
    /// A text encoder in place of a language model.
    #[error(
        "{family} is a text encoder, which has no logits: expected a language model; an Embedder runs it"
    )]
    Encoder {
        /// Name of the family.
        family: &'static str,
    },
    /// Rank pooling of a model without a classification head.
    #[error("this {family} model has no classification head: expected another pooling than rank")]
    NoClassHead {
        /// Name of the family.
        family: &'static str,
    },
    /// Mixture of experts in a dense family.
    #[error("experts are not supported in this family: {}", shown(shown_by))]
    Experts {
        /// Key or tensor that indicates experts.
        shown_by: String,
    },
    /// A required tensor is missing in the file.
    #[error("tensor {tensor} is missing: expected {expected}")]
    MissingTensor {
        /// Name of the tensor.
        tensor: String,
        /// Shape according to the hyperparameters, `[rows, columns]`.
        expected: String,
    },
    /// A tensor's shape contradicts the hyperparameters.
    #[error("tensor {}: expected {expected}, found {found}", shown(tensor))]
    TensorShape {
        /// Name of the tensor.
        tensor: String,
        /// Shape according to the hyperparameters, `[rows, columns]`.
        expected: String,
        /// Shape in the file.
        found: String,
    },
    /// The file has a tensor without use in the family, so the architecture must be another one.
    #[error("tensor {} has no place in a {family} model", shown(tensor))]
    UnusedTensor {
        /// Name of the tensor.
        tensor: String,
        /// Name of the family.
        family: &'static str,
    },
    /// A float matrix could not be quantised.
    #[error("tensor {tensor}: {source}")]
    Quantise {
        /// Name of the tensor.
        tensor: String,
        /// Reason for the failure.
        source: QuantError,
    },
    /// Requested context of 0 tokens or beyond the trained context.
    #[error("a context of {asked} tokens: expected 1 to {trained}, the trained context")]
    Context {
        /// Requested context, in tokens.
        asked: usize,
        /// Trained context, in tokens.
        trained: usize,
    },
    /// The KV budget is smaller than one sequence with the maximum context.
    #[error("a KV budget of {bytes} bytes: a context of {context_max} tokens needs {bytes_needed} bytes")]
    KvBudget {
        /// Budget in bytes.
        bytes: usize,
        /// Minimum budget for the context, in bytes.
        bytes_needed: usize,
        /// Requested context, in tokens.
        context_max: usize,
    },
    /// The device has less free memory than the KV pool needs.
    #[error("keys and values of {bytes} bytes: the device has {bytes_free} bytes free")]
    KvMemory {
        /// Size of the pool in bytes.
        bytes: u64,
        /// Free memory in bytes.
        bytes_free: u64,
    },
    /// KV budget as a share of free memory, outside the range above 0 and at most 1.
    #[error("a KV budget as a share of free memory: expected above 0 and at most 1, found {found}")]
    KvShare {
        /// Given share.
        found: f32,
    },
    /// KV budget as a share of free memory, on a system that does not report free memory.
    #[error("a KV budget as a share of free memory: the system does not say how much is free; give bytes")]
    NoFreeMemory,
    /// Logits buffer of the wrong length.
    #[error("a buffer of {found} logits, expected {expected}")]
    Logits {
        /// Vocabulary size.
        expected: usize,
        /// Length of the buffer.
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
    /// The backend failed, or does not support an operation.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// Read of an output that the last step did not compute.
    #[error("output {found} of a step with {outputs} outputs")]
    Output {
        /// Requested output.
        found: usize,
        /// Number of outputs of the last step.
        outputs: usize,
    },
}

impl ModelError {
    /// Category of the error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            ModelError::File { reason, .. } => reason.kind(),
            ModelError::Architecture { .. }
            | ModelError::Encoder { .. }
            | ModelError::NoClassHead { .. }
            | ModelError::Experts { .. } => ErrorKind::Unsupported,
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

    /// Name of the invalid option: `context_max`, `kv` or a field of the backend.
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

    /// Adds the file to the error, unless it is unrelated to a file or has one already.
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
            ModelError::Architecture { .. } | ModelError::Encoder { .. } | ModelError::Key { .. } => {
                checkpoint.metadata().file()
            }
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

/// Bytes that a decoder allocates at load and keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct DecoderMemory {
    /// Weights in the backend's format.
    pub weight_bytes: usize,
    /// Arena for the intermediates of a step, without the scratch memory of single operations.
    pub arena_bytes: usize,
    /// KV pool.
    pub kv_bytes: usize,
}

impl DecoderMemory {
    /// Total.
    pub fn bytes(&self) -> usize {
        self.weight_bytes.saturating_add(self.arena_bytes).saturating_add(self.kv_bytes)
    }
}

/// A loaded model as the engine uses it: steps in, logits out.
pub trait Decoder: Send {
    /// Maximum tokens and outputs of a step.
    fn limits(&self) -> StepLimits;

    /// Vocabulary size: the number of logits per output. Token ids are below it.
    fn vocab_size(&self) -> usize;

    /// Maximum context of a sequence, in tokens.
    fn context_max(&self) -> usize;

    /// Number of pages in the KV pool.
    fn pages(&self) -> usize;

    /// Layout of the KV pool.
    fn kv_layout(&self) -> KvLayout;

    /// Layout of per-sequence state in addition to pages, for models with recurrent layers. Default: none.
    fn states(&self) -> StateLayout {
        StateLayout::default()
    }

    /// Allocated memory.
    fn memory(&self) -> DecoderMemory;

    /// Runs one step over all layers: writes the keys and values of its rows to their pages and computes the
    /// logits of its outputs.
    ///
    /// # Errors
    /// A malformed step changes nothing. After a backend error the rows' pages are undefined.
    fn step(&mut self, step: &StepInput) -> Result<(), ModelError>;

    /// Like [`Decoder::step`], but runs operations one at a time and adds their time and work to `times` by
    /// kind. The default implementation adds nothing.
    ///
    /// # Errors
    /// As [`Decoder::step`].
    fn step_timed(&mut self, step: &StepInput, times: &mut OpTimes) -> Result<(), ModelError> {
        let _ = times;
        self.step(step)
    }

    /// Copies the logits, `[vocab_size]`, of output number `output` of the last step to `out`.
    ///
    /// # Errors
    /// [`ModelError::Output`] if the last step had no such output, [`ModelError::Logits`] if the length of
    /// `out` is not the vocabulary size.
    fn logits(&self, output: usize, out: &mut [f32]) -> Result<(), ModelError>;

    /// Whether steps sample outputs with this sampling themselves, so that [`Decoder::sampled`] returns their
    /// tokens. Default: false.
    fn samples(&self, sampling: &RowSampling) -> bool {
        let _ = sampling;
        false
    }

    /// Whether a step may be submitted before the previous step's tokens are read, and may take them as its
    /// input ([`StepInput::fed`]). Default: false.
    fn runs_ahead(&self) -> bool {
        false
    }

    /// Number of steps accepted so far.
    fn steps(&self) -> u64;

    /// Tokens that step number `step` sampled for its outputs according to [`StepInput::sampling`]; `None` if
    /// a logit is NaN or +∞ or all are −∞. Waits for the step. `step` counts as [`Decoder::steps`]: the last
    /// step, or with [`Decoder::runs_ahead`] the one before.
    ///
    /// # Errors
    /// [`ModelError::Output`] if `out` is longer than the step's outputs, [`ModelError::Backend`].
    fn sampled(&mut self, step: u64, out: &mut [Option<TokenId>]) -> Result<(), ModelError>;

    /// The memory of the sequences: KV pages, and states for models with recurrent layers. Exported pages fit
    /// a decoder with the same fingerprint.
    fn kv(&self) -> &dyn PageMemory;

    /// Mutable access to [`Decoder::kv`].
    fn kv_mut(&mut self) -> &mut dyn PageMemory;

    /// Fingerprint of the model and everything else that its cached keys and values depend on.
    fn fingerprint(&self) -> [u8; 32];
}

/// The error of a state slot in a memory without states.
pub(crate) fn no_such_slot(slot: StateSlot) -> ModelError {
    let (expected, found) = ("a slot of state".into(), format!("slot {} of none", slot.0));
    ModelError::Backend(BackendError::Shape { op: "state", expected, found })
}
