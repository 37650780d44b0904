//! [`ModelConfig`]: the hyperparameters of a model, and what layers do by their number.

use std::collections::BTreeSet;

use crate::checkpoint::Dialect;
use crate::graph::RopeSpec;
use crate::ir::{Heads, KvDtype, KvLayout};

use super::family::Family;
use super::recipe::RotatedLayers;

/// A model's hyperparameters, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// The row of the table of families.
    pub family: &'static Family,
    /// Rows of the embedding table.
    pub vocab_size: usize,
    /// The trained context, in tokens.
    pub context_length: usize,
    /// Elements of the residual stream.
    pub embedding_length: usize,
    /// Elements between the MLP's matrices, or those of each expert.
    pub feed_forward_length: usize,
    /// The experts of each layer, in mixtures.
    pub experts: Option<Experts>,
    /// Layers.
    pub block_count: usize,
    /// The attention's heads.
    pub heads: Heads,
    /// Added to the mean square, or the variance, by every norm.
    pub norm_epsilon: f32,
    /// How layers rotate.
    pub rope: Rotations,
    /// How they do in contexts of at most so many tokens, where that differs (LongRoPE).
    pub short_rope: Option<(usize, Rotations)>,
    /// Layers with a window.
    pub local: Option<LocalAttention>,
    /// Multiplies the attention's products.
    pub attention_scale: f32,
    /// Multiplies the embeddings.
    pub embedding_scale: f32,
    /// Multiplies what attention and MLP add.
    pub residual_scale: f32,
    /// Multiplies the logits.
    pub logit_scale: f32,
    /// Soft cap of the attention's scaled products.
    pub attention_soft_cap: Option<f32>,
    /// Soft cap of the logits.
    pub logit_soft_cap: Option<f32>,
    /// Whether the embedding table is the head, too.
    pub tied_embeddings: bool,
    /// What the file calls its weights, and what it stores otherwise than the graph reads it.
    pub dialect: Dialect,
    /// Names of the biases that the file has.
    pub biases: BTreeSet<String>,
    /// Names of the matrices of the file that hold the rows of several, as q, k and v.
    pub fused: BTreeSet<String>,
}

/// The experts of a layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Experts {
    /// How many there are.
    pub count: usize,
    /// How many a row goes to.
    pub used: usize,
}

/// The rotations of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Rotations {
    /// Of global layers.
    pub global: RopeSpec,
    /// Of layers with a window.
    pub local: RopeSpec,
}

impl ModelConfig {
    /// The shape of its keys and values, stored so.
    pub fn kv_layout(&self, dtype: KvDtype) -> KvLayout {
        KvLayout { layers: self.block_count, kv_heads: self.heads.kv, head_dim: self.heads.dim, dtype }
    }
}

/// What local layers do otherwise.
#[derive(Clone, Debug, PartialEq)]
pub struct LocalAttention {
    /// By layer: whether it is local.
    pub layers: Vec<bool>,
    /// Positions that a query sees, itself included.
    pub window: u32,
}

impl ModelConfig {
    /// The rotation of a layer, if it has one.
    pub fn rope(&self, layer: usize) -> Option<&RopeSpec> {
        let local = self.local_layer(layer).is_some();
        let rotated = match self.family.layer.attention.rotated {
            RotatedLayers::All => true,
            RotatedLayers::AllBut(period) => !(layer + 1).is_multiple_of(period),
            RotatedLayers::Local => local || self.local.is_none(),
        };
        rotated.then_some(if local { &self.rope.local } else { &self.rope.global })
    }

    /// The window of a layer; it sees all positions if none.
    pub fn layer_window(&self, layer: usize) -> Option<u32> {
        self.local_layer(layer).map(|local| local.window)
    }

    /// Whether the file has a bias of this name.
    pub fn has_bias(&self, name: &str) -> bool {
        self.biases.contains(name)
    }

    /// The same for sequences of at most so many tokens.
    pub(super) fn within(&self, context: usize) -> ModelConfig {
        let short = self.short_rope.as_ref().filter(|&&(tokens, _)| context <= tokens);
        let rope = short.map_or(&self.rope, |(_, rope)| rope).clone();
        ModelConfig { rope, ..self.clone() }
    }

    fn local_layer(&self, layer: usize) -> Option<&LocalAttention> {
        self.local.as_ref().filter(|local| local.layers.get(layer).copied().unwrap_or(false))
    }
}
