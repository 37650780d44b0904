//! Why a sequence cannot go on: one type between the stages, and what the readers of each goal get for it.

use super::{EngineError, GenerationError};
use crate::kv::{KvError, snapshot::SnapshotError};
use crate::sample::SampleError;

/// Why a sequence must end.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// The step failed, or its results could not be read.
    #[error("{0}")]
    Step(String),
    #[error(transparent)]
    Sampling(#[from] SampleError),
    #[error(transparent)]
    Kv(#[from] KvError),
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// The host has no memory: the number counts tokens of an answer, or bytes of scores.
    #[error("no memory for {0} tokens or bytes")]
    HostMemory(usize),
}

impl From<Failure> for GenerationError {
    fn from(failure: Failure) -> GenerationError {
        match failure {
            Failure::Step(reason) => GenerationError::Step(reason),
            Failure::Sampling(error) => GenerationError::Sampling(error),
            Failure::HostMemory(tokens) => GenerationError::HostMemory { tokens },
            other => GenerationError::Step(other.to_string()),
        }
    }
}

impl From<Failure> for EngineError {
    fn from(failure: Failure) -> EngineError {
        match failure {
            Failure::Kv(error) => EngineError::Kv(error),
            Failure::Snapshot(error) => EngineError::Snapshot(error),
            Failure::HostMemory(bytes) => EngineError::HostMemory { bytes },
            other => EngineError::Step(other.to_string()),
        }
    }
}
