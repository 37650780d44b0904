//! Engine life cycle: its state, the cause of its failure, and the result of a drain.

use std::sync::Arc;

use crate::kind::ErrorKind;
use crate::model::ModelError;

/// The state of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EngineState {
    /// Admits and serves requests.
    Running,
    /// Admits no more requests, and serves those that it has.
    Draining,
    /// Ended by a drain.
    Stopped,
    /// Ended by a failure. A lost device needs a new process.
    Dead(EngineFailure),
}

/// Why an engine failed, and all its requests with it.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineFailure {
    /// The device refuses all further work.
    #[error("the engine is dead: {0}")]
    DeviceLost(#[source] Arc<ModelError>),
    /// The engine's thread panicked: a defect of this crate or of a decoder.
    #[error("the engine is dead: its thread panicked")]
    Panicked,
}

impl EngineFailure {
    /// The error's kind, which a service can map to a status.
    pub fn kind(&self) -> ErrorKind {
        match self {
            EngineFailure::DeviceLost(_) => ErrorKind::DeviceLost,
            EngineFailure::Panicked => ErrorKind::Stopped,
        }
    }
}

/// Compared by message: `ModelError` has no equality.
impl PartialEq for EngineFailure {
    fn eq(&self, other: &EngineFailure) -> bool {
        self.to_string() == other.to_string()
    }
}

impl Eq for EngineFailure {}

/// The result of draining an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Drained {
    /// Requests and jobs that had not ended in time and were cancelled.
    pub aborted: usize,
}
