//! Sampling by definition: sort, truncate, draw.

use std::cmp::Ordering;

use super::memory::Sharing;
use super::{Reference, shape_error};
use crate::backend::{BackendError, Frame};
use crate::ir::{LogitAdjustment, Place, RowSampling, StepInput};

/// The token of each row of logits, or −1.
pub(super) fn sample([dst, src]: [&Place; 2], frame: &mut Frame<'_, Reference>) -> Result<(), BackendError> {
    const OP: &str = "sample";
    let rows = src.rows.count(frame.step);
    if (dst.rows.count(frame.step), dst.cols) != (rows, 1) {
        return Err(shape_error(OP, format!("dst [{rows}, 1]"), format!("{dst:?}")));
    }
    frame.arena.check_sharing(OP, [dst, src], Sharing::Apart, frame.step)?;
    let values = frame.arena.get(OP, src, rows)?;
    let greedy = RowSampling::default();
    let token = |(row, logits): (usize, &[f64])| {
        let sampling = frame.step.sampling.get(row).unwrap_or(&greedy);
        token(logits.to_vec(), sampling, adjustments(frame.step, sampling))
    };
    let tokens = values.chunks(src.cols.max(1)).enumerate().map(token);
    let tokens: Vec<f64> = tokens.map(|token| token.map_or(-1.0, |token| token as f64)).collect();
    frame.arena.put(OP, dst, &tokens)
}

fn adjustments<'s>(step: &'s StepInput, sampling: &RowSampling) -> &'s [LogitAdjustment] {
    let range = sampling.adjustments.start as usize..sampling.adjustments.end as usize;
    step.adjustments.get(range).unwrap_or(&[])
}

fn token(mut logits: Vec<f64>, sampling: &RowSampling, adjustments: &[LogitAdjustment]) -> Option<usize> {
    for adjustment in adjustments {
        if let Some(logit) = logits.get_mut(adjustment.token.index()) {
            *logit = f64::from(adjustment.apply(*logit as f32));
        }
    }
    if logits.iter().any(|x| x.is_nan() || *x == f64::INFINITY) {
        return None;
    }
    let mut kept: Vec<usize> = (0..logits.len()).filter(|&id| logits[id] > f64::NEG_INFINITY).collect();
    // Stable: lower ids stay first among equal logits.
    kept.sort_by(|&a, &b| logits[b].partial_cmp(&logits[a]).unwrap_or(Ordering::Equal));
    let best = *kept.first()?;
    if sampling.temperature == 0.0 {
        return Some(best);
    }
    let weight = |id: usize| ((logits[id] - logits[best]) / f64::from(sampling.temperature)).exp();
    if sampling.top_k > 0 {
        kept.truncate(sampling.top_k as usize);
    }
    if sampling.top_p < 1.0 {
        let goal = f64::from(sampling.top_p) * kept.iter().map(|&id| weight(id)).sum::<f64>();
        let mut sum = 0.0;
        let reached = kept.iter().position(|&id| {
            sum += weight(id);
            sum >= goal
        });
        kept.truncate(reached.map_or(kept.len(), |rank| rank + 1));
    }
    kept.retain(|&id| weight(id) >= f64::from(sampling.min_p));
    kept.sort_unstable();
    let draw = sampling.draw as f64 / 2f64.powi(64);
    let target = draw * kept.iter().map(|&id| weight(id)).sum::<f64>();
    let mut sum = 0.0;
    let passed = kept.iter().find(|&&id| {
        sum += weight(id);
        sum > target
    });
    passed.or(kept.last()).copied()
}
