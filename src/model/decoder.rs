//! The one decoder builder: a configuration becomes a graph; a family has no code of its own.
//!
//! The weights that the graph declares, by the names that the checkpoint has for their roles, are what `hyper`
//! checks a file against and what `load` brings to the backend.

use crate::checkpoint::{Part, Role};
use crate::graph::{AttentionSpec, Graph, GraphError, NodeId};

use super::ModelConfig;

/// Name of the graph's result: logits, `[outputs, vocab_size]`.
pub(super) const LOGITS: &str = "logits";
/// Name of the tokens that were sampled, `[outputs, 1]`.
pub(super) const SAMPLED: &str = "sampled";

/// Builds the graph of a model.
pub(super) fn build(config: &ModelConfig) -> Result<Graph, GraphError> {
    let mut builder = Builder { graph: Graph::new(), config };
    let table = builder.graph.matrix(
        &config.dialect.weight(Role::TokenEmbedding),
        config.vocab_size,
        config.embedding_length,
    )?;
    let mut x = builder.graph.embed(table, config.embedding_scale)?;
    for layer in 0..config.block_count {
        x = builder.attention_block(x, layer)?;
        x = builder.mlp_block(x, layer)?;
    }
    let x = builder.norm(x, Role::OutputNorm)?;
    let head = if config.tied_embeddings { Role::TokenEmbedding } else { Role::Head };
    let x = builder.biased(x, head, Role::Head, config.vocab_size)?;
    let x = match config.logit_soft_cap {
        Some(cap) => builder.graph.soft_cap(x, cap)?,
        None => x,
    };
    builder.graph.output(LOGITS, x)?;
    let sampled = builder.graph.sample(x)?;
    builder.graph.output(SAMPLED, sampled)?;
    Ok(builder.graph)
}

struct Builder<'c> {
    graph: Graph,
    config: &'c ModelConfig,
}

impl Builder<'_> {
    fn attention_block(&mut self, mut x: NodeId, layer: usize) -> Result<NodeId, GraphError> {
        let config = self.config;
        let heads = config.heads;
        let role = |part| Role::Layer { index: layer, part };
        let h = self.norm(x, role(Part::AttentionNorm))?;
        let q = self.linear(h, role(Part::Query), heads.query * heads.dim)?;
        let k = self.linear(h, role(Part::Key), heads.kv * heads.dim)?;
        let v = self.linear(h, role(Part::Value), heads.kv * heads.dim)?;
        let q = self.head_norm(q, role(Part::QueryNorm))?;
        let k = self.head_norm(k, role(Part::KeyNorm))?;
        let rope = config.rope(layer);
        let q = self.graph.rope(q, heads.dim, rope)?;
        let k = self.graph.rope(k, heads.dim, rope)?;
        let spec = AttentionSpec {
            layer,
            heads,
            scale: config.attention_scale,
            window: config.layer_window(layer),
            soft_cap: config.attention_soft_cap,
        };
        let mut y = self.graph.attention(q, k, v, spec)?;
        // Behind the last keys and values, only the rows that are sampled matter: they alone go
        // through the last MLP and the head.
        if layer + 1 == config.block_count {
            (x, y) = (self.graph.outputs(x)?, self.graph.outputs(y)?);
        }
        let y = self.linear(y, role(Part::AttentionOutput), config.embedding_length)?;
        self.add(x, y, role(Part::AttentionOutputNorm))
    }

    fn mlp_block(&mut self, x: NodeId, layer: usize) -> Result<NodeId, GraphError> {
        let config = self.config;
        let role = |part| Role::Layer { index: layer, part };
        let h = self.norm(x, role(Part::MlpNorm))?;
        let gate = self.linear(h, role(Part::Gate), config.feed_forward_length)?;
        let up = self.linear(h, role(Part::Up), config.feed_forward_length)?;
        let gate = self.graph.activation(gate, config.family.activation)?;
        let h = self.graph.mul(gate, up)?;
        let y = self.linear(h, role(Part::Down), config.embedding_length)?;
        self.add(x, y, role(Part::MlpOutputNorm))
    }

    /// `x + y`, or `x + norm(y)` in families with sandwich norms.
    fn add(&mut self, x: NodeId, y: NodeId, norm: Role) -> Result<NodeId, GraphError> {
        let y = if self.config.family.sandwich_norms { self.norm(y, norm)? } else { y };
        self.graph.add(x, y)
    }

    fn norm(&mut self, x: NodeId, role: Role) -> Result<NodeId, GraphError> {
        let w = self.graph.vector(&self.config.dialect.weight(role), self.config.embedding_length)?;
        self.graph.rms_norm(x, w, self.config.rms_epsilon)
    }

    fn head_norm(&mut self, x: NodeId, role: Role) -> Result<NodeId, GraphError> {
        if !self.config.family.head_norms {
            return Ok(x);
        }
        let dim = self.config.heads.dim;
        let w = self.graph.vector(&self.config.dialect.weight(role), dim)?;
        self.graph.head_norm(x, dim, w, self.config.rms_epsilon)
    }

    /// The matrix of a role to `rows` features, with the role's bias where the model has one.
    fn linear(&mut self, x: NodeId, role: Role, rows: usize) -> Result<NodeId, GraphError> {
        self.biased(x, role, role, rows)
    }

    fn biased(&mut self, x: NodeId, weight: Role, bias: Role, rows: usize) -> Result<NodeId, GraphError> {
        let (_, cols) = self.graph.shape(x)?;
        let dialect = &self.config.dialect;
        let matrix = self.graph.matrix(&dialect.weight(weight), rows, cols)?;
        let bias = dialect.bias(bias);
        if !self.config.has_bias(&bias) {
            return self.graph.matmul(x, matrix);
        }
        let bias = self.graph.vector(&bias, rows)?;
        self.graph.matmul_bias(x, matrix, bias)
    }
}
