//! The model types whose configuration is read: a row each, with what transformers takes where a document does not say.

use crate::checkpoint::role::Norms;
use crate::checkpoint::{Metadata, Value};

/// What transformers takes where a configuration of a model type does not say.
#[derive(Debug)]
pub(super) struct ModelType {
    /// `model_type` in the document.
    pub name: &'static str,
    /// `general.architecture` in GGUF.
    pub family: &'static str,
    pub norms: Norms,
    pub activation: &'static str,
    pub heads: Option<u64>,
    /// As many as there are query heads if none.
    pub kv_heads: Option<u64>,
    /// The residual stream's width by the heads if none.
    pub head_dim: Option<u64>,
    pub context: u64,
    pub tied: bool,
    pub windows: Windows,
    pub rope_base: f64,
}

/// Which layers have a window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Windows {
    /// None, whatever the configuration says.
    None,
    /// All, where there is a window.
    All,
    /// Those from `max_window_layers` on, if `use_sliding_window` says so.
    Last,
    /// All but each sixth.
    Pattern,
}

const LLAMA: ModelType = ModelType {
    name: "llama",
    family: "llama",
    norms: Norms::Before,
    activation: "silu",
    heads: None,
    kv_heads: None,
    head_dim: None,
    context: 2048,
    tied: false,
    windows: Windows::None,
    rope_base: 10_000.0,
};

/// The model types of the supported families.
pub(super) const MODEL_TYPES: &[ModelType] = &[
    LLAMA,
    ModelType { name: "mistral", context: 131_072, kv_heads: Some(8), windows: Windows::All, ..LLAMA },
    ModelType {
        name: "qwen2",
        family: "qwen2",
        context: 32_768,
        windows: Windows::Last,
        kv_heads: Some(32),
        ..LLAMA
    },
    ModelType {
        name: "qwen3",
        family: "qwen3",
        context: 32_768,
        windows: Windows::Last,
        kv_heads: Some(32),
        head_dim: Some(128),
        ..LLAMA
    },
    ModelType {
        name: "gemma3_text",
        family: "gemma3",
        norms: Norms::BeforeAndBehind,
        activation: "gelu_pytorch_tanh",
        heads: Some(8),
        kv_heads: Some(4),
        head_dim: Some(256),
        context: 131_072,
        tied: true,
        windows: Windows::Pattern,
        rope_base: 1_000_000.0,
    },
];

/// Metadata in the making, under a family's prefix.
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

    /// Adds a value under a key of the family's that stands in the document under `name`.
    pub fn put(&mut self, key: &str, value: impl Into<Value>, name: String) {
        self.metadata.insert_named(format!("{}.{key}", self.family), value.into(), name);
    }
}
