//! Graph builder: per-sequence states and the recurrent operations that use them.

use crate::ir::{DeltaHeads, Rows, State, VectorId};

use super::build::{duplicate, shape_text};
use super::node::NodeKind;
use super::{DeltaOperands, Dtype, Graph, GraphError, NodeId, StateId, StateSpec};

impl Graph {
    /// Declares a per-sequence state of `[rows, cols]` in f32, for exactly one operation.
    ///
    /// # Errors
    /// [`GraphError::Duplicate`] if the name is taken, [`GraphError::TooLarge`].
    pub fn state(&mut self, name: &str, rows: usize, cols: usize) -> Result<StateId, GraphError> {
        if let Some(spec) = self.states.iter().find(|spec| spec.name == name) {
            return Err(duplicate("state", name, spec.state.to_string(), format!("[{rows}, {cols}]")));
        }
        let offset = self.states.last().map_or(0, |spec| spec.state.range().end);
        let end = rows.checked_mul(cols).and_then(|elements| elements.checked_add(offset));
        // The reference backend stores states in f64.
        if end.is_none_or(|end| end > isize::MAX as usize / size_of::<f64>()) {
            return Err(GraphError::TooLarge { node: name.into(), rows, cols });
        }
        self.states.push(StateSpec { name: name.into(), state: State { offset, rows, cols } });
        Ok(StateId(self.states.len() as u32 - 1))
    }

    /// Causal convolution of each column over the rows of its sequence, with `weight` of `[cols, width]`: see
    /// [`crate::ir::ShortConv`]. The state is `[width − 1, cols]`.
    ///
    /// # Errors
    /// [`GraphError::Shape`] unless rows are tokens, and state and weight match the columns;
    /// [`GraphError::Foreign`].
    pub fn short_conv(&mut self, x: NodeId, weight: VectorId, state: StateId) -> Result<NodeId, GraphError> {
        let (rows, cols) = self.shape(x)?;
        let (spec, len) = (self.state_spec(state)?.clone(), self.vector_spec(weight)?.len);
        self.expect_tokens("short_conv", rows)?;
        let State { rows: past, cols: wide, .. } = spec.state;
        self.expect("short_conv", &spec.name, past > 0 && wide == cols && cols > 0, || {
            (format!("a state of rows of {cols}"), spec.state.to_string())
        })?;
        let width = past + 1;
        self.expect("short_conv", &spec.name, Some(len) == cols.checked_mul(width), || {
            (format!("a weight of {cols} by {width}"), format!("{len}"))
        })?;
        let kind = NodeKind::ShortConv { x, weight, state };
        Ok(self.push("short_conv", &spec.name, kind, (rows, cols), Dtype::Activation))
    }

    /// Gated delta rule over the rows of a sequence: see [`crate::ir::GatedDelta`]. `scale` multiplies the
    /// results.
    ///
    /// # Errors
    /// [`GraphError::Shape`] unless the operands are `[tokens, cols]` of the heads and the state matches,
    /// [`GraphError::Foreign`].
    pub fn gated_delta(
        &mut self,
        operands: DeltaOperands,
        heads: DeltaHeads,
        scale: f32,
        state: StateId,
    ) -> Result<NodeId, GraphError> {
        let DeltaHeads { key, value, key_dim, value_dim } = heads;
        let spec = self.state_spec(state)?.clone();
        let grouped = ![key, value, key_dim, value_dim].contains(&0) && value.is_multiple_of(key);
        self.expect("gated_delta", &spec.name, grouped, || {
            ("value heads in equal groups over key heads".into(), format!("{heads:?}"))
        })?;
        let (rows, cols) = heads.state();
        self.expect("gated_delta", &spec.name, (spec.state.rows, spec.state.cols) == (rows, cols), || {
            (format!("a state of [{rows}, {cols}]"), spec.state.to_string())
        })?;
        let DeltaOperands { q, k, v, decay, beta } = operands;
        let (keys, values) = (key.saturating_mul(key_dim), value.saturating_mul(value_dim));
        for (name, x, cols) in
            [("q", q, keys), ("k", k, keys), ("v", v, values), ("decay", decay, value), ("beta", beta, value)]
        {
            let found = self.shape(x)?;
            self.expect("gated_delta", name, found == (Rows::Tokens, cols), || {
                (format!("{name} of [tokens, {cols}]"), shape_text(found))
            })?;
        }
        let kind = NodeKind::GatedDelta { operands, heads, scale, state };
        Ok(self.push("gated_delta", &spec.name, kind, (Rows::Tokens, values), Dtype::Activation))
    }
}
