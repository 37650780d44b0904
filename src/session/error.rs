//! What goes wrong in a session.

use crate::backend::BackendError;
use crate::kind::ErrorKind;

/// Why a plan could not be bound or run.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// No input or output of this name.
    #[error("no {what} is named {name}; there are: {known}")]
    Unknown {
        /// "input" or "output".
        what: &'static str,
        /// The name asked for.
        name: String,
        /// The names that exist.
        known: String,
    },
    /// Weights, inputs or the KV memory do not fit the plan.
    #[error("{what}: expected {expected}, found {found}")]
    Binding {
        /// What was given.
        what: String,
        /// What the plan asks for.
        expected: String,
        /// What it was given.
        found: String,
    },
    /// The step breaks its rules, or there is no memory; nothing was run.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// An operation failed; values and pages that the step was to write are undefined.
    #[error("operation {index} ({op}): {source}")]
    Op {
        /// Number of the operation in the plan.
        index: usize,
        /// Its name.
        op: &'static str,
        /// What the backend said.
        source: BackendError,
    },
}

impl SessionError {
    /// What to do about it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            SessionError::Unknown { .. } | SessionError::Binding { .. } => ErrorKind::Internal,
            SessionError::Backend(error) | SessionError::Op { source: error, .. } => error.kind(),
        }
    }
}
