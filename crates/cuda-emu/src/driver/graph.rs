//! Graphs: captured work with its dependencies, and one running launch of it.

use std::sync::{Arc, Mutex, PoisonError};

use super::abi::Handle;
use super::queue::Mark;
use super::status::{Answer, Status};
use super::work::{CHAIN_MAX, Work};
use crate::memory::Memory;
use crate::random::Random;

/// A node: work that runs when all nodes of `after` have.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) handle: Handle,
    pub(crate) work: Work,
    /// Indices of nodes before this one.
    pub(crate) after: Vec<usize>,
}

/// Device memory allocated while capturing; it lives as long as a graph, or an instance of one.
#[derive(Debug)]
pub(crate) struct GraphMemory {
    memory: Memory,
    addresses: Mutex<Vec<u64>>,
}

impl GraphMemory {
    pub(crate) fn new(memory: Memory) -> Self {
        Self { memory, addresses: Mutex::new(Vec::new()) }
    }

    /// Takes over an allocation.
    pub(crate) fn add(&self, address: u64) {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner).push(address);
    }

    /// Whether the allocation is the graph's.
    pub(crate) fn owns(&self, address: u64) -> bool {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner).contains(&address)
    }
}

impl Drop for GraphMemory {
    fn drop(&mut self) {
        for address in self.addresses.get_mut().unwrap_or_else(PoisonError::into_inner).drain(..) {
            // Nobody else frees it; were it gone, there is nobody to tell.
            let _ = self.memory.free(address);
        }
    }
}

/// Nodes in an order that keeps dependencies, and the memory that they use.
#[derive(Clone, Debug)]
pub(crate) struct Graph {
    pub(crate) nodes: Vec<Node>,
    #[expect(dead_code, reason = "held, so that it lives as long as the graph")]
    pub(crate) memory: Arc<GraphMemory>,
}

impl Graph {
    /// Whether another graph has the same nodes but for their parameters.
    pub(crate) fn same_shape(&self, other: &Graph) -> bool {
        self.nodes.len() == other.nodes.len()
            && self
                .nodes
                .iter()
                .zip(&other.nodes)
                .all(|(a, b)| a.after == b.after && a.work.kind() == b.work.kind())
    }

    /// Indices of nodes that no node comes after.
    pub(crate) fn leaves(nodes: &[Node]) -> Vec<usize> {
        let inner: std::collections::BTreeSet<usize> =
            nodes.iter().flat_map(|n| n.after.iter().copied()).collect();
        (0..nodes.len()).filter(|index| !inner.contains(index)).collect()
    }

    /// Whether all nodes come before (or are) one of these.
    pub(crate) fn all_lead_to(nodes: &[Node], ends: &[usize]) -> bool {
        let mut reached = vec![false; nodes.len()];
        let mut open = ends.to_vec();
        while let Some(index) = open.pop() {
            if !std::mem::replace(&mut reached[index], true) {
                open.extend(&nodes[index].after);
            }
        }
        reached.into_iter().all(|r| r)
    }
}

/// An instantiated graph (`CUgraphExec`).
#[derive(Debug)]
pub(crate) struct GraphExec {
    pub(crate) graph: Arc<Graph>,
    /// The last launch: launches of one instance do not overlap.
    pub(crate) last: Option<Mark>,
}

impl GraphExec {
    /// Replaces the work of one node for later launches.
    pub(crate) fn set_work(&mut self, node: Handle, work: Work) -> Answer {
        // Launches in flight keep the graph as it was.
        let graph = Arc::make_mut(&mut self.graph);
        let node = graph.nodes.iter_mut().find(|n| n.handle == node).ok_or(Status::InvalidValue)?;
        if node.work.kind() != work.kind() {
            return Err(Status::InvalidValue);
        }
        node.work = work;
        Ok(())
    }
}

/// A launch of a graph: which nodes have run.
#[derive(Clone, Debug)]
pub(crate) struct GraphRun {
    graph: Arc<Graph>,
    done: Vec<bool>,
}

impl GraphRun {
    /// None has.
    pub(crate) fn new(graph: Arc<Graph>) -> Self {
        let done = vec![false; graph.nodes.len()];
        Self { graph, done }
    }

    /// Whether all nodes have run.
    pub(crate) fn is_done(&self) -> bool {
        self.done.iter().all(|done| *done)
    }

    /// A node that may run now, and the kernels that may start before it has ended.
    pub(crate) fn next(&self, random: Option<&mut Random>) -> Vec<usize> {
        let nodes = &self.graph.nodes;
        let ready: Vec<usize> = (0..nodes.len())
            .filter(|i| !self.done[*i] && nodes[*i].after.iter().all(|before| self.done[*before]))
            .collect();
        let Some(first) = ready.get(random.map_or(0, |random| random.below(ready.len()))) else {
            return Vec::new();
        };
        let mut chain = vec![*first];
        while chain.len() < CHAIN_MAX
            && let Some(next) = self.programmatic_successor(chain[chain.len() - 1])
        {
            chain.push(next);
        }
        chain
    }

    /// The kernel that waits for this kernel only, and may start before it has ended.
    fn programmatic_successor(&self, index: usize) -> Option<usize> {
        let nodes = &self.graph.nodes;
        nodes[index].work.launch()?;
        (index + 1..nodes.len())
            .find(|next| nodes[*next].after == [index] && nodes[*next].work.is_programmatic())
    }

    /// The work of nodes.
    pub(crate) fn work(&self, nodes: &[usize]) -> Vec<Work> {
        nodes.iter().map(|index| self.graph.nodes[*index].work.clone()).collect()
    }

    /// Notes that nodes have run.
    pub(crate) fn finish(&mut self, nodes: &[usize]) {
        nodes.iter().for_each(|index| self.done[*index] = true);
    }
}
