//! Errors of binding and running plans.

use crate::backend::BackendError;
use crate::kind::ErrorKind;

/// An error of binding or running a plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// There is no input or output of this name.
    #[error("no {what} is named {name}; there are: {known}")]
    Unknown {
        /// "input" or "output".
        what: &'static str,
        /// The requested name.
        name: String,
        /// The names that exist.
        known: String,
    },
    /// Weights, inputs or the KV memory do not match the plan.
    #[error("{what}: expected {expected}, found {found}")]
    Binding {
        /// The mismatched item.
        what: String,
        /// The plan's requirement.
        expected: String,
        /// The value found.
        found: String,
    },
    /// The step is malformed, or memory is exhausted; no operation ran.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// An operation failed. Values and pages written by the step are undefined.
    #[error("operation {index} ({op}): {source}")]
    Op {
        /// Index of the operation in the plan.
        index: usize,
        /// Name of the operation.
        op: &'static str,
        /// The backend's error.
        source: BackendError,
    },
}

impl SessionError {
    /// The category of the error, for callers that handle it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            SessionError::Unknown { .. } | SessionError::Binding { .. } => ErrorKind::Internal,
            SessionError::Backend(error) | SessionError::Op { source: error, .. } => error.kind(),
        }
    }
}
