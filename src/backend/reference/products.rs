//! Embedding, gathering rows, and matrix products with their epilogues.

use super::memory::{Matrix, Sharing};
use super::{Reference, apply_norm, shape_error, vector};
use crate::backend::{BackendError, Frame, Weights};
use crate::ir::{Activation, Epilogue, Matmul, MatrixId, Operation, Place, Product, WriteMode};

pub(super) fn matrix<'a>(
    op: &'static str,
    weights: &'a Weights<Reference>,
    id: MatrixId,
    cols: usize,
) -> Result<&'a Matrix, BackendError> {
    let found = weights.matrices.get(id.0 as usize).filter(|matrix| matrix.cols == cols);
    found.ok_or_else(|| shape_error(op, format!("matrix {} with {cols} columns", id.0), "none such".into()))
}

/// `dst[t] = table[token t] · scale`
pub(super) fn embed(
    dst: &Place,
    table: MatrixId,
    scale: f32,
    frame: &mut Frame<'_, Reference>,
) -> Result<(), BackendError> {
    const OP: &str = "embed";
    let table = matrix(OP, frame.weights, table, dst.cols)?;
    let mut out = Vec::new();
    for token in &frame.step.tokens {
        let row = table.row(token.index());
        let row =
            row.ok_or_else(|| shape_error(OP, format!("tokens below {}", table.rows), token.to_string()))?;
        out.extend(row.map(|x| x * f64::from(scale)));
    }
    frame.arena.put(OP, dst, &out)
}

/// `dst[i] = src[step.outputs[i]]`
pub(super) fn gather_outputs(
    dst: &Place,
    src: &Place,
    frame: &mut Frame<'_, Reference>,
) -> Result<(), BackendError> {
    const OP: &str = "gather_outputs";
    frame.arena.check_sharing(OP, [dst, src], Sharing::Apart, frame.step)?;
    let values = frame.arena.get(OP, src, frame.step.tokens.len())?;
    let rows = frame.step.outputs.iter().map(|&row| values.chunks_exact(src.cols.max(1)).nth(row as usize));
    let rows: Option<Vec<&[f64]>> = rows.collect();
    let rows = rows.filter(|_| dst.cols == src.cols);
    let rows = rows.ok_or_else(|| shape_error(OP, format!("rows of {src:?}"), format!("{dst:?}")))?;
    frame.arena.put(OP, dst, &rows.concat())
}

/// See [`Matmul`].
pub(super) fn matmul(op: &Matmul, frame: &mut Frame<'_, Reference>) -> Result<(), BackendError> {
    const OP: &str = "matmul";
    op.check()?;
    for (index, product) in op.products.iter().enumerate() {
        let earlier = op.products[..index].iter().map(|product| &product.dst);
        for place in earlier.chain([&op.src]) {
            frame.arena.check_sharing(OP, [&product.dst, place], Sharing::Apart, frame.step)?;
        }
    }
    let rows = op.src.rows.count(frame.step);
    let mut x = frame.arena.get(OP, &op.src, rows)?;
    if let Some(norm) = &op.norm {
        apply_norm(OP, frame.weights, norm, op.src.cols, &mut x)?;
    }
    for product in &op.products {
        let y = one_product(OP, product, &x, op.src.cols, rows, frame)?;
        frame.arena.put(OP, &product.dst, &y)?;
    }
    Ok(())
}

/// The new values of a product's destination.
fn one_product(
    op: &'static str,
    product: &Product,
    x: &[f64],
    cols: usize,
    rows: usize,
    frame: &Frame<'_, Reference>,
) -> Result<Vec<f64>, BackendError> {
    let weights = frame.weights;
    let mut y = multiply(x, matrix(op, weights, product.matrix, cols)?);
    if y.len() != rows * product.dst.cols || product.dst.rows.count(frame.step) != rows {
        let found = format!("{} elements for {:?}", y.len(), product.dst);
        return Err(shape_error(op, format!("{rows} rows of the matrix's rows"), found));
    }
    if let Some(bias) = product.bias {
        let bias = vector(op, weights, bias, product.dst.cols)?;
        y.iter_mut().zip(bias.iter().cycle()).for_each(|(y, bias)| *y += bias);
    }
    match product.epilogue {
        Epilogue::Write(WriteMode::Store) => {}
        Epilogue::Write(WriteMode::Add) => {
            let before = frame.arena.get(op, &product.dst, rows)?;
            y.iter_mut().zip(before).for_each(|(y, before)| *y += before);
        }
        Epilogue::Gated { up, activation } => {
            let up = matrix(op, weights, up, cols)?;
            if up.rows != product.dst.cols {
                return Err(shape_error(
                    op,
                    format!("an up matrix of {} rows", product.dst.cols),
                    format!("{}", up.rows),
                ));
            }
            y.iter_mut().zip(multiply(x, up)).for_each(|(y, up)| *y = activate(activation, *y) * up);
        }
    }
    Ok(y)
}

/// `x · matrixᵀ`
pub(super) fn multiply(x: &[f64], matrix: &Matrix) -> Vec<f64> {
    let mut y = Vec::new();
    for x in x.chunks_exact(matrix.cols.max(1)) {
        let rows = (0..matrix.rows).filter_map(|row| matrix.row(row));
        y.extend(rows.map(|row| row.zip(x).map(|(weight, x)| weight * x).sum::<f64>()));
    }
    y
}

/// See [`Activation`].
pub(crate) fn activate(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            0.5 * x * (1.0 + inner.tanh())
        }
        Activation::Gelu => 0.5 * x * erfc(-x / 2f64.sqrt()),
    }
}

/// `1 − erf(x)`: near 0 by the series of `erf` in which all terms have one sign, otherwise by Laplace's
/// continued fraction for the tail. Neither has cancellation.
fn erfc(x: f64) -> f64 {
    const TERMS: u32 = 100;
    let bell = (-x * x).exp() * 2.0 / std::f64::consts::PI.sqrt();
    if x.abs() < 2.0 {
        let next = |term: &mut f64, k: u32| {
            *term *= if k == 0 { 1.0 } else { 2.0 * x * x / f64::from(2 * k + 1) };
            Some(*term)
        };
        return 1.0 - bell * (0..TERMS).scan(x, next).sum::<f64>();
    }
    let fraction = (1..=TERMS).rev().fold(0.0, |rest, k| f64::from(k) / 2.0 / (x.abs() + rest));
    let tail = bell / 2.0 / (x.abs() + fraction);
    if x < 0.0 { 2.0 - tail } else { tail }
}
