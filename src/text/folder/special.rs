//! BOS and EOS tokens and the chat template, from `tokenizer_config.json`, `generation_config.json`,
//! `config.json` and the template's own file.

use serde_json::Value;

use crate::checkpoint::{Documents, Object, WeightsError, shown_value};

/// Special tokens of a model.
#[derive(Default)]
pub(super) struct Special {
    pub bos: Option<String>,
    pub eos: Option<String>,
    pub padding: Option<String>,
    pub separator: Option<String>,
    pub mask: Option<String>,
    /// Whether a text starts with BOS; `None` if unspecified.
    pub add_bos: Option<bool>,
    pub bos_id: Option<i64>,
    /// Stop token ids.
    pub ends: Vec<i64>,
}

impl Special {
    /// Reads the special tokens. `config` is `tokenizer_config.json`.
    pub fn read(documents: &Documents, config: Option<&Object<'_>>) -> Result<Special, WeightsError> {
        let mut special = Special::default();
        if let Some(config) = config {
            special.bos = token(config, "bos_token")?;
            special.eos = token(config, "eos_token")?;
            special.padding = token(config, "pad_token")?;
            special.separator = token(config, "sep_token")?;
            special.mask = token(config, "mask_token")?;
            special.add_bos = config.flag("add_bos_token")?;
        }
        // `generation_config.json` takes precedence over `config.json`.
        for name in [Documents::GENERATION_CONFIG, Documents::CONFIG] {
            let path = documents.path(name);
            let Some(document) = documents.json(name)? else { continue };
            let config = Object::of(&path, &document)?;
            special.bos_id = special.bos_id.or(ids(&config, "bos_token_id")?.first().copied());
            if special.ends.is_empty() {
                special.ends = ids(&config, "eos_token_id")?;
            }
        }
        Ok(special)
    }
}

/// A token given by its text, or by an object with its content.
fn token(config: &Object<'_>, key: &str) -> Result<Option<String>, WeightsError> {
    let content = match config.get(key) {
        Some(Value::Object(_)) => {
            config.object(key)?.map(|token| token.text("content")).transpose()?.flatten()
        }
        _ => config.text(key)?,
    };
    Ok(content.map(str::to_owned))
}

/// A single id or a list of ids.
fn ids(config: &Object<'_>, key: &str) -> Result<Vec<i64>, WeightsError> {
    let one =
        |value: &Value| value.as_i64().ok_or_else(|| config.refuse(key, "token ids", shown_value(value)));
    match config.get(key) {
        None => Ok(Vec::new()),
        Some(Value::Array(values)) => values.iter().map(one).collect(),
        Some(value) => Ok(vec![one(value)?]),
    }
}

/// The chat template, from any of its possible documents.
#[cfg(feature = "text")]
pub(crate) fn chat_template(documents: &Documents) -> Result<Option<String>, WeightsError> {
    if let Some(template) = documents.text(Documents::CHAT_TEMPLATE)? {
        return Ok(Some(template));
    }
    for name in [Documents::CHAT_TEMPLATE_JSON, Documents::TOKENIZER_CONFIG] {
        let path = documents.path(name);
        if let Some(document) = documents.json(name)?
            && let Some(template) = template_of(&Object::of(&path, &document)?)?
        {
            return Ok(Some(template));
        }
    }
    Ok(None)
}

/// The template, or of several the one named `default`.
#[cfg(feature = "text")]
fn template_of(config: &Object<'_>) -> Result<Option<String>, WeightsError> {
    let key = "chat_template";
    let Some(Value::Array(_)) = config.get(key) else { return Ok(config.text(key)?.map(str::to_owned)) };
    for named in config.objects(key)? {
        if named.text("name")? == Some("default") {
            return Ok(named.text("template")?.map(str::to_owned));
        }
    }
    Err(config.refuse(key, "one with the name default", "a list without"))
}
