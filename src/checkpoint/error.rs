//! Errors of opening and reading model files: [`WeightsError`] names the file, [`Fault`] (in `fault`) the
//! defect inside it.

use std::path::{Path, PathBuf};

use crate::kind::ErrorKind;
use crate::quant::QuantError;

use super::Fault;
use super::shown::{shown, shown_path};

/// An error of opening or reading a checkpoint.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WeightsError {
    /// The operating system reported an error.
    #[error("{}: cannot {action}: {source}", shown_path(file))]
    Io {
        /// The file.
        file: PathBuf,
        /// The attempted operation: "open", "map", "read".
        action: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file changed while it was open.
    #[error("{}: the file changed while it was read: expected {expected} bytes as they were, found {found}", file.display())]
    Changed {
        /// The file.
        file: PathBuf,
        /// Length in bytes when it was opened.
        expected: u64,
        /// The new length, or "other content".
        found: String,
    },
    /// The file violates its format.
    #[error("{}: at byte {offset}: {fault}", shown_path(file))]
    Malformed {
        /// The file.
        file: PathBuf,
        /// Byte offset of the offending field.
        offset: u64,
        /// The defect.
        fault: Fault,
    },
    /// A metadata value has an unexpected type.
    #[error("{}: metadata `{}`: expected {expected}, found {found}", shown_path(file), shown(key))]
    Type {
        /// The file.
        file: PathBuf,
        /// The metadata key.
        key: String,
        /// The expected type.
        expected: &'static str,
        /// The type or the value found.
        found: String,
    },
    /// A document (`config.json`, `tokenizer.json`, an index) is malformed.
    #[error("{}: {reason}", shown_path(file))]
    Document {
        /// The document.
        file: PathBuf,
        /// The reason, in one line.
        reason: String,
    },
    /// A setting of a document is missing, out of range, not supported, or contradicts the tensors.
    #[error("{}: {}: expected {expected}, found {}", shown_path(file), shown(key), shown(found))]
    Setting {
        /// The document.
        file: PathBuf,
        /// Full path of the key: "rope_scaling.factor".
        key: String,
        /// The expected value.
        expected: String,
        /// The value found.
        found: String,
    },
    /// No tensor has this name.
    #[error("{}: there is no tensor `{}`", shown_path(file), shown(tensor))]
    Missing {
        /// The file.
        file: PathBuf,
        /// The requested name.
        tensor: String,
    },
    /// A tensor has the wrong shape for its use.
    #[error(
        "{}: tensor `{}` at byte {offset}: expected {expected}, found dimensions {found:?}",
        shown_path(file),
        shown(tensor)
    )]
    Shape {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Byte offset of its data.
        offset: u64,
        /// The expected shape.
        expected: &'static str,
        /// Its dimensions in file order: columns first.
        found: Vec<u64>,
    },
    /// A tensor has invalid data, such as a scale that is not finite.
    #[error("{}: tensor `{}` at byte {offset}: {source}", shown_path(file), shown(tensor))]
    Tensor {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Byte offset of its data.
        offset: u64,
        /// The defect.
        source: QuantError,
    },
}

impl WeightsError {
    /// The category of the error, for callers that handle it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            WeightsError::Io { source, .. } => source.into(),
            WeightsError::Changed { .. } => ErrorKind::Io,
            WeightsError::Malformed { fault: Fault::Memory { .. }, .. } => ErrorKind::OutOfMemory,
            _ => ErrorKind::BadModel,
        }
    }

    /// A fault of the file as a whole, at offset 0.
    pub(super) fn malformed(file: &Path, fault: Fault) -> WeightsError {
        WeightsError::Malformed { file: file.to_owned(), offset: 0, fault }
    }
}
