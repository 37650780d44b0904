//! The programs of a graph: some of its outputs, and what these need.

use super::build::{Graph, Names};
use super::{GraphError, NodeId};

impl Graph {
    /// One of the programs that the graph is: it computes these outputs alone, and has the inputs that they need.
    /// An encoder and its decoder are two programs of one graph. Nodes and weights keep their ids, so that a
    /// [`Session`](crate::session::Session) runs the plans of all programs over weights that are bound once.
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

    /// By node: whether an output needs it. Inputs keep their places even when nothing reads them: setting one is no
    /// error.
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
