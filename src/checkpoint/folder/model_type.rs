//! [`ModelType`]: what a row of `model_types` says, and the names of keys that only some rows read.

use crate::checkpoint::role::Names;
use crate::checkpoint::{Metadata, Value};

/// What transformers takes where a configuration of a model type does not say.
#[derive(Debug)]
pub(super) struct ModelType {
    /// `model_type` in the document.
    pub name: &'static str,
    /// `general.architecture` in GGUF.
    pub family: &'static str,
    pub names: &'static Names,
    pub activation: &'static str,
    /// Another name that files have for it.
    pub activation_was: &'static str,
    pub heads: Option<u64>,
    /// As many as there are query heads if none.
    pub kv_heads: Option<u64>,
    /// The residual stream's width by the heads if none.
    pub head_dim: Option<u64>,
    pub context: u64,
    pub tied: bool,
    /// What norms add, by its key.
    pub epsilon: (&'static str, f64),
    pub windows: Windows,
    /// The window of those layers; none if the document must name it.
    pub window: Option<u64>,
    /// Whether layers turn only where they have a window; without any window none does, or all do.
    pub by_window: Option<Unwindowed>,
    pub rope_base: f64,
    /// The base of layers with a window where the document does not say, if these have a rotation of their own. That is
    /// never scaled.
    pub local_base: Option<f64>,
    /// Whether the document must say how the rotation is scaled.
    pub is_scaled: bool,
    /// The context before scaling. A model type that has one does not look for it in the scheme.
    pub first_context: Option<u64>,
    /// The part of each head that turns; none where all of it must.
    pub turns: Option<f64>,
    pub scalars: &'static [Scalar],
    /// Of mixtures: the key of the elements between the matrices of an expert.
    pub expert_size: Option<&'static str>,
    /// Every so many layers one does not turn, which the document must not contradict.
    pub unturned: Option<u64>,
    /// Keys without effect, of the document or of its rotation, beside those that no model type gives one.
    pub notes: &'static [&'static str],
}

/// Which layers turn, and every how many layers one does not.
pub(super) const UNTURNED: (&str, &str) = ("no_rope_layers", "no_rope_layer_interval");
/// The context before scaling.
pub(super) const FIRST_CONTEXT: &str = "original_max_position_embeddings";

/// How many experts there are, by the one name or the other, and how many of them a row goes to.
pub(super) const EXPERTS: [&str; 2] = ["num_experts", "num_local_experts"];
pub(super) const EXPERTS_USED: &str = "num_experts_per_tok";
/// Whether the weights of these sum to 1.
pub(super) const WEIGHTS_SUM: &str = "norm_topk_prob";
/// Every how many layers there are experts.
pub(super) const EXPERTS_EVERY: &str = "decoder_sparse_step";

/// Which layers have a window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Windows {
    /// None, whatever the configuration says.
    None,
    /// All, where there is a window.
    All,
    /// Those from `max_window_layers` on, if `use_sliding_window` says so.
    Last,
    /// All but each of this period.
    Every(u64),
    /// None; a configuration that asks for them by `use_sliding_window` is refused.
    Refused,
}

/// Which layers of a model without windows turn, if those with a window alone do in others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Unwindowed {
    All,
    None,
}

/// A number of the document that computations use.
#[derive(Debug)]
pub(super) struct Scalar {
    pub name: &'static str,
    /// Without the family's prefix.
    pub key: &'static str,
    /// Where the document does not say; nothing is added if none. Null is 0, which is off, or as if the family's GGUF
    /// files did not say.
    pub default: Option<f64>,
    /// Whether the key has one by its square root.
    pub inverse_root: bool,
}

pub(super) const fn scalar(name: &'static str, key: &'static str, default: Option<f64>) -> Scalar {
    Scalar { name, key, default, inverse_root: false }
}

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
