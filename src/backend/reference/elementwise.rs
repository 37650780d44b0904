//! Norms of rows, elementwise functions, softmax, transpose.

use half::{bf16, f16};

use super::memory::Sharing;
use super::products::activate;
use super::{Reference, apply_norm, norm_rows, shape_error};
use crate::backend::{BackendError, Frame};
use crate::ir::{BinaryFn, HeadNorm, MeanRows, Norm, Operation as _, Place, Precision, UnaryFn, WriteMode};

/// The values of `src`. `dst` must have its shape, and may be the same value.
fn source(
    op: &'static str,
    [dst, src]: [&Place; 2],
    frame: &Frame<'_, Reference>,
) -> Result<Vec<f64>, BackendError> {
    let rows = src.rows.count(frame.step);
    if (dst.rows.count(frame.step), dst.cols) != (rows, src.cols) {
        return Err(shape_error(op, format!("dst [{rows}, {}]", src.cols), format!("{dst:?}")));
    }
    frame.arena.check_sharing(op, [dst, src], Sharing::InPlace, frame.step)?;
    frame.arena.get(op, src, rows)
}

/// `dst (+)= norm(src)`
pub(super) fn norm(
    [dst, src]: [&Place; 2],
    norm: &Norm,
    write: WriteMode,
    frame: &mut Frame<'_, Reference>,
) -> Result<(), BackendError> {
    const OP: &str = "norm";
    let mut values = source(OP, [dst, src], frame)?;
    norm_rows(OP, frame.weights, norm, src.cols, &mut values)?;
    if write == WriteMode::Add {
        frame.arena.check_sharing(OP, [dst, src], Sharing::Apart, frame.step)?;
        let before = source(OP, [src, dst], frame)?;
        values.iter_mut().zip(before).for_each(|(value, before)| *value += before);
    }
    frame.arena.put(OP, dst, &values)
}

/// See [`HeadNorm`].
pub(super) fn head_norm(op: &HeadNorm, frame: &mut Frame<'_, Reference>) -> Result<(), BackendError> {
    op.check()?;
    let mut values = frame.arena.get(HeadNorm::NAME, &op.x, op.x.rows.count(frame.step))?;
    apply_norm(HeadNorm::NAME, frame.weights, &op.norm, op.head_dim, &mut values)?;
    frame.arena.put(HeadNorm::NAME, &op.x, &values)
}

/// `dst = f(src)`
pub(super) fn unary(
    places: [&Place; 2],
    f: UnaryFn,
    frame: &mut Frame<'_, Reference>,
) -> Result<(), BackendError> {
    const OP: &str = "unary";
    let mut values = source(OP, places, frame)?;
    for x in &mut values {
        *x = match f {
            UnaryFn::Activation(activation) => activate(activation, *x),
            UnaryFn::Scale(factor) => *x * f64::from(factor),
            UnaryFn::SoftCap(cap) => f64::from(cap) * (*x / f64::from(cap)).tanh(),
            UnaryFn::Cast(Precision::F32) => f64::from(*x as f32),
            UnaryFn::Cast(Precision::F16) => f16::from_f64(*x).to_f64(),
            UnaryFn::Cast(Precision::Bf16) => bf16::from_f64(*x).to_f64(),
        };
    }
    frame.arena.put(OP, places[0], &values)
}

/// `dst = f(a, b)`; a single row of `b` is broadcast over all rows.
pub(super) fn binary(
    [dst, a, b]: [&Place; 3],
    f: BinaryFn,
    frame: &mut Frame<'_, Reference>,
) -> Result<(), BackendError> {
    const OP: &str = "binary";
    let mut values = source(OP, [dst, a], frame)?;
    let rows = b.rows.count(frame.step);
    if b.cols != a.cols || (rows != 1 && rows != a.rows.count(frame.step)) {
        return Err(shape_error(OP, format!("b as {a:?} or one row"), format!("{b:?}")));
    }
    let sharing = if rows == a.rows.count(frame.step) { Sharing::InPlace } else { Sharing::Apart };
    frame.arena.check_sharing(OP, [dst, b], sharing, frame.step)?;
    let other = frame.arena.get(OP, b, rows)?;
    for (x, y) in values.iter_mut().zip(other.iter().cycle()) {
        *x = match f {
            BinaryFn::Add => *x + y,
            BinaryFn::Sub => *x - y,
            BinaryFn::Mul => *x * y,
        };
    }
    frame.arena.put(OP, dst, &values)
}

/// `dst = softmax(src)` over each row.
pub(super) fn softmax(places: [&Place; 2], frame: &mut Frame<'_, Reference>) -> Result<(), BackendError> {
    const OP: &str = "softmax";
    let mut values = source(OP, places, frame)?;
    for row in values.chunks_mut(places[0].cols.max(1)) {
        let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = row.iter().map(|x| (x - max).exp()).sum();
        row.iter_mut().for_each(|x| *x = (*x - max).exp() / sum);
    }
    frame.arena.put(OP, places[0], &values)
}

/// See [`MeanRows`].
pub(super) fn mean_rows(op: &MeanRows, frame: &mut Frame<'_, Reference>) -> Result<(), BackendError> {
    const OP: &str = MeanRows::NAME;
    op.check()?;
    frame.arena.check_sharing(OP, [&op.dst, &op.src], Sharing::Apart, frame.step)?;
    let (cols, values) = (op.src.cols, frame.arena.get(OP, &op.src, op.src.rows.count(frame.step))?);
    let mut out = vec![0.0; op.dst.rows.count(frame.step) * cols];
    for (out, rows) in out.chunks_mut(cols.max(1)).zip(op.groups(frame.step)) {
        for row in rows.clone() {
            let row = &values[row * cols..(row + 1) * cols];
            out.iter_mut().zip(row).for_each(|(out, x)| *out += x / rows.len() as f64);
        }
    }
    frame.arena.put(OP, &op.dst, &out)
}

/// `dst[c][r] = src[r][c]`
pub(super) fn transpose(
    [dst, src]: [&Place; 2],
    frame: &mut Frame<'_, Reference>,
) -> Result<(), BackendError> {
    const OP: &str = "transpose";
    let rows = src.rows.count(frame.step);
    if (dst.rows.count(frame.step), dst.cols) != (src.cols, rows) {
        return Err(shape_error(OP, format!("dst [{}, {rows}]", src.cols), format!("{dst:?}")));
    }
    frame.arena.check_sharing(OP, [dst, src], Sharing::Apart, frame.step)?;
    let values = frame.arena.get(OP, src, rows)?;
    let columns = (0..src.cols).flat_map(|c| values.iter().skip(c).step_by(src.cols));
    frame.arena.put(OP, dst, &columns.copied().collect::<Vec<_>>())
}
