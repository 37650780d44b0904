//! Recurrent operations, with a state of fixed size per sequence that is carried from token to token.
//!
//! The rows of a sequence are processed one by one, so results do not depend on how a prompt is split into
//! steps.

use std::fmt;

use crate::ir::listing::Listed;
use crate::ir::{Access, Counting, InvalidOp, Names, OpKind, Operation, Place, Rows, State, VectorId, Work};

/// Causal convolution of each column over the rows of its sequence:
/// `dst[t][c] = Σ_j weight[c][j] · src[t − width + 1 + j][c]`, for `j` below `width`. Rows before the step's
/// come from the state: the last `width − 1` rows, oldest first.
#[derive(Clone, Debug, PartialEq)]
pub struct ShortConv {
    /// `[tokens, cols]`; disjoint from `src`.
    pub dst: Place,
    /// `[tokens, cols]`
    pub src: Place,
    /// `[cols, width]`
    pub weight: VectorId,
    /// `[width − 1, cols]`
    pub state: State,
}

impl ShortConv {
    /// Number of rows that a result depends on.
    pub fn width(&self) -> usize {
        self.state.rows.saturating_add(1)
    }
}

impl Operation for ShortConv {
    const NAME: &'static str = "short_conv";
    const KIND: OpKind = OpKind::Rest;

    fn visit(&mut self, visit: &mut dyn FnMut(Access, &mut Place)) {
        visit(Access::Read, &mut self.src);
        visit(Access::Write, &mut self.dst);
    }

    fn check(&self) -> Result<(), InvalidOp> {
        if self.state.rows == 0 || self.state.cols == 0 {
            return Self::invalid("a state of at least one element", self.state.to_string());
        }
        tokens_of::<Self>(&[(self.dst, self.state.cols), (self.src, self.state.cols)])
    }

    fn work(&self, counting: &Counting<'_>) -> Work {
        let macs = counting.step.tokens.len() * self.width() * self.state.cols;
        work(counting, &self.state, macs)
    }

    fn write(&self, f: &mut fmt::Formatter<'_>, names: &dyn Names) -> fmt::Result {
        let (dst, src, weight) = (Listed(self.dst), Listed(self.src), names.vector(self.weight));
        writeln!(f, "{dst} = conv({src}, {weight}) of {}, {}", self.width(), self.state)
    }
}

/// Head counts and sizes of a gated delta rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeltaHeads {
    /// Query and key heads.
    pub key: usize,
    /// Value heads, a multiple of `key`; value head `h` uses key head `h / (value / key)`.
    pub value: usize,
    /// Elements per query or key head.
    pub key_dim: usize,
    /// Elements per value head.
    pub value_dim: usize,
}

impl DeltaHeads {
    /// Shape of the state: `[key_dim, value_dim]` per value head, stacked.
    pub fn state(&self) -> (usize, usize) {
        (self.value.saturating_mul(self.key_dim), self.value_dim)
    }
}

/// Gated delta rule (Yang et al. 2024, "Gated Delta Networks"), applied row by row, for each value head with
/// its state `S`:
///
/// ```text
/// S ← e^decay · S
/// S ← S + k ⊗ beta · (v − Sᵀk)
/// dst = scale · Sᵀq
/// ```
///
/// `dst` is disjoint from all operands.
#[derive(Clone, Debug, PartialEq)]
pub struct GatedDelta {
    /// `[tokens, heads.value · heads.value_dim]`
    pub dst: Place,
    /// `[tokens, heads.key · heads.key_dim]`
    pub q: Place,
    /// `[tokens, heads.key · heads.key_dim]`
    pub k: Place,
    /// `[tokens, heads.value · heads.value_dim]`
    pub v: Place,
    /// Logarithm of the decay factor, `[tokens, heads.value]`.
    pub decay: Place,
    /// Step size, `[tokens, heads.value]`.
    pub beta: Place,
    /// Head counts and sizes.
    pub heads: DeltaHeads,
    /// Scale of the results, usually `1 / sqrt(key_dim)`.
    pub scale: f32,
    /// Shape given by [`DeltaHeads::state`].
    pub state: State,
}

impl Operation for GatedDelta {
    const NAME: &'static str = "gated_delta";
    const KIND: OpKind = OpKind::Attention;

    fn visit(&mut self, visit: &mut dyn FnMut(Access, &mut Place)) {
        for place in [&mut self.q, &mut self.k, &mut self.v, &mut self.decay, &mut self.beta] {
            visit(Access::Read, place);
        }
        visit(Access::Write, &mut self.dst);
    }

    fn check(&self) -> Result<(), InvalidOp> {
        let DeltaHeads { key, value, key_dim, value_dim } = self.heads;
        if [key, value, key_dim, value_dim].contains(&0) || !value.is_multiple_of(key) {
            return Self::invalid("value heads in equal groups over key heads", format!("{:?}", self.heads));
        }
        if (self.state.rows, self.state.cols) != self.heads.state() {
            return Self::invalid(format!("a state of {:?}", self.heads.state()), self.state.to_string());
        }
        let (keys, values) = (key.saturating_mul(key_dim), value.saturating_mul(value_dim));
        tokens_of::<Self>(&[
            (self.dst, values),
            (self.q, keys),
            (self.k, keys),
            (self.v, values),
            (self.decay, value),
            (self.beta, value),
        ])
    }

    /// Per element, the state is decayed, read twice and written once.
    fn work(&self, counting: &Counting<'_>) -> Work {
        work(counting, &self.state, counting.step.tokens.len() * 4 * self.state.elements())
    }

    fn write(&self, f: &mut fmt::Formatter<'_>, _: &dyn Names) -> fmt::Result {
        let DeltaHeads { key, value, key_dim, value_dim } = self.heads;
        let [dst, q, k, v, decay, beta] =
            [self.dst, self.q, self.k, self.v, self.decay, self.beta].map(Listed);
        write!(f, "{dst} = delta({q}, {k}, {v}, {decay}, {beta}), {value}/{key} heads of ")?;
        writeln!(f, "{key_dim} by {value_dim} · {}, {}", self.scale, self.state)
    }
}

/// Each state is read and written once per sequence.
fn work(counting: &Counting<'_>, state: &State, macs: usize) -> Work {
    let bytes = 2 * counting.step.sequences.len() * state.elements() * size_of::<f32>();
    Work { bytes: bytes as u64, int8_macs: 0, float_macs: macs as u64 }
}

/// Checks that places have one row per token and the given columns.
fn tokens_of<O: Operation>(places: &[(Place, usize)]) -> Result<(), InvalidOp> {
    match places.iter().find(|(place, cols)| (place.rows, place.cols) != (Rows::Tokens, *cols)) {
        Some((place, cols)) => O::invalid(format!("[tokens, {cols}]"), Listed(*place).to_string()),
        None => Ok(()),
    }
}
