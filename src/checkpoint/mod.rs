//! Checkpoints: weights and metadata of a model, as a GGUF file ([`ModelFile`]) or a Hugging Face folder
//! (`ModelFolder`, feature `safetensors`). The header is fully checked on open.
//!
//! Files are untrusted input: every count, length, offset and product is checked before use, and allocations
//! are bounded by the file's size. A [`WeightsError`] names the file, the position, the expected and the
//! found value. In an open checkpoint every tensor lies inside its file and has a supported type.
//!
//! Reading order:
//! - `role`: roles of tensors in a model, and their names;
//! - `stored` and `files`: one file, and the tensor table over all files;
//! - `metadata` and `strings`: typed values; `tensor`: types and shapes;
//! - `gguf`, `load` and `split`: GGUF files, also in parts; `folder`: Hugging Face folders;
//! - `rows`: tensors as canonical matrices; `scales`: separate scale tensors of FP8 and NVFP4; `stack`:
//!   per-expert tensors joined into one;
//! - `source`: mapped or buffered reads; `write`: the GGUF writer; `error`, `fault` and `shown`: error texts.
//!
//! Block formats are in [`crate::quant`]. Hyperparameters and tokenizer keys are interpreted by their users.

mod error;
mod fault;
mod files;
#[cfg(feature = "safetensors")]
mod folder;
mod gguf;
mod load;
mod metadata;
mod role;
mod rows;
#[cfg_attr(not(feature = "safetensors"), allow(dead_code))]
mod scales;
mod shown;
mod source;
mod split;
#[cfg_attr(not(feature = "safetensors"), allow(dead_code))]
mod stack;
mod stored;
mod strings;
mod tensor;
mod write;

use std::path::Path;
use std::time::SystemTime;

use crate::quant::WeightMatrix;

pub use error::WeightsError;
pub use fault::Fault;
pub use files::TensorFiles;
#[cfg(feature = "safetensors")]
pub use folder::{Documents, ModelFolder};
#[cfg(feature = "safetensors")]
pub(crate) use folder::{Object, shown_value};
pub use load::ModelFile;
pub use metadata::{Array, Metadata, Value};
pub use role::{Dialect, Part, Role, RotaryRows};
pub use rows::TensorRows;
#[cfg(feature = "text")]
pub(crate) use shown::shown_line;
pub(crate) use shown::{shown, shown_path};
pub use source::OpenOptions;
pub use stored::StoredFile;
pub(crate) use strings::Ends;
pub use strings::Strings;
pub use tensor::{TensorInfo, TensorType};
pub use write::{GgufWriter, WriteError};

/// Weights and metadata of a model, shared between threads. Its [`Dialect`] maps roles to tensor names.
pub trait Checkpoint: Sync {
    /// Name of the format: "GGUF version 3".
    fn format(&self) -> String;

    /// Path for error messages: the file, the first part of a split model, or the folder.
    fn path(&self) -> &Path;

    /// Hyperparameters and other metadata, under GGUF keys.
    fn metadata(&self) -> &Metadata;

    /// Tensor names and storage conventions.
    fn dialect(&self) -> &Dialect;

    /// Location of the tokenizer and the chat template.
    fn text(&self) -> TextSource<'_>;

    /// The files and their tensor table.
    fn files(&self) -> &TensorFiles;

    /// All tensors, in file order.
    fn tensors(&self) -> &[TensorInfo] {
        self.files().tensors()
    }

    /// The table entry for `name`.
    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.files().tensor(name)
    }

    /// A lazy view of the tensor `name` as a canonical matrix: nothing is decoded yet.
    ///
    /// A tensor of one dimension is one row. A tensor of three dimensions is a stack of matrices with
    /// contiguous rows.
    ///
    /// # Errors
    /// [`WeightsError::Missing`] for an unknown name; [`WeightsError::Shape`] for more than three dimensions
    /// above 1.
    fn rows(&self, name: &str) -> Result<TensorRows<'_>, WeightsError> {
        let (file, info) = self.files().find(name).ok_or_else(|| self.missing(name))?;
        if info.dims.iter().skip(3).any(|&dim| dim != 1) {
            return Err(file.shape_error(info, "one to three dimensions"));
        }
        let files = self.files();
        Ok(TensorRows::new(file, info, files.scales(name), files.members(name)))
    }

    /// Decodes the tensor `name` into a canonical matrix on the current thread: quantised types become codes,
    /// floats keep their type.
    ///
    /// # Errors
    /// Those of [`Checkpoint::rows`] and [`TensorRows::read`].
    fn matrix(&self, name: &str) -> Result<WeightMatrix, WeightsError> {
        let rows = self.rows(name)?;
        let mut matrix = WeightMatrix::default();
        rows.read(0..rows.rows(), &mut matrix)?;
        Ok(matrix)
    }

    /// The single row of the tensor `name`, of any type, widened to f32.
    ///
    /// # Errors
    /// Those of [`Checkpoint::matrix`]; [`WeightsError::Shape`] for more than one row.
    fn vector(&self, name: &str) -> Result<Vec<f32>, WeightsError> {
        let (file, info) = self.files().find(name).ok_or_else(|| self.missing(name))?;
        if info.rows() != 1 {
            return Err(file.shape_error(info, "one row"));
        }
        let matrix = self.matrix(name)?;
        let mut values = vec![0.0; matrix.cols()];
        matrix.dequantize_row(0, &mut values);
        Ok(values)
    }

    /// The error for an unknown tensor name.
    fn missing(&self, name: &str) -> WeightsError {
        WeightsError::Missing { file: self.path().to_owned(), tensor: name.to_owned() }
    }

    /// Prefetches the tensor's pages. Unknown names are ignored.
    fn prefetch(&self, name: &str) {
        self.files().prefetch(name);
    }

    /// Releases the tensor's pages and those read around them; the next access reads them again. No effect
    /// for files that are not mapped and for unknown names.
    fn release(&self, name: &str) {
        self.files().release(name);
    }

    /// Total bytes of all files.
    fn file_bytes(&self) -> u64 {
        self.files().bytes()
    }

    /// Whether the files are memory-mapped ([`OpenOptions::mmap`]).
    fn is_mapped(&self) -> bool {
        self.files().is_mapped()
    }

    /// The latest modification time among the files, as of their opening; `None` for bytes in memory, or if
    /// the system has no such time.
    fn modified(&self) -> Option<SystemTime> {
        self.files().modified()
    }

    /// Checks that no file changed its length or modification time since it was opened. All reads before a
    /// successful check come from the same content.
    ///
    /// # Errors
    /// [`WeightsError::Changed`]; [`WeightsError::Io`] if the file's metadata cannot be read.
    fn check_unchanged(&self) -> Result<(), WeightsError> {
        self.files().check_unchanged()
    }

    /// A hash that identifies the model: BLAKE3 of the headers and documents, the total length of the files,
    /// and 1 KiB from the start, the middle and the end of each tensor. It is cheap, but does not detect
    /// deliberate manipulation.
    ///
    /// # Errors
    /// [`WeightsError::Io`] if a file cannot be read, [`WeightsError::Changed`] if it was truncated.
    fn fingerprint(&self) -> Result<[u8; 32], WeightsError> {
        self.files().fingerprint()
    }
}

/// Location of a checkpoint's tokenizer and chat template.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub enum TextSource<'c> {
    /// Metadata keys that begin with `tokenizer.`.
    Metadata(&'c Metadata),
    /// Documents in the same folder as the weights.
    #[cfg(feature = "safetensors")]
    Documents(&'c Documents),
}

/// Opens the checkpoint at `path`: a GGUF file (any part of a split model), or a Hugging Face folder. A path
/// to the folder's `config.json`, its index or one of its safetensors files opens the folder.
///
/// # Errors
/// [`WeightsError`] names the file and the defect.
pub fn open(path: &Path, options: &OpenOptions) -> Result<Box<dyn Checkpoint>, WeightsError> {
    match folder_of(path) {
        Some(folder) => open_folder(path, folder, options),
        None => Ok(Box::new(ModelFile::open(path, options)?)),
    }
}

/// The Hugging Face folder of a path; `None` for a GGUF file.
fn folder_of(path: &Path) -> Option<&Path> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let in_folder =
        name == "config.json" || name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json");
    match path.is_dir() {
        true => Some(path),
        false => in_folder.then(|| crate::file::folder_of(path)),
    }
}

#[cfg(feature = "safetensors")]
fn open_folder(
    path: &Path,
    folder: &Path,
    options: &OpenOptions,
) -> Result<Box<dyn Checkpoint>, WeightsError> {
    // The path is joined, not canonicalised, so that it compares equal to the shard paths of the folder.
    let weights = path.file_name().filter(|name| name.to_string_lossy().ends_with(".safetensors"));
    let weights = weights.filter(|_| path != folder).map(|name| folder.join(name));
    Ok(Box::new(ModelFolder::open_with(folder, weights.as_deref(), options)?))
}

#[cfg(not(feature = "safetensors"))]
fn open_folder(path: &Path, _: &Path, _: &OpenOptions) -> Result<Box<dyn Checkpoint>, WeightsError> {
    let reason = "this build reads no folders of Hugging Face (feature `safetensors`)";
    let source = std::io::Error::new(std::io::ErrorKind::Unsupported, reason);
    Err(WeightsError::Io { file: path.to_owned(), action: "open", source })
}
