//! Mixture of experts: routing, expert products, and their weighted sums.

use super::memory::Sharing;
use super::products::{matrix, multiply};
use super::{Reference, shape_error};
use crate::backend::{BackendError, Frame};
use crate::ir::{Combine, ExpertMatmul, Operation, Route, WriteMode};

/// See [`Route`].
pub(super) fn route(op: &Route, frame: &mut Frame<'_, Reference>) -> Result<(), BackendError> {
    op.check()?;
    frame.arena.check_sharing(Route::NAME, [&op.dst, &op.src], Sharing::Apart, frame.step)?;
    let logits = frame.arena.get(Route::NAME, &op.src, op.src.rows.count(frame.step))?;
    let mut out = Vec::new();
    for row in logits.chunks_exact(op.src.cols) {
        let mut order: Vec<usize> = (0..row.len()).collect();
        order.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
        let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let chosen = &order[..op.top_k];
        let among: &[usize] = if op.renormalise { chosen } else { &order };
        let sum: f64 = among.iter().map(|&expert| (row[expert] - max).exp()).sum();
        out.extend(chosen.iter().map(|&expert| expert as f64));
        out.extend(chosen.iter().map(|&expert| (row[expert] - max).exp() / sum));
    }
    frame.arena.put(Route::NAME, &op.dst, &out)
}

/// See [`ExpertMatmul`].
pub(super) fn expert_matmul(op: &ExpertMatmul, frame: &mut Frame<'_, Reference>) -> Result<(), BackendError> {
    const OP: &str = ExpertMatmul::NAME;
    op.check()?;
    for place in [&op.src, &op.routes] {
        frame.arena.check_sharing(OP, [&op.dst, place], Sharing::Apart, frame.step)?;
    }
    let (rows, top_k) = (op.dst.rows.count(frame.step), op.top_k());
    let x = frame.arena.get(OP, &op.src, rows)?;
    let routes = frame.arena.get(OP, &op.routes, rows)?;
    let mut out = Vec::new();
    for (x, routes) in x.chunks_exact(op.src.cols).zip(routes.chunks_exact(op.routes.cols)) {
        for (slot, &expert) in routes[..top_k].iter().enumerate() {
            let id = op.experts.get(expert as usize);
            let id = id.ok_or_else(|| {
                shape_error(OP, format!("experts below {}", op.experts.count), expert.to_string())
            })?;
            let found = frame.weights.matrices.get(id.0 as usize).map_or(0, |matrix| matrix.cols);
            let part = if x.len() == found {
                x
            } else {
                x.chunks_exact(x.len() / top_k).nth(slot).unwrap_or_default()
            };
            out.extend(multiply(part, matrix(OP, frame.weights, id, part.len())?));
        }
    }
    frame.arena.put(OP, &op.dst, &out)
}

/// See [`Combine`].
pub(super) fn combine(op: &Combine, frame: &mut Frame<'_, Reference>) -> Result<(), BackendError> {
    const OP: &str = Combine::NAME;
    op.check()?;
    for place in [&op.src, &op.routes] {
        frame.arena.check_sharing(OP, [&op.dst, place], Sharing::Apart, frame.step)?;
    }
    let rows = op.dst.rows.count(frame.step);
    let (parts, routes) = (frame.arena.get(OP, &op.src, rows)?, frame.arena.get(OP, &op.routes, rows)?);
    let mut out = match op.write {
        WriteMode::Store => vec![0.0; rows * op.dst.cols],
        WriteMode::Add => frame.arena.get(OP, &op.dst, rows)?,
    };
    let sums = out.chunks_exact_mut(op.dst.cols.max(1));
    for ((out, parts), routes) in
        sums.zip(parts.chunks_exact(op.src.cols)).zip(routes.chunks_exact(op.routes.cols))
    {
        let (_, weights) = routes.split_at(routes.len() / 2);
        for (part, weight) in parts.chunks_exact(op.dst.cols).zip(weights) {
            out.iter_mut().zip(part).for_each(|(out, x)| *out += weight * x);
        }
    }
    frame.arena.put(OP, &op.dst, &out)
}
