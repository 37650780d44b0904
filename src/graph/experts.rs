//! Graph builder: matrices stored in one tensor, and mixtures of experts (MoE).

use crate::ir::{MatrixId, MatrixStack, Precision};

use super::build::{duplicate, shape_text};
use super::node::NodeKind;
use super::{Dtype, Graph, GraphError, MatrixSpec, NodeId};

impl Graph {
    /// Declares `count` weight matrices of equal shape, stored consecutively in the tensor `name`.
    ///
    /// # Errors
    /// [`GraphError::Duplicate`] if the name is taken, [`GraphError::TooLarge`] if the total number of rows
    /// overflows.
    pub fn matrix_stack(
        &mut self,
        name: &str,
        count: usize,
        rows: usize,
        cols: usize,
    ) -> Result<MatrixStack, GraphError> {
        if count.checked_mul(rows).is_none() || u32::try_from(count).is_err() {
            return Err(GraphError::TooLarge { node: name.into(), rows: count.saturating_mul(rows), cols });
        }
        let first = MatrixId(self.matrices.len() as u32);
        self.declare_parts(name, std::iter::repeat_n(rows, count), cols)?;
        Ok(MatrixStack { first, count })
    }

    /// Declares weight matrices with the given numbers of rows, stored consecutively in the tensor `name`.
    ///
    /// # Errors
    /// [`GraphError::Duplicate`] if the name is taken.
    pub fn matrix_parts(
        &mut self,
        name: &str,
        rows: &[usize],
        cols: usize,
    ) -> Result<Vec<MatrixId>, GraphError> {
        let first = self.matrices.len() as u32;
        self.declare_parts(name, rows.iter().copied(), cols)?;
        Ok((first..self.matrices.len() as u32).map(MatrixId).collect())
    }

    fn declare_parts(
        &mut self,
        name: &str,
        rows: impl Iterator<Item = usize> + Clone,
        cols: usize,
    ) -> Result<(), GraphError> {
        if self.names.matrices.contains_key(name) {
            let parts = format!("{} of {cols} columns", rows.count());
            return Err(duplicate("matrix", name, "a matrix".into(), parts));
        }
        self.names.matrices.insert(name.into(), self.matrices.len());
        let mut first_row = 0;
        self.matrices.extend(rows.map(|rows| {
            let spec = MatrixSpec { name: name.into(), first_row, rows, cols };
            first_row = usize::saturating_add(first_row, rows);
            spec
        }));
        Ok(())
    }

    /// MoE router: the `top_k` experts of each row of logits and their weights, `[rows, 2 · top_k]`. See
    /// [`crate::ir::Route`].
    ///
    /// # Errors
    /// [`GraphError::Shape`] unless `1 <= top_k <= cols`, [`GraphError::Foreign`].
    pub fn route(&mut self, x: NodeId, top_k: usize, renormalise: bool) -> Result<NodeId, GraphError> {
        let (rows, cols) = self.shape(x)?;
        self.expect("route", "", (1..=cols).contains(&top_k), || {
            (format!("1 to {cols} experts a row"), format!("{top_k}"))
        })?;
        let kind = NodeKind::Route { x, top_k, renormalise };
        Ok(self.push("route", "", kind, (rows, 2 * top_k), Dtype::Exact(Precision::F32)))
    }

    /// Product of each row of `x` (or of one part of it per expert) with its experts' matrices:
    /// `[rows, top_k · matrix.rows]`.
    ///
    /// # Errors
    /// [`GraphError::Shape`] unless rows and columns match, [`GraphError::Foreign`].
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

    /// Weighted sum of each row's expert results.
    ///
    /// # Errors
    /// [`GraphError::Shape`] unless `x` has `top_k` parts of equal length, [`GraphError::Foreign`].
    pub fn combine(&mut self, x: NodeId, routes: NodeId) -> Result<NodeId, GraphError> {
        let ((rows, cols), top_k) = (self.shape(x)?, self.top_k(routes)?);
        let fits = cols.is_multiple_of(top_k) && self.shape(routes)?.0 == rows;
        self.expect("combine", "", fits, || (format!("rows of {top_k} parts"), shape_text((rows, cols))))?;
        Ok(self.push("combine", "", NodeKind::Combine { x, routes }, (rows, cols / top_k), Dtype::Activation))
    }

    fn top_k(&self, routes: NodeId) -> Result<usize, GraphError> {
        match self.node(routes)?.kind {
            NodeKind::Route { top_k, .. } => Ok(top_k),
            _ => Err(self.shape_error("experts", "", "routes".into(), self.node(routes)?.label.clone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matrices_of_one_tensor_follow_each_other_and_have_its_name_alone() -> Result<(), GraphError> {
        let mut graph = Graph::new();
        let [q, k, v] = graph.matrix_parts("qkv", &[8, 4, 4], 16)?[..] else { panic!("three parts") };
        let stack = graph.matrix_stack("experts", 3, 5, 16)?;
        let rows = |id| graph.matrix_spec(id).map(|spec| (spec.first_row, spec.rows));
        assert_eq!([rows(q)?, rows(k)?, rows(v)?], [(0, 8), (8, 4), (12, 4)]);
        assert_eq!(stack.get(2).map(rows).transpose()?, Some((10, 5)));
        assert_eq!(stack.get(3), None);
        for taken in ["qkv", "experts"] {
            assert!(matches!(graph.matrix_parts(taken, &[1], 1), Err(GraphError::Duplicate { .. })));
            assert!(matches!(graph.matrix_stack(taken, 1, 1, 1), Err(GraphError::Duplicate { .. })));
            assert!(matches!(graph.matrix(taken, 1, 1), Err(GraphError::Duplicate { .. })));
        }
        assert!(matches!(graph.matrix_stack("many", usize::MAX, 2, 1), Err(GraphError::TooLarge { .. })));
        Ok(())
    }
}
