//! Why a backend refuses: as all of them say it.

use crate::ir::StepError;
use crate::kind::ErrorKind;

/// Why a backend refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// An operation's operands do not fit each other.
    #[error("{op}: expected {expected}, found {found}")]
    Shape {
        /// The operation.
        op: &'static str,
        /// What its contract asks for.
        expected: String,
        /// What it was given.
        found: String,
    },
    /// No memory for an allocation; nothing changed.
    #[error("no memory for {bytes} bytes of {what}")]
    OutOfMemory {
        /// Bytes asked for.
        bytes: usize,
        /// What they were for.
        what: &'static str,
    },
    /// A number that was asked for is beyond its range.
    #[error("{what}: expected 1 to {most}, found {found}")]
    Count {
        /// What is counted.
        what: &'static str,
        /// The largest number.
        most: usize,
        /// What was asked for.
        found: usize,
    },
    /// The system gave no thread; those that had been started have ended.
    #[error("thread {number} of {threads} could not start: {reason}; fewer threads may do")]
    Thread {
        /// Which one, from 1.
        number: usize,
        /// How many there were to be.
        threads: usize,
        /// The system's reason.
        reason: String,
    },
    /// The machine lacks what was asked for.
    #[error("{what} is not available: {reason}")]
    Unavailable {
        /// What was asked for.
        what: String,
        /// Why there is none.
        reason: String,
    },
    /// A device's driver reports an error, of this call or of earlier work.
    #[error("{device}: {call}: {error}{}", if *.lost { "; the device is lost until the process is restarted" } else { "" })]
    Device {
        /// Which device.
        device: String,
        /// The call or the kernel.
        call: &'static str,
        /// The driver's name of it.
        error: String,
        /// Whether the device refuses all further work.
        lost: bool,
    },
    /// The step breaks its rules; nothing was run.
    #[error(transparent)]
    Step(#[from] StepError),
}

impl BackendError {
    /// What to do about it.
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

    /// The setting that is at fault.
    pub fn field(&self) -> Option<&'static str> {
        if let BackendError::Count { what, .. } = self { Some(what) } else { None }
    }
}
