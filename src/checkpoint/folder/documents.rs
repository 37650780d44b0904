//! The documents beside a folder's weights: configuration, tokenizer, chat template, quantisation.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use crate::checkpoint::fault::GIT_LFS;
use crate::checkpoint::files::TensorFiles;
use crate::checkpoint::stored::{PARSED, StoredFile, make_sure};
use crate::checkpoint::{Fault, WeightsError, shown};
use crate::file::is_there;
use crate::room::json;

/// Bytes of a document at most, and those that its values take.
const BYTES_MAX: usize = 16 << 20;
const PARSED_MAX: usize = 256 << 20;
/// Bytes of a large one at most; memory alone bounds its values.
const LARGE_BYTES_MAX: usize = 1 << 30;

/// How large a document may be.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Size {
    Usual,
    /// Vocabularies and indexes of shards have some tens of millions of bytes.
    Large,
}

/// The documents of a folder that say how text becomes tokens, and how weights are quantised. Each is there or not;
/// those that are there were regular files when the folder was opened.
pub struct Documents {
    folder: PathBuf,
    /// Rows of the embedding table: token ids are below it.
    rows: usize,
    found: Vec<(&'static str, Arc<StoredFile>)>,
}

impl Documents {
    /// The model's configuration.
    pub const CONFIG: &'static str = "config.json";
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
    /// How weights are quantised, where the configuration does not say it.
    pub const QUANTIZATION: &'static str = "hf_quant_config.json";

    const ALL: [&'static str; 6] = [
        Documents::TOKENIZER,
        Documents::TOKENIZER_CONFIG,
        Documents::GENERATION_CONFIG,
        Documents::CHAT_TEMPLATE,
        Documents::CHAT_TEMPLATE_JSON,
        Documents::QUANTIZATION,
    ];

    /// Opens those that a folder has beside its configuration; `files` keeps all, so that they count for the
    /// fingerprint.
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
        let size = if name == Documents::TOKENIZER { Size::Large } else { Size::Usual };
        self.find(name).map(|file| parse(file, size)).transpose()
    }

    /// A document as text; none if the folder does not have it.
    ///
    /// # Errors
    /// [`WeightsError::Io`], [`WeightsError::Document`] if it is no UTF-8.
    pub fn text(&self, name: &str) -> Result<Option<String>, WeightsError> {
        let Some(file) = self.find(name) else { return Ok(None) };
        let text = read(file, Size::Usual, |bytes| Ok(String::from_utf8(bytes.to_vec())))?;
        text.map(Some).map_err(|error| refuse(file.path(), &error))
    }

    fn find(&self, name: &str) -> Option<&StoredFile> {
        self.found.iter().find(|(other, _)| *other == name).map(|(_, file)| &**file)
    }
}

/// A JSON document, where there is room for its values.
pub(super) fn parse(file: &StoredFile, size: Size) -> Result<Value, WeightsError> {
    let path = file.path();
    read(file, size, |bytes| {
        let parsed = json::bytes_parsed(bytes).map_err(|error| refuse(path, &error))?;
        if size == Size::Usual && parsed > PARSED_MAX {
            let reason = format!("expected values that take at most {PARSED_MAX} bytes, found {parsed}");
            return Err(WeightsError::Document { file: path.to_owned(), reason });
        }
        make_sure(path, parsed)?;
        serde_json::from_slice(bytes).map_err(|error| refuse(path, &error))
    })
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
