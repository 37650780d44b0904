//! Graph builder: each method checks operand shapes, infers the result's shape, and adds a node.

use std::collections::HashMap;

use crate::ir::{
    Activation, BinaryFn, MatrixId, MeanRows, Norm, NormKind, Precision, RmsNorm, Rows, UnaryFn, VectorId,
};

use super::node::{Node, NodeKind};
use super::{Dtype, GraphError, MatrixSpec, NodeId, StateId, StateSpec, VectorSpec};

/// A lazy graph of operations. Weights are declared by name. Values are `[rows, cols]`; rows are the step's
/// tokens, its outputs, or a fixed number.
///
/// ```
/// use ottava::ir::{Activation, Rows};
/// # use ottava::graph::{Graph, GraphError};
/// # fn main() -> Result<(), GraphError> {
/// let mut g = Graph::new();
/// let hidden = g.matrix("hidden", 64, 16)?;
/// let x = g.input("x", Rows::Fixed(8), 16)?;
/// let h = g.matmul(x, hidden)?;
/// let h = g.activation(h, Activation::Silu)?;
/// assert_eq!(g.shape(h)?, (Rows::Fixed(8), 64));
/// g.output("h", h)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Graph {
    pub(super) nodes: Vec<Node>,
    pub(super) matrices: Vec<MatrixSpec>,
    pub(super) vectors: Vec<VectorSpec>,
    pub(super) states: Vec<StateSpec>,
    pub(super) inputs: Vec<(String, NodeId)>,
    pub(super) outputs: Vec<(String, NodeId)>,
    pub(super) names: Names,
}

/// Index of each name in the list of its kind. A file may declare very many weights, so lookup is by hash.
#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    pub(super) matrices: HashMap<String, usize>,
    pub(super) vectors: HashMap<String, usize>,
    pub(super) inputs: HashMap<String, usize>,
    pub(super) outputs: HashMap<String, usize>,
}

impl Graph {
    /// The computation, independent of compile options and of the weights' values.
    pub(crate) fn definition(&self) -> impl std::fmt::Debug + '_ {
        (&self.nodes, &self.matrices, &self.vectors, &self.outputs)
    }

    /// An empty graph.
    pub fn new() -> Self {
        Graph::default()
    }

    /// Declares a weight matrix of `rows` output by `cols` input features. A second declaration with equal
    /// name and shape returns the same id (tied embeddings).
    ///
    /// # Errors
    /// [`GraphError::Duplicate`] if the name is declared with another shape.
    pub fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<MatrixId, GraphError> {
        let spec = MatrixSpec { name: name.into(), first_row: 0, rows, cols };
        let index = match self.names.matrices.get(name) {
            Some(&index) if self.matrices[index] == spec => index,
            Some(&index) => {
                let first = &self.matrices[index];
                let shape = |spec: &MatrixSpec| format!("[{}, {}]", spec.rows, spec.cols);
                return Err(duplicate("matrix", name, shape(first), shape(&spec)));
            }
            None => {
                self.names.matrices.insert(name.into(), self.matrices.len());
                self.matrices.push(spec);
                self.matrices.len() - 1
            }
        };
        Ok(MatrixId(index as u32))
    }

    /// Declares a weight vector. A second declaration with equal name and length returns the same id.
    ///
    /// # Errors
    /// [`GraphError::Duplicate`] if the name is declared with another length.
    pub fn vector(&mut self, name: &str, len: usize) -> Result<VectorId, GraphError> {
        let index = match self.names.vectors.get(name) {
            Some(&index) if self.vectors[index].len == len => index,
            Some(&index) => {
                let first = self.vectors[index].len;
                return Err(duplicate("vector", name, format!("[{first}]"), format!("[{len}]")));
            }
            None => {
                self.names.vectors.insert(name.into(), self.vectors.len());
                self.vectors.push(VectorSpec { name: name.into(), len });
                self.vectors.len() - 1
            }
        };
        Ok(VectorId(index as u32))
    }

    /// An input `[rows, cols]`, set by [`Program::set_input`](crate::session::Program::set_input) before a
    /// run.
    ///
    /// # Errors
    /// [`GraphError::Duplicate`] if the name is taken.
    pub fn input(&mut self, name: &str, rows: Rows, cols: usize) -> Result<NodeId, GraphError> {
        if self.names.inputs.contains_key(name) {
            return Err(duplicate("input", name, "an input".into(), format!("[{rows:?}, {cols}]")));
        }
        let node = self.push("input", name, NodeKind::Input, (rows, cols), Dtype::Exact(Precision::F32));
        self.names.inputs.insert(name.into(), self.inputs.len());
        self.inputs.push((name.into(), node));
        Ok(node)
    }

    /// Declares a named output. It is stored in f32 unless it was cast.
    ///
    /// # Errors
    /// [`GraphError::Duplicate`] if the name is taken, [`GraphError::Foreign`].
    pub fn output(&mut self, name: &str, x: NodeId) -> Result<(), GraphError> {
        let label = self.node(x)?.label.clone();
        if let Some(&index) = self.names.outputs.get(name) {
            let first = self.nodes[self.outputs[index].1.index()].label.clone();
            return Err(duplicate("output", name, first, label));
        }
        self.names.outputs.insert(name.into(), self.outputs.len());
        self.outputs.push((name.into(), x));
        Ok(())
    }

    /// Token embeddings: the rows of `table` for the step's tokens, times `scale`. `[tokens, table.cols]`,
    /// the residual stream.
    ///
    /// # Errors
    /// [`GraphError::Foreign`].
    pub fn embed(&mut self, table: MatrixId, scale: f32) -> Result<NodeId, GraphError> {
        let MatrixSpec { name, cols, .. } = self.matrix_spec(table)?.clone();
        let kind = NodeKind::Embed { table, scale };
        Ok(self.push("embed", &name, kind, (Rows::Tokens, cols), Dtype::Exact(Precision::F32)))
    }

    /// `x / sqrt(mean(x²) + eps) · w` over each row.
    ///
    /// # Errors
    /// [`GraphError::Shape`] unless `w` has `cols` elements, [`GraphError::Foreign`].
    pub fn rms_norm(&mut self, x: NodeId, w: VectorId, eps: f32) -> Result<NodeId, GraphError> {
        let (rows, cols) = self.shape(x)?;
        let VectorSpec { name, len } = self.vector_spec(w)?.clone();
        self.expect("rms_norm", &name, len == cols, || (format!("a gain of {cols}"), format!("{len}")))?;
        let kind = NodeKind::Norm { x, norm: RmsNorm { weight: w, eps }.into() };
        Ok(self.push("rms_norm", &name, kind, (rows, cols), Dtype::Activation))
    }

    /// `(x − mean(x)) / sqrt(variance(x) + eps) · w + b` over each row.
    ///
    /// # Errors
    /// [`GraphError::Shape`] unless `w` and `b` have `cols` elements, [`GraphError::Foreign`].
    pub fn layer_norm(
        &mut self,
        x: NodeId,
        w: VectorId,
        b: Option<VectorId>,
        eps: f32,
    ) -> Result<NodeId, GraphError> {
        let (rows, cols) = self.shape(x)?;
        for vector in std::iter::once(w).chain(b) {
            let VectorSpec { name, len } = self.vector_spec(vector)?.clone();
            self.expect("layer_norm", &name, len == cols, || {
                (format!("a vector of {cols}"), format!("{len}"))
            })?;
        }
        let name = self.vector_spec(w)?.name.clone();
        let norm = Norm { kind: NormKind::Layer, weight: w, bias: b, eps };
        Ok(self.push("layer_norm", &name, NodeKind::Norm { x, norm }, (rows, cols), Dtype::Activation))
    }

    /// `x · mᵀ`: `[rows, m.rows]`.
    ///
    /// # Errors
    /// [`GraphError::Shape`] unless `x` has `m.cols` columns, [`GraphError::Foreign`].
    pub fn matmul(&mut self, x: NodeId, m: MatrixId) -> Result<NodeId, GraphError> {
        self.product(x, m, None)
    }

    /// `x · mᵀ + bias`: `[rows, m.rows]`.
    ///
    /// # Errors
    /// [`GraphError::Shape`] unless `x` has `m.cols` columns and the bias has `m.rows` elements,
    /// [`GraphError::Foreign`].
    pub fn matmul_bias(&mut self, x: NodeId, m: MatrixId, bias: VectorId) -> Result<NodeId, GraphError> {
        self.product(x, m, Some(bias))
    }

    fn product(&mut self, x: NodeId, matrix: MatrixId, bias: Option<VectorId>) -> Result<NodeId, GraphError> {
        let (rows, cols) = self.shape(x)?;
        let spec = self.matrix_spec(matrix)?.clone();
        self.expect("matmul", &spec.name, spec.cols == cols, || {
            (format!("a matrix of {cols} columns"), format!("[{}, {}]", spec.rows, spec.cols))
        })?;
        if let Some(bias) = bias {
            let len = self.vector_spec(bias)?.len;
            self.expect("matmul", &spec.name, len == spec.rows, || {
                (format!("a bias of {}", spec.rows), format!("{len}"))
            })?;
        }
        let kind = NodeKind::Matmul { x, matrix, bias };
        Ok(self.push("matmul", &spec.name, kind, (rows, spec.rows), Dtype::Activation))
    }

    /// The rows of `x` for which the step requests logits: `[outputs, cols]`.
    ///
    /// # Errors
    /// [`GraphError::Shape`] unless the rows are tokens.
    pub fn outputs(&mut self, x: NodeId) -> Result<NodeId, GraphError> {
        let (rows, cols) = self.shape(x)?;
        self.expect_tokens("outputs", rows)?;
        let dtype = self.dtype(x)?;
        Ok(self.push("outputs", "", NodeKind::Outputs { x }, (Rows::Outputs, cols), dtype))
    }

    /// `a + b`, elementwise; a `b` of one fixed row is broadcast over the rows.
    ///
    /// # Errors
    /// [`GraphError::Shape`] for other shapes.
    pub fn add(&mut self, a: NodeId, b: NodeId) -> Result<NodeId, GraphError> {
        self.binary("add", a, b, BinaryFn::Add)
    }

    /// `a − b`, elementwise; a `b` of one fixed row is broadcast over the rows.
    ///
    /// # Errors
    /// [`GraphError::Shape`] for other shapes.
    pub fn sub(&mut self, a: NodeId, b: NodeId) -> Result<NodeId, GraphError> {
        self.binary("sub", a, b, BinaryFn::Sub)
    }

    /// `a · b`, elementwise; a `b` of one fixed row is broadcast over the rows.
    ///
    /// # Errors
    /// [`GraphError::Shape`] for other shapes.
    pub fn mul(&mut self, a: NodeId, b: NodeId) -> Result<NodeId, GraphError> {
        self.binary("mul", a, b, BinaryFn::Mul)
    }

    fn binary(&mut self, op: &str, a: NodeId, b: NodeId, f: BinaryFn) -> Result<NodeId, GraphError> {
        let (left, right) = (self.shape(a)?, self.shape(b)?);
        let fits = left == right || right == (Rows::Fixed(1), left.1);
        self.expect(op, "", fits, || (shape_text(left), shape_text(right)))?;
        let dtype = self.dtype(a)?.join(self.dtype(b)?);
        Ok(self.push(op, "", NodeKind::Binary { a, b, f }, left, dtype))
    }

    /// Elementwise activation function.
    ///
    /// # Errors
    /// [`GraphError::Foreign`].
    pub fn activation(&mut self, x: NodeId, activation: Activation) -> Result<NodeId, GraphError> {
        self.unary("activation", x, UnaryFn::Activation(activation))
    }

    /// `x · factor`, elementwise.
    ///
    /// # Errors
    /// [`GraphError::Foreign`].
    pub fn scale(&mut self, x: NodeId, factor: f32) -> Result<NodeId, GraphError> {
        self.unary("scale", x, UnaryFn::Scale(factor))
    }

    /// `cap · tanh(x / cap)`, elementwise.
    ///
    /// # Errors
    /// [`GraphError::Foreign`].
    pub fn soft_cap(&mut self, x: NodeId, cap: f32) -> Result<NodeId, GraphError> {
        self.unary("soft_cap", x, UnaryFn::SoftCap(cap))
    }

    /// `x` rounded to `precision`.
    ///
    /// # Errors
    /// [`GraphError::Foreign`].
    pub fn cast(&mut self, x: NodeId, precision: Precision) -> Result<NodeId, GraphError> {
        let node = self.unary("cast", x, UnaryFn::Cast(precision))?;
        self.nodes[node.index()].dtype = Dtype::Exact(precision);
        Ok(node)
    }

    fn unary(&mut self, op: &str, x: NodeId, f: UnaryFn) -> Result<NodeId, GraphError> {
        let (shape, dtype) = (self.shape(x)?, self.dtype(x)?);
        Ok(self.push(op, "", NodeKind::Unary { x, f }, shape, dtype))
    }

    /// Softmax of each row.
    ///
    /// # Errors
    /// [`GraphError::Foreign`].
    pub fn softmax(&mut self, x: NodeId) -> Result<NodeId, GraphError> {
        let (shape, dtype) = (self.shape(x)?, self.dtype(x)?);
        Ok(self.push("softmax", "", NodeKind::Softmax { x }, shape, dtype))
    }

    /// Samples a token per row of logits, `[rows, 1]`: see [`crate::ir::Op::Sample`].
    ///
    /// # Errors
    /// [`GraphError::Shape`] for more than 2²⁴ columns, the limit of exact integers in f32.
    pub fn sample(&mut self, x: NodeId) -> Result<NodeId, GraphError> {
        const COLS_MAX: usize = 1 << 24;
        let (rows, cols) = self.shape(x)?;
        if cols > COLS_MAX {
            let expected = format!("at most {COLS_MAX} columns");
            return Err(self.shape_error("sample", "", expected, shape_text((rows, cols))));
        }
        Ok(self.push("sample", "", NodeKind::Sample { x }, (rows, 1), Dtype::Exact(Precision::F32)))
    }

    /// Transposes a matrix with a fixed number of rows.
    ///
    /// # Errors
    /// [`GraphError::Shape`] unless the rows are fixed.
    pub fn transpose(&mut self, x: NodeId) -> Result<NodeId, GraphError> {
        let ((rows, cols), dtype) = (self.shape(x)?, self.dtype(x)?);
        let Rows::Fixed(fixed) = rows else {
            return Err(self.shape_error("transpose", "", "fixed rows".into(), shape_text((rows, cols))));
        };
        Ok(self.push("transpose", "", NodeKind::Transpose { x }, (Rows::Fixed(cols), fixed), dtype))
    }

    /// Mean over the rows of each output's sequence in this step, `[outputs, cols]`, or over fixed rows,
    /// `[1, cols]`: see [`MeanRows`].
    ///
    /// # Errors
    /// [`GraphError::Shape`] if the rows are outputs.
    pub fn mean_rows(&mut self, x: NodeId) -> Result<NodeId, GraphError> {
        let (rows, cols) = self.shape(x)?;
        let Some(pooled) = MeanRows::pooled(rows) else {
            return Err(self.shape_error(
                "mean_rows",
                "",
                "rows of sequences".into(),
                shape_text((rows, cols)),
            ));
        };
        Ok(self.push("mean_rows", "", NodeKind::MeanRows { x }, (pooled, cols), Dtype::Activation))
    }

    /// Shape of a node.
    ///
    /// # Errors
    /// [`GraphError::Foreign`].
    pub fn shape(&self, x: NodeId) -> Result<(Rows, usize), GraphError> {
        self.node(x).map(|node| (node.rows, node.cols))
    }

    /// The node of the output `output`, if declared.
    pub fn named(&self, output: &str) -> Option<NodeId> {
        self.names.outputs.get(output).map(|&index| self.outputs[index].1)
    }

    /// Storage type of a node.
    ///
    /// # Errors
    /// [`GraphError::Foreign`].
    pub fn dtype(&self, x: NodeId) -> Result<Dtype, GraphError> {
        self.node(x).map(|node| node.dtype)
    }

    /// Declared weight matrices, indexed by [`MatrixId`].
    pub fn matrices(&self) -> &[MatrixSpec] {
        &self.matrices
    }

    /// Declared weight vectors, indexed by [`VectorId`].
    pub fn vectors(&self) -> &[VectorSpec] {
        &self.vectors
    }

    pub(super) fn push(
        &mut self,
        op: &str,
        weight: &str,
        kind: NodeKind,
        (rows, cols): (Rows, usize),
        dtype: Dtype,
    ) -> NodeId {
        let label = label(op, weight, self.nodes.len());
        self.nodes.push(Node { kind, rows, cols, dtype, label });
        NodeId(self.nodes.len() as u32 - 1)
    }

    pub(super) fn node(&self, x: NodeId) -> Result<&Node, GraphError> {
        self.nodes.get(x.index()).ok_or_else(|| foreign("node", x.index(), self.nodes.len()))
    }

    pub(super) fn matrix_spec(&self, m: MatrixId) -> Result<&MatrixSpec, GraphError> {
        let index = m.0 as usize;
        self.matrices.get(index).ok_or_else(|| foreign("matrix", index, self.matrices.len()))
    }

    pub(super) fn vector_spec(&self, v: VectorId) -> Result<&VectorSpec, GraphError> {
        let index = v.0 as usize;
        self.vectors.get(index).ok_or_else(|| foreign("vector", index, self.vectors.len()))
    }

    pub(super) fn state_spec(&self, s: StateId) -> Result<&StateSpec, GraphError> {
        let index = s.0 as usize;
        self.states.get(index).ok_or_else(|| foreign("state", index, self.states.len()))
    }

    pub(super) fn expect(
        &self,
        op: &str,
        weight: &str,
        fits: bool,
        texts: impl FnOnce() -> (String, String),
    ) -> Result<(), GraphError> {
        if fits {
            return Ok(());
        }
        let (expected, found) = texts();
        Err(self.shape_error(op, weight, expected, found))
    }

    pub(super) fn expect_tokens(&self, op: &str, rows: Rows) -> Result<(), GraphError> {
        self.expect(op, "", rows == Rows::Tokens, || ("one row a token".into(), format!("{rows:?}")))
    }

    pub(super) fn expect_heads(
        &self,
        op: &str,
        weight: &str,
        cols: usize,
        head_dim: usize,
    ) -> Result<(), GraphError> {
        let fits = head_dim > 0 && cols.is_multiple_of(head_dim);
        self.expect(op, weight, fits, || (format!("heads of {head_dim}"), format!("{cols} columns")))
    }

    pub(super) fn shape_error(&self, op: &str, weight: &str, expected: String, found: String) -> GraphError {
        GraphError::Shape { node: label(op, weight, self.nodes.len()), expected, found }
    }
}

fn label(op: &str, weight: &str, index: usize) -> String {
    match weight {
        "" => format!("{op} (node {index})"),
        weight => format!("{op} {weight} (node {index})"),
    }
}

pub(super) fn shape_text((rows, cols): (Rows, usize)) -> String {
    match rows {
        Rows::Tokens => format!("[tokens, {cols}]"),
        Rows::Outputs => format!("[outputs, {cols}]"),
        Rows::Fixed(rows) => format!("[{rows}, {cols}]"),
        Rows::Axis(axis) => format!("[axis {}, {cols}]", axis.id),
    }
}

pub(super) fn duplicate(what: &'static str, name: &str, first: String, second: String) -> GraphError {
    GraphError::Duplicate { what, name: name.into(), first, second }
}

fn foreign(what: &'static str, index: usize, count: usize) -> GraphError {
    GraphError::Foreign { what, index, count }
}
