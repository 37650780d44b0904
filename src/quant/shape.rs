//! Matrix forms: the element format of a canonical matrix, and reuse of a matrix as a buffer for blocks of
//! rows.

use std::ops::Range;

use half::{bf16, f16};

use super::{
    Codes, DenseMatrix, DenseValues, QuantError, QuantMatrix, WeightMatrix, check_form, code_bytes_per_row,
};

/// Code format of a [`QuantMatrix`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuantForm {
    /// Type of the codes.
    pub kind: Codes,
    /// Columns per scale.
    pub group: usize,
    /// Whether groups have minima.
    pub mins: bool,
}

/// Element format of a [`WeightMatrix`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatrixForm {
    /// Codes with scales and optional minima.
    Quant(QuantForm),
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// bfloat16.
    Bf16,
}

impl MatrixForm {
    /// Bytes of a matrix of this form: codes, scales and minima, or floats.
    pub fn bytes(self, rows: usize, cols: usize) -> usize {
        let row = match self {
            MatrixForm::Quant(QuantForm { kind, group, mins }) => {
                let groups = cols.div_ceil(group.max(1));
                code_bytes_per_row(kind, cols) + 2 * groups * (1 + usize::from(mins))
            }
            MatrixForm::F32 => 4 * cols,
            MatrixForm::F16 | MatrixForm::Bf16 => 2 * cols,
        };
        rows.saturating_mul(row)
    }
}

impl QuantMatrix {
    /// Code format of the matrix.
    pub fn form(&self) -> QuantForm {
        QuantForm { kind: self.kind, group: self.group, mins: self.mins.is_some() }
    }
}

/// An empty matrix, as a buffer to [`reshape`](WeightMatrix::reshape).
impl Default for WeightMatrix {
    fn default() -> WeightMatrix {
        WeightMatrix::Dense(DenseMatrix { rows: 0, cols: 0, values: DenseValues::F32(Vec::new()) })
    }
}

impl WeightMatrix {
    /// Element format of the matrix.
    pub fn form(&self) -> MatrixForm {
        match self {
            WeightMatrix::Quant(m) => MatrixForm::Quant(m.form()),
            WeightMatrix::Dense(m) => match m.values {
                DenseValues::F32(_) => MatrixForm::F32,
                DenseValues::F16(_) => MatrixForm::F16,
                DenseValues::Bf16(_) => MatrixForm::Bf16,
            },
        }
    }

    /// Changes the matrix to `[rows, cols]` of `form`, in its present memory if that suffices. The values are
    /// unspecified until overwritten.
    ///
    /// # Errors
    /// [`QuantError::Group`], [`QuantError::FloatForm`] or [`QuantError::TooLarge`]; the matrix is then
    /// unchanged.
    pub fn reshape(&mut self, form: MatrixForm, [rows, cols]: [usize; 2]) -> Result<(), QuantError> {
        let elements = rows.checked_mul(cols).ok_or(QuantError::TooLarge { rows, cols })?;
        if let MatrixForm::Quant(form) = form {
            check_form(form, cols)?;
        }
        if self.form() != form {
            *self = WeightMatrix::empty(form);
        }
        match self {
            WeightMatrix::Quant(m) => {
                (m.rows, m.cols) = (rows, cols);
                m.codes.resize(rows * code_bytes_per_row(m.kind, cols), 0);
                let groups = rows * cols.div_ceil(m.group);
                m.scales.resize(groups, f16::ZERO);
                m.mins.iter_mut().for_each(|mins| mins.resize(groups, f16::ZERO));
            }
            WeightMatrix::Dense(m) => {
                (m.rows, m.cols) = (rows, cols);
                match &mut m.values {
                    DenseValues::F32(v) => v.resize(elements, 0.0),
                    DenseValues::F16(v) => v.resize(elements, f16::ZERO),
                    DenseValues::Bf16(v) => v.resize(elements, bf16::ZERO),
                }
            }
        }
        Ok(())
    }

    fn empty(form: MatrixForm) -> WeightMatrix {
        let values = match form {
            MatrixForm::Quant(QuantForm { kind, group, mins }) => {
                let (codes, scales, mins) = (Vec::new(), Vec::new(), mins.then(Vec::new));
                return WeightMatrix::Quant(QuantMatrix {
                    rows: 0,
                    cols: 0,
                    kind,
                    group,
                    codes,
                    scales,
                    mins,
                });
            }
            MatrixForm::F32 => DenseValues::F32(Vec::new()),
            MatrixForm::F16 => DenseValues::F16(Vec::new()),
            MatrixForm::Bf16 => DenseValues::Bf16(Vec::new()),
        };
        WeightMatrix::Dense(DenseMatrix { rows: 0, cols: 0, values })
    }

    /// Copies `rows` of `from` over the rows from `at` on.
    ///
    /// # Panics
    /// If forms or columns differ, or rows are out of range.
    pub fn copy_rows(&mut self, at: usize, from: &WeightMatrix, rows: Range<usize>) {
        let same = (self.form(), self.cols()) == (from.form(), from.cols());
        assert!(same, "rows of {:?} into {:?}", from.form(), self.form());
        let cols = from.cols();
        match (self, from) {
            (WeightMatrix::Quant(to), WeightMatrix::Quant(from)) => {
                let groups = from.groups_per_row();
                copy(&mut to.codes, at, &from.codes, &rows, code_bytes_per_row(from.kind, cols));
                copy(&mut to.scales, at, &from.scales, &rows, groups);
                if let (Some(to), Some(from)) = (&mut to.mins, &from.mins) {
                    copy(to, at, from, &rows, groups);
                }
            }
            (WeightMatrix::Dense(to), WeightMatrix::Dense(from)) => match (&mut to.values, &from.values) {
                (DenseValues::F32(to), DenseValues::F32(from)) => copy(to, at, from, &rows, cols),
                (DenseValues::F16(to), DenseValues::F16(from)) => copy(to, at, from, &rows, cols),
                (DenseValues::Bf16(to), DenseValues::Bf16(from)) => copy(to, at, from, &rows, cols),
                _ => {}
            },
            _ => {}
        }
    }
}

/// Copies `rows` of `from` to the rows of `to` from `at` on; both have `width` elements per row.
fn copy<T: Copy>(to: &mut [T], at: usize, from: &[T], rows: &Range<usize>, width: usize) {
    to[at * width..][..rows.len() * width].copy_from_slice(&from[rows.start * width..rows.end * width]);
}
