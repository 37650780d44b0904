//! Why a model file was refused: [`WeightsError`] names the file. What is wrong inside it is in `fault`.

use std::path::{Path, PathBuf};

use crate::kind::ErrorKind;
use crate::quant::QuantError;

use super::Fault;
use super::shown::{shown, shown_path};

/// Why a model file, or something in it, could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WeightsError {
    /// The operating system refused.
    #[error("{}: cannot {action}: {source}", shown_path(file))]
    Io {
        /// The file.
        file: PathBuf,
        /// What was tried: "open", "map", "read".
        action: &'static str,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The file changed between its opening and the end of its reading.
    #[error("{}: the file changed while it was read: expected {expected} bytes as they were, found {found}", file.display())]
    Changed {
        /// The file.
        file: PathBuf,
        /// Its bytes when it was opened.
        expected: u64,
        /// Another length, or "other content".
        found: String,
    },
    /// The file is not sound.
    #[error("{}: at byte {offset}: {fault}", shown_path(file))]
    Malformed {
        /// The file.
        file: PathBuf,
        /// Where the offending field starts.
        offset: u64,
        /// What is wrong.
        fault: Fault,
    },
    /// A metadata value has another type than its reader needs.
    #[error("{}: metadata `{}`: expected {expected}, found {found}", shown_path(file), shown(key))]
    Type {
        /// The file.
        file: PathBuf,
        /// The metadata key.
        key: String,
        /// The type that was asked for.
        expected: &'static str,
        /// The type, or the value, that is there.
        found: String,
    },
    /// A document is not what it must be.
    #[error("{}: {reason}", shown_path(file))]
    Document {
        /// The document.
        file: PathBuf,
        /// What is wrong, in one line.
        reason: String,
    },
    /// A setting of a document is missing, absurd, not honoured, or contradicts the tensors.
    #[error("{}: {}: expected {expected}, found {}", shown_path(file), shown(key), shown(found))]
    Setting {
        /// The document.
        file: PathBuf,
        /// The key, with those that lead to it.
        key: String,
        /// What it must be.
        expected: String,
        /// What the document says.
        found: String,
    },
    /// No tensor has this name.
    #[error("{}: there is no tensor `{}`", shown_path(file), shown(tensor))]
    Missing {
        /// The file.
        file: PathBuf,
        /// The name that was asked for.
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
        /// Where its data starts.
        offset: u64,
        /// The shape that was asked for.
        expected: &'static str,
        /// Its dimensions in the file's order: columns first.
        found: Vec<u64>,
    },
    /// A tensor's data is not sound.
    #[error("{}: tensor `{}` at byte {offset}: {source}", shown_path(file), shown(tensor))]
    Tensor {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Where its data starts.
        offset: u64,
        /// What is wrong.
        source: QuantError,
    },
}

impl WeightsError {
    /// What to do about it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            WeightsError::Io { source, .. } => source.into(),
            WeightsError::Changed { .. } => ErrorKind::Io,
            WeightsError::Malformed { fault: Fault::Memory { .. }, .. } => ErrorKind::OutOfMemory,
            _ => ErrorKind::BadModel,
        }
    }

    /// What is wrong with a whole file.
    pub(super) fn malformed(file: &Path, fault: Fault) -> WeightsError {
        WeightsError::Malformed { file: file.to_owned(), offset: 0, fault }
    }
}
