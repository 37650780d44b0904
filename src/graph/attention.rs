//! Graph builder: rotary embeddings, head norms and attention.

use crate::ir::{Axis, RmsNorm, Rows, VectorId};

use super::build::shape_text;
use super::node::NodeKind;
use super::{AttentionSpec, Dtype, Graph, GraphError, NodeId, RopeSpec, RowAttentionSpec, VectorSpec};

impl Graph {
    /// [`Graph::rms_norm`] over each head of a row. A result that is q or k of [`Graph::attention`], directly
    /// or through [`Graph::rope`], must have no other use.
    ///
    /// # Errors
    /// [`GraphError::Shape`] unless the heads fill a row and `w` has `head_dim` elements;
    /// [`GraphError::Foreign`].
    pub fn head_norm(
        &mut self,
        x: NodeId,
        head_dim: usize,
        w: VectorId,
        eps: f32,
    ) -> Result<NodeId, GraphError> {
        let shape = self.shape(x)?;
        let VectorSpec { name, len } = self.vector_spec(w)?.clone();
        self.expect_heads("head_norm", &name, shape.1, head_dim)?;
        self.expect("head_norm", &name, len == head_dim, || {
            (format!("a gain of {head_dim}"), format!("{len}"))
        })?;
        let kind = NodeKind::HeadNorm { x, head_dim, norm: RmsNorm { weight: w, eps } };
        let dtype = self.dtype(x)?;
        Ok(self.push("head_norm", &name, kind, shape, dtype))
    }

    /// Rotates each head of `x`, `[tokens, heads · head_dim]`, by the token's position.
    ///
    /// # Errors
    /// [`GraphError::Shape`] unless rows are tokens, the heads fill a row, and the spec fits a head.
    pub fn rope(&mut self, x: NodeId, head_dim: usize, spec: &RopeSpec) -> Result<NodeId, GraphError> {
        let shape = self.shape(x)?;
        self.expect_tokens("rope", shape.0)?;
        self.expect_heads("rope", "", shape.1, head_dim)?;
        let fits = spec.dims <= head_dim && spec.dims == 2 * spec.inv_freq.len() && spec.dims > 0;
        self.expect("rope", "", fits, || {
            let found = format!("{} dimensions with {} frequencies", spec.dims, spec.inv_freq.len());
            (format!("at most {head_dim} dimensions, two a frequency"), found)
        })?;
        let dtype = self.dtype(x)?;
        Ok(self.push("rope", "", NodeKind::Rope { x, head_dim, spec: spec.clone() }, shape, dtype))
    }

    /// Appends `k` and `v` to the layer's KV pages, then computes attention of `q` over all cached positions.
    ///
    /// # Errors
    /// [`GraphError::Shape`] unless `q`, `k` and `v` are `[tokens, heads · dim]` with the spec's heads.
    pub fn attention(
        &mut self,
        q: NodeId,
        k: NodeId,
        v: NodeId,
        spec: AttentionSpec,
    ) -> Result<NodeId, GraphError> {
        let heads = spec.heads;
        let grouped =
            heads.kv > 0 && heads.dim > 0 && heads.query.is_multiple_of(heads.kv) && heads.query > 0;
        self.expect("attention", "", grouped, || {
            ("query heads in equal groups over kv heads".into(), format!("{heads:?}"))
        })?;
        for (name, x, count) in [("q", q, heads.query), ("k", k, heads.kv), ("v", v, heads.kv)] {
            let found = self.shape(x)?;
            self.expect("attention", name, found == (Rows::Tokens, count * heads.dim), || {
                (format!("{name} of [tokens, {count} · {}]", heads.dim), shape_text(found))
            })?;
        }
        let shape = (Rows::Tokens, heads.query * heads.dim);
        Ok(self.push("attention", "", NodeKind::Attention { q, k, v, spec }, shape, Dtype::Activation))
    }

    /// An additional row axis next to tokens and outputs: entry `id` of the step's
    /// [`axes`](crate::ir::StepInput::axes), with at most `max` rows per step.
    pub fn axis(&self, id: u32, max: usize) -> Rows {
        Rows::Axis(Axis { id, max })
    }

    /// Attention of each row of `q` over the rows of `k` and `v` of the same sequence in this step: see
    /// [`crate::ir::RowAttention`].
    ///
    /// # Errors
    /// [`GraphError::Shape`] unless the operands have the spec's heads.
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
        let ordered = spec.mask == crate::ir::AttentionMask::Full || rows == keys;
        self.expect("row_attention", "", ordered, || {
            ("keys of the rows that attend".into(), format!("{keys:?}"))
        })?;
        let shape = (rows, heads.query * heads.dim);
        Ok(self.push("row_attention", "", NodeKind::RowAttention { q, k, v, spec }, shape, Dtype::Activation))
    }
}
