//! Attention over pages of keys and values, and what prepares it.

use std::fmt;

use crate::ir::listing::Listed;
use crate::ir::{
    Counting, Heads, Misfit, Names, OpKind, Operation, Place, RmsNorm, Role, Rope, StepSequence, Work,
};

/// Prepares an attention: q and k get their per-head norm and their rotation, q in place, and k
/// and v are written to the pages of `layer` at the tokens' positions.
///
/// Where the [`Attention`] of `q` follows at once, nothing else may read `q`: a backend may do both in
/// one, and leave it as it was. It does where `dst` lies apart from all that the append reads.
#[derive(Clone, Debug, PartialEq)]
pub struct KvAppend {
    /// `[tokens, heads.query · heads.dim]`, changed in place.
    pub q: Place,
    /// `[tokens, heads.kv · heads.dim]`; undefined afterwards.
    pub k: Place,
    /// `[tokens, heads.kv · heads.dim]`; unchanged.
    pub v: Place,
    /// Index of the layer in the KV pool.
    pub layer: usize,
    /// The heads' shape.
    pub heads: Heads,
    /// Norm of each query head.
    pub q_norm: Option<RmsNorm>,
    /// Norm of each key head.
    pub k_norm: Option<RmsNorm>,
    /// Rotation, after the norms.
    pub rope: Option<Rope>,
}

impl KvAppend {
    /// Whether it prepares this attention.
    pub fn prepares(&self, attention: &Attention) -> bool {
        (self.q, self.layer, self.heads) == (attention.q, attention.layer, attention.heads)
    }
}

impl Operation for KvAppend {
    const NAME: &'static str = "kv_append";
    const KIND: OpKind = OpKind::Norms;

    fn visit(&mut self, visit: &mut dyn FnMut(Role, &mut Place)) {
        visit(Role::Read, &mut self.v);
        if let Some(rope) = &mut self.rope {
            visit(Role::Read, &mut rope.angles);
        }
        visit(Role::Consume, &mut self.k);
        visit(Role::Update, &mut self.q);
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
    /// The heads' shape.
    pub heads: Heads,
    /// Multiplies the products, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// The layer's window: a query at `p` sees positions above `p − window` (on top of
    /// [`crate::ir::StepSequence::window`]).
    pub window: Option<u32>,
    /// `cap · tanh(x / cap)` of the scaled products.
    pub soft_cap: Option<f32>,
}

impl Operation for Attention {
    const NAME: &'static str = "attention";
    const KIND: OpKind = OpKind::Attention;

    fn visit(&mut self, visit: &mut dyn FnMut(Role, &mut Place)) {
        visit(Role::Read, &mut self.q);
        visit(Role::Write, &mut self.dst);
    }

    /// A soft cap divides.
    fn check(&self) -> Result<(), Misfit> {
        match self.soft_cap {
            Some(cap) if !(cap > 0.0 && cap.is_finite()) => {
                Self::misfit("a positive soft cap", cap.to_string())
            }
            _ => Ok(()),
        }
    }

    /// Two products a key, row and query head; a key and its value come from memory once a sequence.
    fn work(&self, counting: &Counting<'_>) -> Work {
        let kv_bytes = self.heads.kv_bytes(counting.kv) as u64;
        let of_sequence = |sequence: &StepSequence| {
            let rows = sequence.rows.start as usize..sequence.rows.end as usize;
            let positions = &counting.step.positions[rows];
            let seen = |&position: &u32| keys_seen(position, self.window, sequence);
            // A window moves by a key from row to row: together rows see what the first one does, and
            // their own.
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

/// Keys that the row at `position` sees: within the windows of its layer and its sequence, or of the
/// sequence's sinks those within the layer's window.
fn keys_seen(position: u32, layer_window: Option<u32>, sequence: &StepSequence) -> u64 {
    let end = position + 1;
    let oldest = |window: Option<u32>| window.map_or(0, |window| end.saturating_sub(window));
    let of_layer = oldest(layer_window);
    let first = of_layer.max(oldest(sequence.window.map(|window| window.window)));
    let sinks = sequence.window.map_or(0, |window| window.sinks);
    u64::from(end - first) + u64::from(sinks.min(first).saturating_sub(of_layer))
}
