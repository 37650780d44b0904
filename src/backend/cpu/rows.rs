//! Operations that move whole rows: embedding, gathering the output rows, and copies in and out.

use super::arena::Arena;
use super::{Cpu, shape_error};
use crate::backend::{BackendError, Frame, MatrixId, Place};

/// See [`crate::backend::Op::Embed`].
pub(super) fn embed(
    dst: &Place,
    table: MatrixId,
    scale: f32,
    frame: &mut Frame<'_, Cpu>,
) -> Result<(), BackendError> {
    const OP: &str = "embed";
    let tokens = &frame.step.tokens;
    let count = frame.weights.matrices.len();
    let table = frame.weights.matrices.get(table.0 as usize);
    let table = table.ok_or_else(|| shape_error(OP, format!("a matrix id below {count}"), "none".into()))?;
    if table.cols() != dst.cols {
        return Err(shape_error(OP, format!("rows of {}", table.cols()), format!("{}", dst.cols)));
    }
    if let Some(token) = tokens.iter().find(|token| token.index() >= table.rows()) {
        return Err(shape_error(OP, format!("tokens below {}", table.rows()), format!("{token}")));
    }
    let [out] = frame.arena.slices(OP, [(dst, tokens.len())])?;
    for (token, row) in tokens.iter().zip(out.chunks_exact_mut(dst.cols.max(1))) {
        table.row(token.index(), scale, row);
    }
    Ok(())
}

/// See [`crate::backend::Op::GatherOutputs`].
pub(super) fn gather_outputs(
    dst: &Place,
    src: &Place,
    frame: &mut Frame<'_, Cpu>,
) -> Result<(), BackendError> {
    const OP: &str = "gather_outputs";
    let (tokens, outputs) = (frame.step.tokens.len(), &frame.step.outputs);
    if dst.cols != src.cols || outputs.iter().any(|&row| row as usize >= tokens) {
        let expected = format!("rows below {tokens} of {} columns", src.cols);
        return Err(shape_error(OP, expected, format!("{dst:?}")));
    }
    let [out, from] = frame.arena.slices(OP, [(dst, outputs.len()), (src, tokens)])?;
    for (&row, out) in outputs.iter().zip(out.chunks_exact_mut(dst.cols.max(1))) {
        out.copy_from_slice(&from[row as usize * src.cols..][..src.cols]);
    }
    Ok(())
}

/// See [`crate::backend::Backend::write`].
pub(super) fn write(arena: &mut Arena, place: &Place, values: &[f32]) -> Result<(), BackendError> {
    let rows = place.whole_rows("write", values.len())?;
    let [out] = arena.slices("write", [(place, rows)])?;
    out.copy_from_slice(values);
    Ok(())
}

/// See [`crate::backend::Backend::read`].
pub(super) fn read(
    arena: &Arena,
    place: &Place,
    first_row: usize,
    out: &mut [f32],
) -> Result<(), BackendError> {
    let rows = place.whole_rows("read", out.len())?;
    out.copy_from_slice(arena.slice("read", place, first_row, rows)?);
    Ok(())
}
