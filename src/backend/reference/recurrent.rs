//! Recurrent operations: they carry a state from row to row.

use super::memory::Sharing;
use super::{Reference, vector};
use crate::backend::{BackendError, Frame};
use crate::ir::{GatedDelta, Operation, Place, ShortConv};

/// See [`ShortConv`].
pub(super) fn short_conv(op: &ShortConv, frame: &mut Frame<'_, Reference>) -> Result<(), BackendError> {
    const OP: &str = ShortConv::NAME;
    op.check()?;
    frame.arena.check_sharing(OP, [&op.dst, &op.src], Sharing::Apart, frame.step)?;
    frame.kv.states.check(OP, &op.state, frame.step)?;
    let (cols, width) = (op.state.cols, op.width());
    let weight = vector(OP, frame.weights, op.weight, cols * width)?;
    let src = frame.arena.get(OP, &op.src, frame.step.tokens.len())?;
    let mut out = Vec::new();
    for (sequence, &slots) in frame.step.sequences.iter().zip(&frame.step.states) {
        let (old, new) = frame.kv.states.parts(&op.state, slots);
        let mut past = old.map_or_else(|| vec![0.0; new.len()], <[f64]>::to_vec);
        past.extend(&src[sequence.rows.start as usize * cols..sequence.rows.end as usize * cols]);
        for seen in past.windows(width * cols).step_by(cols) {
            let of_col =
                |col| (0..width).map(|j| weight[col * width + j] * seen[j * cols + col]).sum::<f64>();
            out.extend((0..cols).map(of_col));
        }
        new.copy_from_slice(&past[past.len() - new.len()..]);
    }
    frame.arena.put(OP, &op.dst, &out)
}

/// See [`GatedDelta`].
pub(super) fn gated_delta(op: &GatedDelta, frame: &mut Frame<'_, Reference>) -> Result<(), BackendError> {
    const OP: &str = GatedDelta::NAME;
    op.check()?;
    for place in [&op.q, &op.k, &op.v, &op.decay, &op.beta] {
        frame.arena.check_sharing(OP, [&op.dst, place], Sharing::Apart, frame.step)?;
    }
    frame.kv.states.check(OP, &op.state, frame.step)?;
    let rows = |place: &Place| frame.arena.get(OP, place, frame.step.tokens.len());
    let (q, k, v) = (rows(&op.q)?, rows(&op.k)?, rows(&op.v)?);
    let (decay, beta) = (rows(&op.decay)?, rows(&op.beta)?);
    let (heads, key_dim, value_dim) = (op.heads, op.heads.key_dim, op.heads.value_dim);
    let mut out = vec![0.0; v.len()];
    for (sequence, &slots) in frame.step.sequences.iter().zip(&frame.step.states) {
        let (old, new) = frame.kv.states.parts(&op.state, slots);
        match old {
            Some(old) => new.copy_from_slice(old),
            None => new.fill(0.0),
        }
        for row in sequence.rows.start as usize..sequence.rows.end as usize {
            for (head, state) in new.chunks_exact_mut(key_dim * value_dim).enumerate() {
                let gate = row * heads.value + head;
                let key = (row * heads.key + head / (heads.value / heads.key)) * key_dim;
                let (q, k) = (&q[key..key + key_dim], &k[key..key + key_dim]);
                state.iter_mut().for_each(|s| *s *= decay[gate].exp());
                for col in 0..value_dim {
                    let at = |i: usize| i * value_dim + col;
                    let found: f64 = (0..key_dim).map(|i| state[at(i)] * k[i]).sum();
                    let change = beta[gate] * (v[gate * value_dim + col] - found);
                    (0..key_dim).for_each(|i| state[at(i)] += k[i] * change);
                    let value: f64 = (0..key_dim).map(|i| state[at(i)] * q[i]).sum();
                    out[gate * value_dim + col] = f64::from(op.scale) * value;
                }
            }
        }
    }
    frame.arena.put(OP, &op.dst, &out)
}
