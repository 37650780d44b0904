//! The one public error: every subsystem's own error, under one roof.

use crate::{backend, checkpoint, engine, graph, kv, model, quant, sample, session, text};

/// What can go wrong between a model file and its text. Each message says what was expected, what
/// was found and where.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A model file that cannot be read.
    #[error(transparent)]
    Weights(#[from] checkpoint::WeightsError),
    /// Values that cannot be quantised.
    #[error(transparent)]
    Quant(#[from] quant::QuantError),
    /// A device that is missing or out of memory.
    #[error(transparent)]
    Backend(#[from] backend::BackendError),
    /// A graph that does not type-check.
    #[error(transparent)]
    Graph(#[from] graph::GraphError),
    /// A plan that could not be bound or run.
    #[error(transparent)]
    Session(#[from] session::SessionError),
    /// A cache operation that its books forbid.
    #[error(transparent)]
    Kv(#[from] kv::KvError),
    /// A model whose hyperparameters or tensors do not fit together.
    #[error(transparent)]
    Model(#[from] model::ModelError),
    /// Sampling parameters out of range.
    #[error(transparent)]
    Sampling(#[from] sample::SampleError),
    /// A tokenizer or chat template that cannot be used.
    #[error(transparent)]
    Text(#[from] text::TextError),
    /// An engine that could not start.
    #[error(transparent)]
    Engine(#[from] engine::EngineError),
    /// A request that was not admitted.
    #[error(transparent)]
    Submit(#[from] engine::SubmitError),
    /// A generation that failed.
    #[error(transparent)]
    Generation(#[from] engine::GenerationError),
    /// The model has no chat template, so messages cannot be rendered.
    #[error("{model} has no chat template; give a plain prompt instead")]
    NoChatTemplate {
        /// The model file.
        model: String,
    },
}

/// `Result` with the crate's [`enum@Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;
