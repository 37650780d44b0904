//! Lowering: turns the nodes needed by the outputs into a program, one operation per node.
//!
//! Two patterns are handled here because no operation expresses them alone. The angles of each distinct
//! rotary embedding are computed once, at the start. A per-head norm before an attention over pages, with the
//! rotation after it, becomes part of the attention's [`KvAppend`].

mod heads;
mod layers;

use std::collections::HashSet;

use crate::ir::{
    ApplyRope, Attention, Binary, Combine, Embed, Epilogue, ExpertMatmul, GatedDelta, GatherOutputs,
    HeadNorm, KvAppend, Matmul, MeanRows, Normalize, Op, Precision, Product, Rope, RopeAngles, Route,
    RowAttention, Rows, SampleRows, ShortConv, Softmax, Transpose, Unary, WriteMode,
};

use super::node::{Node, NodeKind};
use super::ssa::{Instr, Ssa, ValueId, ValueInfo};
use super::{AttentionSpec, Graph, GraphError, NodeId, RopeSpec, RowAttentionSpec};
use heads::Chain;
use layers::Layers;

struct Lowering<'g> {
    graph: &'g Graph,
    activations: Precision,
    /// By node: whether an output depends on it.
    needed: Vec<bool>,
    /// By node: whether it is computed within the attentions that use it, its only users.
    absorbed: Vec<bool>,
    /// By node: whether it is a named output.
    named: Vec<bool>,
    /// Value of each lowered node.
    values: Vec<Option<ValueId>>,
    angles: Vec<(&'g RopeSpec, ValueId)>,
    layers: Layers,
    ssa: Ssa,
}

/// Lowers a graph to an unfused program.
pub(super) fn lower(graph: &Graph, activations: Precision) -> Result<Ssa, GraphError> {
    let count = graph.nodes.len();
    let mut lowering = Lowering {
        graph,
        activations,
        needed: graph.needed(),
        absorbed: vec![false; count],
        named: vec![false; count],
        values: vec![None; count],
        angles: Vec::new(),
        layers: Layers::default(),
        ssa: Ssa::default(),
    };
    if graph.outputs.is_empty() {
        return Err(GraphError::NoOutput);
    }
    graph.outputs.iter().for_each(|(_, node)| lowering.named[node.index()] = true);
    lowering.layers = Layers::of(lowering.needed_nodes().map(|(_, node)| node))?;
    lowering.ssa.kv = lowering.layers.shapes();
    lowering.check_states()?;
    lowering.find_absorbed()?;
    lowering.lower_angles();
    for index in 0..count {
        if lowering.needed[index] && !lowering.absorbed[index] {
            lowering.lower_node(index)?;
        }
    }
    lowering.name_outputs()?;
    Ok(lowering.ssa)
}

impl<'g> Lowering<'g> {
    /// Checks that each state belongs to at most one node.
    fn check_states(&self) -> Result<(), GraphError> {
        let mut carried = HashSet::new();
        let again =
            |(_, node): &(usize, &Node)| node.kind.state().is_some_and(|state| !carried.insert(state));
        match self.needed_nodes().find(again) {
            Some((_, node)) => Err(unsupported(node, "its state is another operation's already".into())),
            None => Ok(()),
        }
    }

    fn needed_nodes(&self) -> impl Iterator<Item = (usize, &'g Node)> {
        let graph = self.graph;
        graph.nodes.iter().enumerate().filter(|(index, _)| self.needed[*index])
    }

    fn lower_angles(&mut self) {
        for (_, node) in self.needed_nodes().collect::<Vec<_>>() {
            let NodeKind::Rope { spec, .. } = &node.kind else { continue };
            if self.angles_of(spec).is_some() {
                continue;
            }
            let (cols, label) = (spec.dims, format!("angles of {}", node.label));
            let precision = Precision::F32;
            let dst = self.ssa.value(ValueInfo { rows: Rows::Tokens, cols, precision, pinned: false, label });
            let angles = RopeAngles {
                dst: self.ssa.place(dst),
                inv_freq: spec.inv_freq.clone(),
                magnitude: spec.magnitude,
            };
            self.ssa.instrs.push(Instr::new(Op::RopeAngles(angles)));
            self.angles.push((spec, dst));
        }
    }

    /// Angles are independent of the pairing of elements.
    fn angles_of(&self, spec: &RopeSpec) -> Option<ValueId> {
        let same = |other: &RopeSpec| other.inv_freq == spec.inv_freq && other.magnitude == spec.magnitude;
        self.angles.iter().find(|(other, _)| same(other)).map(|&(_, value)| value)
    }

    fn rope(&self, node: &Node, spec: &RopeSpec) -> Result<Rope, GraphError> {
        let angles =
            self.angles_of(spec).ok_or_else(|| unsupported(node, "its angles are missing".into()))?;
        Ok(Rope { angles: self.ssa.place(angles), pairing: spec.pairing })
    }

    fn value_of(&self, x: NodeId) -> Result<ValueId, GraphError> {
        let missing = || unsupported(&self.graph.nodes[x.index()], "no operation computes it".into());
        self.values[x.index()].ok_or_else(missing)
    }

    fn lower_node(&mut self, index: usize) -> Result<(), GraphError> {
        let node = &self.graph.nodes[index];
        let instr = match &node.kind {
            NodeKind::Input => {
                self.new_value(index, true);
                return Ok(());
            }
            NodeKind::Attention { q, k, v, spec } => self.lower_attention(index, [*q, *k, *v], spec)?,
            NodeKind::Rope { x, head_dim, spec } => {
                let (old, rope) = (self.value_of(*x)?, self.rope(node, spec)?);
                let new = self.new_value(index, false);
                let op = Op::Rope(ApplyRope { x: self.ssa.place(new), head_dim: *head_dim, rope });
                Instr { op, renames: vec![(old, new)] }
            }
            NodeKind::HeadNorm { x, head_dim, norm } => {
                let old = self.value_of(*x)?;
                let new = self.new_value(index, false);
                let op = Op::HeadNorm(HeadNorm { x: self.ssa.place(new), head_dim: *head_dim, norm: *norm });
                Instr { op, renames: vec![(old, new)] }
            }
            _ => self.lower_plain(index)?,
        };
        self.ssa.instrs.push(instr);
        Ok(())
    }

    /// Lowers a node that is a single operation with its own destination.
    fn lower_plain(&mut self, index: usize) -> Result<Instr, GraphError> {
        let node = &self.graph.nodes[index];
        let sources =
            node.kind.operands().into_iter().map(|x| self.value_of(x)).collect::<Result<Vec<_>, _>>()?;
        let value = self.new_value(index, false);
        let dst = self.ssa.place(value);
        let place = |number: usize| sources.get(number).map_or(dst, |&value| self.ssa.place(value));
        let src = place(0);
        Ok(Instr::new(match node.kind {
            NodeKind::Norm { norm, .. } => Op::Norm(Normalize { dst, src, norm, write: WriteMode::Store }),
            NodeKind::Matmul { matrix, bias, .. } => {
                let epilogue = Epilogue::Write(WriteMode::Store);
                let products = vec![Product { dst, matrix, bias, epilogue }];
                Op::Matmul(Matmul { src, norm: None, products })
            }
            NodeKind::Outputs { .. } => Op::GatherOutputs(GatherOutputs { dst, src }),
            NodeKind::Unary { f, .. } => Op::Unary(Unary { dst, src, f }),
            NodeKind::Binary { f, .. } => Op::Binary(Binary { dst, a: src, b: place(1), f }),
            NodeKind::Softmax { .. } => Op::Softmax(Softmax { dst, src }),
            NodeKind::Sample { .. } => Op::Sample(SampleRows { dst, src }),
            NodeKind::Transpose { .. } => Op::Transpose(Transpose { dst, src }),
            NodeKind::MeanRows { .. } => Op::MeanRows(MeanRows { dst, src }),
            NodeKind::RowAttention { spec: RowAttentionSpec { heads, scale, mask }, .. } => {
                let (k, v) = (place(1), place(2));
                Op::RowAttention(RowAttention { dst, q: src, k, v, heads, scale, mask })
            }
            NodeKind::Route { top_k, renormalise, .. } => Op::Route(Route { dst, src, top_k, renormalise }),
            NodeKind::ExpertMatmul { experts, .. } => {
                Op::ExpertMatmul(ExpertMatmul { dst, src, routes: place(1), experts })
            }
            NodeKind::Combine { .. } => {
                Op::Combine(Combine { dst, src, routes: place(1), write: WriteMode::Store })
            }
            NodeKind::ShortConv { weight, state, .. } => {
                let state = self.graph.state_spec(state)?.state;
                Op::ShortConv(ShortConv { dst, src, weight, state })
            }
            NodeKind::GatedDelta { heads, scale, state, .. } => {
                let [k, v, decay, beta] = [1, 2, 3, 4].map(place);
                let state = self.graph.state_spec(state)?.state;
                Op::GatedDelta(GatedDelta { dst, q: src, k, v, decay, beta, heads, scale, state })
            }
            NodeKind::Embed { table, scale } => Op::Embed(Embed { dst, table, scale }),
            NodeKind::HeadNorm { .. }
            | NodeKind::Input
            | NodeKind::Rope { .. }
            | NodeKind::Attention { .. } => {
                return Err(unsupported(node, "it has no operation of its own".into()));
            }
        }))
    }

    /// Adds the KV append and returns the attention.
    fn lower_attention(
        &mut self,
        index: usize,
        [q, k, v]: [NodeId; 3],
        spec: &AttentionSpec,
    ) -> Result<Instr, GraphError> {
        let node = &self.graph.nodes[index];
        let chains = [self.chain(q), self.chain(k)];
        let absorbed = |chain: &Chain<'g>| chain.rope.filter(|rope| self.absorbed[rope.0.index()]);
        let ropes = [&chains[0], &chains[1]].map(|chain| absorbed(chain).map(|rope| rope.1));
        if ropes[0] != ropes[1] {
            let reason = "q or k shares its rotation with an attention that has a head norm";
            return Err(unsupported(node, reason.into()));
        }
        let rope = ropes[0].map(|spec| self.rope(node, spec)).transpose()?;
        let source = |x: NodeId, chain: &Chain| {
            let base = chain.base.filter(|_| self.absorbed[x.index()]);
            self.value_of(base.unwrap_or(x))
        };
        let (old_q, old_k, v) = (source(q, &chains[0])?, source(k, &chains[1])?, self.value_of(v)?);
        let info = self.ssa.values[old_q].clone();
        let new_q = self.ssa.value(ValueInfo { pinned: false, ..info });
        let place = |value| self.ssa.place(value);
        let layer = self.layers.number(spec);
        let append = KvAppend {
            q: place(new_q),
            k: place(old_k),
            v: place(v),
            layer,
            heads: spec.heads,
            q_norm: chains[0].norm.map(|norm| norm.1),
            k_norm: chains[1].norm.map(|norm| norm.1),
            rope,
        };
        self.ssa.instrs.push(Instr { op: Op::KvAppend(append), renames: vec![(old_q, new_q)] });
        let dst = self.new_value(index, false);
        let AttentionSpec { heads, scale, window, soft_cap, .. } = *spec;
        let (dst, q) = (self.ssa.place(dst), self.ssa.place(new_q));
        Ok(Instr::new(Op::Attention(Attention { dst, q, layer, heads, scale, window, soft_cap })))
    }

    fn new_value(&mut self, index: usize, pinned: bool) -> ValueId {
        let Node { rows, cols, dtype, ref label, .. } = self.graph.nodes[index];
        let named = self.named[index];
        let precision = dtype.resolve(if named { Precision::F32 } else { self.activations });
        let label = label.clone();
        let value = self.ssa.value(ValueInfo { rows, cols, precision, pinned: pinned || named, label });
        self.values[index] = Some(value);
        value
    }

    fn name_outputs(&mut self) -> Result<(), GraphError> {
        let value = |(name, node): &(String, NodeId)| Ok((name.clone(), self.value_of(*node)?));
        let inputs = self.graph.inputs.iter().map(value).collect::<Result<_, GraphError>>()?;
        let outputs = self.graph.outputs.iter().map(value).collect::<Result<_, GraphError>>()?;
        (self.ssa.inputs, self.ssa.outputs) = (inputs, outputs);
        Ok(())
    }
}

fn unsupported(node: &Node, reason: String) -> GraphError {
    GraphError::Unsupported { node: node.label.clone(), reason }
}
