//! Row attention, without KV pages: self-attention of encoders, and cross-attention.

use std::fmt;

use crate::ir::listing::Listed;
use crate::ir::{Access, Counting, Heads, InvalidOp, Names, OpKind, Operation, Place, Rows, Work};

/// Attention mask, by positions within the sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttentionMask {
    /// Full: all keys of the sequence.
    Full,
    /// Causal: keys up to the query's position.
    Causal,
    /// Symmetric window: keys at a distance below this number, in both directions.
    Window(u32),
}

impl AttentionMask {
    /// Whether the query at position `query` sees the key at position `key`.
    pub fn allows(self, query: usize, key: usize) -> bool {
        match self {
            AttentionMask::Full => true,
            AttentionMask::Causal => key <= query,
            AttentionMask::Window(window) => query.abs_diff(key) < window as usize,
        }
    }
}

/// Attention of each row of `q` over the rows of `k` and `v` of its sequence: `softmax(q · k · scale) · v`.
/// The result of a query without visible keys is 0.
///
/// Queries and keys may be on the token axis or on any other axis of the step. Fixed rows count as one
/// sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct RowAttention {
    /// `[rows of q, heads.query · heads.dim]`
    pub dst: Place,
    /// `[rows, heads.query · heads.dim]`
    pub q: Place,
    /// `[keys, heads.kv · heads.dim]`
    pub k: Place,
    /// `[keys, heads.kv · heads.dim]`
    pub v: Place,
    /// Head counts and head size.
    pub heads: Heads,
    /// Scale of the q·k products, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// Attention mask.
    pub mask: AttentionMask,
}

impl Operation for RowAttention {
    const NAME: &'static str = "row_attention";
    const KIND: OpKind = OpKind::Attention;

    fn visit(&mut self, visit: &mut dyn FnMut(Access, &mut Place)) {
        visit(Access::Read, &mut self.q);
        visit(Access::Read, &mut self.k);
        visit(Access::Read, &mut self.v);
        visit(Access::Write, &mut self.dst);
    }

    fn check(&self) -> Result<(), InvalidOp> {
        let Heads { query, kv, dim } = self.heads;
        if kv == 0 || dim == 0 || query == 0 || !query.is_multiple_of(kv) {
            return Self::invalid("query heads in equal groups over kv heads", format!("{:?}", self.heads));
        }
        for (place, rows, heads) in [
            (self.q, self.q.rows, query),
            (self.dst, self.q.rows, query),
            (self.k, self.k.rows, kv),
            (self.v, self.k.rows, kv),
        ] {
            if (place.rows, place.cols) != (rows, heads * dim) {
                return Self::invalid(
                    format!("{rows:?} of {heads} heads of {dim}"),
                    Listed(place).to_string(),
                );
            }
        }
        if self.mask != AttentionMask::Full && self.q.rows != self.k.rows {
            return Self::invalid(
                "queries and keys of the same rows, which have an order",
                format!("{:?}", self.k.rows),
            );
        }
        Ok(())
    }

    fn mixes(&self) -> Option<Rows> {
        Some(self.k.rows)
    }

    /// Two products per key, row and query head. Values in the arena are not counted.
    fn work(&self, counting: &Counting<'_>) -> Work {
        let groups = self.q.rows.groups(counting.step).zip(self.k.rows.groups(counting.step));
        let seen = |(queries, keys): (std::ops::Range<usize>, std::ops::Range<usize>)| -> usize {
            let of_query = |query| (0..keys.len()).filter(|&key| self.mask.allows(query, key)).count();
            (0..queries.len()).map(of_query).sum()
        };
        let products = 2 * groups.map(seen).sum::<usize>() as u64;
        Work { float_macs: products * (self.heads.query * self.heads.dim) as u64, ..Work::default() }
    }

    fn write(&self, f: &mut fmt::Formatter<'_>, _: &dyn Names) -> fmt::Result {
        let Heads { query, kv, dim } = self.heads;
        let [dst, q, k, v] = [self.dst, self.q, self.k, self.v].map(Listed);
        writeln!(
            f,
            "{dst} = attention({q}, {k}, {v}) {:?}, {query}/{kv} heads of {dim} · {}",
            self.mask, self.scale
        )
    }
}
