//! Head norms and rotations that are fused into the attention that uses them.

use crate::graph::node::NodeKind;
use crate::graph::{GraphError, NodeId, RopeSpec};
use crate::ir::RmsNorm;

use super::{Lowering, unsupported};

/// Chain of operations that produces an attention's q or k: base, head norm, rotation.
#[derive(Clone, Default)]
pub(super) struct Chain<'g> {
    pub(super) rope: Option<(NodeId, &'g RopeSpec)>,
    pub(super) norm: Option<(NodeId, RmsNorm)>,
    pub(super) base: Option<NodeId>,
    /// Head sizes used by the rotation and the norm.
    pub(super) dims: Vec<usize>,
}

impl<'g> Lowering<'g> {
    pub(super) fn chain(&self, mut x: NodeId) -> Chain<'g> {
        let graph = self.graph;
        let mut chain = Chain::default();
        if let NodeKind::Rope { x: inner, spec, head_dim } = &graph.nodes[x.index()].kind {
            chain.rope = Some((x, spec));
            chain.dims.push(*head_dim);
            x = *inner;
        }
        if let NodeKind::HeadNorm { x: inner, norm, head_dim } = graph.nodes[x.index()].kind {
            chain.norm = Some((x, norm));
            chain.dims.push(head_dim);
            x = inner;
        }
        chain.base = Some(x);
        chain
    }

    /// Marks head norms, and the rotations after them, as absorbed by the attentions over pages that use
    /// them. These must be their only users. Other head norms are operations of their own.
    pub(super) fn find_absorbed(&mut self) -> Result<(), GraphError> {
        for (_, node) in self.needed_nodes().collect::<Vec<_>>() {
            let NodeKind::Attention { q, k, spec, .. } = node.kind else { continue };
            let chains = [self.chain(q), self.chain(k)];
            let normed = chains.iter().any(|chain| chain.norm.is_some());
            let mut dims = chains.iter().flat_map(|chain| &chain.dims);
            if let Some(dim) = dims.find(|&&dim| normed && dim != spec.heads.dim) {
                let reason = format!("head norm or rotation of {dim} elements, heads of {}", spec.heads.dim);
                return Err(unsupported(node, reason));
            }
            chains
                .iter()
                .filter_map(|chain| chain.norm)
                .for_each(|norm| self.absorbed[norm.0.index()] = true);
            if !chains.iter().any(|chain| chain.norm.is_some() && chain.rope.is_some()) {
                continue;
            }
            let specs = [&chains[0], &chains[1]].map(|chain| chain.rope.map(|rope| rope.1));
            if specs[0] != specs[1] {
                let reason = "q and k have a head norm and need the same rotation behind it";
                return Err(unsupported(node, reason.into()));
            }
            chains
                .iter()
                .filter_map(|chain| chain.rope)
                .for_each(|rope| self.absorbed[rope.0.index()] = true);
        }
        self.check_absorbed()
    }

    fn check_absorbed(&self) -> Result<(), GraphError> {
        let graph = self.graph;
        let free = |x: NodeId| {
            let node = &graph.nodes[x.index()];
            let norm = match node.kind {
                NodeKind::HeadNorm { .. } => x,
                NodeKind::Rope { x, .. } => x,
                _ => return Ok(()),
            };
            let is_norm = matches!(graph.nodes[norm.index()].kind, NodeKind::HeadNorm { .. });
            if !is_norm || !self.absorbed[norm.index()] {
                return Ok(());
            }
            Err(unsupported(
                node,
                "a head norm that goes to attention as q or k, through rope or not, may go nowhere else"
                    .into(),
            ))
        };
        for (index, node) in self.needed_nodes() {
            match node.kind {
                NodeKind::Attention { v, .. } => free(v)?,
                NodeKind::Rope { .. } if self.absorbed[index] => {}
                _ => node.kind.operands().into_iter().try_for_each(free)?,
            }
        }
        graph.outputs.iter().try_for_each(|(_, node)| free(*node))
    }
}
