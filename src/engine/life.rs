//! Whether the engine works, and why not.

use std::sync::Arc;

use crate::kind::ErrorKind;
use crate::model::ModelError;

/// What the engine does with requests now.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EngineState {
    /// It admits and works.
    Running,
    /// It admits no more, and works on what it has.
    Draining,
    /// It was drained.
    Stopped,
    /// It ended by itself. A lost device needs a new process.
    Dead(Death),
}

/// Why an engine ended by itself, and all its requests with it.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Death {
    /// The device refuses all further work.
    #[error("the engine is dead: {0}")]
    DeviceLost(#[source] Arc<ModelError>),
    /// The engine's thread panicked: a defect of this crate or of a decoder.
    #[error("the engine is dead: its thread panicked")]
    Panicked,
}

impl Death {
    /// What to do about it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Death::DeviceLost(_) => ErrorKind::DeviceLost,
            Death::Panicked => ErrorKind::Stopped,
        }
    }
}

/// Deaths are equal that say the same.
impl PartialEq for Death {
    fn eq(&self, other: &Death) -> bool {
        self.to_string() == other.to_string()
    }
}

impl Eq for Death {}

/// What became of the work that an engine had when it was drained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Drained {
    /// Requests and jobs that had not ended in time and were cut off.
    pub cut_off: usize,
}
