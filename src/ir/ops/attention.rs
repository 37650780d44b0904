//! Paged attention: the KV append and the attention itself.

use std::fmt;

use crate::ir::listing::Listed;
use crate::ir::{
    Access, Counting, Heads, InvalidOp, Names, OpKind, Operation, Place, RmsNorm, Rope, StepSequence, Work,
};

/// Prepares an attention: applies per-head norms and the rotation to q (in place) and k, and writes k and v
/// to the pages of `layer` at the tokens' positions.
///
/// If the [`Attention`] of `q` follows immediately, `q` must have no other reader: a backend may fuse the two
/// and leave `q` unchanged. It does so only if the attention's `dst` is disjoint from all sources of the
/// append.
#[derive(Clone, Debug, PartialEq)]
pub struct KvAppend {
    /// `[tokens, heads.query · heads.dim]`, updated in place.
    pub q: Place,
    /// `[tokens, heads.kv · heads.dim]`; undefined afterwards.
    pub k: Place,
    /// `[tokens, heads.kv · heads.dim]`; unchanged.
    pub v: Place,
    /// Index of the layer in the KV pool.
    pub layer: usize,
    /// Head counts and head size.
    pub heads: Heads,
    /// Per-head norm of the queries.
    pub q_norm: Option<RmsNorm>,
    /// Per-head norm of the keys.
    pub k_norm: Option<RmsNorm>,
    /// Rotary embedding, applied after the norms.
    pub rope: Option<Rope>,
}

impl KvAppend {
    /// Whether this is the append of `attention`.
    pub fn prepares(&self, attention: &Attention) -> bool {
        (self.q, self.layer, self.heads) == (attention.q, attention.layer, attention.heads)
    }
}

impl Operation for KvAppend {
    const NAME: &'static str = "kv_append";
    const KIND: OpKind = OpKind::Norms;

    fn visit(&mut self, visit: &mut dyn FnMut(Access, &mut Place)) {
        visit(Access::Read, &mut self.v);
        if let Some(rope) = &mut self.rope {
            visit(Access::Read, &mut rope.angles);
        }
        visit(Access::Consume, &mut self.k);
        visit(Access::Update, &mut self.q);
    }

    fn work(&self, counting: &Counting<'_>) -> Work {
        Work::of_bytes(self.k.rows.count(counting.step) * self.heads.kv_bytes(counting.kv))
    }

    fn write(&self, f: &mut fmt::Formatter<'_>, names: &dyn Names) -> fmt::Result {
        let KvAppend { q, k, v, layer, q_norm, k_norm, rope, .. } = self;
        write!(f, "layer {layer}: q {}, k {}, v {}", Listed(*q), Listed(*k), Listed(*v))?;
        for norm in [q_norm, k_norm].into_iter().flatten() {
            write!(f, ", norm {}", names.vector(norm.weight))?;
        }
        rope.map_or(Ok(()), |rope| write!(f, ", rope {:?} by @{}", rope.pairing, rope.angles.offset))?;
        writeln!(f)
    }
}

/// Causal attention of each token over its sequence's pages:
/// `softmax(soft_cap(q · k · scale)) · v`.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    /// `[tokens, heads.query · heads.dim]`
    pub dst: Place,
    /// `[tokens, heads.query · heads.dim]`, prepared by [`KvAppend`].
    pub q: Place,
    /// Index of the layer in the KV pool.
    pub layer: usize,
    /// Head counts and head size.
    pub heads: Heads,
    /// Scale of the q·k products, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// Sliding window of the layer: a query at `p` sees positions above `p − window`. Combined with
    /// [`crate::ir::StepSequence::window`].
    pub window: Option<u32>,
    /// Soft cap of the scaled products: `cap · tanh(x / cap)`.
    pub soft_cap: Option<f32>,
}

impl Operation for Attention {
    const NAME: &'static str = "attention";
    const KIND: OpKind = OpKind::Attention;

    fn visit(&mut self, visit: &mut dyn FnMut(Access, &mut Place)) {
        visit(Access::Read, &mut self.q);
        visit(Access::Write, &mut self.dst);
    }

    /// A soft cap is a divisor, so it must be positive.
    fn check(&self) -> Result<(), InvalidOp> {
        match self.soft_cap {
            Some(cap) if !(cap > 0.0 && cap.is_finite()) => {
                Self::invalid("a positive soft cap", cap.to_string())
            }
            _ => Ok(()),
        }
    }

    /// Two products per key, row and query head. Each key and value is read from memory once per sequence.
    fn work(&self, counting: &Counting<'_>) -> Work {
        let kv_bytes = self.heads.kv_bytes(counting.kv) as u64;
        let of_sequence = |sequence: &StepSequence| {
            let rows = sequence.rows.start as usize..sequence.rows.end as usize;
            let positions = &counting.step.positions[rows];
            let seen = |&position: &u32| keys_seen(position, self.window, sequence);
            // The window advances by one key per row: the rows of a sequence together see the keys of the
            // first row and one more per further row.
            let distinct = positions.first().map_or(0, seen) + positions.len().saturating_sub(1) as u64;
            let products = 2 * positions.iter().map(seen).sum::<u64>();
            let width = (self.heads.query * self.heads.dim) as u64;
            Work { bytes: distinct * kv_bytes, int8_macs: 0, float_macs: products * width }
        };
        counting.step.sequences.iter().map(of_sequence).sum()
    }

    fn write(&self, f: &mut fmt::Formatter<'_>, _: &dyn Names) -> fmt::Result {
        let heads = self.heads;
        write!(f, "{} = attention({}) layer {}", Listed(self.dst), Listed(self.q), self.layer)?;
        write!(f, ", {}/{} heads of {} · {}", heads.query, heads.kv, heads.dim, self.scale)?;
        self.window.map_or(Ok(()), |window| write!(f, ", window {window}"))?;
        self.soft_cap.map_or(Ok(()), |cap| write!(f, ", cap {cap}"))?;
        writeln!(f)
    }
}

/// Number of keys that the row at `position` sees: keys in the windows of both layer and sequence, and sinks
/// of the sequence in the layer's window.
fn keys_seen(position: u32, layer_window: Option<u32>, sequence: &StepSequence) -> u64 {
    let end = position + 1;
    let oldest = |window: Option<u32>| window.map_or(0, |window| end.saturating_sub(window));
    let of_layer = oldest(layer_window);
    let first = of_layer.max(oldest(sequence.window.map(|window| window.window)));
    let sinks = sequence.window.map_or(0, |window| window.sinks);
    u64::from(end - first) + u64::from(sinks.min(first).saturating_sub(of_layer))
}
