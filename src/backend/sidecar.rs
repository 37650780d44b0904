//! A file in which a backend may keep a model's matrices as it prepared them, for the next load: what it is
//! told of it, what it does, and why there is none.

use std::io;
use std::path::Path;

use crate::quant::MatrixForm;

/// A file of prepared matrices.
#[derive(Clone, Copy, Debug)]
pub struct Sidecar<'a> {
    /// Where it is, or is to be.
    pub path: &'a Path,
    /// Stands for all that the matrices were made of: with another key it is a file of other matrices.
    pub key: [u8; 32],
    /// The matrices in order.
    pub shapes: &'a [MatrixShape],
    /// Whether the file is mapped, and stays so, instead of being read: less work, and processes share the memory,
    /// but who cuts the file short ends them, and who writes into it changes weights.
    pub map: bool,
}

/// A device that keeps prepared matrices of type `M` in files.
pub trait PackedFiles<M> {
    /// The matrices that [`PackedFiles::keep`] wrote, in their order, in place of preparing them.
    ///
    /// # Errors
    /// [`NoSidecar`] says why the file cannot be used; nothing of it is.
    fn restore(&self, sidecar: &Sidecar<'_>) -> Result<Vec<M>, NoSidecar>;

    /// Writes prepared matrices, of the sidecar's shapes and in their order, for [`PackedFiles::restore`]. What
    /// is there under that name is replaced at once, at the end.
    ///
    /// # Errors
    /// [`NoSidecar`]; then all is as it was.
    fn keep(&self, sidecar: &Sidecar<'_>, matrices: &[M]) -> Result<(), NoSidecar>;
}

/// What a matrix is prepared from, its values aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixShape {
    /// Output features.
    pub rows: usize,
    /// Input features.
    pub cols: usize,
    /// How the canonical matrix stores its values.
    pub form: MatrixForm,
}

/// Why no matrices come from a file, or go to it. It keeps nobody from preparing them.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoSidecar {
    /// The backend keeps no matrices.
    #[error("this device keeps no prepared weights")]
    Unsupported,
    /// The file system refused.
    #[error("cannot {action}: {source}")]
    Io {
        /// What was attempted.
        action: &'static str,
        /// Its answer.
        source: io::Error,
    },
    /// The file is another one than expected: of what it is not.
    #[error("not {0}")]
    Not(&'static str),
    /// There is no memory for the matrices.
    #[error("no memory for {bytes} bytes of weights")]
    Memory {
        /// Their bytes.
        bytes: usize,
    },
    /// The matrices are not what was written.
    #[error("weights are damaged at byte {offset} or behind it")]
    Damaged {
        /// Where the first block begins whose checksum is another.
        offset: usize,
    },
}

impl NoSidecar {
    /// Whether there is no file.
    pub fn is_missing(&self) -> bool {
        matches!(self, NoSidecar::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}
