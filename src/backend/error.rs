//! Errors that are common to all backends.

use crate::ir::StepError;
use crate::kind::ErrorKind;

/// An error of a backend.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// Operands are inconsistent with each other.
    #[error("{op}: expected {expected}, found {found}")]
    Shape {
        /// The operation.
        op: &'static str,
        /// The operation's requirement.
        expected: String,
        /// The operand found.
        found: String,
    },
    /// An allocation failed; nothing changed.
    #[error("no memory for {bytes} bytes of {what}")]
    OutOfMemory {
        /// Requested size.
        bytes: usize,
        /// Purpose of the allocation.
        what: &'static str,
    },
    /// A requested number is out of range.
    #[error("{what}: expected 1 to {most}, found {found}")]
    Count {
        /// The counted quantity.
        what: &'static str,
        /// The largest number.
        most: usize,
        /// The requested number.
        found: usize,
    },
    /// The system could not start a thread; threads already started have ended.
    #[error("thread {number} of {threads} could not start: {reason}; fewer threads may do")]
    Thread {
        /// Index of the thread, from 1.
        number: usize,
        /// Number of requested threads.
        threads: usize,
        /// The system's reason.
        reason: String,
    },
    /// The machine lacks a requested feature.
    #[error("{what} is not available: {reason}")]
    Unavailable {
        /// The requested feature.
        what: String,
        /// Why it is missing.
        reason: String,
    },
    /// A device driver's error, from this call or from earlier work.
    #[error("{device}: {call}: {error}{}", if *.lost { "; the device is lost until the process is restarted" } else { "" })]
    Device {
        /// The device.
        device: String,
        /// The failed call or kernel.
        call: &'static str,
        /// The driver's name for the error.
        error: String,
        /// Whether the device refuses all further work.
        lost: bool,
    },
    /// The step violates its invariants; nothing was run.
    #[error(transparent)]
    Step(#[from] StepError),
}

impl BackendError {
    /// The kind of error, which decides how a caller should react.
    pub fn kind(&self) -> ErrorKind {
        match self {
            BackendError::Count { .. } => ErrorKind::Invalid,
            BackendError::OutOfMemory { .. } | BackendError::Thread { .. } => ErrorKind::OutOfMemory,
            BackendError::Unavailable { .. } => ErrorKind::NoDevice,
            BackendError::Device { lost: true, .. } => ErrorKind::DeviceLost,
            BackendError::Device { .. } | BackendError::Shape { .. } | BackendError::Step(_) => {
                ErrorKind::Internal
            }
        }
    }

    /// The invalid setting.
    pub fn field(&self) -> Option<&'static str> {
        if let BackendError::Count { what, .. } = self { Some(what) } else { None }
    }
}
