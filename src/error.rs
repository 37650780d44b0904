//! The crate's public error type: one variant per subsystem error.

use crate::kind::ErrorKind;
use crate::{backend, checkpoint, embed, engine, graph, kv, model, quant, sample, session, text};

/// An error of any layer, from model files to generation. Messages give the expected and the found value, and
/// the location.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A model file cannot be read.
    #[error(transparent)]
    Weights(#[from] checkpoint::WeightsError),
    /// Values cannot be quantised.
    #[error(transparent)]
    Quant(#[from] quant::QuantError),
    /// A device is missing or out of memory.
    #[error(transparent)]
    Backend(#[from] backend::BackendError),
    /// A graph is malformed.
    #[error(transparent)]
    Graph(#[from] graph::GraphError),
    /// A plan cannot be bound or run.
    #[error(transparent)]
    Session(#[from] session::SessionError),
    /// An invalid operation on the KV cache.
    #[error(transparent)]
    Kv(#[from] kv::KvError),
    /// Hyperparameters or tensors of a model are inconsistent.
    #[error(transparent)]
    Model(#[from] model::ModelError),
    /// Sampling parameters are out of range.
    #[error(transparent)]
    Sampling(#[from] sample::SampleError),
    /// A tokenizer or chat template is invalid or not supported.
    #[error(transparent)]
    Text(#[from] text::TextError),
    /// A constraint grammar is invalid or not supported.
    #[cfg(feature = "constraints")]
    #[error(transparent)]
    Constraint(#[from] crate::constrain::ConstraintError),
    /// The engine could not start.
    #[error(transparent)]
    Engine(#[from] engine::EngineError),
    /// A request was not admitted.
    #[error(transparent)]
    Submit(#[from] engine::SubmitError),
    /// A generation failed.
    #[error(transparent)]
    Generation(#[from] engine::GenerationError),
    /// Texts could not be embedded.
    #[error(transparent)]
    Embed(#[from] embed::EmbedError),
    /// The model has no chat template, so messages cannot be rendered.
    #[error("{model} has no chat template; give a plain prompt instead")]
    NoChatTemplate {
        /// Path of the model.
        model: String,
    },
}

impl Error {
    /// The category of the error, independent of the layer that reported it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::Weights(error) => error.kind(),
            Error::Quant(quant::QuantError::Format { .. }) => ErrorKind::Invalid,
            Error::Quant(_) => ErrorKind::BadModel,
            Error::Backend(error) => error.kind(),
            Error::Graph(_) => ErrorKind::Internal,
            Error::Session(error) => error.kind(),
            Error::Kv(error) => error.kind(),
            Error::Model(error) => error.kind(),
            Error::Sampling(error) => error.kind(),
            Error::Text(error) => error.kind(),
            #[cfg(feature = "constraints")]
            Error::Constraint(error) => error.kind(),
            Error::Engine(error) => error.kind(),
            Error::Submit(error) => error.kind(),
            Error::Generation(error) => error.kind(),
            Error::Embed(error) => error.kind(),
            Error::NoChatTemplate { .. } => ErrorKind::Unsupported,
        }
    }

    /// The request field or setting at fault, if known.
    pub fn field(&self) -> Option<&'static str> {
        match self {
            Error::Backend(error) => error.field(),
            Error::Model(error) => error.field(),
            Error::Sampling(error) => error.field(),
            Error::Text(error) => error.field(),
            #[cfg(feature = "constraints")]
            Error::Constraint(error) => error.field(),
            Error::Engine(error) => error.field(),
            Error::Submit(error) => error.field(),
            Error::Generation(error) => error.field(),
            Error::Embed(error) => error.field(),
            Error::NoChatTemplate { .. } => Some("messages"),
            _ => None,
        }
    }

    /// Whether a retry of the same call may succeed.
    pub fn retry(&self) -> bool {
        self.kind().retry()
    }
}

/// A `Result` with the crate's [`enum@Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::BackendError;
    use crate::engine::{EngineError, GenerationError, SubmitError};
    use crate::model::ModelError;
    use crate::sample::SampleError;
    use crate::session::SessionError;
    use crate::text::TextError;

    /// HTTP status of an error kind.
    fn status(kind: ErrorKind) -> u16 {
        match kind {
            ErrorKind::Invalid | ErrorKind::Unsupported => 400,
            ErrorKind::TooLong => 413,
            ErrorKind::Overloaded => 429,
            ErrorKind::DeviceLost | ErrorKind::Stopped | ErrorKind::OutOfMemory => 503,
            _ => 500,
        }
    }

    fn found(error: impl Into<Error>) -> (u16, Option<&'static str>, bool) {
        let error = error.into();
        (status(error.kind()), error.field(), error.retry())
    }

    #[test]
    fn a_cause_has_one_status_whichever_road_it_took() {
        let memory = || BackendError::OutOfMemory { bytes: 1, what: "pages" };
        let session = || SessionError::Op { index: 0, op: "matmul", source: memory() };
        let file = || ModelError::File { file: "m".into(), reason: Box::new(memory().into()) };
        let roads =
            [memory().into(), Error::Session(session()), Error::Model(session().into()), file().into()];
        roads.into_iter().for_each(|error| assert_eq!(found(error), (503, None, true)));
        let lost = || BackendError::Device { device: "0".into(), call: "c", error: "e".into(), lost: true };
        assert_eq!(found(lost()), (503, None, false));
        let step = || std::sync::Arc::new(ModelError::from(lost()));
        assert_eq!(found(GenerationError::Step(step())), (503, None, false));
        assert_eq!(found(EngineError::Step(step())), (503, None, false));
        let full = (429, None, true);
        assert_eq!(found(SubmitError::Overloaded { waiting: 1 }), full);
        assert_eq!(found(EngineError::JobsFull { waiting: 1 }), full);
        assert_eq!(found(EngineError::from(SubmitError::Overloaded { waiting: 1 })), full);
        let bad = || SampleError::Parameter { name: "top_p", expected: "0 to 1", found: 2.0 };
        let at_fault = (400, Some("top_p"), false);
        assert_eq!(found(bad()), at_fault);
        assert_eq!(found(SubmitError::from(bad())), at_fault);
        assert_eq!(SubmitError::from(bad()).to_string(), "invalid request: top_p: expected 0 to 1, found 2");
        assert_eq!(found(EngineError::from(SubmitError::from(bad()))), at_fault);
        assert_eq!(found(TextError::TemplateRender("no".into())), (400, Some("messages"), false));
        assert_eq!(found(TextError::TemplateMemory { bytes: 1 }), (503, None, true));
        assert_eq!(found(TextError::TemplatePanicked), (500, None, false));
        assert_eq!(found(ModelError::Context { asked: 2, trained: 1 }), (400, Some("context_max"), false));
    }

    /// The source chain of an error, outermost first.
    fn causes(error: &dyn std::error::Error) -> Vec<String> {
        std::iter::successors(error.source(), |cause| cause.source()).map(ToString::to_string).collect()
    }

    #[test]
    fn every_cause_is_reachable() {
        let memory = BackendError::OutOfMemory { bytes: 1, what: "pages" };
        let step = ModelError::from(SessionError::Op { index: 3, op: "matmul", source: memory.clone() });
        let failed = Error::from(GenerationError::Step(std::sync::Arc::new(step)));
        assert_eq!(causes(&failed), [format!("operation 3 (matmul): {memory}"), memory.to_string()]);
        let source = std::io::Error::other("a bad sector");
        let io = checkpoint::WeightsError::Io { file: "model".into(), action: "read", source };
        let read = Error::from(ModelError::File { file: "model".into(), reason: Box::new(io.into()) });
        assert_eq!(causes(&read).last().map(String::as_str), Some("a bad sector"));
    }
}
