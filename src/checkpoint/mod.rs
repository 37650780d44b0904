//! Checkpoints: what weights are read from. A GGUF file ([`ModelFile`]), or a Hugging Face folder
//! (`ModelFolder`, feature `safetensors`), checked from end to end when it is opened.
//!
//! Nothing in a file is trusted: every count, length, offset and product is checked before it is
//! used, allocations are bounded by the file's size, and every refusal is a [`WeightsError`] that
//! names the file, the place, what was expected and what was found. A checkpoint that is open has its
//! tensors inside its files, each of a type that can be read.
//!
//! Reading order: `role` (what tensors are to a model, and their names), `stored` and `files` (files, and the table of
//! tensors), `metadata` (typed values, `strings` among them), `tensor` (types and shapes), `gguf`, `load` and `split`
//! (a GGUF file, in parts perhaps), `folder` (Hugging Face), `rows` (tensors to canonical matrices), `scales` (those
//! that are tensors of their own), `stack` (tensors that are read as one), `source` (mapped or read), `write` (GGUF).
//! The block formats themselves are in [`crate::quant`]; what the metadata means to a model or a tokenizer is theirs.

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

/// A model's weights and what is written about them. Any thread may read; tensors are found by the names that
/// its [`Dialect`] has for their roles.
pub trait Checkpoint: Sync {
    /// What it is: "GGUF version 3".
    fn format(&self) -> String;

    /// The path that errors name; of a model in several files the first one's, or their folder.
    fn path(&self) -> &Path;

    /// Hyperparameters and what else is said of the model, under the keys of the GGUF convention.
    fn metadata(&self) -> &Metadata;

    /// What tensors are called, and what is stored otherwise than a graph reads it.
    fn dialect(&self) -> &Dialect;

    /// Where the tokenizer and the chat template are.
    fn text(&self) -> TextSource<'_>;

    /// The files, and the tensors in them.
    fn files(&self) -> &TensorFiles;

    /// All tensors, one file behind the other.
    fn tensors(&self) -> &[TensorInfo] {
        self.files().tensors()
    }

    /// The entry of the tensor called `name`.
    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.files().tensor(name)
    }

    /// The tensor called `name` as a canonical matrix that is yet to be decoded.
    ///
    /// A tensor of one dimension is one row; of a tensor of three, which stacks matrices, all rows follow each other.
    ///
    /// # Errors
    /// [`WeightsError::Missing`]; [`WeightsError::Shape`] if it has more than three dimensions above 1.
    fn rows(&self, name: &str) -> Result<TensorRows<'_>, WeightsError> {
        let (file, info) = self.files().find(name).ok_or_else(|| self.missing(name))?;
        if info.dims.iter().skip(3).any(|&dim| dim != 1) {
            return Err(file.shape_error(info, "one to three dimensions"));
        }
        let files = self.files();
        Ok(TensorRows::new(file, info, files.scales(name), files.members(name)))
    }

    /// The tensor called `name` as a canonical matrix: quantised types as codes, floats as they are. One
    /// thread decodes.
    ///
    /// # Errors
    /// As [`Checkpoint::rows`] and [`TensorRows::read`].
    fn matrix(&self, name: &str) -> Result<WeightMatrix, WeightsError> {
        let rows = self.rows(name)?;
        let mut matrix = WeightMatrix::default();
        rows.read(0..rows.rows(), &mut matrix)?;
        Ok(matrix)
    }

    /// The one row of the tensor called `name`, of any type, widened to f32.
    ///
    /// # Errors
    /// As [`Checkpoint::matrix`]; [`WeightsError::Shape`] if it has more than one row.
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

    /// The error of a tensor that is not there.
    fn missing(&self, name: &str) -> WeightsError {
        WeightsError::Missing { file: self.path().to_owned(), tensor: name.to_owned() }
    }

    /// Asks the system to read the tensor's pages ahead of use. Nothing happens for a name that is not there.
    fn prefetch(&self, name: &str) {
        self.files().prefetch(name);
    }

    /// Gives the tensor's pages back to the system, and those around it, which came with them; they are read
    /// again when next used. Nothing happens for a file that is not mapped, or a name that is not there.
    fn release(&self, name: &str) {
        self.files().release(name);
    }

    /// Bytes of all files.
    fn file_bytes(&self) -> u64 {
        self.files().bytes()
    }

    /// Whether files are mapped ([`OpenOptions::mmap`]).
    fn is_mapped(&self) -> bool {
        self.files().is_mapped()
    }

    /// When the newest of the files had last been changed when it was opened; none of bytes in memory, or where
    /// the system does not say.
    fn modified(&self) -> Option<SystemTime> {
        self.files().modified()
    }

    /// Checks that each file is as long as when it was opened, and was not written since. What was read of it
    /// before is one file's content then.
    ///
    /// # Errors
    /// [`WeightsError::Changed`]; [`WeightsError::Io`] if the system does not say.
    fn check_unchanged(&self) -> Result<(), WeightsError> {
        self.files().check_unchanged()
    }

    /// A hash that tells models apart: BLAKE3 of all that describes the tensors, of the files' length, and of
    /// 1 KiB from the start, the middle and the end of each tensor. Cheap, and no proof against someone who
    /// means to deceive.
    ///
    /// # Errors
    /// [`WeightsError::Io`] if a file cannot be read, [`WeightsError::Changed`] if it is shorter than it was.
    fn fingerprint(&self) -> Result<[u8; 32], WeightsError> {
        self.files().fingerprint()
    }
}

/// Where a checkpoint has its tokenizer and its chat template.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub enum TextSource<'c> {
    /// In keys that begin with `tokenizer.`.
    Metadata(&'c Metadata),
    /// In documents beside the weights.
    #[cfg(feature = "safetensors")]
    Documents(&'c Documents),
}

/// Opens the checkpoint at `path`: a GGUF file (of a model in several files any), or a Hugging Face folder, which
/// its `config.json` and its safetensors files stand for, too.
///
/// # Errors
/// [`WeightsError`] names the file, and says what is wrong with it.
pub fn open(path: &Path, options: &OpenOptions) -> Result<Box<dyn Checkpoint>, WeightsError> {
    match folder_of(path) {
        Some(folder) => open_folder(path, folder, options),
        None => Ok(Box::new(ModelFile::open(path, options)?)),
    }
}

/// The folder that a path stands for; none for a GGUF file.
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
    // Paths below are compared with this one, so the folder is as it is written there.
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
