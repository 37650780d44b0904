//! Graph builder for decoder models: one builder for all families, driven by the configuration. `encoder`
//! builds graphs of text encoders from its layers.
//!
//! The graph declares its weights by the checkpoint's tensor names. `hyper` checks a file against them, and
//! `load` uploads them to the backend.

use crate::checkpoint::{Part, Role};
use crate::graph::{AttentionSpec, Graph, GraphError, NodeId, RowAttentionSpec};
use crate::ir::{Activation, AttentionMask, NormKind};

use super::config::{Experts, ModelConfig};
use super::recipe::{ExpertsRecipe, MlpRecipe, NormPlacement, QueryKeyNorms, RouterNorm};

/// Name of the graph's result: logits, `[outputs, vocab_size]`.
pub(super) const LOGITS: &str = "logits";
/// Name of the sampled tokens, `[outputs, 1]`.
pub(super) const SAMPLED: &str = "sampled";

/// Builds the graph of a model.
pub(super) fn build(config: &ModelConfig) -> Result<Graph, GraphError> {
    let mut builder = Builder { graph: Graph::new(), config, keys: KeySource::Cache };
    let mut x = builder.embed()?;
    for index in 0..config.block_count {
        x = builder.layer(x, index, index + 1 == config.block_count)?;
    }
    let x = builder.norm(x, Role::OutputNorm)?;
    let head = if config.tied_embeddings { Role::TokenEmbedding } else { Role::Head };
    let x = builder.biased(x, head, Role::Head, config.vocab_size)?;
    let x = builder.scaled(x, config.logit_scale)?;
    let x = match config.logit_soft_cap {
        Some(cap) => builder.graph.soft_cap(x, cap)?,
        None => x,
    };
    builder.graph.output(LOGITS, x)?;
    let sampled = builder.graph.sample(x)?;
    builder.graph.output(SAMPLED, sampled)?;
    Ok(builder.graph)
}

/// Source of an attention's keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeySource {
    /// The KV cache, with the step's tokens appended.
    Cache,
    /// The step's own tokens: each text is one step.
    Step,
}

pub(super) struct Builder<'c> {
    pub(super) graph: Graph,
    pub(super) config: &'c ModelConfig,
    pub(super) keys: KeySource,
}

impl Builder<'_> {
    /// Token embeddings.
    pub(super) fn embed(&mut self) -> Result<NodeId, GraphError> {
        let ModelConfig { dialect, vocab_size, embedding_length, embedding_scale, .. } = self.config;
        let table = dialect.weight(Role::TokenEmbedding);
        let table = self.graph.matrix(&table, *vocab_size, *embedding_length)?;
        self.graph.embed(table, *embedding_scale)
    }

    /// A layer. `outputs_only` drops all rows but the outputs' as early as possible.
    pub(super) fn layer(
        &mut self,
        mut x: NodeId,
        index: usize,
        outputs_only: bool,
    ) -> Result<NodeId, GraphError> {
        let config = self.config;
        let role = |part| Role::Layer { index, part };
        let beside = config.family.layer.norms == NormPlacement::Parallel;
        let mut h = self.norm_before(x, role(Part::AttentionNorm))?;
        let mut y = self.attention(h, index)?;
        // After the last layer's keys and values, only the output rows matter: they alone pass through the
        // last MLP and the head.
        if outputs_only {
            (x, y) = (self.graph.outputs(x)?, self.graph.outputs(y)?);
            h = if beside { self.graph.outputs(h)? } else { h };
        }
        let y = self.linear(y, role(Part::AttentionOutput), config.embedding_length)?;
        let x = self.add(x, y, role(Part::AttentionOutputNorm), role(Part::AttentionResidualNorm))?;
        let h = if beside { h } else { self.norm_before(x, role(Part::MlpNorm))? };
        let y = match config.family.layer.mlp {
            MlpRecipe::Gated(activation) => self.gated(h, index, activation)?,
            MlpRecipe::Plain(activation) => self.plain(h, index, activation)?,
            MlpRecipe::Experts(recipe) => self.experts(h, index, recipe)?,
        };
        self.add(x, y, role(Part::MlpOutputNorm), role(Part::MlpResidualNorm))
    }

    fn attention(&mut self, h: NodeId, layer: usize) -> Result<NodeId, GraphError> {
        let config = self.config;
        let heads = config.heads;
        let role = |part| Role::Layer { index: layer, part };
        let [query, kv] = [heads.query * heads.dim, heads.kv * heads.dim];
        let whole = role(Part::QueryKeyValue);
        let parts = [(role(Part::Query), query), (role(Part::Key), kv), (role(Part::Value), kv)];
        let [q, k, v] = self.products(h, whole, parts)?;
        let q = self.query_key_norm(q, role(Part::QueryNorm))?;
        let k = self.query_key_norm(k, role(Part::KeyNorm))?;
        let [q, k] = match config.rope(layer) {
            Some(rope) => [self.graph.rope(q, heads.dim, rope)?, self.graph.rope(k, heads.dim, rope)?],
            None => [q, k],
        };
        let (scale, window) = (config.attention_scale, config.layer_window(layer));
        match self.keys {
            KeySource::Cache => {
                let soft_cap = config.attention_soft_cap;
                self.graph.attention(q, k, v, AttentionSpec { layer, heads, scale, window, soft_cap })
            }
            KeySource::Step => {
                let mask = match (config.family.encoder, window) {
                    (None, _) => AttentionMask::Causal,
                    (Some(_), None) => AttentionMask::Full,
                    // The file counts the positions on both sides together.
                    (Some(_), Some(window)) => AttentionMask::Window(window / 2 + 1),
                };
                self.graph.row_attention(q, k, v, RowAttentionSpec { heads, scale, mask })
            }
        }
    }

    fn gated(&mut self, h: NodeId, index: usize, activation: Activation) -> Result<NodeId, GraphError> {
        let config = self.config;
        let role = |part| Role::Layer { index, part };
        let rows = config.feed_forward_length;
        let parts = [(role(Part::Gate), rows), (role(Part::Up), rows)];
        let [gate, up] = self.products(h, role(Part::GateUp), parts)?;
        let gate = self.graph.activation(gate, activation)?;
        let h = self.graph.mul(gate, up)?;
        self.linear(h, role(Part::Down), config.embedding_length)
    }

    fn plain(&mut self, h: NodeId, index: usize, activation: Activation) -> Result<NodeId, GraphError> {
        let role = |part| Role::Layer { index, part };
        let h = self.linear(h, role(Part::Up), self.config.feed_forward_length)?;
        let h = self.graph.activation(h, activation)?;
        self.linear(h, role(Part::Down), self.config.embedding_length)
    }

    fn experts(&mut self, h: NodeId, index: usize, recipe: ExpertsRecipe) -> Result<NodeId, GraphError> {
        let ModelConfig { dialect, embedding_length, feed_forward_length, experts, .. } = self.config;
        let Experts { count, used } = experts.unwrap_or_default();
        let name = |part| dialect.weight(Role::Layer { index, part });
        let logits = self.linear(h, Role::Layer { index, part: Part::Router }, count)?;
        let graph = &mut self.graph;
        let routes = graph.route(logits, used, recipe.router_norm == RouterNorm::SoftmaxTopK)?;
        let into = [Part::GateExperts, Part::UpExperts];
        let [gate, up] =
            into.map(|part| graph.matrix_stack(&name(part), count, *feed_forward_length, *embedding_length));
        let down =
            graph.matrix_stack(&name(Part::DownExperts), count, *embedding_length, *feed_forward_length)?;
        let (gate, up) = (graph.expert_matmul(h, gate?, routes)?, graph.expert_matmul(h, up?, routes)?);
        let gate = graph.activation(gate, recipe.activation)?;
        let parts = graph.mul(gate, up)?;
        let parts = graph.expert_matmul(parts, down, routes)?;
        graph.combine(parts, routes)
    }

    /// Several projections of one input: from the fused matrix `whole` if the file has it, otherwise from a
    /// matrix each.
    fn products<const N: usize>(
        &mut self,
        x: NodeId,
        whole: Role,
        parts: [(Role, usize); N],
    ) -> Result<[NodeId; N], GraphError> {
        let mut products = [x; N];
        let name = self.config.dialect.weight(whole);
        if !self.config.fused.contains(&name) {
            for (product, (role, rows)) in products.iter_mut().zip(parts) {
                *product = self.linear(x, role, rows)?;
            }
            return Ok(products);
        }
        let (_, cols) = self.graph.shape(x)?;
        let matrices = self.graph.matrix_parts(&name, &parts.map(|(_, rows)| rows), cols)?;
        for (product, matrix) in products.iter_mut().zip(matrices) {
            *product = self.graph.matmul(x, matrix)?;
        }
        Ok(products)
    }

    /// Residual add: `x + y`, or `x + norm(y)` in families with norms after attention and MLP, or
    /// `norm(x + y)` in those with norms after the addition.
    fn add(&mut self, x: NodeId, y: NodeId, norm: Role, sum_norm: Role) -> Result<NodeId, GraphError> {
        let norms = self.config.family.layer.norms;
        let y = match norms {
            NormPlacement::Sandwich | NormPlacement::Post => self.norm(y, norm)?,
            NormPlacement::Pre | NormPlacement::Parallel | NormPlacement::AfterResidual => y,
        };
        let y = self.scaled(y, self.config.residual_scale)?;
        let sum = self.graph.add(x, y)?;
        if norms == NormPlacement::AfterResidual { self.norm(sum, sum_norm) } else { Ok(sum) }
    }

    fn norm_before(&mut self, x: NodeId, role: Role) -> Result<NodeId, GraphError> {
        match self.config.family.layer.norms {
            _ if !self.config.has_norm(role) => Ok(x),
            NormPlacement::Post | NormPlacement::AfterResidual => Ok(x),
            NormPlacement::Pre | NormPlacement::Sandwich | NormPlacement::Parallel => self.norm(x, role),
        }
    }

    pub(super) fn norm(&mut self, x: NodeId, role: Role) -> Result<NodeId, GraphError> {
        let ModelConfig { dialect, embedding_length, norm_epsilon, .. } = self.config;
        let weight = self.graph.vector(&dialect.weight(role), *embedding_length)?;
        if self.config.family.norm == NormKind::Rms {
            return self.graph.rms_norm(x, weight, *norm_epsilon);
        }
        let bias = Some(dialect.bias(role)).filter(|name| self.config.has_bias(name));
        let bias = bias.map(|name| self.graph.vector(&name, *embedding_length)).transpose()?;
        self.graph.layer_norm(x, weight, bias, *norm_epsilon)
    }

    fn query_key_norm(&mut self, x: NodeId, role: Role) -> Result<NodeId, GraphError> {
        let (_, cols) = self.graph.shape(x)?;
        let (dim, eps) = (self.config.heads.dim, self.config.norm_epsilon);
        let name = self.config.dialect.weight(role);
        match self.config.family.layer.attention.norms {
            QueryKeyNorms::None => Ok(x),
            QueryKeyNorms::Heads => {
                let weight = self.graph.vector(&name, dim)?;
                self.graph.head_norm(x, dim, weight, eps)
            }
            QueryKeyNorms::Rows => {
                let weight = self.graph.vector(&name, cols)?;
                self.graph.rms_norm(x, weight, eps)
            }
        }
    }

    fn scaled(&mut self, x: NodeId, factor: f32) -> Result<NodeId, GraphError> {
        if factor == 1.0 { Ok(x) } else { self.graph.scale(x, factor) }
    }

    /// Projection to `rows` features, with the role's bias if the model has one.
    pub(super) fn linear(&mut self, x: NodeId, role: Role, rows: usize) -> Result<NodeId, GraphError> {
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
