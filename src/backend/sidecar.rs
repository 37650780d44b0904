//! The sidecar: a file that stores a model's prepared matrices for later loads. Its description, the trait
//! for reading and writing it, and the errors.

use std::io;
use std::path::Path;

use crate::quant::MatrixForm;

/// A file of prepared matrices.
#[derive(Clone, Copy, Debug)]
pub struct Sidecar<'a> {
    /// Path of the file, which need not exist yet.
    pub path: &'a Path,
    /// Hash of everything that the matrices depend on. A file with another key belongs to other matrices.
    pub key: [u8; 32],
    /// The matrices in order.
    pub shapes: &'a [MatrixShape],
    /// Whether the file is mapped for as long as the weights live, instead of being read. Mapping is less
    /// work and shares memory between processes. But truncating the file then crashes them, and writing to it
    /// changes weights.
    pub map: bool,
}

/// A backend that stores prepared matrices of type `M` in files.
pub trait PackedFiles<M> {
    /// Reads the matrices that [`PackedFiles::store`] wrote, in their order; they need not be prepared again.
    ///
    /// # Errors
    /// [`NoSidecar`] if the file cannot be used; then nothing of it is used.
    fn load(&self, sidecar: &Sidecar<'_>) -> Result<Vec<M>, NoSidecar>;

    /// Writes prepared matrices, of the sidecar's shapes and in their order, for [`PackedFiles::load`]. An
    /// existing file of that name is replaced atomically at the end.
    ///
    /// # Errors
    /// [`NoSidecar`]; the previous file, if any, is unchanged.
    fn store(&self, sidecar: &Sidecar<'_>, matrices: &[M]) -> Result<(), NoSidecar>;
}

/// Shape and form of a canonical matrix, without its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixShape {
    /// Output features.
    pub rows: usize,
    /// Input features.
    pub cols: usize,
    /// Storage form of the canonical values.
    pub form: MatrixForm,
}

/// Reason why a sidecar is not read or written. Matrices can still be prepared from the model's own files.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoSidecar {
    /// The backend does not store matrices.
    #[error("this device keeps no prepared weights")]
    Unsupported,
    /// The file system refused.
    #[error("cannot {action}: {source}")]
    Io {
        /// The attempted operation.
        action: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The file does not match; the field completes "not ...".
    #[error("not {0}")]
    Not(&'static str),
    /// The matrices do not fit in memory.
    #[error("no memory for {bytes} bytes of weights")]
    Memory {
        /// Size of the matrices.
        bytes: usize,
    },
    /// The data does not match its checksums.
    #[error("weights are damaged at byte {offset} or behind it")]
    Damaged {
        /// Offset of the first block with a wrong checksum.
        offset: usize,
    },
}

impl NoSidecar {
    /// Whether the file does not exist.
    pub fn is_missing(&self) -> bool {
        matches!(self, NoSidecar::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}
