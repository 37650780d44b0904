//! Operations that carry a state from token to token: of fixed size for each sequence, however long it is.
//!
//! A sequence's rows are taken one after the other, so a row has the same bits wherever a prompt is cut.

use std::fmt;

use crate::ir::listing::Listed;
use crate::ir::{Counting, Misfit, Names, OpKind, Operation, Place, Role, Rows, State, VectorId, Work};

/// A causal convolution of each column over its sequence's rows:
/// `dst[t][c] = Σ_j weight[c][j] · src[t − width + 1 + j][c]`, for `j` below `width`. Rows before the step's
/// are the state: the last `width − 1` of them, the oldest first.
#[derive(Clone, Debug, PartialEq)]
pub struct ShortConv {
    /// `[tokens, cols]`; apart from `src`.
    pub dst: Place,
    /// `[tokens, cols]`
    pub src: Place,
    /// `[cols, width]`
    pub weight: VectorId,
    /// `[width − 1, cols]`
    pub state: State,
}

impl ShortConv {
    /// Rows that each result sees.
    pub fn width(&self) -> usize {
        self.state.rows.saturating_add(1)
    }
}

impl Operation for ShortConv {
    const NAME: &'static str = "short_conv";
    const KIND: OpKind = OpKind::Rest;

    fn visit(&mut self, visit: &mut dyn FnMut(Role, &mut Place)) {
        visit(Role::Read, &mut self.src);
        visit(Role::Write, &mut self.dst);
    }

    fn check(&self) -> Result<(), Misfit> {
        if self.state.rows == 0 || self.state.cols == 0 {
            return Self::misfit("a state of at least one element", self.state.to_string());
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

/// The heads of a gated delta rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeltaHeads {
    /// Heads of queries and keys.
    pub key: usize,
    /// Heads of values, a multiple of `key`; value head `h` goes with key head `h / (value / key)`.
    pub value: usize,
    /// Elements of a query or a key.
    pub key_dim: usize,
    /// Elements of a value.
    pub value_dim: usize,
}

impl DeltaHeads {
    /// Rows and columns of the state: `[key_dim, value_dim]` for each value head.
    pub fn state(&self) -> (usize, usize) {
        (self.value.saturating_mul(self.key_dim), self.value_dim)
    }
}

/// The gated delta rule (Yang et al. 2024, "Gated Delta Networks"), row after row, for each value head with
/// its state `S`:
///
/// ```text
/// S ← e^decay · S
/// S ← S + k ⊗ beta · (v − Sᵀk)
/// dst = scale · Sᵀq
/// ```
///
/// `dst` lies apart from all that is read.
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
    /// `[tokens, heads.value]`
    pub decay: Place,
    /// `[tokens, heads.value]`
    pub beta: Place,
    /// The heads' shape.
    pub heads: DeltaHeads,
    /// Multiplies the results, usually `1 / sqrt(key_dim)`.
    pub scale: f32,
    /// As [`DeltaHeads::state`] says.
    pub state: State,
}

impl Operation for GatedDelta {
    const NAME: &'static str = "gated_delta";
    const KIND: OpKind = OpKind::Attention;

    fn visit(&mut self, visit: &mut dyn FnMut(Role, &mut Place)) {
        for place in [&mut self.q, &mut self.k, &mut self.v, &mut self.decay, &mut self.beta] {
            visit(Role::Read, place);
        }
        visit(Role::Write, &mut self.dst);
    }

    fn check(&self) -> Result<(), Misfit> {
        let DeltaHeads { key, value, key_dim, value_dim } = self.heads;
        if [key, value, key_dim, value_dim].contains(&0) || !value.is_multiple_of(key) {
            return Self::misfit("value heads in equal groups over key heads", format!("{:?}", self.heads));
        }
        if (self.state.rows, self.state.cols) != self.heads.state() {
            return Self::misfit(format!("a state of {:?}", self.heads.state()), self.state.to_string());
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

    /// The state is decayed, read twice and written once.
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

/// A state is read and written once a sequence.
fn work(counting: &Counting<'_>, state: &State, macs: usize) -> Work {
    let bytes = 2 * counting.step.sequences.len() * state.elements() * size_of::<f32>();
    Work { bytes: bytes as u64, int8_macs: 0, float_macs: macs as u64 }
}

/// Places of one row a token, with so many columns.
fn tokens_of<O: Operation>(places: &[(Place, usize)]) -> Result<(), Misfit> {
    match places.iter().find(|(place, cols)| (place.rows, place.cols) != (Rows::Tokens, *cols)) {
        Some((place, cols)) => O::misfit(format!("[tokens, {cols}]"), Listed(*place).to_string()),
        None => Ok(()),
    }
}
