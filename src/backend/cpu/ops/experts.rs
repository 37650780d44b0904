//! [`Route`] and [`Combine`]; the products between them are in `matmul::experts`.

use crate::backend::cpu::Cpu;
use crate::backend::{BackendError, Frame};
use crate::ir::{Combine, Operation, Route, WriteMode};

/// See [`Route`].
pub(crate) fn route(op: &Route, frame: &mut Frame<'_, Cpu>) -> Result<(), BackendError> {
    op.check()?;
    let rows = op.src.rows.count(frame.step);
    let [out, logits] = frame.arena.slices(Route::NAME, [(&op.dst, rows), (&op.src, rows)])?;
    for (out, logits) in out.chunks_exact_mut(2 * op.top_k).zip(logits.chunks_exact(op.src.cols)) {
        let (experts, weights) = out.split_at_mut(op.top_k);
        for slot in 0..op.top_k {
            experts[slot] = largest_other(logits, &experts[..slot]) as f32;
        }
        let max = logits[experts[0] as usize];
        let part = |&x: &f32| (x - max).exp();
        let sum: f32 = if op.renormalise {
            experts.iter().map(|&expert| part(&logits[expert as usize])).sum()
        } else {
            logits.iter().map(part).sum()
        };
        // A NaN makes all weights of the row NaN.
        let sum = if logits.iter().any(|x| x.is_nan()) { f32::NAN } else { sum };
        for (weight, &expert) in weights.iter_mut().zip(&*experts) {
            *weight = part(&logits[expert as usize]) / sum;
        }
    }
    Ok(())
}

/// The index of the largest logit not in `taken`; the lowest index among equal ones.
fn largest_other(logits: &[f32], taken: &[f32]) -> usize {
    let free = |expert: &usize| !taken.contains(&(*expert as f32));
    let mut best = None;
    for expert in (0..logits.len()).filter(free) {
        if best.is_none_or(|best: usize| logits[expert] > logits[best]) {
            best = Some(expert);
        }
    }
    best.unwrap_or(0)
}

/// See [`Combine`].
pub(crate) fn combine(op: &Combine, frame: &mut Frame<'_, Cpu>) -> Result<(), BackendError> {
    op.check()?;
    let rows = op.dst.rows.count(frame.step);
    let places = [(&op.dst, rows), (&op.src, rows), (&op.routes, rows)];
    let [out, parts, routes] = frame.arena.slices(Combine::NAME, places)?;
    if op.write == WriteMode::Store {
        out.fill(0.0);
    }
    let rows = out.chunks_exact_mut(op.dst.cols.max(1)).zip(parts.chunks_exact(op.src.cols.max(1)));
    for ((out, parts), routes) in rows.zip(routes.chunks_exact(op.routes.cols)) {
        let (_, weights) = routes.split_at(routes.len() / 2);
        for (part, &weight) in parts.chunks_exact(op.dst.cols.max(1)).zip(weights) {
            out.iter_mut().zip(part).for_each(|(out, &x)| *out += weight * x);
        }
    }
    Ok(())
}
