//! Nodes: what a graph holds before it is compiled.

use std::sync::Arc;

use crate::ir::{
    BinaryFn, DeltaHeads, Heads, MatrixId, MatrixStack, Norm, Precision, RmsNorm, RopePairing, Rows, Sees,
    State, UnaryFn, VectorId,
};

/// A value of a [`super::Graph`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub(super) u32);

impl NodeId {
    pub(super) fn index(self) -> usize {
        self.0 as usize
    }
}

/// How a value is stored, as far as the graph says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// As [`super::CompileOptions::activations`] says.
    Activation,
    /// Just so: the residual stream, results, and what was cast.
    Exact(Precision),
}

impl Dtype {
    /// The type of an elementwise result: f32 wins, then the exact type, then activations.
    pub(super) fn join(self, other: Dtype) -> Dtype {
        match (self, other) {
            (a, b) if a == b => a,
            (Dtype::Activation, exact @ Dtype::Exact(_)) | (exact @ Dtype::Exact(_), Dtype::Activation) => {
                exact
            }
            _ => Dtype::Exact(Precision::F32),
        }
    }

    pub(super) fn resolve(self, activations: Precision) -> Precision {
        match self {
            Dtype::Activation => activations,
            Dtype::Exact(precision) => precision,
        }
    }
}

/// A rotary embedding (Su et al. 2021): which elements turn, and how fast.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeSpec {
    /// Elements of each head that turn, from its start; even.
    pub dims: usize,
    /// Radians a position, `[dims / 2]`.
    pub inv_freq: Arc<[f64]>,
    /// Scales the rotated elements (YaRN's attention factor), else 1.
    pub magnitude: f32,
    /// Which elements turn together.
    pub pairing: RopePairing,
}

/// What an attention does beside its operands; see [`crate::ir::Attention`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionSpec {
    /// Its number among the layers that have keys and values; each attention of a graph has its own.
    pub layer: usize,
    /// The heads' shape.
    pub heads: Heads,
    /// Multiplies the products.
    pub scale: f32,
    /// Positions that a query sees, itself included; all if none.
    pub window: Option<u32>,
    /// `cap · tanh(x / cap)` of the scaled products.
    pub soft_cap: Option<f32>,
}

/// What an attention over rows does beside its operands; see [`crate::ir::RowAttention`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowAttentionSpec {
    /// The heads' shape.
    pub heads: Heads,
    /// Multiplies the products.
    pub scale: f32,
    /// Which keys a query sees.
    pub sees: Sees,
}

/// Layers of a KV pool that have the same heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// How many; one more than the highest number where all layers are alike.
    pub layers: usize,
    /// Key and value heads of a layer.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
}

/// A state of a [`super::Graph`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StateId(pub(super) u32);

/// A state that a graph declares: what a layer keeps of each sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateSpec {
    /// Names it in errors.
    pub name: String,
    /// Its shape, and its place among the states of a sequence.
    pub state: State,
}

/// What the gated delta rule reads of each row; see [`crate::ir::GatedDelta`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaOperands {
    /// Queries, as many columns as key heads have.
    pub q: NodeId,
    /// Keys, as many.
    pub k: NodeId,
    /// Values.
    pub v: NodeId,
    /// The logarithm of what is left of the state, one column for each value head.
    pub decay: NodeId,
    /// How much of a change is made, one column for each value head.
    pub beta: NodeId,
}

/// What a node computes.
#[derive(Clone, Debug)]
pub(super) enum NodeKind {
    Input,
    Embed { table: MatrixId, scale: f32 },
    Norm { x: NodeId, norm: Norm },
    HeadNorm { x: NodeId, head_dim: usize, norm: RmsNorm },
    Matmul { x: NodeId, matrix: MatrixId, bias: Option<VectorId> },
    Rope { x: NodeId, head_dim: usize, spec: RopeSpec },
    Attention { q: NodeId, k: NodeId, v: NodeId, spec: AttentionSpec },
    Outputs { x: NodeId },
    Unary { x: NodeId, f: UnaryFn },
    Binary { a: NodeId, b: NodeId, f: BinaryFn },
    Softmax { x: NodeId },
    Sample { x: NodeId },
    Transpose { x: NodeId },
    MeanRows { x: NodeId },
    RowAttention { q: NodeId, k: NodeId, v: NodeId, spec: RowAttentionSpec },
    Route { x: NodeId, top_k: usize, renormalise: bool },
    ExpertMatmul { x: NodeId, routes: NodeId, experts: MatrixStack },
    Combine { x: NodeId, routes: NodeId },
    ShortConv { x: NodeId, weight: VectorId, state: StateId },
    GatedDelta { operands: DeltaOperands, heads: DeltaHeads, scale: f32, state: StateId },
}

impl NodeKind {
    /// The nodes that it reads.
    pub(super) fn operands(&self) -> Vec<NodeId> {
        match *self {
            NodeKind::Input | NodeKind::Embed { .. } => Vec::new(),
            NodeKind::Norm { x, .. }
            | NodeKind::HeadNorm { x, .. }
            | NodeKind::Matmul { x, .. }
            | NodeKind::Rope { x, .. }
            | NodeKind::Outputs { x }
            | NodeKind::Unary { x, .. }
            | NodeKind::Softmax { x }
            | NodeKind::Sample { x }
            | NodeKind::Transpose { x }
            | NodeKind::MeanRows { x }
            | NodeKind::ShortConv { x, .. }
            | NodeKind::Route { x, .. } => vec![x],
            NodeKind::Attention { q, k, v, .. } | NodeKind::RowAttention { q, k, v, .. } => vec![q, k, v],
            NodeKind::ExpertMatmul { x, routes, .. } | NodeKind::Combine { x, routes } => vec![x, routes],
            NodeKind::Binary { a, b, .. } => vec![a, b],
            NodeKind::GatedDelta { operands: DeltaOperands { q, k, v, decay, beta }, .. } => {
                vec![q, k, v, decay, beta]
            }
        }
    }

    /// The state that it carries.
    pub(super) fn state(&self) -> Option<StateId> {
        match *self {
            NodeKind::ShortConv { state, .. } | NodeKind::GatedDelta { state, .. } => Some(state),
            _ => None,
        }
    }
}

/// A node with its inferred shape and type.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub kind: NodeKind,
    pub rows: Rows,
    pub cols: usize,
    pub dtype: Dtype,
    /// As errors name it: operation, weight, number.
    pub label: String,
}

/// A weight matrix that a graph declares, `[rows, cols]`: output by input features.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatrixSpec {
    /// Names it in errors and in the file.
    pub name: String,
    /// Where it begins among the rows of that name: above 0 where one tensor holds several, as experts.
    pub first_row: usize,
    /// Output features.
    pub rows: usize,
    /// Input features.
    pub cols: usize,
}

/// A weight vector that a graph declares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VectorSpec {
    /// Names it in errors and in the file.
    pub name: String,
    /// Its elements.
    pub len: usize,
}
