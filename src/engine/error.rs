//! What the engine's callers get when something fails: at the door, in an answer, or in a job.

use std::sync::Arc;

use super::life::Death;
use crate::kind::ErrorKind;
use crate::kv::{IntegrityError, KvError, snapshot::SnapshotError};
use crate::model::ModelError;
use crate::sample::SampleError;
use crate::token::TokenId;

/// Why a request was not let in.
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
        /// Tokens of the prompt, or so many as were counted: a text is not encoded beyond what the context holds.
        tokens: usize,
        /// Most tokens of a sequence.
        context_max: usize,
    },
    /// Even alone it would not fit in the KV cache.
    #[error("{tokens} tokens need {needed} pages of the KV cache, which has {pages}")]
    TooLarge {
        /// Prompt and answer.
        tokens: usize,
        /// Pages that they take.
        needed: usize,
        /// Pages of the pool.
        pages: usize,
    },
    /// A field makes no sense.
    #[error("invalid request: {field}: {message}")]
    Invalid {
        /// The field.
        field: &'static str,
        /// What was expected and what was found.
        message: String,
    },
    /// The engine has stopped, or is being drained.
    #[error("the engine admits no more requests: it has stopped or is being drained")]
    Stopped,
    /// The engine ended by itself.
    #[error(transparent)]
    Dead(#[from] Death),
}

impl SubmitError {
    /// A field that makes no sense.
    pub(crate) fn invalid(field: &'static str, message: impl Into<String>) -> SubmitError {
        SubmitError::Invalid { field, message: message.into() }
    }

    /// What to do about it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            SubmitError::Overloaded { .. } => ErrorKind::Overloaded,
            SubmitError::TooLong { .. } | SubmitError::TooLarge { .. } => ErrorKind::TooLong,
            SubmitError::Invalid { .. } => ErrorKind::Invalid,
            SubmitError::Stopped => ErrorKind::Stopped,
            SubmitError::Dead(death) => death.kind(),
        }
    }

    /// The field of the request that is at fault.
    pub fn field(&self) -> Option<&'static str> {
        match self {
            SubmitError::Invalid { field, .. } => Some(field),
            SubmitError::TooLong { .. } => Some("prompt"),
            SubmitError::TooLarge { .. } => Some("max_tokens"),
            _ => None,
        }
    }

    /// Whether the same request may be let in a little later.
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
    /// Code that the engine ran for the request panicked, or the engine contradicts itself.
    #[error("{0}")]
    Internal(&'static str),
    /// The logits cannot be sampled from.
    #[error("sampling failed: {0}")]
    Sampling(#[from] SampleError),
    /// The cache's accounting refused.
    #[error(transparent)]
    Kv(#[from] KvError),
    /// The host has no memory for the request's tokens.
    #[error("no memory for {tokens} tokens")]
    HostMemory {
        /// Prompt and answer.
        tokens: usize,
    },
    /// The engine stopped before the answer was complete.
    #[error("the engine stopped before the answer was complete")]
    Stopped,
    /// The engine ended by itself.
    #[error(transparent)]
    Dead(#[from] Death),
}

impl GenerationError {
    /// What to do about it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            GenerationError::Step(error) => error.kind(),
            GenerationError::Internal(_) => ErrorKind::Internal,
            GenerationError::Sampling(error) => error.kind(),
            GenerationError::Kv(error) => error.kind(),
            GenerationError::HostMemory { .. } => ErrorKind::OutOfMemory,
            GenerationError::Stopped => ErrorKind::Stopped,
            GenerationError::Dead(death) => death.kind(),
        }
    }

    /// The field of the request that is at fault.
    pub fn field(&self) -> Option<&'static str> {
        if let GenerationError::Sampling(error) = self { error.field() } else { None }
    }

    /// Whether the same request may succeed a little later.
    pub fn retry(&self) -> bool {
        self.kind().retry()
    }
}

/// Errors are equal that say the same of the same kind.
impl PartialEq for GenerationError {
    fn eq(&self, other: &GenerationError) -> bool {
        self.kind() == other.kind() && self.to_string() == other.to_string()
    }
}

/// Why the engine could not start, or could not do a job.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// A setting out of its range.
    #[error("{name}: expected 1 to {most}, found {found}")]
    Config {
        /// The setting.
        name: &'static str,
        /// The largest value.
        most: usize,
        /// What was given.
        found: usize,
    },
    /// The host has no memory for an answer.
    #[error("no memory for {bytes} bytes of scores or pages")]
    HostMemory {
        /// Bytes that it takes.
        bytes: usize,
    },
    /// The operating system gave no thread.
    #[error("the engine's thread could not start: {0}")]
    Thread(#[from] std::io::Error),
    /// The model's step failed.
    #[error("the step failed: {0}")]
    Step(#[source] Arc<ModelError>),
    /// The backend panicked, or the engine contradicts itself.
    #[error("{0}")]
    Internal(&'static str),
    /// The logits cannot be scored.
    #[error("scoring failed: {0}")]
    Sampling(#[from] SampleError),
    /// The cache's accounting refused.
    #[error(transparent)]
    Kv(#[from] KvError),
    /// The cache's accounting contradicts itself: a defect of this crate.
    #[error(transparent)]
    Integrity(#[from] IntegrityError),
    /// A snapshot could not be written or read.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// A snapshot that was read well does not belong in this cache.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// Too many scores, saves and restores are waiting; try again later.
    #[error("overloaded: {waiting} scores, saves and restores are waiting already")]
    JobsFull {
        /// Those that wait.
        waiting: usize,
    },
    /// The tokens are not acceptable.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// Its caller gave it up: [`ScoreOptions::cancelled`](super::ScoreOptions::cancelled).
    #[error("the scores were cancelled")]
    Cancelled,
    /// The engine stopped before it was done.
    #[error("the engine has stopped or is being drained")]
    Stopped,
    /// The engine ended by itself.
    #[error(transparent)]
    Dead(#[from] Death),
}

impl EngineError {
    /// What to do about it.
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
            EngineError::Dead(death) => death.kind(),
        }
    }

    /// The setting or the field that is at fault.
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

/// Why a snapshot that was read well is not put into the cache, which stays as it was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// The engine shares no prefixes, so no request would find what is restored.
    #[error("prefix sharing is off: nothing would use the snapshot")]
    SharingOff,
    /// Keys and values computed under a window are of no use to sequences without one.
    #[error("the snapshot was made with a sliding window")]
    Window,
    /// A token that the model has not.
    #[error("the snapshot has token {token}, the vocabulary {vocab}")]
    Token {
        /// The token.
        token: TokenId,
        /// Tokens of the vocabulary.
        vocab: usize,
    },
    /// Pages are missing.
    #[error("the snapshot has {found} pages, its tokens take {expected}")]
    Pages {
        /// Pages of its tokens.
        expected: usize,
        /// Pages in the file.
        found: usize,
    },
    /// Its state is not that of this model.
    #[error("the snapshot has {found} bytes of state, expected {expected}")]
    State {
        /// Bytes of a state, or none where no page is full.
        expected: usize,
        /// Bytes in the file.
        found: usize,
    },
    /// It would not fit even alone.
    #[error("the snapshot has {needed} pages, the KV cache {pages}")]
    TooLarge {
        /// Pages of the snapshot.
        needed: usize,
        /// Pages of the pool.
        pages: usize,
    },
}

impl RestoreError {
    /// What to do about it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            RestoreError::SharingOff => ErrorKind::Unsupported,
            RestoreError::TooLarge { .. } => ErrorKind::TooLong,
            _ => ErrorKind::Invalid,
        }
    }
}
