//! Configuration parser: maps `config.json` to GGUF metadata keys and keeps the original key names for
//! errors.

use std::path::{Path, PathBuf};

use serde_json::Value as Json;

use crate::checkpoint::role::Names;
use crate::checkpoint::{Metadata, WeightsError};

use super::encoders::{self, model_type};
use super::json::{Object, shown_value};
use super::model_type::{
    EXPERTS, EXPERTS_EVERY, EXPERTS_USED, EncoderType, Entries, ModelType, NOPE_KEYS, Unwindowed,
    WEIGHTS_SUM, Windows,
};
use super::model_types::{MODEL_TYPES, NESTED_TYPES};
use super::quantization::Quantization;
use super::{known, rope};

/// Maximum number of layers. The tensors are checked against the number later.
const LAYERS_MAX: u64 = 1 << 16;

/// A parsed configuration.
pub(super) struct Config {
    file: PathBuf,
    pub metadata: Metadata,
    pub names: &'static Names,
    /// For text encoders: their own settings.
    pub encoder: Option<EncoderType>,
    /// Whether the model has a classification head.
    pub is_classifier: bool,
    /// Tied embeddings: the token embeddings are also the output projection.
    pub tied: bool,
    /// Whether the text model is part of a multimodal model.
    pub nested: bool,
    pub vocab_size: Option<u64>,
    /// Bias flags of the document, for model types that do not fix them.
    pub attention_bias: Option<bool>,
    pub mlp_bias: Option<bool>,
    /// Quantisation of the weights, if the configuration has any.
    pub quantization: Option<Quantization>,
}

impl Config {
    pub fn read(file: &Path, document: &Json, name: &str) -> Result<Config, WeightsError> {
        let whole = Object::of(file, document)?;
        let said = whole.text("model_type")?;
        let said = said.ok_or_else(|| whole.refuse("model_type", "a model type", "no such key"))?;
        let outer = NESTED_TYPES.iter().find(|&&(outer, _)| outer == said);
        let nested = outer.map(|_| whole.object("text_config")).transpose()?.flatten();
        let (text, said) = match (&nested, outer) {
            (Some(text), Some(&(_, usual))) => (text, text.text("model_type")?.unwrap_or(usual)),
            _ => (&whole, said),
        };
        let model = model_type(text, said)?.or_else(|| MODEL_TYPES.iter().find(|model| model.name == said));
        let expected = || {
            let all = MODEL_TYPES.iter().chain(encoders::ENCODER_TYPES);
            let names = all.map(|model| model.name).collect::<Vec<_>>().join(", ");
            format!("{names}; other families are read from GGUF")
        };
        let model = model.ok_or_else(|| text.refuse("model_type", expected(), said))?;
        let mut metadata = Metadata::new(file);
        let mut put =
            |key: &str, value: &str, name| metadata.insert_named(key.to_owned(), value.into(), name);
        put("general.name", name, "the folder's name".to_owned());
        put("general.architecture", model.family, text.name("model_type"));
        Config::of(model, file, metadata, (&whole, nested.as_ref()))
    }

    /// Parses a model type. `nested` is the text model's part of the document, if it has one.
    fn of(
        model: &'static ModelType,
        file: &Path,
        metadata: Metadata,
        (whole, nested): (&Object<'_>, Option<&Object<'_>>),
    ) -> Result<Config, WeightsError> {
        let text = nested.unwrap_or(whole);
        known::check(text, model)?;
        if nested.is_some() {
            known::check_around(whole)?;
        }
        let mut entries = Entries::new(model.family, metadata);
        Reader { model, text }.read(&mut entries)?;
        let tied = text.flag("tie_word_embeddings")?.unwrap_or(model.tied);
        Ok(Config {
            file: file.to_owned(),
            metadata: entries.into_metadata(),
            names: model.names,
            encoder: model.encoder,
            is_classifier: encoders::is_classifier(whole)?,
            tied: model.encoder.is_some() || whole.flag("tie_word_embeddings")?.unwrap_or(tied),
            nested: nested.is_some(),
            vocab_size: text.whole("vocab_size")?,
            // Qwen 2 always has attention biases.
            attention_bias: text.flag("attention_bias")?.filter(|_| model.family != "qwen2"),
            mlp_bias: text.flag("mlp_bias")?,
            quantization: Quantization::read(whole)?
                .map_or_else(|| Quantization::read(text), |found| Ok(Some(found)))?,
        })
    }

    /// An error about a setting.
    pub fn refuse(&self, key: &str, expected: String, found: impl ToString) -> WeightsError {
        let (file, key, found) = (self.file.clone(), key.to_owned(), found.to_string());
        WeightsError::Setting { file, key, expected, found }
    }
}

/// Parser of a text model's configuration.
struct Reader<'r, 'j> {
    model: &'static ModelType,
    text: &'r Object<'j>,
}

impl Reader<'_, '_> {
    fn read(&self, entries: &mut Entries) -> Result<(), WeightsError> {
        let (text, model) = (self.text, self.model);
        let hidden = self.size(entries, "hidden_size", "embedding_length", None)?;
        self.size(entries, "intermediate_size", "feed_forward_length", None)?;
        let layers = self.size(entries, "num_hidden_layers", "block_count", None)?;
        if layers > LAYERS_MAX {
            return Err(text.refuse("num_hidden_layers", format!("at most {LAYERS_MAX}"), layers));
        }
        let heads = self.size(entries, "num_attention_heads", "attention.head_count", model.heads)?;
        // An explicit null disables the model type's default.
        let own = |name: &str, usual: Option<u64>| usual.filter(|_| !text.is_null(name));
        let kv_heads = own("num_key_value_heads", model.kv_heads).unwrap_or(heads);
        self.size(entries, "num_key_value_heads", "attention.head_count_kv", Some(kv_heads))?;
        let even = hidden.checked_div(heads).unwrap_or(0);
        let head = self.size(
            entries,
            "head_dim",
            "attention.key_length",
            Some(own("head_dim", model.head_dim).unwrap_or(even)),
        )?;
        self.size(entries, "max_position_embeddings", "context_length", Some(model.context))?;
        self.activation()?;
        let (name, default) = model.epsilon;
        let epsilon = text.number(name)?.unwrap_or(default);
        // Both keys are set; the family reads its own.
        for key in ["attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"] {
            entries.put(key, epsilon, text.name(name));
        }
        self.experts(entries)?;
        self.scalars(entries)?;
        self.sliding_windows(entries, layers)?;
        self.nope_interval(layers)?;
        match model.encoder {
            Some(encoder) => encoders::read(text, model, encoder, head, entries),
            None => rope::read(text, model, head, entries),
        }
    }

    /// A count, required unless there is a default.
    fn size(
        &self,
        entries: &mut Entries,
        name: &str,
        key: &str,
        default: Option<u64>,
    ) -> Result<u64, WeightsError> {
        let found = self.text.whole(name)?.or(default);
        let size = found.ok_or_else(|| self.text.refuse(name, "a count", "no such key"))?;
        entries.put(key, size, self.text.name(name));
        Ok(size)
    }

    fn activation(&self) -> Result<(), WeightsError> {
        let ModelType { activation: expected, activation_alias, .. } = *self.model;
        for key in ["hidden_activation", "hidden_act"] {
            if let Some(found) = self.text.text(key)? {
                // Gemma checkpoints have had both keys; the first takes precedence.
                let same = found == expected || found == activation_alias;
                return if same { Ok(()) } else { Err(self.text.refuse(key, expected, found)) };
            }
        }
        Ok(())
    }

    fn experts(&self, entries: &mut Entries) -> Result<(), WeightsError> {
        let (text, Some(size)) = (self.text, self.model.expert_size) else { return Ok(()) };
        let count = EXPERTS.into_iter().find(|key| text.get(key).is_some()).unwrap_or(EXPERTS[0]);
        self.size(entries, count, "expert_count", None)?;
        self.size(entries, EXPERTS_USED, "expert_used_count", None)?;
        self.size(entries, size, "expert_feed_forward_length", None)?;
        self.size(entries, EXPERTS_EVERY, "moe_every_n_layers", Some(1))?;
        let sums = text.flag(WEIGHTS_SUM)?.unwrap_or(false);
        entries.put("expert_weights_norm", sums, text.name(WEIGHTS_SUM));
        Ok(())
    }

    fn scalars(&self, entries: &mut Entries) -> Result<(), WeightsError> {
        let text = self.text;
        for scalar in self.model.scalars {
            let name = scalar.name;
            let default = if text.is_null(name) { Some(0.0) } else { scalar.default };
            let Some(value) = text.number(name)?.or(default) else { continue };
            if !scalar.inverse_root {
                entries.put(scalar.key, value, text.name(name));
                continue;
            }
            if !(value > 0.0 && value < 1e9) {
                return Err(text.refuse(name, "a positive number", value));
            }
            entries.put(scalar.key, 1.0 / (value as f32).sqrt(), text.name(name));
        }
        Ok(())
    }

    /// Refuses a document with other layers without rotary embeddings (NoPE) than the family's.
    fn nope_interval(&self, layers: u64) -> Result<(), WeightsError> {
        let (text, Some(period)) = (self.text, self.model.nope_interval) else { return Ok(()) };
        let (by_layer, by_period) = NOPE_KEYS;
        let rotated: Vec<u64> = (1..=layers).map(|layer| u64::from(!layer.is_multiple_of(period))).collect();
        match text.list(by_layer)? {
            Some(found) if found.iter().map(Json::as_u64).eq(rotated.iter().map(|&layer| Some(layer))) => {
                Ok(())
            }
            Some(_) => {
                Err(text.refuse(by_layer, format!("0 for each {period}th layer, else 1"), "another list"))
            }
            None => match text.whole(by_period)?.filter(|&found| found != period) {
                Some(found) => Err(text.refuse(by_period, period.to_string(), found)),
                None => Ok(()),
            },
        }
    }

    /// The window size and the layers that use it.
    fn sliding_windows(&self, entries: &mut Entries, layers: u64) -> Result<(), WeightsError> {
        let text = self.text;
        let uses = text.flag("use_sliding_window")?.unwrap_or(false);
        let name = match self.model.sliding_window_layers {
            Windows::AfterFirst(_) => encoders::WINDOW,
            _ => "sliding_window",
        };
        let window = match self.model.sliding_window_layers {
            Windows::Refused if uses => {
                return Err(text.refuse("use_sliding_window", "false in this model type", uses));
            }
            Windows::None | Windows::Refused => None,
            Windows::Last if !uses => None,
            // Null disables the window; only an absent key means the default.
            _ if text.is_null(name) => None,
            _ => text.whole(name)?.or(self.model.window).filter(|&window| window > 0),
        };
        let listed = self.local_layers(layers)?;
        let key = "attention.sliding_window";
        let Some(window) = window else {
            if listed.is_some_and(|local| local.contains(&true)) {
                let expected = "full_attention alone, as there is no window";
                return Err(text.refuse("layer_types", expected, "sliding_attention"));
            }
            if self.model.nope_on_global == Some(Unwindowed::None) {
                return Err(text.refuse("sliding_window", "a window: only layers with one turn", "none"));
            }
            // Written as 0, because some families have a default window.
            entries.put(key, 0_u64, text.name(name));
            return Ok(());
        };
        entries.put(key, window, text.name(name));
        let (local, name) = match listed {
            Some(local) => (local, "layer_types"),
            None => self.usual_local_layers(layers)?,
        };
        if self.model.nope_on_global.is_some() && !local.contains(&true) {
            return Err(text.refuse(name, "a layer with a window: only these turn", "none"));
        }
        entries.put("attention.sliding_window_pattern", local, text.name(name));
        Ok(())
    }

    /// Sliding-window layers of a document without `layer_types`, and the key that determines them.
    fn usual_local_layers(&self, layers: u64) -> Result<(Vec<bool>, &'static str), WeightsError> {
        match self.model.sliding_window_layers {
            Windows::Last => {
                let name = "max_window_layers";
                let first = self.text.whole(name)?.unwrap_or(28);
                Ok(((0..layers).map(|layer| layer >= first).collect(), name))
            }
            Windows::Every(usual) => {
                let [name, other] = ["sliding_window_pattern", "_sliding_window_pattern"];
                let name = if self.text.get(name).is_none() && self.text.get(other).is_some() {
                    other
                } else {
                    name
                };
                let period = self.period(name)?.unwrap_or(usual);
                let local = (1..=layers).map(|layer| period == 0 || !layer.is_multiple_of(period));
                Ok((local.collect(), name))
            }
            Windows::AfterFirst(usual) => {
                let period = self.text.whole(encoders::PERIOD)?.unwrap_or(usual);
                let local = (0..layers).map(|layer| period == 0 || !layer.is_multiple_of(period));
                Ok((local.collect(), encoders::PERIOD))
            }
            Windows::None | Windows::All | Windows::Refused => {
                Ok((vec![true; layers as usize], "sliding_window"))
            }
        }
    }

    /// Period of full-attention layers, as a number or as a pattern such as `LLLG`.
    fn period(&self, name: &str) -> Result<Option<u64>, WeightsError> {
        match self.text.get(name).and_then(Json::as_str) {
            None => self.text.whole(name),
            Some(letters) => match letters.strip_suffix('G') {
                Some(local) if local.bytes().all(|letter| letter == b'L') => Ok(Some(letters.len() as u64)),
                _ => Err(self.text.refuse(name, "a period, as a number or as in LLLG", letters)),
            },
        }
    }

    /// Per layer, whether it has a window; `None` if the document has no `layer_types`.
    fn local_layers(&self, layers: u64) -> Result<Option<Vec<bool>>, WeightsError> {
        let (text, key) = (self.text, "layer_types");
        let Some(types) = text.list(key)? else { return Ok(None) };
        if types.len() as u64 != layers {
            return Err(text.refuse(key, format!("{layers}, one a layer"), format!("{} types", types.len())));
        }
        let local = types.iter().map(|found| match found.as_str() {
            Some("full_attention") => Ok(false),
            Some("sliding_attention") => Ok(true),
            _ => Err(text.refuse(key, "full_attention or sliding_attention", shown_value(found))),
        });
        local.collect::<Result<_, _>>().map(Some)
    }
}
