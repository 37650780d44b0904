//! Documents of a Hugging Face folder: configuration, tokenizer, chat template, quantisation.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use crate::checkpoint::fault::GIT_LFS;
use crate::checkpoint::files::TensorFiles;
use crate::checkpoint::stored::{PARSED, StoredFile, make_sure};
use crate::checkpoint::{Fault, WeightsError, shown};
use crate::file::is_there;
use crate::headroom::json;

use super::json::Object;

/// Maximum size of a document, and of its parsed values, in bytes.
const BYTES_MAX: usize = 16 << 20;
const PARSED_MAX: usize = 256 << 20;
/// Maximum size of a large document. Its parsed values are bounded by memory only.
const LARGE_BYTES_MAX: usize = 1 << 30;

/// Size class of a document.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Size {
    Usual,
    /// Vocabularies and shard indexes, of tens of megabytes.
    Large,
}

/// Documents that describe the tokenizer and the quantisation. Each is optional; those present were regular
/// files when the folder was opened.
pub struct Documents {
    folder: PathBuf,
    /// Rows of the embedding table, the upper bound of token ids.
    rows: usize,
    found: Vec<(&'static str, Arc<StoredFile>)>,
}

impl Documents {
    /// Model configuration.
    pub const CONFIG: &'static str = "config.json";
    /// Vocabulary, merge rules and added tokens.
    pub const TOKENIZER: &'static str = "tokenizer.json";
    /// BOS and EOS settings, and the chat template.
    pub const TOKENIZER_CONFIG: &'static str = "tokenizer_config.json";
    /// End-of-generation tokens.
    pub const GENERATION_CONFIG: &'static str = "generation_config.json";
    /// Chat template in a file of its own.
    pub const CHAT_TEMPLATE: &'static str = "chat_template.jinja";
    /// Chat template in a file of its own, in the older JSON form.
    pub const CHAT_TEMPLATE_JSON: &'static str = "chat_template.json";
    /// Prompts of sentence-transformers.
    pub const SENTENCES: &'static str = "config_sentence_transformers.json";
    /// Modules of sentence-transformers, in order.
    pub const MODULES: &'static str = "modules.json";
    /// Text length of sentence-transformers.
    pub const SENTENCE_LENGTH: &'static str = "sentence_bert_config.json";
    /// Pooling of sentence-transformers.
    pub const POOLING: &'static str = "1_Pooling/config.json";
    /// Projections of sentence-transformers.
    pub const DENSE_2: &'static str = "2_Dense/config.json";
    /// See [`Documents::DENSE_2`].
    pub const DENSE_3: &'static str = "3_Dense/config.json";
    /// Quantisation settings outside the configuration.
    pub const QUANTIZATION: &'static str = "hf_quant_config.json";

    const ALL: [&'static str; 12] = [
        Documents::TOKENIZER,
        Documents::TOKENIZER_CONFIG,
        Documents::GENERATION_CONFIG,
        Documents::CHAT_TEMPLATE,
        Documents::CHAT_TEMPLATE_JSON,
        Documents::QUANTIZATION,
        Documents::SENTENCES,
        Documents::MODULES,
        Documents::SENTENCE_LENGTH,
        Documents::POOLING,
        Documents::DENSE_2,
        Documents::DENSE_3,
    ];

    /// Opens the documents of a folder. They are added to `files`, so that the fingerprint covers them.
    pub(super) fn open(
        folder: &Path,
        config: Arc<StoredFile>,
        files: &mut TensorFiles,
    ) -> Result<Documents, WeightsError> {
        files.add(Arc::clone(&config), Vec::new())?;
        let mut found = vec![(Documents::CONFIG, config)];
        for name in Documents::ALL {
            let path = folder.join(name);
            if is_there(&path) {
                let file = Arc::new(StoredFile::document(&path)?);
                files.add(Arc::clone(&file), Vec::new())?;
                found.push((name, file));
            }
        }
        Ok(Documents { folder: folder.to_owned(), rows: 0, found })
    }

    pub(super) fn with_rows(self, rows: usize) -> Documents {
        Documents { rows, ..self }
    }

    /// The folder of the documents.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Rows of the embedding table, the upper bound of token ids.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Path of a document, for error messages.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Parses a JSON document; `None` if the folder does not have it.
    ///
    /// # Errors
    /// [`WeightsError::Io`], or [`WeightsError::Document`] if it is not valid JSON.
    pub fn json(&self, name: &str) -> Result<Option<Value>, WeightsError> {
        let size = if name == Documents::TOKENIZER { Size::Large } else { Size::Usual };
        self.find(name).map(|file| parse(file, size)).transpose()
    }

    /// Reads a text document; `None` if the folder does not have it.
    ///
    /// # Errors
    /// [`WeightsError::Io`], or [`WeightsError::Document`] if it is not valid UTF-8.
    pub fn text(&self, name: &str) -> Result<Option<String>, WeightsError> {
        let Some(file) = self.find(name) else { return Ok(None) };
        let text = read(file, Size::Usual, |bytes| Ok(String::from_utf8(unmarked(bytes).to_vec())))?;
        text.map(Some).map_err(|error| refuse(file.path(), &error))
    }

    /// Prompts of sentence-transformers by name; empty without `config_sentence_transformers.json`.
    ///
    /// # Errors
    /// As [`Documents::json`]; [`WeightsError::Setting`] for a prompt that is not a string.
    pub fn prompts(&self) -> Result<BTreeMap<String, String>, WeightsError> {
        let Some(document) = self.json(Documents::SENTENCES)? else { return Ok(BTreeMap::new()) };
        let path = self.path(Documents::SENTENCES);
        let Some(prompts) = Object::of(&path, &document)?.object("prompts")? else {
            return Ok(BTreeMap::new());
        };
        let prompt =
            |(name, _): (&str, &Value)| Ok((name.to_owned(), prompts.text(name)?.unwrap_or("").to_owned()));
        prompts.entries().map(prompt).collect()
    }

    fn find(&self, name: &str) -> Option<&StoredFile> {
        self.found.iter().find(|(other, _)| *other == name).map(|(_, file)| &**file)
    }
}

/// Parses a JSON document after checking the memory for its values.
pub(super) fn parse(file: &StoredFile, size: Size) -> Result<Value, WeightsError> {
    let path = file.path();
    read(file, size, |bytes| {
        let bytes = unmarked(bytes);
        let parsed = json::bytes_parsed(bytes).map_err(|error| refuse(path, &error))?;
        if size == Size::Usual && parsed > PARSED_MAX {
            let reason = format!("expected values that take at most {PARSED_MAX} bytes, found {parsed}");
            return Err(WeightsError::Document { file: path.to_owned(), reason });
        }
        make_sure(path, parsed)?;
        serde_json::from_slice(bytes).map_err(|error| refuse(path, &error))
    })
}

/// A document without the byte-order mark that some editors write.
fn unmarked(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes)
}

fn read<T>(
    file: &StoredFile,
    size: Size,
    make: impl FnOnce(&[u8]) -> Result<T, WeightsError>,
) -> Result<T, WeightsError> {
    let path = file.path();
    let most = if size == Size::Usual { BYTES_MAX } else { LARGE_BYTES_MAX };
    if file.len() > most {
        let reason = format!("expected at most {most} bytes, found {}", file.len());
        return Err(WeightsError::Document { file: path.to_owned(), reason });
    }
    make_sure(path, file.len().saturating_mul(PARSED))?;
    file.with(0..file.len(), |bytes| match bytes.starts_with(GIT_LFS) {
        true => Err(WeightsError::Document { file: path.to_owned(), reason: Fault::Pointer.to_string() }),
        false => make(bytes),
    })?
}

fn refuse(path: &Path, error: &dyn std::fmt::Display) -> WeightsError {
    WeightsError::Document { file: path.to_owned(), reason: shown(&error.to_string()) }
}
