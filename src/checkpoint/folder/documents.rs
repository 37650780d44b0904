//! The documents beside a folder's weights: configuration, tokenizer, chat template.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::checkpoint::stored::{PARSED, StoredFile, TensorFiles, make_sure};
use crate::checkpoint::{OpenOptions, WeightsError, shown};

/// Bytes of a document at most: tokenizers have some tens of millions.
const BYTES_MAX: usize = 1 << 30;

/// The documents of a folder that say how text becomes tokens. Each is there or not; those that are there were regular
/// files when the folder was opened.
pub struct Documents {
    folder: PathBuf,
    /// Rows of the embedding table: token ids are below it.
    rows: usize,
    found: Vec<&'static str>,
}

impl Documents {
    /// Vocabulary, rules and special tokens.
    pub const TOKENIZER: &'static str = "tokenizer.json";
    /// Which tokens begin and end a text, and the chat template.
    pub const TOKENIZER_CONFIG: &'static str = "tokenizer_config.json";
    /// Which tokens end an answer.
    pub const GENERATION_CONFIG: &'static str = "generation_config.json";
    /// The chat template alone.
    pub const CHAT_TEMPLATE: &'static str = "chat_template.jinja";
    /// The chat template alone, as it was written before.
    pub const CHAT_TEMPLATE_JSON: &'static str = "chat_template.json";

    const ALL: [&'static str; 5] = [
        Documents::TOKENIZER,
        Documents::TOKENIZER_CONFIG,
        Documents::GENERATION_CONFIG,
        Documents::CHAT_TEMPLATE,
        Documents::CHAT_TEMPLATE_JSON,
    ];

    /// Opens those that a folder has; `files` keeps them, so that they count for the fingerprint.
    pub(super) fn find(folder: &Path, files: &mut TensorFiles) -> Result<Documents, WeightsError> {
        let mut found = Vec::new();
        for name in Documents::ALL {
            let path = folder.join(name);
            if path.exists() {
                files.add(StoredFile::document(&path, &OpenOptions::default())?, Vec::new())?;
                found.push(name);
            }
        }
        Ok(Documents { folder: folder.to_owned(), rows: 0, found })
    }

    pub(super) fn with_rows(self, rows: usize) -> Documents {
        Documents { rows, ..self }
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Rows of the embedding table: token ids are below it.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The path of a document, as errors name it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// A JSON document; none if the folder does not have it.
    ///
    /// # Errors
    /// [`WeightsError::Io`], [`WeightsError::Document`] if it is no JSON.
    pub fn json(&self, name: &str) -> Result<Option<Value>, WeightsError> {
        self.has(name).then(|| parse(&self.path(name))).transpose()
    }

    /// A document as text; none if the folder does not have it.
    ///
    /// # Errors
    /// [`WeightsError::Io`], [`WeightsError::Document`] if it is no UTF-8.
    pub fn text(&self, name: &str) -> Result<Option<String>, WeightsError> {
        let path = self.path(name);
        let bytes = self.has(name).then(|| read(&path, <[u8]>::to_vec)).transpose()?;
        let text = bytes.map(|bytes| String::from_utf8(bytes).map_err(|error| refuse(&path, &error)));
        text.transpose()
    }

    fn has(&self, name: &str) -> bool {
        self.found.contains(&name)
    }
}

/// A JSON document.
pub(super) fn parse(path: &Path) -> Result<Value, WeightsError> {
    read(path, |bytes| serde_json::from_slice(bytes))?.map_err(|error| refuse(path, &error))
}

fn read<T>(path: &Path, make: impl FnOnce(&[u8]) -> T) -> Result<T, WeightsError> {
    let file = StoredFile::document(path, &OpenOptions::default())?;
    if file.len() > BYTES_MAX {
        let reason = format!("expected at most {BYTES_MAX} bytes, found {}", file.len());
        return Err(WeightsError::Document { file: path.to_owned(), reason });
    }
    make_sure(path, file.len().saturating_mul(PARSED))?;
    file.with(0..file.len(), make)
}

fn refuse(path: &Path, error: &dyn std::fmt::Display) -> WeightsError {
    WeightsError::Document { file: path.to_owned(), reason: shown(&error.to_string()) }
}
