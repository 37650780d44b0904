//! Building a graph, continued: experts, and attention over rows at hand.

use crate::ir::{Axis, MatrixId, MatrixStack, Precision, Rows};

use super::build::{duplicate, shape_text};
use super::node::NodeKind;
use super::{Dtype, Graph, GraphError, MatrixSpec, NodeId, RowAttentionSpec};

impl Graph {
    /// Rows beside tokens and outputs: the axis of this number among a step's
    /// [`axes`](crate::ir::StepInput::axes), with at most `max` rows in a step.
    pub fn axis(&self, id: u32, max: usize) -> Rows {
        Rows::Axis(Axis { id, max })
    }

    /// Declares `count` weight matrices of one shape, whose rows follow each other under one name.
    ///
    /// # Errors
    /// [`GraphError::Duplicate`] if the name is taken, [`GraphError::TooLarge`] for too many rows.
    pub fn matrix_stack(
        &mut self,
        name: &str,
        count: usize,
        rows: usize,
        cols: usize,
    ) -> Result<MatrixStack, GraphError> {
        if self.names.matrices.contains_key(name) {
            return Err(duplicate("matrix", name, "a matrix".into(), format!("{count} of [{rows}, {cols}]")));
        }
        if count.checked_mul(rows).is_none() || u32::try_from(count).is_err() {
            return Err(GraphError::TooLarge { node: name.into(), rows: count.saturating_mul(rows), cols });
        }
        let first = MatrixId(self.matrices.len() as u32);
        self.names.matrices.insert(name.into(), self.matrices.len());
        let spec = |expert| MatrixSpec { name: name.into(), first_row: expert * rows, rows, cols };
        self.matrices.extend((0..count).map(spec));
        Ok(MatrixStack { first, count })
    }

    /// The `top_k` experts of each row of logits, and their weights: `[rows, 2 · top_k]`. See [`crate::ir::Route`].
    ///
    /// # Errors
    /// [`GraphError::Shape`] unless there are as many experts, [`GraphError::Foreign`].
    pub fn route(&mut self, x: NodeId, top_k: usize, renormalise: bool) -> Result<NodeId, GraphError> {
        let (rows, cols) = self.shape(x)?;
        self.expect("route", "", (1..=cols).contains(&top_k), || {
            (format!("1 to {cols} experts a row"), format!("{top_k}"))
        })?;
        let kind = NodeKind::Route { x, top_k, renormalise };
        Ok(self.push("route", "", kind, (rows, 2 * top_k), Dtype::Exact(Precision::F32)))
    }

    /// Each row of `x`, or its part for each expert, times its experts' matrices: `[rows, top_k · matrix.rows]`.
    ///
    /// # Errors
    /// [`GraphError::Shape`] unless rows and columns fit, [`GraphError::Foreign`].
    pub fn expert_matmul(
        &mut self,
        x: NodeId,
        experts: MatrixStack,
        routes: NodeId,
    ) -> Result<NodeId, GraphError> {
        let ((rows, cols), top_k) = (self.shape(x)?, self.top_k(routes)?);
        let spec = self.matrix_spec(experts.first)?.clone();
        self.expect("expert_matmul", &spec.name, self.shape(routes)?.0 == rows, || {
            ("routes of the same rows".into(), format!("{rows:?}"))
        })?;
        let fits = cols == spec.cols || cols == top_k * spec.cols;
        self.expect("expert_matmul", &spec.name, fits, || {
            (format!("{} columns, or {top_k} times as many", spec.cols), shape_text((rows, cols)))
        })?;
        let kind = NodeKind::ExpertMatmul { x, routes, experts };
        Ok(self.push("expert_matmul", &spec.name, kind, (rows, top_k * spec.rows), Dtype::Activation))
    }

    /// The sum of each row's parts, one an expert, by the experts' weights.
    ///
    /// # Errors
    /// [`GraphError::Shape`] unless there is a part for each expert, [`GraphError::Foreign`].
    pub fn combine(&mut self, x: NodeId, routes: NodeId) -> Result<NodeId, GraphError> {
        let ((rows, cols), top_k) = (self.shape(x)?, self.top_k(routes)?);
        let fits = cols.is_multiple_of(top_k) && self.shape(routes)?.0 == rows;
        self.expect("combine", "", fits, || (format!("rows of {top_k} parts"), shape_text((rows, cols))))?;
        Ok(self.push("combine", "", NodeKind::Combine { x, routes }, (rows, cols / top_k), Dtype::Activation))
    }

    fn top_k(&self, routes: NodeId) -> Result<usize, GraphError> {
        match self.node(routes)?.kind {
            NodeKind::Route { top_k, .. } => Ok(top_k),
            _ => Err(self.misfit("experts", "", "routes".into(), self.node(routes)?.label.clone())),
        }
    }

    /// Attention of each row of `q` over the rows of `k` and `v` that its sequence has in this step: see
    /// [`crate::ir::RowAttention`].
    ///
    /// # Errors
    /// [`GraphError::Shape`] unless the operands are rows of the spec's heads.
    pub fn row_attention(
        &mut self,
        q: NodeId,
        k: NodeId,
        v: NodeId,
        spec: RowAttentionSpec,
    ) -> Result<NodeId, GraphError> {
        let heads = spec.heads;
        let grouped =
            heads.kv > 0 && heads.dim > 0 && heads.query > 0 && heads.query.is_multiple_of(heads.kv);
        self.expect("row_attention", "", grouped, || {
            ("query heads in equal groups over kv heads".into(), format!("{heads:?}"))
        })?;
        let (rows, keys) = (self.shape(q)?.0, self.shape(k)?.0);
        for (name, x, rows, count) in
            [("q", q, rows, heads.query), ("k", k, keys, heads.kv), ("v", v, keys, heads.kv)]
        {
            let found = self.shape(x)?;
            self.expect("row_attention", name, found == (rows, count * heads.dim), || {
                (shape_text((rows, count * heads.dim)), shape_text(found))
            })?;
        }
        for rows in [rows, keys] {
            self.expect("row_attention", "", rows != Rows::Outputs, || {
                ("rows that have an order".into(), "outputs".into())
            })?;
        }
        let ordered = spec.sees == crate::ir::Sees::All || rows == keys;
        self.expect("row_attention", "", ordered, || {
            ("keys of the rows that attend".into(), format!("{keys:?}"))
        })?;
        let shape = (rows, heads.query * heads.dim);
        Ok(self.push("row_attention", "", NodeKind::RowAttention { q, k, v, spec }, shape, Dtype::Activation))
    }
}
