//! [`ModelConfig`]: the hyperparameters of a model, and what local layers do otherwise.

use std::collections::BTreeSet;

use crate::checkpoint::Dialect;
use crate::graph::RopeSpec;
use crate::ir::{Heads, KvDtype, KvLayout};

use super::family::Family;

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
    /// Elements between the MLP's matrices.
    pub feed_forward_length: usize,
    /// Layers.
    pub block_count: usize,
    /// The attention's heads.
    pub heads: Heads,
    /// Added to the mean square by every norm.
    pub rms_epsilon: f32,
    /// The rotation of global layers.
    pub rope: RopeSpec,
    /// Layers with a window and a rotation of their own.
    pub local: Option<LocalAttention>,
    /// Multiplies the attention's products.
    pub attention_scale: f32,
    /// Multiplies the embeddings.
    pub embedding_scale: f32,
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
    /// Their rotation.
    pub rope: RopeSpec,
}
