//! Dense matrices: floats in the type of the file.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::{QuantError, check_length, position_in_chunks};

/// The elements of a [`DenseMatrix`].
#[derive(Clone, Debug, PartialEq)]
pub enum DenseValues {
    /// IEEE single precision.
    F32(Vec<f32>),
    /// IEEE half precision.
    F16(Vec<f16>),
    /// bfloat16.
    Bf16(Vec<bf16>),
}

/// A matrix of floats, `[rows, cols]` row-major.
#[derive(Clone, Debug, PartialEq)]
pub struct DenseMatrix {
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) values: DenseValues,
}

impl DenseMatrix {
    /// Builds a matrix from its values.
    ///
    /// # Errors
    /// [`QuantError::Length`] if the number of values is not `rows · cols`.
    pub fn new(rows: usize, cols: usize, values: DenseValues) -> Result<Self, QuantError> {
        let expected = rows.checked_mul(cols).ok_or(QuantError::TooLarge { rows, cols })?;
        let found = match &values {
            DenseValues::F32(v) => v.len(),
            DenseValues::F16(v) => v.len(),
            DenseValues::Bf16(v) => v.len(),
        };
        check_length("values", expected, found)?;
        Ok(DenseMatrix { rows, cols, values })
    }

    /// Output features (N).
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Input features (K).
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The elements, row-major.
    pub fn values(&self) -> &DenseValues {
        &self.values
    }

    /// Mutable elements. Their number and type are fixed.
    pub(crate) fn values_mut(&mut self) -> &mut DenseValues {
        &mut self.values
    }

    /// Widens one row to f32 into `out`, which has `cols` elements.
    ///
    /// # Panics
    /// If `row >= rows`, or `out` does not have `cols` elements.
    pub fn widen_row(&self, row: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.cols, "one element a column");
        let row = row * self.cols..(row + 1) * self.cols;
        match &self.values {
            DenseValues::F32(v) => out.copy_from_slice(&v[row]),
            DenseValues::F16(v) => v[row].convert_to_f32_slice(out),
            DenseValues::Bf16(v) => v[row].convert_to_f32_slice(out),
        }
    }

    /// Row, column and value of the first element that is NaN or infinite.
    pub(crate) fn first_non_finite(&self) -> Option<(usize, usize, f32)> {
        let position = match &self.values {
            DenseValues::F32(v) => position_in_chunks(v, |v| v.is_finite()),
            DenseValues::F16(v) => position_in_chunks(v, |v| v.is_finite()),
            DenseValues::Bf16(v) => position_in_chunks(v, |v| v.is_finite()),
        };
        position.map(|at| (at / self.cols, at % self.cols)).map(|(row, col)| (row, col, self.get(row, col)))
    }

    /// The element at (`row`, `col`), widened to f32.
    pub fn get(&self, row: usize, col: usize) -> f32 {
        let index = row * self.cols + col;
        match &self.values {
            DenseValues::F32(v) => v[index],
            DenseValues::F16(v) => v[index].to_f32(),
            DenseValues::Bf16(v) => v[index].to_f32(),
        }
    }
}
