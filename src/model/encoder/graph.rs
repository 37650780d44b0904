//! Graph of a text encoder: embeddings, the layers of `decoder`, pooling, then projections or a head.

use crate::checkpoint::Role;
use crate::graph::{Graph, GraphError, NodeId};
use crate::ir::{Activation, Rows};

use super::{EncoderConfig, Pooling};
use crate::model::decoder::{Builder, KeySource};

/// Name of the graph's result: one pooled row per output, `[outputs, width]`.
pub(super) const POOLED: &str = "pooled";
/// Name of the input that is added to the token embeddings: rows of positions and token types,
/// `[tokens, embedding_length]`.
pub(super) const PLACES: &str = "places";

/// Builds the graph for a pooling.
pub(super) fn build(config: &EncoderConfig, pooling: Pooling) -> Result<Graph, GraphError> {
    let model = &config.model;
    let mut builder = Builder { graph: Graph::new(), config: model, keys: KeySource::Step };
    let recipe = model.family.encoder;
    let mut x = builder.embed()?;
    if !config.tables().is_empty() {
        let places = builder.graph.input(PLACES, Rows::Tokens, model.embedding_length)?;
        x = builder.graph.add(x, places)?;
    }
    if recipe.is_some_and(|recipe| recipe.embedding_norm) {
        x = builder.norm(x, Role::EmbeddingNorm)?;
    }
    let rows = if pooling == Pooling::Rank { config.class_pooling } else { pooling };
    let one_row = rows != Pooling::Mean;
    for index in 0..model.block_count {
        x = builder.layer(x, index, one_row && index + 1 == model.block_count)?;
    }
    if recipe.is_none_or(|recipe| recipe.output_norm) {
        x = builder.norm(x, Role::OutputNorm)?;
    }
    if !one_row {
        x = builder.graph.mean_rows(x)?;
    }
    x = match pooling {
        Pooling::Rank => class_head(&mut builder, config, x)?,
        _ => projections(&mut builder, config, x)?,
    };
    builder.graph.output(POOLED, x)?;
    Ok(builder.graph)
}

/// Projections of sentence-transformers.
fn projections(
    builder: &mut Builder<'_>,
    config: &EncoderConfig,
    mut x: NodeId,
) -> Result<NodeId, GraphError> {
    for &(number, rows) in &config.projections {
        x = builder.linear(x, Role::Projection(number), rows)?;
    }
    Ok(x)
}

/// Classification head: a first projection with its activation, and one row per label.
fn class_head(
    builder: &mut Builder<'_>,
    config: &EncoderConfig,
    mut x: NodeId,
) -> Result<NodeId, GraphError> {
    let (model, head) = (&config.model, config.class_head);
    if head.dense {
        x = builder.linear(x, Role::ClassDense, model.embedding_length)?;
        // Pre-norm encoders have an exact GELU here, the others a tanh.
        x = if head.norm {
            builder.graph.activation(x, Activation::Gelu)?
        } else {
            builder.graph.soft_cap(x, 1.0)?
        };
    }
    if head.norm {
        x = builder.norm(x, Role::ClassNorm)?;
    }
    match head.labels {
        Some(labels) => builder.linear(x, Role::ClassOutput, labels),
        None => Ok(x),
    }
}
