//! [`Embedder`]: texts to vectors, and pairs of texts to scores.
//!
//! `builder` loads a model, `input` turns texts into token ids, `options` has the options of a call. Texts of
//! all callers share steps: see [`crate::embed`].

mod builder;
mod input;
mod options;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

pub use builder::EmbedderBuilder;
pub use input::EmbedInput;
use input::{Encoding, Limits};
pub use options::EmbedOptions;

use super::Device;
use crate::Result;
use crate::embed::{EmbedError, EmbedHandle, unit_rows};
use crate::model::{DecoderMemory, Pooling};

/// A loaded embedding model or reranker: cheap to clone, shared between threads.
///
/// ```no_run
/// use ottava::{Embedder, EmbedOptions};
///
/// # fn main() -> ottava::Result<()> {
/// let embedder = Embedder::builder("all-MiniLM-L6-v2.gguf").build()?;
/// # #[cfg(feature = "text")]
/// # {
/// let found = embedder.embed(["a cat", "a dog"], &EmbedOptions::new())?;
/// let cosine: f32 = found.vectors[0].iter().zip(&found.vectors[1]).map(|(a, b)| a * b).sum();
/// println!("{cosine:.3}, from {} tokens", found.tokens.iter().sum::<usize>());
/// # }
/// # Ok(()) }
/// ```
///
/// The vector of a text depends on that text alone, bit for bit, not on the texts or the callers next to it.
/// Dropping the last clone ends the embedder's thread.
#[derive(Clone)]
pub struct Embedder {
    handle: EmbedHandle,
    shared: Arc<Shared>,
}

struct Shared {
    info: EmbedderInfo,
    encoding: Encoding,
}

/// Facts about a loaded embedder.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct EmbedderInfo {
    /// The model file or folder.
    pub path: PathBuf,
    /// `general.name` of the file, else the file's stem.
    pub name: String,
    /// The device; never [`Device::Auto`].
    pub device: Device,
    /// The device and its modes, in one line.
    pub device_name: String,
    /// Why it is not a GPU, if [`Device::Auto`] preferred one.
    pub fallback: Option<String>,
    /// Pooling of the rows of a text.
    #[cfg_attr(feature = "serde", serde(serialize_with = "crate::api::embedder::as_text"))]
    pub pooling: Pooling,
    /// Elements of a vector; labels of a reranker.
    pub dimensions: usize,
    /// Most tokens of one text.
    pub context_max: usize,
    /// Context length that the model was trained for, in tokens.
    pub context_trained: usize,
    /// Bytes of weights and intermediates, in the backend's form.
    pub memory: DecoderMemory,
    /// Names of the model's prompts.
    pub prompts: Vec<String>,
    /// Wall time from opening the file to being ready, in seconds.
    pub load_seconds: f64,
}

/// Serialises a value in its `Display` form.
#[cfg(feature = "serde")]
fn as_text<T: fmt::Display, S: serde::Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

/// Vectors of texts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Embeddings {
    /// One vector per text, in the order of the texts.
    pub vectors: Vec<Vec<f32>>,
    /// Number of tokens of each text, after truncation.
    pub tokens: Vec<usize>,
}

/// Prints one line.
impl fmt::Debug for Embedder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let EmbedderInfo { name, device_name, .. } = self.info();
        f.debug_struct("Embedder").field("model", name).field("device", device_name).finish_non_exhaustive()
    }
}

impl Embedder {
    /// Options of an embedder for a model: a GGUF file, or with the feature `safetensors` a Hugging Face
    /// folder with or without the files of sentence-transformers.
    pub fn builder(model: impl Into<PathBuf>) -> EmbedderBuilder {
        EmbedderBuilder::new(model.into())
    }

    /// Facts about the embedder.
    pub fn info(&self) -> &EmbedderInfo {
        &self.shared.info
    }

    /// The vectors of texts. The number of texts is not limited: they are worked on in steps of bounded size.
    ///
    /// # Errors
    /// [`crate::Error::Embed`] for an option that does not fit the model, a text without tokens, a text
    /// beyond the context without [`EmbedOptions::truncate`], or a reranker; [`crate::Error::Text`] for a
    /// text that the model's tokenizer cannot encode. The first failing text fails the call.
    pub fn embed<'a, I: Into<EmbedInput<'a>>>(
        &self,
        texts: impl IntoIterator<Item = I>,
        options: &EmbedOptions,
    ) -> Result<Embeddings> {
        let EmbedderInfo { pooling, dimensions, .. } = *self.info();
        self.expect(pooling != Pooling::Rank, "an embedding model")?;
        // An invalid option is refused before any work.
        unit_rows(&mut [], dimensions, options.dimensions, options.normalize)?;
        let prefix = self.shared.encoding.prefix(options)?;
        let mut tokens = Vec::new();
        let encoded = texts.into_iter().enumerate().map(|(index, text)| {
            let text = self.shared.encoding.text(text.into(), prefix, self.limits(index, options))?;
            tokens.push(text.ids.len());
            Ok::<_, crate::Error>(text)
        });
        let mut vectors = self.handle.encode(encoded)?;
        unit_rows(&mut vectors, dimensions, options.dimensions, options.normalize)?;
        Ok(Embeddings { vectors, tokens })
    }

    /// Scores of documents for a query by a reranker: the logit of its first label, in the order of the
    /// documents. Higher is better; the scale is the model's own. Query and documents are texts, or all are
    /// token ids, with the special tokens between them at the end of the query. Of [`EmbedOptions`] only
    /// [`EmbedOptions::truncate`] applies: it shortens the document.
    ///
    /// # Errors
    /// [`crate::Error::Embed`] for a model that is no reranker, an empty query, or a pair beyond the context
    /// without truncation; [`crate::Error::Text`] as in [`Embedder::embed`].
    pub fn rerank<'a, I: Into<EmbedInput<'a>>>(
        &self,
        query: impl Into<EmbedInput<'a>>,
        documents: impl IntoIterator<Item = I>,
        options: &EmbedOptions,
    ) -> Result<Vec<f32>> {
        self.expect(self.info().pooling == Pooling::Rank, "a reranker")?;
        let query = query.into();
        let pairs = documents.into_iter().enumerate().map(|(index, document)| {
            self.shared.encoding.pair(query, document.into(), self.limits(index, options))
        });
        let rows = self.handle.encode(pairs)?;
        Ok(rows.into_iter().map(|row| row.first().copied().unwrap_or_default()).collect())
    }

    fn limits(&self, index: usize, options: &EmbedOptions) -> Limits {
        Limits { index, context_max: self.handle.context_max(), truncate: options.truncate }
    }

    fn expect(&self, fits: bool, expected: &'static str) -> Result<(), EmbedError> {
        let EmbedderInfo { name, pooling, .. } = self.info();
        let refused = || EmbedError::Pooling { model: name.clone(), expected, found: pooling.to_string() };
        fits.then_some(()).ok_or_else(refused)
    }
}
