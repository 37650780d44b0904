//! Failures that end a sequence: one type for all stages, converted into the error of each goal.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::{EngineError, EngineFailure, GenerationError};
use crate::kv::{KvError, snapshot::SnapshotError};
use crate::model::ModelError;
use crate::sample::SampleError;

/// Runs user code; returns `None` if it panics. The panic payload is leaked, because dropping it could run
/// user code that panics again.
pub(super) fn caught<T>(call: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(call)).map_err(std::mem::forget).ok()
}

/// Why a sequence must end.
#[derive(Clone, Debug)]
pub(super) enum Failure {
    /// The step failed, or its results could not be read.
    Step(Arc<ModelError>),
    /// Code that the engine calls panicked, or an invariant of the engine is broken.
    Internal(&'static str),
    Sampling(SampleError),
    Kv(KvError),
    /// The host is out of memory. The number counts tokens for an answer, bytes for a job.
    HostMemory(usize),
    /// The state after the last whole page is gone, so a saved prompt would lack it.
    NoState,
    /// The engine has failed.
    Dead(EngineFailure),
    /// The engine was stopped.
    Stopped,
}

impl From<ModelError> for Failure {
    fn from(error: ModelError) -> Failure {
        Failure::Step(Arc::new(error))
    }
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

impl From<Failure> for GenerationError {
    fn from(failure: Failure) -> GenerationError {
        match failure {
            Failure::Step(error) => GenerationError::Step(error),
            Failure::Internal(what) => GenerationError::Internal(what),
            Failure::Sampling(error) => GenerationError::Sampling(error),
            Failure::Kv(error) => GenerationError::Kv(error),
            Failure::HostMemory(tokens) => GenerationError::HostMemory { tokens },
            Failure::NoState => GenerationError::Internal("an answer was asked to save its state"),
            Failure::Dead(failure) => GenerationError::Dead(failure),
            Failure::Stopped => GenerationError::Stopped,
        }
    }
}

impl From<Failure> for EngineError {
    fn from(failure: Failure) -> EngineError {
        match failure {
            Failure::Step(error) => EngineError::Step(error),
            Failure::Internal(what) => EngineError::Internal(what),
            Failure::Sampling(error) => EngineError::Sampling(error),
            Failure::Kv(error) => EngineError::Kv(error),
            Failure::HostMemory(bytes) => EngineError::HostMemory { bytes },
            Failure::NoState => EngineError::Snapshot(SnapshotError::NoState),
            Failure::Dead(failure) => EngineError::Dead(failure),
            Failure::Stopped => EngineError::Stopped,
        }
    }
}
