//! Model files: a GGUF file checked from end to end when it is opened, its metadata and its tensors.
//!
//! Nothing in a file is trusted: every count, length, offset and product is checked before it is
//! used, allocations are bounded by the file's size, and every refusal is a [`WeightsError`] that
//! names the file, the place, what was expected and what was found. After [`ModelFile::open`] has
//! succeeded, each tensor lies inside the file and has a type that can be read.
//!
//! Reading order: `gguf` (the format), `metadata` (typed values, `strings` among them), `tensor` (types
//! and shapes), `load` (the file), `split` (a model in several files), `rows` (tensors to canonical
//! matrices), `source` (mapped or read), `write` (the way back). The block formats themselves are in [`crate::quant`]; what the metadata means
//! to a model or a tokenizer is theirs.

mod error;
mod gguf;
mod load;
mod metadata;
mod rows;
mod shown;
mod source;
mod split;
mod strings;
mod tensor;
mod write;

pub use error::{Fault, WeightsError};
pub use load::ModelFile;
pub use metadata::{Array, Metadata, Value};
pub use rows::TensorRows;
pub(crate) use shown::{shown, shown_path};
pub use source::OpenOptions;
pub(crate) use strings::Ends;
pub use strings::Strings;
pub use tensor::{TensorInfo, TensorType};
pub use write::{GgufWriter, WriteError};
