//! Programs of a graph: subsets of its outputs with the nodes that they depend on.

use super::build::{Graph, Names};
use super::{GraphError, NodeId};

impl Graph {
    /// A subgraph with the given outputs and the inputs that they depend on. An encoder and a decoder, for
    /// example, are two programs of one graph. Node and weight ids are unchanged, so that a
    /// [`Session`](crate::session::Session) can run the plans of all programs over weights that are bound
    /// once.
    ///
    /// # Errors
    /// [`GraphError::UnknownOutput`].
    pub fn program(&self, outputs: &[&str]) -> Result<Graph, GraphError> {
        let Names { matrices, vectors, .. } = self.names.clone();
        let names = Names { matrices, vectors, ..Names::default() };
        let mut program = Graph { inputs: Vec::new(), outputs: Vec::new(), names, ..self.clone() };
        for &name in outputs {
            let node = self.named(name).ok_or_else(|| {
                let known = self.outputs.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
                GraphError::UnknownOutput { name: name.into(), known }
            })?;
            program.output(name, node)?;
        }
        let needed = program.needed();
        for (name, node) in self.inputs.iter().filter(|(_, node)| needed[node.index()]) {
            program.names.inputs.insert(name.clone(), program.inputs.len());
            program.inputs.push((name.clone(), *node));
        }
        Ok(program)
    }

    /// By node: whether an output depends on it. Unused inputs count as needed, so that setting them is not
    /// an error.
    pub(super) fn needed(&self) -> Vec<bool> {
        let mut needed = vec![false; self.nodes.len()];
        let mut open: Vec<NodeId> = self.outputs.iter().chain(&self.inputs).map(|&(_, node)| node).collect();
        while let Some(node) = open.pop() {
            if !std::mem::replace(&mut needed[node.index()], true) {
                open.extend(self.nodes[node.index()].kind.operands());
            }
        }
        needed
    }
}
