//! Hugging Face checkpoint folders: [`ModelFolder`] is `config.json` with safetensors files, as written by
//! transformers.
//!
//! `config` maps the configuration to GGUF keys: `model_types` has the defaults per model type, `known` the
//! permitted keys, `rope` parses rotary embeddings, `quantization` the quantisation. `shards` finds the
//! weight files, `header` parses their headers, and `scaled` joins FP8 and NVFP4 weights with their scales.
//! `encoders` has the model types of text encoders, `sentence` the modules of sentence-transformers.
//! `documents` holds the tokenizer's files; `json` provides typed access to values.

mod config;
mod documents;
mod encoders;
mod header;
mod json;
mod known;
mod model_type;
mod model_types;
mod quantization;
mod rope;
mod scaled;
mod sentence;
mod shards;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::files::TensorFiles;
use super::stack::Numbered;
use super::stored::StoredFile;
use super::{Checkpoint, Dialect, Metadata, OpenOptions, Part, Role, TensorInfo, TextSource, WeightsError};
use config::Config;
pub use documents::Documents;
use documents::Size;
pub(crate) use json::{Object, shown_value};
use quantization::Quantization;
use scaled::Beside;
use shards::Shards;

/// Prefix of tensor names and name of the output projection in text models.
const TEXT_MODELS: &[(&str, &str)] = &[("model.", "lm_head"), ("", "lm_head")];
/// Prefixes and output projections of text models nested in multimodal ones.
const NESTED_MODELS: &[(&str, &str)] = &[
    ("language_model.model.", "language_model.lm_head"),
    ("model.language_model.", "lm_head"),
    ("model.", "lm_head"),
];
/// Name prefixes of vision tensors.
const OTHER_PARTS: [&str; 6] = [
    "vision_tower.",
    "multi_modal_projector.",
    "model.vision_tower.",
    "model.multi_modal_projector.",
    "visual.",
    "model.visual.",
];
/// Name suffix of stored rotary frequencies. They are ignored, because the configuration determines them.
const FREQUENCIES: &str = ".rotary_emb.inv_freq";

/// An open Hugging Face folder with checked configuration and headers.
pub struct ModelFolder {
    path: PathBuf,
    metadata: Metadata,
    dialect: Dialect,
    files: TensorFiles,
    documents: Documents,
}

impl ModelFolder {
    /// Opens and checks the folder at `path`.
    ///
    /// # Errors
    /// [`WeightsError::Io`] if a file cannot be opened, mapped or read, or is not a regular file;
    /// [`WeightsError::Document`] if `config.json` or the index is not valid JSON of the expected form;
    /// [`WeightsError::Setting`] for a setting that is missing, out of range, not supported, or contradicts
    /// the tensors; [`WeightsError::Malformed`] for an invalid safetensors file; [`WeightsError::Changed`] if
    /// a file changes during the call.
    pub fn open(path: &Path, options: &OpenOptions) -> Result<ModelFolder, WeightsError> {
        ModelFolder::open_with(path, None, options)
    }

    /// [`ModelFolder::open`] with the safetensors file `weights` as a fallback, used if the folder has no
    /// weights under the usual names.
    pub(super) fn open_with(
        path: &Path,
        weights: Option<&Path>,
        options: &OpenOptions,
    ) -> Result<ModelFolder, WeightsError> {
        let mut files = TensorFiles::default();
        let config_path = path.join(Documents::CONFIG);
        let file = Arc::new(StoredFile::document(&config_path)?);
        let document = documents::parse(&file, Size::Usual)?;
        let mut config = Config::read(&config_path, &document, &name_of(path))?;
        let documents = Documents::open(path, file, &mut files)?;
        if config.quantization.is_none() {
            config.quantization = Quantization::beside(&documents)?;
        }
        let dialect = read_tensors(&mut files, path, weights, &config, options)?;
        sentence::read(&documents, &mut config.metadata)?;
        sentence::add_projections(&documents, &mut files, options)?;
        config.check_tensors(&files, &dialect)?;
        let rows = files.tensor(&dialect.weight(Role::TokenEmbedding)).map_or(0, TensorInfo::rows);
        let documents = documents.with_rows(rows);
        Ok(ModelFolder { path: path.to_owned(), metadata: config.metadata, dialect, files, documents })
    }
}

/// Adds the tensors of the text model and returns their naming scheme.
fn read_tensors(
    files: &mut TensorFiles,
    folder: &Path,
    weights: Option<&Path>,
    config: &Config,
    options: &OpenOptions,
) -> Result<Dialect, WeightsError> {
    let shards = Shards::find(folder, weights)?;
    if let Some(index) = shards.index() {
        files.add(index, Vec::new())?;
    }
    let mut read = Vec::with_capacity(shards.paths.len());
    for path in &shards.paths {
        let (file, entries) = header::open(path, options).map_err(|error| shards.missing(error))?;
        shards.check(path, &entries)?;
        read.push((file, entries));
    }
    let names = || read.iter().flat_map(|(_, entries)| entries).map(|entry| entry.name.as_str());
    let dialect = dialect(config, names);
    let head = dialect.weight(Role::Head);
    let none = Quantization::default();
    let quantization = config.quantization.as_ref().unwrap_or(&none);
    let mut beside = Beside::of(quantization, read.iter().flat_map(|(_, entries)| entries));
    for (file, entries) in read {
        let file = Arc::new(file);
        let is_ours = |name: &str| {
            let other = config.nested && OTHER_PARTS.iter().any(|part| name.starts_with(part));
            // With tied embeddings a stored output projection is ignored.
            let unused = config.is_unused(dialect.body(), name);
            !(other || unused || name.ends_with(FREQUENCIES) || config.tied && name == head)
        };
        let mut tensors = Vec::with_capacity(entries.len());
        for entry in entries {
            if !is_ours(beside.name(&entry.name)) {
                continue;
            }
            tensors.extend(beside.take(&file, entry)?);
        }
        files.add(file, tensors)?;
    }
    beside.join(files)?;
    files.stack(expert)?;
    Ok(dialect)
}

/// Splits the tensor name of an expert; `None` for other tensors.
fn expert(name: &str) -> Option<Numbered<'_>> {
    const EXPERTS: &str = ".mlp.experts.";
    let start = name.find(EXPERTS)? + EXPERTS.len();
    let (prefix, rest) = name.split_at_checked(start)?;
    let (digits, _) = rest.split_once('.')?;
    let number: usize = digits.parse().ok()?;
    let suffix = rest.strip_prefix(digits)?;
    (digits == number.to_string()).then_some(Numbered { prefix, number, suffix })
}

/// The naming scheme of the tensors: the first with a token embedding table.
fn dialect<'n, N: Iterator<Item = &'n str>>(config: &Config, names: impl Fn() -> N) -> Dialect {
    let prefixes = if config.nested { NESTED_MODELS } else { TEXT_MODELS };
    let prefixes = match config.encoder {
        Some(encoder) => encoder.bodies.iter().map(|&body| (body, "lm_head")).collect(),
        None => prefixes.to_vec(),
    };
    let dialects = prefixes.into_iter().map(|(body, head)| Dialect::hugging_face(body, head, config.names));
    let has_table = |dialect: &Dialect| {
        let table = dialect.weight(Role::TokenEmbedding);
        names().any(|name| name == table)
    };
    let found = dialects.clone().find(has_table);
    found.or_else(|| dialects.clone().next()).unwrap_or_else(Dialect::gguf)
}

impl Config {
    /// Whether the tensor has no effect on embeddings or scores: a head of training.
    fn is_unused(&self, body: &str, name: &str) -> bool {
        let Some(encoder) = self.encoder else { return false };
        let names = [name.strip_prefix(body).unwrap_or(name), name];
        let unused = |start: &&str| names.iter().any(|name| name.starts_with(*start));
        // A classifier uses its head, which some types have under a name of the pooler.
        let of_head = |start: &&str| self.is_classifier && ["pooler.", "head."].contains(start);
        encoder.unused.iter().filter(|start| !of_head(start)).any(unused)
    }

    /// Checks settings against the tensors.
    fn check_tensors(&self, files: &TensorFiles, dialect: &Dialect) -> Result<(), WeightsError> {
        let has = |name: &str| files.tensor(name).is_some();
        let of_layer = |part| dialect.bias(Role::Layer { index: 0, part });
        let head = dialect.weight(Role::Head);
        if !self.tied && !has(&head) {
            let expected = format!("true, as there is no tensor {head}");
            return Err(self.refuse("tie_word_embeddings", expected, "false"));
        }
        let biases = [
            ("attention_bias", self.attention_bias, of_layer(Part::Query)),
            ("mlp_bias", self.mlp_bias, of_layer(Part::Down)),
        ];
        for (key, said, bias) in biases {
            if let Some(said) = said.filter(|&said| said != has(&bias)) {
                let expected = if said {
                    format!("false, as there is no tensor {bias}")
                } else {
                    format!("true, as there is a tensor {bias}")
                };
                return Err(self.refuse(key, expected, said));
            }
        }
        let rows = files.tensor(&dialect.weight(Role::TokenEmbedding)).map(TensorInfo::rows);
        match (self.vocab_size, rows) {
            (Some(said), Some(rows)) if said != rows as u64 => {
                Err(self.refuse("vocab_size", format!("{rows}, the rows of the embedding table"), said))
            }
            _ => Ok(()),
        }
    }
}

/// Name of the folder.
fn name_of(path: &Path) -> String {
    let whole = path.canonicalize();
    let name = whole.as_deref().unwrap_or(path).file_name();
    name.map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned())
}

impl Checkpoint for ModelFolder {
    fn format(&self) -> String {
        "Hugging Face folder, safetensors".to_owned()
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn dialect(&self) -> &Dialect {
        &self.dialect
    }

    fn text(&self) -> TextSource<'_> {
        TextSource::Documents(&self.documents)
    }

    fn files(&self) -> &TensorFiles {
        &self.files
    }
}
