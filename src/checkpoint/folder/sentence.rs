//! Modules of sentence-transformers after the encoder: pooling, projections, text length. They become GGUF
//! keys and tensors.

use std::sync::Arc;

use crate::checkpoint::files::TensorFiles;
use crate::checkpoint::{Metadata, OpenOptions, WeightsError};

use super::documents::Documents;
use super::header;
use super::json::Object;

/// Class names of the modules.
const TRANSFORMER: &str = "Transformer";
const POOLING: &str = "Pooling";
const DENSE: &str = "Dense";
const NORMALIZE: &str = "Normalize";
/// Flags of poolings, with the values of the GGUF key.
const MODES: [(&str, u32); 3] =
    [("pooling_mode_mean_tokens", 1), ("pooling_mode_cls_token", 2), ("pooling_mode_lasttoken", 3)];
/// Numbers of modules that may be projections, with their settings.
const PROJECTIONS: [(u64, &str); 2] = [(2, Documents::DENSE_2), (3, Documents::DENSE_3)];

/// Adds the pooling and the text length of a folder with `modules.json`. Other modules are refused.
pub(super) fn read(documents: &Documents, metadata: &mut Metadata) -> Result<(), WeightsError> {
    let family = metadata.str("general.architecture")?.unwrap_or_default().to_owned();
    let mut put = |key: &str, value: u32, name: String| {
        metadata.insert_named(format!("{family}.{key}"), value.into(), name);
    };
    let Some(document) = documents.json(Documents::MODULES)? else { return Ok(()) };
    let path = documents.path(Documents::MODULES);
    for (kind, folder) in modules(&path, &document)? {
        if kind == POOLING {
            let (mode, name) = pooling(documents, &folder)?;
            put("pooling_type", mode, name);
        }
    }
    if let Some(document) = documents.json(Documents::SENTENCE_LENGTH)? {
        let (path, key) = (documents.path(Documents::SENTENCE_LENGTH), "max_seq_length");
        let settings = Object::of(&path, &document)?;
        if let Some(length) = settings.whole(key)?.and_then(|length| u32::try_from(length).ok()) {
            put("text_length", length, key.to_owned());
        }
    }
    Ok(())
}

/// Kinds and folders of the modules, in order.
fn modules(
    path: &std::path::Path,
    document: &serde_json::Value,
) -> Result<Vec<(&'static str, String)>, WeightsError> {
    let malformed = |reason: String| WeightsError::Document { file: path.to_owned(), reason };
    let list = document.as_array().ok_or_else(|| malformed("expected a list of modules".into()))?;
    let module = |(number, item): (usize, &serde_json::Value)| {
        let module = Object::of(path, item)?;
        let (kind, folder) =
            (module.text("type")?.unwrap_or_default(), module.text("path")?.unwrap_or_default());
        let name = kind.rsplit('.').next().unwrap_or_default();
        let known = [TRANSFORMER, POOLING, DENSE, NORMALIZE].into_iter().find(|&known| known == name);
        let fits = match known {
            Some(TRANSFORMER) => number == 0 && folder.is_empty(),
            Some(POOLING) => Documents::POOLING == format!("{folder}/config.json"),
            Some(DENSE) => {
                PROJECTIONS.iter().any(|&(_, settings)| settings == format!("{folder}/config.json"))
            }
            Some(_) => true,
            None => false,
        };
        let expected =
            "Transformer in the folder itself, Pooling in 1_Pooling, Dense in 2_Dense or 3_Dense, Normalize";
        let found = || format!("{kind} in {folder:?}");
        known.filter(|_| fits).map(|kind| (kind, folder.to_owned())).ok_or_else(|| WeightsError::Setting {
            file: path.to_owned(),
            key: format!("module {number}"),
            expected: expected.into(),
            found: found(),
        })
    };
    list.iter().enumerate().map(module).collect()
}

/// The pooling's value of the GGUF key, and its flag.
fn pooling(documents: &Documents, folder: &str) -> Result<(u32, String), WeightsError> {
    let path = documents.path(Documents::POOLING);
    let missing = || WeightsError::Document { file: path.clone(), reason: format!("expected in {folder}") };
    let document = documents.json(Documents::POOLING)?.ok_or_else(missing)?;
    let settings = Object::of(&path, &document)?;
    if settings.flag("include_prompt")? == Some(false) {
        return Err(settings.refuse("include_prompt", "true", "false"));
    }
    let mut found = None;
    for (name, value) in settings
        .entries()
        .filter(|(name, value)| name.starts_with("pooling_mode") && *value == &serde_json::Value::Bool(true))
    {
        let mode = MODES.iter().find(|&&(mode, _)| mode == name).filter(|_| found.is_none());
        let expected = "one of mean_tokens, cls_token and lasttoken";
        let &(_, mode) = mode.ok_or_else(|| settings.refuse(name, expected, value))?;
        found = Some((mode, settings.name(name)));
    }
    found.ok_or_else(|| settings.refuse("pooling_mode_mean_tokens", "a pooling mode that is true", "none"))
}

/// Adds the weights of projections under the names of GGUF.
pub(super) fn add_projections(
    documents: &Documents,
    files: &mut TensorFiles,
    options: &OpenOptions,
) -> Result<(), WeightsError> {
    let Some(document) = documents.json(Documents::MODULES)? else { return Ok(()) };
    let path = documents.path(Documents::MODULES);
    for (_, folder) in modules(&path, &document)?.into_iter().filter(|&(kind, _)| kind == DENSE) {
        let settings = format!("{folder}/config.json");
        let Some(&(number, name)) = PROJECTIONS.iter().find(|&&(_, name)| name == settings) else { continue };
        let path = documents.path(name);
        let missing = || WeightsError::Document { file: path.clone(), reason: "expected a file".into() };
        let document = documents.json(name)?.ok_or_else(missing)?;
        let settings = Object::of(&path, &document)?;
        let activation = settings.text("activation_function")?.unwrap_or_default();
        if !activation.ends_with("Identity") {
            return Err(settings.refuse(
                "activation_function",
                "torch.nn.modules.linear.Identity",
                activation,
            ));
        }
        let (file, entries) = header::open(&documents.path(&format!("{folder}/model.safetensors")), options)?;
        let file = Arc::new(file);
        let renamed = entries.into_iter().map(|mut entry| {
            if let Some(rest) = entry.name.strip_prefix("linear.") {
                entry.name = format!("dense_{number}.{rest}");
            }
            entry.info(file.path())
        });
        let tensors = renamed.collect::<Result<Vec<_>, _>>()?;
        files.add(file, tensors)?;
    }
    Ok(())
}
