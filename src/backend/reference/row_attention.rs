//! Attention over rows of the arena, without pages.

use super::Reference;
use super::memory::Sharing;
use crate::backend::{BackendError, Frame};
use crate::ir::{Operation, RowAttention};

/// See [`RowAttention`].
pub(super) fn row_attention(op: &RowAttention, frame: &mut Frame<'_, Reference>) -> Result<(), BackendError> {
    const OP: &str = RowAttention::NAME;
    op.check()?;
    for place in [&op.q, &op.k, &op.v] {
        frame.arena.check_sharing(OP, [&op.dst, place], Sharing::Apart, frame.step)?;
    }
    let step = frame.step;
    let rows = |place: &crate::ir::Place| frame.arena.get(OP, place, place.rows.count(step));
    let (q, k, v) = (rows(&op.q)?, rows(&op.k)?, rows(&op.v)?);
    let (heads, dim) = (op.heads, op.heads.dim);
    let mut out = vec![0.0; q.len()];
    for (queries, keys) in op.q.rows.groups(step).zip(op.k.rows.groups(step)) {
        for (place, row) in queries.enumerate() {
            let seen: Vec<usize> =
                keys.clone().filter(|key| op.mask.allows(place, key - keys.start)).collect();
            for head in 0..heads.query {
                let at = |row: usize, heads: usize, head: usize| {
                    (row * heads + head) * dim..(row * heads + head + 1) * dim
                };
                let own = at(row, heads.query, head);
                let kv = |key: usize| at(key, heads.kv, head / (heads.query / heads.kv));
                let dot =
                    |key: usize| q[own.clone()].iter().zip(&k[kv(key)]).map(|(q, k)| q * k).sum::<f64>();
                let scores: Vec<f64> = seen.iter().map(|&key| dot(key) * f64::from(op.scale)).collect();
                let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let sum: f64 = scores.iter().map(|score| (score - max).exp()).sum();
                for (&key, score) in seen.iter().zip(&scores) {
                    let weight = (score - max).exp() / sum;
                    out[own.clone()].iter_mut().zip(&v[kv(key)]).for_each(|(out, v)| *out += weight * v);
                }
            }
        }
    }
    frame.arena.put(OP, &op.dst, &out)
}
