//! Operations on single elements, rows and heads: all but products and attention.

use super::attention::{angles, interleaved};
use super::kernels::{Grid, Kernel};
use super::params::{self, activation_code};
use super::sample::check_adjustments;
use super::view::Rows;
use super::weights::{Matrix, matrix, vector};
use super::{Cuda, NO_DIFFERENCE, NO_LAYER_NORM, no_kernel, overlap_error, shape_error};
use crate::backend::{BackendError, Frame};
use crate::ir::{
    BinaryFn, Embed, MatrixId, Norm, Op, Place, Precision, Rope, RopeAngles, SampleRows, UnaryFn, WriteMode,
};

use crate::token::TokenId;

type Result = std::result::Result<(), BackendError>;

/// Threads per block.
const THREADS: u32 = 256;

/// The code of `Unary` in elementwise.cu, and its argument.
fn unary_code(f: UnaryFn) -> std::result::Result<(u32, f32), BackendError> {
    Ok(match f {
        UnaryFn::Activation(activation) => (activation_code(activation)?, 0.0),
        UnaryFn::Scale(factor) => (2, factor),
        UnaryFn::SoftCap(cap) => (3, cap),
        UnaryFn::Cast(Precision::F32) => (4, 0.0),
        UnaryFn::Cast(Precision::F16) => (5, 0.0),
        UnaryFn::Cast(Precision::Bf16) => (6, 0.0),
    })
}

/// The rows of `dst` and of `src`. Both have the same shape, and are the same value or do not overlap.
fn pair(
    op: &'static str,
    [dst, src]: [&Place; 2],
    frame: &Frame<'_, Cuda>,
) -> std::result::Result<(Rows, Rows), BackendError> {
    let (dst, src) = (frame.arena.rows(op, dst, frame.step)?, frame.arena.rows(op, src, frame.step)?);
    if (src.rows, src.cols) != (dst.rows, dst.cols) {
        let expected = format!("[{}, {}]", dst.rows, dst.cols);
        return Err(shape_error(op, expected, format!("[{}, {}]", src.rows, src.cols)));
    }
    if src.address != dst.address && src.overlaps(&dst) {
        return Err(overlap_error(op, [dst, src]));
    }
    Ok((dst, src))
}

fn blocks_of(elements: usize) -> Grid {
    Grid::line(elements.div_ceil(THREADS as usize), THREADS)
}

/// Refuses ids outside the table. The kernel itself checks ids of fed rows.
fn check_tokens(table: &Matrix, tokens: &[TokenId]) -> Result {
    match tokens.iter().find(|token| token.index() >= table.rows()) {
        Some(token) => {
            Err(shape_error("embed", format!("tokens below {}", table.rows()), format!("{token}")))
        }
        None => Ok(()),
    }
}

/// Refuses output rows that do not exist in the step.
fn check_outputs(outputs: &[u32], tokens: usize) -> Result {
    match outputs.iter().find(|&&row| row as usize >= tokens) {
        Some(row) => Err(shape_error("gather_outputs", format!("rows below {tokens}"), format!("{row}"))),
        None => Ok(()),
    }
}

impl Cuda {
    /// Checks of the step's values that an operation needs in addition to shapes.
    pub(super) fn check_indices(&self, op: &Op, frame: &Frame<'_, Cuda>) -> Result {
        match op {
            Op::Embed(Embed { table, .. }) => {
                check_tokens(matrix("embed", frame.weights, *table)?, &frame.step.tokens)
            }
            Op::GatherOutputs(_) => check_outputs(&frame.step.outputs, frame.step.tokens.len()),
            Op::Sample(SampleRows { src, .. }) => check_adjustments(&frame.step.adjustments, src.cols),
            _ => Ok(()),
        }
    }

    pub(super) fn embed(&self, dst: &Place, table: MatrixId, scale: f32, frame: &Frame<'_, Cuda>) -> Result {
        const OP: &str = "embed";
        let table = matrix(OP, frame.weights, table)?;
        let out = frame.arena.rows(OP, dst, frame.step)?;
        let tokens = &frame.step.tokens;
        if table.cols() != out.cols || out.rows != tokens.len() {
            let expected = format!("[{}, {}]", tokens.len(), table.cols());
            return Err(shape_error(OP, expected, format!("[{}, {}]", out.rows, out.cols)));
        }
        check_tokens(table, tokens)?;
        let params = params::Embed {
            step: frame.arena.step.params(),
            table: table.params(),
            dst: out.address,
            sampled: frame.arena.sampled.params(),
            scale,
            unused: 0,
        };
        // SAFETY: shapes, places and ids are checked.
        unsafe { self.kernels.launch(Kernel::Embed, Grid::line(out.rows, THREADS), &params) }
    }

    pub(super) fn norm(
        &self,
        places: [&Place; 2],
        norm: &Norm,
        write: WriteMode,
        frame: &Frame<'_, Cuda>,
    ) -> Result {
        const OP: &str = "norm";
        let (dst, src) = pair(OP, places, frame)?;
        if write == WriteMode::Add && dst.address == src.address {
            return Err(overlap_error(OP, places));
        }
        let norm = norm.as_rms().ok_or_else(|| no_kernel(NO_LAYER_NORM))?;
        let params = params::RmsNorm {
            dst: dst.address,
            src: src.address,
            weight: vector(OP, frame.weights, norm.weight, src.cols)?,
            eps: norm.eps,
            cols: src.cols as u32,
            add: u32::from(write == WriteMode::Add),
            unused: 0,
        };
        // SAFETY: shapes and places are checked.
        unsafe { self.kernels.launch(Kernel::RmsNorm, Grid::line(src.rows, THREADS), &params) }
    }

    pub(super) fn rope_angles(&self, op: &RopeAngles, frame: &Frame<'_, Cuda>) -> Result {
        const OP: &str = "rope_angles";
        let half = op.inv_freq.len();
        let dst = frame.arena.rows(OP, &op.dst, frame.step)?;
        let tokens = frame.step.tokens.len();
        if half == 0 || (dst.rows, dst.cols) != (tokens, 2 * half) {
            let expected = format!("[{tokens}, {}], at least 2 columns", 2 * half);
            return Err(shape_error(OP, expected, format!("[{}, {}]", dst.rows, dst.cols)));
        }
        let params = params::RopeAngles {
            step: frame.arena.step.params(),
            dst: dst.address,
            inv_freq: frame.arena.frequencies(OP, &op.inv_freq)?,
            magnitude: op.magnitude,
            half: half as u32,
        };
        // SAFETY: shapes and places are checked.
        unsafe { self.kernels.launch(Kernel::RopeAngles, Grid::line(dst.rows, 128), &params) }
    }

    pub(super) fn rope(&self, x: &Place, head_dim: usize, rope: &Rope, frame: &Frame<'_, Cuda>) -> Result {
        const OP: &str = "rope";
        let angles = angles(OP, rope, head_dim, frame)?;
        let x = frame.arena.rows(OP, x, frame.step)?;
        if head_dim == 0 || !x.cols.is_multiple_of(head_dim) || x.rows != angles.rows {
            let expected = format!("[{}, heads of {head_dim}]", angles.rows);
            return Err(shape_error(OP, expected, format!("[{}, {}]", x.rows, x.cols)));
        }
        if angles.overlaps(&x) {
            return Err(overlap_error(OP, [angles, x]));
        }
        let params = params::Rope {
            x: x.address,
            angles: angles.address,
            tokens: x.rows as u32,
            cols: x.cols as u32,
            head_dim: head_dim as u32,
            half: (angles.cols / 2) as u32,
            interleaved: interleaved(rope),
            unused: 0,
        };
        let grid = Grid { blocks: [x.rows, x.cols / head_dim, 1], threads: [64, 1], shared_bytes: 0 };
        // SAFETY: shapes and places are checked.
        unsafe { self.kernels.launch(Kernel::Rope, grid, &params) }
    }

    pub(super) fn gather_outputs(&self, dst: &Place, src: &Place, frame: &Frame<'_, Cuda>) -> Result {
        const OP: &str = "gather_outputs";
        let (to, from) = (frame.arena.rows(OP, dst, frame.step)?, frame.arena.rows(OP, src, frame.step)?);
        let (tokens, outputs) = (frame.step.tokens.len(), &frame.step.outputs);
        check_outputs(outputs, tokens)?;
        if to.cols != from.cols || to.rows != outputs.len() || from.rows != tokens {
            let expected = format!("[{}, {}] of rows below {tokens}", outputs.len(), from.cols);
            return Err(shape_error(OP, expected, format!("[{}, {}]", to.rows, to.cols)));
        }
        if to.overlaps(&from) {
            return Err(overlap_error(OP, [to, from]));
        }
        let step = frame.arena.step.params();
        let params =
            params::Gather { step, dst: to.address, src: from.address, cols: to.cols as u32, unused: 0 };
        // SAFETY: shapes and places are checked.
        unsafe { self.kernels.launch(Kernel::GatherOutputs, Grid::line(to.rows, THREADS), &params) }
    }

    pub(super) fn unary(&self, places: [&Place; 2], f: UnaryFn, frame: &Frame<'_, Cuda>) -> Result {
        let (dst, src) = pair("unary", places, frame)?;
        let (function, argument) = unary_code(f)?;
        let count = dst.elements();
        let params =
            params::Unary { dst: dst.address, src: src.address, count: count as u64, function, argument };
        // SAFETY: shapes and places are checked.
        unsafe { self.kernels.launch(Kernel::Unary, blocks_of(count), &params) }
    }

    pub(super) fn binary(&self, [dst, a, b]: [&Place; 3], f: BinaryFn, frame: &Frame<'_, Cuda>) -> Result {
        const OP: &str = "binary";
        if f == BinaryFn::Sub {
            return Err(no_kernel(NO_DIFFERENCE));
        }
        let (dst, a) = pair(OP, [dst, a], frame)?;
        let b = frame.arena.rows(OP, b, frame.step)?;
        if b.cols != a.cols || (b.rows != a.rows && b.rows != 1) {
            let expected = format!("[{} or 1, {}]", a.rows, a.cols);
            return Err(shape_error(OP, expected, format!("[{}, {}]", b.rows, b.cols)));
        }
        let same = b.address == dst.address && b.rows == dst.rows;
        if b.overlaps(&dst) && !same {
            return Err(overlap_error(OP, [dst, b]));
        }
        let params = params::Binary {
            dst: dst.address,
            a: a.address,
            b: b.address,
            count: dst.elements() as u64,
            b_count: b.elements().max(1) as u64,
            multiply: u32::from(f == BinaryFn::Mul),
            unused: 0,
        };
        // SAFETY: shapes and places are checked.
        unsafe { self.kernels.launch(Kernel::Binary, blocks_of(dst.elements()), &params) }
    }

    pub(super) fn softmax(&self, places: [&Place; 2], frame: &Frame<'_, Cuda>) -> Result {
        let (dst, src) = pair("softmax", places, frame)?;
        let params = rows_params(dst, src);
        // SAFETY: shapes and places are checked.
        unsafe { self.kernels.launch(Kernel::Softmax, Grid::line(src.rows, THREADS), &params) }
    }

    pub(super) fn transpose(&self, [dst, src]: [&Place; 2], frame: &Frame<'_, Cuda>) -> Result {
        const OP: &str = "transpose";
        let (dst, src) = (frame.arena.rows(OP, dst, frame.step)?, frame.arena.rows(OP, src, frame.step)?);
        if (dst.rows, dst.cols) != (src.cols, src.rows) {
            let expected = format!("[{}, {}]", src.cols, src.rows);
            return Err(shape_error(OP, expected, format!("[{}, {}]", dst.rows, dst.cols)));
        }
        if dst.overlaps(&src) {
            return Err(overlap_error(OP, [dst, src]));
        }
        let blocks = [src.cols.div_ceil(32), src.rows.div_ceil(32), 1];
        let params = rows_params(dst, src);
        // SAFETY: shapes and places are checked.
        unsafe {
            self.kernels.launch(
                Kernel::Transpose,
                Grid { blocks, threads: [32, 8], shared_bytes: 0 },
                &params,
            )
        }
    }
}

fn rows_params(dst: Rows, src: Rows) -> params::Rows {
    params::Rows { dst: dst.address, src: src.address, rows: src.rows as u32, cols: src.cols as u32 }
}
