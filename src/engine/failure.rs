//! Why a sequence cannot go on: one type between the stages, and what the readers of each goal get for it.

use super::{EngineError, GenerationError};
use crate::kv::{KvError, snapshot::SnapshotError};
use crate::sample::SampleError;

/// Why a sequence must end.
#[derive(Debug)]
pub(super) enum Failure {
    /// The step failed, or its results could not be read.
    Step(String),
    /// The logits cannot be sampled from.
    Sampling(SampleError),
    /// The page table refused.
    Kv(KvError),
    /// The pages could not be copied out.
    Snapshot(SnapshotError),
    /// The host has no memory: for so many tokens of an answer, or bytes of scores.
    HostMemory(usize),
}

impl From<SampleError> for Failure {
    fn from(error: SampleError) -> Failure {
        Failure::Sampling(error)
    }
}

impl From<KvError> for Failure {
    fn from(error: KvError) -> Failure {
        Failure::Kv(error)
    }
}

impl From<SnapshotError> for Failure {
    fn from(error: SnapshotError) -> Failure {
        Failure::Snapshot(error)
    }
}

impl From<Failure> for GenerationError {
    fn from(failure: Failure) -> GenerationError {
        match failure {
            Failure::Step(reason) => GenerationError::Step(reason),
            Failure::Sampling(error) => GenerationError::Sampling(error),
            Failure::Kv(error) => GenerationError::Step(error.to_string()),
            Failure::Snapshot(error) => GenerationError::Step(error.to_string()),
            Failure::HostMemory(tokens) => GenerationError::HostMemory { tokens },
        }
    }
}

impl From<Failure> for EngineError {
    fn from(failure: Failure) -> EngineError {
        match failure {
            Failure::Step(reason) => EngineError::Step(reason),
            Failure::Sampling(error) => EngineError::Step(error.to_string()),
            Failure::Kv(error) => EngineError::Kv(error),
            Failure::Snapshot(error) => EngineError::Snapshot(error),
            Failure::HostMemory(bytes) => EngineError::HostMemory { bytes },
        }
    }
}
