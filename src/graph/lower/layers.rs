//! KV pool layers: layers of equal shape are contiguous in the pool, independent of their numbers in the
//! graph.

use std::collections::HashMap;

use super::unsupported;
use crate::graph::node::{Node, NodeKind};
use crate::graph::{AttentionSpec, GraphError, KvShape};

/// KV shapes of a graph in order of appearance, and the index of each layer within its shape.
#[derive(Default)]
pub(super) struct Layers {
    classes: Vec<KvShape>,
    numbers: HashMap<usize, usize>,
}

impl Layers {
    /// Counts the layers of each shape. A layer has exactly one attention.
    pub(super) fn of<'g>(nodes: impl Iterator<Item = &'g Node>) -> Result<Layers, GraphError> {
        let mut layers = Layers::default();
        let mut highest = 0;
        for node in nodes {
            let NodeKind::Attention { spec, .. } = &node.kind else { continue };
            let class = layers.class_of(spec);
            let own = layers.classes[class].layers;
            if layers.numbers.insert(spec.layer, own).is_some() {
                return Err(unsupported(node, format!("layer {} has an attention already", spec.layer)));
            }
            layers.classes[class].layers += 1;
            highest = highest.max(spec.layer);
        }
        // With a single shape the layer numbers are kept: one pool may serve graphs that leave layers out.
        if let [only] = &mut layers.classes[..] {
            only.layers = highest.saturating_add(1);
            layers.numbers.iter_mut().for_each(|(&given, number)| *number = given);
        }
        Ok(layers)
    }

    fn class_of(&mut self, spec: &AttentionSpec) -> usize {
        let (kv_heads, head_dim) = (spec.heads.kv, spec.heads.dim);
        let alike = |shape: &KvShape| (shape.kv_heads, shape.head_dim) == (kv_heads, head_dim);
        self.classes.iter().position(alike).unwrap_or_else(|| {
            self.classes.push(KvShape { layers: 0, kv_heads, head_dim });
            self.classes.len() - 1
        })
    }

    pub(super) fn shapes(&self) -> Vec<KvShape> {
        self.classes.clone()
    }

    /// Layer index in the pool: the shapes before this one come first.
    pub(super) fn number(&self, spec: &AttentionSpec) -> usize {
        let (kv_heads, head_dim) = (spec.heads.kv, spec.heads.dim);
        let others = self.classes.iter().take_while(|s| (s.kv_heads, s.head_dim) != (kv_heads, head_dim));
        let before: usize = others.map(|shape| shape.layers).sum();
        before + self.numbers.get(&spec.layer).copied().unwrap_or(spec.layer)
    }
}
