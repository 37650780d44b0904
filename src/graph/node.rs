//! Graph nodes and their parameters, before compilation.

use std::sync::Arc;

use crate::ir::{
    AttentionMask, BinaryFn, DeltaHeads, Heads, MatrixId, MatrixStack, Norm, Precision, RmsNorm, RopePairing,
    Rows, State, UnaryFn, VectorId,
};

/// Id of a value in a [`super::Graph`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub(super) u32);

impl NodeId {
    pub(super) fn index(self) -> usize {
        self.0 as usize
    }
}

/// Storage type of a value in a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// The type set by [`super::CompileOptions::activations`].
    Activation,
    /// A fixed type: residual stream, outputs, and casts.
    Exact(Precision),
}

impl Dtype {
    /// Type of an elementwise result: f32 wins, then an exact type, then activations.
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

/// Rotary embedding (Su et al. 2021): rotated elements and frequencies.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeSpec {
    /// Number of rotated elements per head, from its start; even.
    pub dims: usize,
    /// Frequencies in radians per position, `[dims / 2]`.
    pub inv_freq: Arc<[f64]>,
    /// Scale of the rotated elements (YaRN's attention factor). Usually 1.
    pub magnitude: f32,
    /// Pairing of rotated elements.
    pub pairing: RopePairing,
}

/// Parameters of an attention; see [`crate::ir::Attention`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionSpec {
    /// Index among the layers with a KV cache; unique per attention of a graph.
    pub layer: usize,
    /// Head counts and head size.
    pub heads: Heads,
    /// Scale of the q·k products.
    pub scale: f32,
    /// Visible positions, including the query's own; `None` for all.
    pub window: Option<u32>,
    /// Soft cap of the scaled products: `cap · tanh(x / cap)`.
    pub soft_cap: Option<f32>,
}

/// Parameters of an attention over rows; see [`crate::ir::RowAttention`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowAttentionSpec {
    /// Head counts and head size.
    pub heads: Heads,
    /// Scale of the q·k products.
    pub scale: f32,
    /// Attention mask.
    pub mask: AttentionMask,
}

/// Layers of a KV pool with equal heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Number of layers; the highest layer number plus one if all layers of the graph have this shape.
    pub layers: usize,
    /// KV heads per layer.
    pub kv_heads: usize,
    /// Elements per head.
    pub head_dim: usize,
}

/// Id of a state in a [`super::Graph`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StateId(pub(super) u32);

/// A declared state: fixed-size memory of a recurrent layer, per sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateSpec {
    /// Name in error messages.
    pub name: String,
    /// Shape, and offset within a sequence's state slot.
    pub state: State,
}

/// Operands of the gated delta rule; see [`crate::ir::GatedDelta`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaOperands {
    /// Queries, `[tokens, key heads · key_dim]`.
    pub q: NodeId,
    /// Keys, `[tokens, key heads · key_dim]`.
    pub k: NodeId,
    /// Values, `[tokens, value heads · value_dim]`.
    pub v: NodeId,
    /// Logarithm of the state's decay factor, one column per value head.
    pub decay: NodeId,
    /// Step size of the update, one column per value head.
    pub beta: NodeId,
}

/// Operation of a node.
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
    /// Operand nodes.
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

    /// The recurrent state of the node, if any.
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
    /// Name in error messages: operation, weight, number.
    pub label: String,
}

/// A declared weight matrix, `[rows, cols]`: output by input features.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatrixSpec {
    /// Tensor name, also in error messages.
    pub name: String,
    /// First row within the tensor; nonzero if one tensor holds several matrices, such as experts.
    pub first_row: usize,
    /// Number of rows (output features).
    pub rows: usize,
    /// Number of columns (input features).
    pub cols: usize,
}

/// A declared weight vector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VectorSpec {
    /// Tensor name, also in error messages.
    pub name: String,
    /// Number of elements.
    pub len: usize,
}
