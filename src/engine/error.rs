//! The engine's errors: of submitting a request, of an answer, and of starting the engine or a job.

use std::sync::Arc;

use super::life::EngineFailure;
use crate::kind::ErrorKind;
use crate::kv::{IntegrityError, KvError, snapshot::SnapshotError};
use crate::model::ModelError;
use crate::sample::SampleError;
use crate::token::TokenId;

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// Too many requests are waiting; try again later.
    #[error("overloaded: {waiting} requests are admitted already")]
    Overloaded {
        /// Requests that have not ended.
        waiting: usize,
    },
    /// The prompt leaves no room in the context.
    #[error("the prompt has at least {tokens} tokens, the context {context_max}")]
    TooLong {
        /// Tokens of the prompt, or the number counted so far: a text is not encoded beyond the context's
        /// length.
        tokens: usize,
        /// Most tokens of a sequence: the context length.
        context_max: usize,
    },
    /// The request would not fit in the KV cache even alone.
    #[error("{tokens} tokens need {needed} pages of the KV cache, which has {pages}")]
    TooLarge {
        /// Tokens of prompt and answer.
        tokens: usize,
        /// Pages that they need.
        needed: usize,
        /// Pages of the pool.
        pages: usize,
    },
    /// A field has an invalid value.
    #[error("invalid request: {field}: {message}")]
    Invalid {
        /// The field's name.
        field: &'static str,
        /// The expected and the found value.
        message: String,
    },
    /// The engine has stopped, or is being drained.
    #[error("the engine admits no more requests: it has stopped or is being drained")]
    Stopped,
    /// The engine has failed.
    #[error(transparent)]
    Dead(#[from] EngineFailure),
}

impl SubmitError {
    /// The error of a field with an invalid value.
    pub(crate) fn invalid(field: &'static str, message: impl Into<String>) -> SubmitError {
        SubmitError::Invalid { field, message: message.into() }
    }

    /// The error's kind, which a service can map to a status.
    pub fn kind(&self) -> ErrorKind {
        match self {
            SubmitError::Overloaded { .. } => ErrorKind::Overloaded,
            SubmitError::TooLong { .. } | SubmitError::TooLarge { .. } => ErrorKind::TooLong,
            SubmitError::Invalid { .. } => ErrorKind::Invalid,
            SubmitError::Stopped => ErrorKind::Stopped,
            SubmitError::Dead(failure) => failure.kind(),
        }
    }

    /// The request field at fault.
    pub fn field(&self) -> Option<&'static str> {
        match self {
            SubmitError::Invalid { field, .. } => Some(field),
            SubmitError::TooLong { .. } => Some("prompt"),
            SubmitError::TooLarge { .. } => Some("max_tokens"),
            _ => None,
        }
    }

    /// Whether the same request may be admitted a little later.
    pub fn retry(&self) -> bool {
        self.kind().retry()
    }
}

impl From<SampleError> for SubmitError {
    fn from(error: SampleError) -> SubmitError {
        let (field, text) = (error.field().unwrap_or("sampling"), error.to_string());
        let message = text.strip_prefix(field).and_then(|rest| rest.strip_prefix(": ")).unwrap_or(&text);
        SubmitError::invalid(field, message)
    }
}

/// Why a generation failed; it has no further events.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GenerationError {
    /// The model's step failed.
    #[error("the step failed: {0}")]
    Step(#[source] Arc<ModelError>),
    /// User code of the request panicked, or an invariant of the engine is broken.
    #[error("{0}")]
    Internal(&'static str),
    /// The logits cannot be sampled from.
    #[error("sampling failed: {0}")]
    Sampling(#[from] SampleError),
    /// The KV cache's accounting returned an error.
    #[error(transparent)]
    Kv(#[from] KvError),
    /// The host is out of memory for the request's tokens.
    #[error("no memory for {tokens} tokens")]
    HostMemory {
        /// Tokens of prompt and answer.
        tokens: usize,
    },
    /// The engine stopped before the answer was complete.
    #[error("the engine stopped before the answer was complete")]
    Stopped,
    /// The engine has failed.
    #[error(transparent)]
    Dead(#[from] EngineFailure),
}

impl GenerationError {
    /// The error's kind, which a service can map to a status.
    pub fn kind(&self) -> ErrorKind {
        match self {
            GenerationError::Step(error) => error.kind(),
            GenerationError::Internal(_) => ErrorKind::Internal,
            GenerationError::Sampling(error) => error.kind(),
            GenerationError::Kv(error) => error.kind(),
            GenerationError::HostMemory { .. } => ErrorKind::OutOfMemory,
            GenerationError::Stopped => ErrorKind::Stopped,
            GenerationError::Dead(failure) => failure.kind(),
        }
    }

    /// The request field at fault.
    pub fn field(&self) -> Option<&'static str> {
        if let GenerationError::Sampling(error) = self { error.field() } else { None }
    }

    /// Whether the same request may succeed a little later.
    pub fn retry(&self) -> bool {
        self.kind().retry()
    }
}

/// Compared by kind and message: `ModelError` has no equality.
impl PartialEq for GenerationError {
    fn eq(&self, other: &GenerationError) -> bool {
        self.kind() == other.kind() && self.to_string() == other.to_string()
    }
}

/// Why the engine could not start, or why a job failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// A setting is out of range.
    #[error("{name}: expected 1 to {most}, found {found}")]
    Config {
        /// The setting.
        name: &'static str,
        /// The largest value.
        most: usize,
        /// The value given.
        found: usize,
    },
    /// The host is out of memory for a job's result.
    #[error("no memory for {bytes} bytes of scores or pages")]
    HostMemory {
        /// Bytes that the result takes.
        bytes: usize,
    },
    /// The operating system could not start a thread.
    #[error("the engine's thread could not start: {0}")]
    Thread(#[from] std::io::Error),
    /// The model's step failed.
    #[error("the step failed: {0}")]
    Step(#[source] Arc<ModelError>),
    /// The backend panicked, or an invariant of the engine is broken.
    #[error("{0}")]
    Internal(&'static str),
    /// The logits cannot be scored.
    #[error("scoring failed: {0}")]
    Sampling(#[from] SampleError),
    /// The KV cache's accounting returned an error.
    #[error(transparent)]
    Kv(#[from] KvError),
    /// The KV cache's accounting is inconsistent: a defect of this crate.
    #[error(transparent)]
    Integrity(#[from] IntegrityError),
    /// A snapshot could not be written or read.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// A readable snapshot does not fit this cache.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// Too many scores, saves and restores are waiting; try again later.
    #[error("overloaded: {waiting} scores, saves and restores are waiting already")]
    JobsFull {
        /// Number of waiting jobs.
        waiting: usize,
    },
    /// The tokens were refused.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// The caller cancelled the scores: [`ScoreOptions::cancelled`](super::ScoreOptions::cancelled).
    #[error("the scores were cancelled")]
    Cancelled,
    /// The engine stopped before the job was done.
    #[error("the engine has stopped or is being drained")]
    Stopped,
    /// The engine has failed.
    #[error(transparent)]
    Dead(#[from] EngineFailure),
}

impl EngineError {
    /// The error's kind, which a service can map to a status.
    pub fn kind(&self) -> ErrorKind {
        match self {
            EngineError::Config { .. } => ErrorKind::Invalid,
            EngineError::HostMemory { .. } | EngineError::Thread(_) => ErrorKind::OutOfMemory,
            EngineError::Step(error) => error.kind(),
            EngineError::Internal(_) | EngineError::Integrity(_) => ErrorKind::Internal,
            EngineError::Sampling(error) => error.kind(),
            EngineError::Kv(error) => error.kind(),
            EngineError::Snapshot(error) => error.kind(),
            EngineError::Restore(error) => error.kind(),
            EngineError::JobsFull { .. } => ErrorKind::Overloaded,
            EngineError::Submit(error) => error.kind(),
            EngineError::Cancelled | EngineError::Stopped => ErrorKind::Stopped,
            EngineError::Dead(failure) => failure.kind(),
        }
    }

    /// The setting or request field at fault.
    pub fn field(&self) -> Option<&'static str> {
        match self {
            EngineError::Config { name, .. } => Some(name),
            EngineError::Submit(error) => error.field(),
            EngineError::Sampling(error) => error.field(),
            _ => None,
        }
    }

    /// Whether the same job may succeed a little later.
    pub fn retry(&self) -> bool {
        self.kind().retry()
    }
}

/// Why a readable snapshot was not put into the cache, which is unchanged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// Prefix sharing is off, so no request would find the restored pages.
    #[error("prefix sharing is off: nothing would use the snapshot")]
    SharingOff,
    /// Keys and values computed under a window are of no use to sequences without one.
    #[error("the snapshot was made with a sliding window")]
    Window,
    /// A token is outside the model's vocabulary.
    #[error("the snapshot has token {token}, the vocabulary {vocab}")]
    Token {
        /// The token.
        token: TokenId,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// The number of pages does not match the tokens.
    #[error("the snapshot has {found} pages, its tokens take {expected}")]
    Pages {
        /// Pages that its tokens need.
        expected: usize,
        /// Pages in the file.
        found: usize,
    },
    /// The recurrent state has the wrong size for this model.
    #[error("the snapshot has {found} bytes of state, expected {expected}")]
    State {
        /// Bytes of a state; 0 if no page is full.
        expected: usize,
        /// Bytes in the file.
        found: usize,
    },
    /// The snapshot would not fit even in an empty cache.
    #[error("the snapshot has {needed} pages, the KV cache {pages}")]
    TooLarge {
        /// Pages of the snapshot.
        needed: usize,
        /// Pages of the pool.
        pages: usize,
    },
}

impl RestoreError {
    /// The error's kind, which a service can map to a status.
    pub fn kind(&self) -> ErrorKind {
        match self {
            RestoreError::SharingOff => ErrorKind::Unsupported,
            RestoreError::TooLarge { .. } => ErrorKind::TooLong,
            _ => ErrorKind::Invalid,
        }
    }
}
