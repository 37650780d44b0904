//! Model type description: [`ModelType`] is a row of `model_types`. Also the names of keys that only some
//! rows use.

use crate::checkpoint::role::Names;
use crate::checkpoint::{Metadata, Value};

/// Names and transformers defaults of a model type.
#[derive(Debug)]
pub(super) struct ModelType {
    /// `model_type` in `config.json`.
    pub name: &'static str,
    /// `general.architecture` in GGUF.
    pub family: &'static str,
    pub names: &'static Names,
    pub activation: &'static str,
    /// Alternative name of the activation in some checkpoints.
    pub activation_alias: &'static str,
    pub heads: Option<u64>,
    /// Default: the number of query heads.
    pub kv_heads: Option<u64>,
    /// Default: hidden size / query heads.
    pub head_dim: Option<u64>,
    pub context: u64,
    pub tied: bool,
    /// Key and default of the norm's epsilon.
    pub epsilon: (&'static str, f64),
    pub sliding_window_layers: Windows,
    /// Default window size; `None` if the key is required.
    pub window: Option<u64>,
    /// For families with rotary embeddings in sliding-window layers only: the rule for models without
    /// windows.
    pub nope_on_global: Option<Unwindowed>,
    pub rope_base: f64,
    /// Default RoPE base of sliding-window layers, for model types with separate RoPE parameters for them.
    /// These are never scaled.
    pub local_rope_theta: Option<f64>,
    /// Whether RoPE scaling parameters are required.
    pub is_scaled: bool,
    /// Default of `original_max_position_embeddings`. Model types with a default ignore the value in the RoPE
    /// parameters.
    pub original_context: Option<u64>,
    /// Default of `partial_rotary_factor`; `None` if heads must be rotated as a whole.
    pub partial_rotary_factor: Option<f64>,
    pub scalars: &'static [Scalar],
    /// For MoE models: the key of the intermediate size of an expert.
    pub expert_size: Option<&'static str>,
    /// Period of layers without rotary embeddings (NoPE). The document must agree.
    pub nope_interval: Option<u64>,
    /// Ignored keys of the document and its RoPE parameters, in addition to those of every model type.
    pub ignored_keys: &'static [&'static str],
    /// For text encoders: their own settings.
    pub encoder: Option<EncoderType>,
}

/// Settings of a text encoder's model type.
#[derive(Clone, Copy, Debug)]
pub(super) struct EncoderType {
    /// Prefixes of tensor names, in the order of trial.
    pub bodies: &'static [&'static str],
    /// Whether positions are rotary; else they are learned.
    pub is_rotary: bool,
    /// First row of the position table in use.
    pub position_offset: u32,
    /// Beginnings of the names, after the prefix, of tensors without effect on embeddings: heads of training.
    pub unused: &'static [&'static str],
}

/// Class in `architectures` of a model with a classification head.
pub(super) const CLASSIFIER: &str = "ForSequenceClassification";

/// Keys of NoPE layers: a list with 1 for rotated layers, or the period of NoPE layers.
pub(super) const NOPE_KEYS: (&str, &str) = ("no_rope_layers", "no_rope_layer_interval");
/// Trained context length before RoPE scaling.
pub(super) const ORIGINAL_CONTEXT: &str = "original_max_position_embeddings";

/// Number of experts (two alternative keys), and experts per token.
pub(super) const EXPERTS: [&str; 2] = ["num_experts", "num_local_experts"];
pub(super) const EXPERTS_USED: &str = "num_experts_per_tok";
/// Whether the weights of the chosen experts are normalised to sum 1.
pub(super) const WEIGHTS_SUM: &str = "norm_topk_prob";
/// Period of layers with experts.
pub(super) const EXPERTS_EVERY: &str = "decoder_sparse_step";

/// Sliding-window layers of a model type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Windows {
    /// None; the configuration is ignored.
    None,
    /// All, if the model has a window.
    All,
    /// The layers from `max_window_layers` on, if `use_sliding_window` is true.
    Last,
    /// All but every n-th layer.
    Every(u64),
    /// All but the first of every n layers, by keys of ModernBERT.
    AfterFirst(u64),
    /// None; `use_sliding_window` is refused.
    Refused,
}

/// Layers with rotary embeddings in a model without windows, for families that rotate only sliding-window
/// layers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Unwindowed {
    All,
    None,
}

/// A scalar hyperparameter.
#[derive(Debug)]
pub(super) struct Scalar {
    pub name: &'static str,
    /// GGUF key without the family's prefix.
    pub key: &'static str,
    /// Default of an absent key; `None` adds no entry. Null is written as 0, which disables the feature or
    /// equals an absent key in the family's GGUF files.
    pub default: Option<f64>,
    /// Whether the GGUF key holds 1 / sqrt(value).
    pub inverse_root: bool,
}

pub(super) const fn scalar(name: &'static str, key: &'static str, default: Option<f64>) -> Scalar {
    Scalar { name, key, default, inverse_root: false }
}

/// Builder of metadata under a family's prefix.
pub(super) struct Entries {
    family: &'static str,
    metadata: Metadata,
}

impl Entries {
    pub fn new(family: &'static str, metadata: Metadata) -> Entries {
        Entries { family, metadata }
    }

    pub fn into_metadata(self) -> Metadata {
        self.metadata
    }

    /// Adds `value` under the family's key `key`; `name` is the key in the document.
    pub fn put(&mut self, key: &str, value: impl Into<Value>, name: String) {
        self.metadata.insert_named(format!("{}.{key}", self.family), value.into(), name);
    }
}
