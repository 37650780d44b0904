//! [`ModelConfig`]: a model's hyperparameters, with the layer types by layer number.

use std::collections::BTreeSet;

use crate::checkpoint::{Dialect, Part, Role};
use crate::graph::RopeSpec;
use crate::ir::{Heads, KvDtype, KvLayout};

use super::family::Family;
use super::recipe::RotatedLayers;

/// Validated hyperparameters of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Row in the table of families.
    pub family: &'static Family,
    /// Vocabulary size: the number of rows in the embedding table.
    pub vocab_size: usize,
    /// Trained context, in tokens.
    pub context_length: usize,
    /// Embedding length (hidden size): elements of the residual stream.
    pub embedding_length: usize,
    /// MLP width (intermediate size), for mixtures of experts per expert.
    pub feed_forward_length: usize,
    /// Experts of each layer; `None` for dense models.
    pub experts: Option<Experts>,
    /// Number of layers.
    pub block_count: usize,
    /// Attention heads.
    pub heads: Heads,
    /// Epsilon of all norms, added to the mean square or the variance.
    pub norm_epsilon: f32,
    /// Rotary embedding.
    pub rope: Rotations,
    /// Rotary embedding for contexts of at most the given tokens, if it differs (LongRoPE).
    pub short_rope: Option<(usize, Rotations)>,
    /// Sliding-window layers; `None` if all layers are global.
    pub local: Option<LocalAttention>,
    /// Factor of the attention scores.
    pub attention_scale: f32,
    /// Factor of the embeddings.
    pub embedding_scale: f32,
    /// Factor of the attention and MLP outputs before they are added to the residual stream.
    pub residual_scale: f32,
    /// Factor of the logits.
    pub logit_scale: f32,
    /// Soft cap of the scaled attention scores.
    pub attention_soft_cap: Option<f32>,
    /// Soft cap of the logits.
    pub logit_soft_cap: Option<f32>,
    /// Whether the head shares the embedding table.
    pub tied_embeddings: bool,
    /// Tensor names and storage conventions of the file.
    pub dialect: Dialect,
    /// Names of the biases in the file.
    pub biases: BTreeSet<String>,
    /// Names of fused matrices in the file, which hold the rows of several, such as q, k and v.
    pub fused: BTreeSet<String>,
}

/// Mixture of experts in a layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Experts {
    /// Number of experts.
    pub count: usize,
    /// Number of experts per token.
    pub used: usize,
}

/// Rotary embeddings by layer type.
#[derive(Clone, Debug, PartialEq)]
pub struct Rotations {
    /// Global layers.
    pub global: RopeSpec,
    /// Sliding-window layers.
    pub local: RopeSpec,
}

impl ModelConfig {
    /// Layout of the KV cache with elements of type `dtype`.
    pub fn kv_layout(&self, dtype: KvDtype) -> KvLayout {
        KvLayout { layers: self.block_count, kv_heads: self.heads.kv, head_dim: self.heads.dim, dtype }
    }
}

/// Sliding-window attention.
#[derive(Clone, Debug, PartialEq)]
pub struct LocalAttention {
    /// Whether each layer has a sliding window.
    pub layers: Vec<bool>,
    /// Window in positions, including the query's own.
    pub window: u32,
}

impl ModelConfig {
    /// Rotary embedding of a layer; `None` for layers without (NoPE).
    pub fn rope(&self, layer: usize) -> Option<&RopeSpec> {
        let local = self.local_layer(layer).is_some();
        let rotated = match self.family.layer.attention.rotated {
            RotatedLayers::All => true,
            RotatedLayers::NopeEvery(period) => !(layer + 1).is_multiple_of(period),
            RotatedLayers::Local => local || self.local.is_none(),
            RotatedLayers::None => false,
        };
        rotated.then_some(if local { &self.rope.local } else { &self.rope.global })
    }

    /// Sliding window of a layer in positions; `None` for global layers.
    pub fn layer_window(&self, layer: usize) -> Option<u32> {
        self.local_layer(layer).map(|local| local.window)
    }

    /// Whether the family has this norm: some encoders lack the first one.
    pub(super) fn has_norm(&self, role: Role) -> bool {
        let first = Role::Layer { index: 0, part: Part::AttentionNorm };
        role != first || self.family.encoder.is_none_or(|encoder| encoder.first_norm)
    }

    /// Whether the file has a bias with this name.
    pub fn has_bias(&self, name: &str) -> bool {
        self.biases.contains(name)
    }

    /// Configuration for sequences of at most `context` tokens: selects the short rotary embedding where it
    /// applies.
    pub(super) fn within(&self, context: usize) -> ModelConfig {
        let short = self.short_rope.as_ref().filter(|&&(tokens, _)| context <= tokens);
        let rope = short.map_or(&self.rope, |(_, rope)| rope).clone();
        ModelConfig { rope, ..self.clone() }
    }

    fn local_layer(&self, layer: usize) -> Option<&LocalAttention> {
        self.local.as_ref().filter(|local| local.layers.get(layer).copied().unwrap_or(false))
    }
}
