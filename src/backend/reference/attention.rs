//! Rotary embedding, writing to pages, and attention over explicit lists of visible keys.

use super::memory::{Sharing, Slot};
use super::{Reference, apply_norm, shape_error};
use crate::backend::{BackendError, Frame};
use crate::ir::{
    Attention, KvAppend, Operation, PAGE_TOKENS, PageRef, Place, RmsNorm, Rope, RopeAngles, RopePairing,
    StepInput, StepSequence,
};

/// `[cos | sin]` of each position's angles.
pub(super) fn angles(op: &RopeAngles, frame: &mut Frame<'_, Reference>) -> Result<(), BackendError> {
    let mut out = Vec::new();
    for &position in &frame.step.positions {
        let turned = |f: fn(f64) -> f64| {
            op.inv_freq.iter().map(move |freq| f(f64::from(position) * freq) * f64::from(op.magnitude))
        };
        out.extend(turned(f64::cos));
        out.extend(turned(f64::sin));
    }
    if op.dst.cols != 2 * op.inv_freq.len() {
        let expected = format!("{} columns", 2 * op.inv_freq.len());
        return Err(shape_error("rope_angles", expected, format!("{:?}", op.dst)));
    }
    frame.arena.put("rope_angles", &op.dst, &out)
}

/// Rotates each head of each row of `x`, one row per token.
fn rotate(
    op: &'static str,
    x: &mut [f64],
    cols: usize,
    head_dim: usize,
    rope: &Rope,
    frame: &Frame<'_, Reference>,
) -> Result<(), BackendError> {
    let dims = rope.angles.cols;
    if head_dim == 0
        || !cols.is_multiple_of(head_dim)
        || dims > head_dim
        || dims == 0
        || !dims.is_multiple_of(2)
    {
        let expected = format!("heads of {head_dim} and an even number of angles within them");
        return Err(shape_error(op, expected, format!("{cols} columns, {dims} angles")));
    }
    let angles = frame.arena.get(op, &rope.angles, frame.step.tokens.len())?;
    for (row, angles) in x.chunks_mut(cols).zip(angles.chunks_exact(dims)) {
        let (cos, sin) = angles.split_at(dims / 2);
        for head in row.chunks_mut(head_dim) {
            for i in 0..dims / 2 {
                let (first, second) = match rope.pairing {
                    RopePairing::Interleaved => (2 * i, 2 * i + 1),
                    RopePairing::Halves => (i, i + dims / 2),
                };
                let (x, y) = (head[first], head[second]);
                head[first] = x * cos[i] - y * sin[i];
                head[second] = y * cos[i] + x * sin[i];
            }
        }
    }
    Ok(())
}

/// Rotates heads in place.
pub(super) fn rope(
    x: &Place,
    head_dim: usize,
    rope: &Rope,
    frame: &mut Frame<'_, Reference>,
) -> Result<(), BackendError> {
    frame.arena.check_sharing("rope", [x, &rope.angles], Sharing::Apart, frame.step)?;
    let mut values = frame.arena.get("rope", x, frame.step.tokens.len())?;
    rotate("rope", &mut values, x.cols, head_dim, rope, frame)?;
    frame.arena.put("rope", x, &values)
}

/// See [`KvAppend`].
pub(super) fn append(op: &KvAppend, frame: &mut Frame<'_, Reference>) -> Result<(), BackendError> {
    const OP: &str = "kv_append";
    frame.kv.check(OP, op.layer, op.heads)?;
    let prepared = |place: &Place, norm: &Option<RmsNorm>, heads: usize| -> Result<_, BackendError> {
        check_cols(OP, place, heads * op.heads.dim)?;
        let mut values = frame.arena.get(OP, place, frame.step.tokens.len())?;
        if let Some(norm) = norm {
            apply_norm(OP, frame.weights, norm, op.heads.dim, &mut values)?;
        }
        if let Some(rope) = &op.rope {
            rotate(OP, &mut values, place.cols, op.heads.dim, rope, frame)?;
        }
        Ok(values)
    };
    let angles = op.rope.iter().flat_map(|rope| [[&op.q, &rope.angles], [&op.k, &rope.angles]]);
    for pair in [[&op.q, &op.k], [&op.q, &op.v], [&op.k, &op.v]].into_iter().chain(angles) {
        frame.arena.check_sharing(OP, pair, Sharing::Apart, frame.step)?;
    }
    let q = prepared(&op.q, &op.q_norm, op.heads.query)?;
    let keys = prepared(&op.k, &op.k_norm, op.heads.kv)?;
    check_cols(OP, &op.v, op.heads.kv * op.heads.dim)?;
    let values = frame.arena.get(OP, &op.v, frame.step.tokens.len())?;
    frame.arena.put(OP, &op.q, &q)?;
    // The contract leaves k undefined.
    frame.arena.put(OP, &op.k, &vec![f64::NAN; keys.len()])?;
    for sequence in &frame.step.sequences {
        for row in sequence.rows.clone() {
            let position = frame.step.positions[row as usize];
            let entry = pages(frame.step, sequence).iter().find(|entry| holds(entry, position));
            let entry = entry
                .ok_or_else(|| shape_error(OP, format!("a page for position {position}"), "none".into()))?;
            let slot = Slot { layer: op.layer, page: entry.page, slot: (position - entry.start) as usize };
            let range = row as usize * op.k.cols..(row as usize + 1) * op.k.cols;
            frame.kv.store(slot, &keys[range.clone()], &values[range]);
        }
    }
    Ok(())
}

fn check_cols(op: &'static str, place: &Place, cols: usize) -> Result<(), BackendError> {
    if place.cols == cols {
        Ok(())
    } else {
        Err(shape_error(op, format!("{cols} columns"), format!("{place:?}")))
    }
}

fn pages<'a>(step: &'a StepInput, sequence: &StepSequence) -> &'a [PageRef] {
    &step.pages[sequence.pages.start as usize..sequence.pages.end as usize]
}

fn holds(entry: &PageRef, position: u32) -> bool {
    (entry.start..entry.start + PAGE_TOKENS as u32).contains(&position)
}

/// Whether a query at `position` sees the key at `key`.
fn sees(op: &Attention, sequence: &StepSequence, position: u32, key: u32) -> bool {
    let within = |window: u32| u64::from(key) + u64::from(window) > u64::from(position);
    let in_layer = op.window.is_none_or(within);
    let in_sequence = sequence.window.is_none_or(|window| key < window.sinks || within(window.window));
    key <= position && in_layer && in_sequence
}

/// See [`Attention`].
pub(super) fn attention(op: &Attention, frame: &mut Frame<'_, Reference>) -> Result<(), BackendError> {
    const OP: &str = "attention";
    frame.kv.check(OP, op.layer, op.heads)?;
    check_cols(OP, &op.q, op.heads.query * op.heads.dim)?;
    check_cols(OP, &op.dst, op.heads.query * op.heads.dim)?;
    frame.arena.check_sharing(OP, [&op.q, &op.dst], Sharing::Apart, frame.step)?;
    op.check()?;
    let q = frame.arena.get(OP, &op.q, frame.step.tokens.len())?;
    let mut out = vec![0.0; q.len()];
    for sequence in &frame.step.sequences {
        for row in sequence.rows.clone() {
            let position = frame.step.positions[row as usize];
            let seen = pages(frame.step, sequence).iter().flat_map(|entry| {
                (0..PAGE_TOKENS as u32).map(move |slot| (entry.page, slot, entry.start + slot))
            });
            let seen = seen.filter(|&(_, _, key)| sees(op, sequence, position, key));
            let seen = seen.map(|(page, slot, _)| Slot { layer: op.layer, page, slot: slot as usize });
            let seen: Vec<Slot> = seen.collect();
            for head in 0..op.heads.query {
                let start = (row as usize * op.heads.query + head) * op.heads.dim;
                let range = start..start + op.heads.dim;
                attend(op, head, &q[range.clone()], &seen, frame, &mut out[range]);
            }
        }
    }
    frame.arena.put(OP, &op.dst, &out)
}

/// One query head over the slots visible to it.
fn attend(
    op: &Attention,
    head: usize,
    q: &[f64],
    seen: &[Slot],
    frame: &Frame<'_, Reference>,
    out: &mut [f64],
) {
    let kv_head = head / (op.heads.query / op.heads.kv);
    let score = |slot: &Slot| {
        let (key, _) = frame.kv.load(*slot, kv_head);
        let dot: f64 = q.iter().zip(key).map(|(q, k)| q * k).sum();
        let scaled = dot * f64::from(op.scale);
        op.soft_cap.map_or(scaled, |cap| f64::from(cap) * (scaled / f64::from(cap)).tanh())
    };
    let scores: Vec<f64> = seen.iter().map(score).collect();
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = scores.iter().map(|score| (score - max).exp()).sum();
    for (slot, score) in seen.iter().zip(scores) {
        let (_, value) = frame.kv.load(*slot, kv_head);
        let weight = (score - max).exp() / sum;
        out.iter_mut().zip(value).for_each(|(out, value)| *out += weight * value);
    }
}
