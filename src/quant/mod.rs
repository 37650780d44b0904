//! Canonical matrices: the common in-memory form of weights from every file format.
//!
//! [`QuantMatrix`] holds [`Codes`] (integers of 4, 5, 6 or 8 bits, or floats of 4 or 8 bits) with one f16
//! scale, and optionally one f16 minimum, per group of columns. [`DenseMatrix`] holds 16- or 32-bit floats. A
//! backend repacks either once, at load ([`crate::backend::Backend::prepare`]), a block of rows at a time;
//! `shape` provides the reusable memory for that. Each GGUF block format has a file of its own; `scaled`
//! decodes the FP8 and NVFP4 weights of Hugging Face folders, and `quantize` is the quantiser. File access is
//! in [`crate::checkpoint`].

#![forbid(unsafe_code)]

mod block;
mod codes;
mod dense;
pub(crate) mod iq4;
pub(crate) mod mxfp4;
pub(crate) mod q2_k;
pub(crate) mod q3_k;
pub(crate) mod q4_0;
pub(crate) mod q4_1;
pub(crate) mod q4_k;
pub(crate) mod q5_0;
pub(crate) mod q5_1;
pub(crate) mod q5_k;
pub(crate) mod q6_k;
pub(crate) mod q8_0;
mod quality;
mod quantize;
pub(crate) mod scaled;
mod shape;
#[cfg(test)]
mod tests;

use half::f16;

pub(crate) use block::BlockFormat;
pub use codes::{Bits, Codes, code_bytes_per_row};
pub(crate) use codes::{E2M1, e4m3, is_e4m3_number};
pub use dense::{DenseMatrix, DenseValues};
pub(crate) use quality::Distance;
pub use quality::Quality;
pub(crate) use quantize::quantize_block;
pub use quantize::{Group, QuantFormat, quantize};
pub use shape::{MatrixForm, QuantForm};

/// A quantised matrix of `rows` output features by `cols` input features.
///
/// Columns are divided into groups of `group`; the last group of a row may be shorter. For code `q` in a
/// group with scale `s` and minimum `m`, the value is
///
/// | codes | without mins | with mins |
/// |---|---|---|
/// | 8 bits | `q · s`, `q` stored as `i8` | `q · s + m`, `q` stored as `u8` |
/// | 6 bits | the same, `q` in −32..=31 | the same, `q` in 0..=63 |
/// | 5 bits | the same, `q` in −16..=15 | the same, `q` in 0..=31 |
/// | 4 bits | `(q − 8) · s`, `q` in 0..=15 | `q · s + m`, `q` in 0..=15 |
/// | E2M1 | `2 · float(q) · s`, an integer in −12..=12 times the scale | none |
/// | E4M3 | `float(q) / 256 · s` | none |
///
/// Canonical scales are thus 1/2 of the file's for E2M1 and 256 times the file's for E4M3, which keeps usual
/// E4M3 scales in the normal range of f16. E4M3 groups have at least 32 columns, or the whole row.
#[derive(Clone, Debug, PartialEq)]
pub struct QuantMatrix {
    rows: usize,
    cols: usize,
    kind: Codes,
    group: usize,
    codes: Vec<u8>,
    scales: Vec<f16>,
    mins: Option<Vec<f16>>,
}

/// Parts of a [`QuantMatrix`], for [`QuantMatrix::new`].
#[derive(Clone, Debug)]
pub struct QuantParts {
    /// Number of rows (output features).
    pub rows: usize,
    /// Number of columns (input features).
    pub cols: usize,
    /// Type of the codes.
    pub kind: Codes,
    /// Columns per scale: 16, 32, 64, 128, or `cols`.
    pub group: usize,
    /// Row-major codes, `[rows, code_bytes_per_row]`: each row starts at a byte.
    pub codes: Vec<u8>,
    /// Scales, `[rows, ceil(cols / group)]`.
    pub scales: Vec<f16>,
    /// Minima, `[rows, ceil(cols / group)]`.
    pub mins: Option<Vec<f16>>,
}

/// An error of building, decoding or encoding a matrix.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum QuantError {
    /// The group size is not supported.
    #[error("group size {found} is not 16, 32, 64, 128 or the row length {cols}")]
    Group {
        /// The requested group size.
        found: usize,
        /// Columns of the matrix.
        cols: usize,
    },
    /// Float codes have minima, or E4M3 groups are too small.
    #[error(
        "expected float codes without minima, and those of 8 bits in groups of 32 columns or more; found {found:?}"
    )]
    FloatForm {
        /// The requested form.
        found: QuantForm,
    },
    /// A part has the wrong number of elements.
    #[error("{part}: expected {expected} elements, found {found}")]
    Length {
        /// Name of the part: "codes", "scales", "mins", "values".
        part: &'static str,
        /// Elements required by the shape.
        expected: usize,
        /// Elements given.
        found: usize,
    },
    /// A 5-bit or 6-bit code is out of range.
    #[error("expected a code of {} bits, found {code} at row {row}, column {col}", .bits.count())]
    Code {
        /// Width of the codes.
        bits: Bits,
        /// Row of the code.
        row: usize,
        /// Column of the code.
        col: usize,
        /// The integer value of the code.
        code: i32,
    },
    /// A value is NaN or infinite.
    #[error("expected finite values, found {value} at row {row}, column {col}")]
    NonFinite {
        /// Row of the value.
        row: usize,
        /// Column of the value.
        col: usize,
        /// NaN or an infinity.
        value: f32,
    },
    /// A scale or minimum is NaN or infinite, as stored or after rounding to f16.
    #[error("the {part} of row {row}, group {group} is {value}")]
    GroupNonFinite {
        /// "scale" or "minimum".
        part: &'static str,
        /// Row of the group.
        row: usize,
        /// Group within the row.
        group: usize,
        /// NaN or an infinity.
        value: f32,
    },
    /// A scale is out of the range of f16, in a group with a nonzero value.
    #[error("the scale of row {row}, group {group} is {value:e}, which f16 does not hold here")]
    Scale {
        /// Row of the group.
        row: usize,
        /// Group within the row.
        group: usize,
        /// The scale in the file.
        value: f32,
    },
    /// The row length is not a multiple of the block length.
    #[error("{format}: expected rows of a multiple of {block} columns, found {cols}")]
    Columns {
        /// The block format.
        format: &'static str,
        /// Elements per block.
        block: usize,
        /// Columns of the matrix.
        cols: usize,
    },
    /// A block format cannot represent the matrix exactly.
    #[error("{format} cannot hold this matrix without loss: {reason}")]
    Inexact {
        /// The block format.
        format: &'static str,
        /// The reason.
        reason: &'static str,
    },
    /// The quantiser has no such format.
    #[error("expected a format such as w8g128, w4g32m or w8row, found `{found}`")]
    Format {
        /// The requested format.
        found: String,
    },
    /// `rows · cols` overflows the address space.
    #[error("a matrix of {rows} x {cols} is too large")]
    TooLarge {
        /// Requested rows.
        rows: usize,
        /// Requested columns.
        cols: usize,
    },
}

impl QuantError {
    /// Offsets the row in the error by `rows`: turns a row of a block into a row of the whole matrix.
    pub(crate) fn after_rows(mut self, rows: usize) -> QuantError {
        use QuantError::{Code, GroupNonFinite, NonFinite, Scale};
        if let NonFinite { row, .. } | GroupNonFinite { row, .. } | Scale { row, .. } | Code { row, .. } =
            &mut self
        {
            *row += rows;
        }
        self
    }
}

impl QuantMatrix {
    /// Builds a matrix from its parts. Lengths are checked against the shape, codes against their type.
    ///
    /// # Errors
    /// [`QuantError::Group`], [`QuantError::FloatForm`], [`QuantError::Length`], [`QuantError::TooLarge`],
    /// [`QuantError::Code`], [`QuantError::NonFinite`].
    pub fn new(parts: QuantParts) -> Result<Self, QuantError> {
        let QuantParts { rows, cols, kind, group, codes, scales, mins } = parts;
        check_form(QuantForm { kind, group, mins: mins.is_some() }, cols)?;
        let too_large = QuantError::TooLarge { rows, cols };
        let code_bytes = rows.checked_mul(code_bytes_per_row(kind, cols)).ok_or(too_large.clone())?;
        let groups = rows.checked_mul(cols.div_ceil(group)).ok_or(too_large)?;
        check_length("codes", code_bytes, codes.len())?;
        check_length("scales", groups, scales.len())?;
        if let Some(mins) = &mins {
            check_length("mins", groups, mins.len())?;
        }
        let matrix = QuantMatrix { rows, cols, kind, group, codes, scales, mins };
        matrix.check_codes()?;
        Ok(matrix)
    }

    /// Refuses the first 5-bit or 6-bit code out of range, and the first NaN code.
    fn check_codes(&self) -> Result<(), QuantError> {
        let bad = match self.kind {
            Codes::Int(Bits::Four | Bits::Eight) | Codes::E2m1 => None,
            Codes::Int(bits @ (Bits::Five | Bits::Six)) => {
                let codes = bits.codes(self.mins.is_some());
                let (low, count) = (*codes.start() as u8, 1 << bits.count());
                position_in_chunks(&self.codes, |code| code.wrapping_sub(low) < count)
            }
            Codes::E4m3 => position_in_chunks(&self.codes, is_e4m3_number),
        };
        let Some(at) = bad else { return Ok(()) };
        let (row, col) = (at / self.cols, at % self.cols);
        Err(match self.kind {
            Codes::Int(bits) => QuantError::Code { bits, row, col, code: self.code(row, col) as i32 },
            Codes::E2m1 | Codes::E4m3 => QuantError::NonFinite { row, col, value: f32::NAN },
        })
    }

    /// Number of rows (output features, N).
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns (input features, K).
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Type of the codes.
    pub fn kind(&self) -> Codes {
        self.kind
    }

    /// Columns per scale.
    pub fn group(&self) -> usize {
        self.group
    }

    /// Groups per row.
    pub fn groups_per_row(&self) -> usize {
        self.cols.div_ceil(self.group)
    }

    /// Row-major codes, `[rows, code_bytes_per_row]`; see the table of [`QuantMatrix`].
    pub fn codes(&self) -> &[u8] {
        &self.codes
    }

    /// Codes of one row.
    pub fn row_codes(&self, row: usize) -> &[u8] {
        let bytes = code_bytes_per_row(self.kind, self.cols);
        &self.codes[row * bytes..(row + 1) * bytes]
    }

    /// Scales, `[rows, groups_per_row]`.
    pub fn scales(&self) -> &[f16] {
        &self.scales
    }

    /// Minima, `[rows, groups_per_row]`, if the matrix has any.
    pub fn mins(&self) -> Option<&[f16]> {
        self.mins.as_deref()
    }

    /// Total bytes of codes, scales and minima.
    pub fn bytes(&self) -> usize {
        self.codes.len() + 2 * self.scales.len() + 2 * self.mins.as_ref().map_or(0, Vec::len)
    }

    /// The multiple of the scale at (`row`, `col`): an integer, or for E4M3 1/256 of the code's value.
    pub fn code(&self, row: usize, col: usize) -> f32 {
        let codes = self.row_codes(row);
        let nibble = |col: usize| codes[col / 2] >> (4 * (col % 2)) & 15;
        match (self.kind, &self.mins) {
            (Codes::Int(Bits::Four), None) => f32::from(nibble(col)) - 8.0,
            (Codes::Int(Bits::Four), Some(_)) => f32::from(nibble(col)),
            (Codes::Int(_), None) => f32::from(codes[col] as i8),
            (Codes::Int(_), Some(_)) => f32::from(codes[col]),
            (Codes::E2m1, _) => f32::from(E2M1[usize::from(nibble(col))]),
            (Codes::E4m3, _) => e4m3(codes[col]).to_f32(),
        }
    }

    /// Dequantises one row to f32 into `out`, which has `cols` elements.
    ///
    /// # Panics
    /// If `row >= rows`, or `out` does not have `cols` elements.
    pub fn dequantize_row(&self, row: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.cols, "one element a column");
        let codes = self.row_codes(row);
        let code_bytes = code_bytes_per_row(self.kind, self.group);
        let first_group = row * self.groups_per_row();
        for (group, out) in out.chunks_mut(self.group).enumerate() {
            let index = first_group + group;
            let scale = self.scales[index].to_f32();
            let min = self.mins.as_ref().map(|mins| mins[index].to_f32());
            let codes = &codes[group * code_bytes..];
            match (self.kind, min) {
                (Codes::Int(Bits::Four), None) => {
                    each_nibble(codes, out, |code| (f32::from(code) - 8.0) * scale)
                }
                (Codes::Int(Bits::Four), Some(min)) => {
                    each_nibble(codes, out, |code| f32::from(code) * scale + min)
                }
                (Codes::Int(_), None) => each_byte(codes, out, |code| f32::from(code as i8) * scale),
                (Codes::Int(_), Some(min)) => each_byte(codes, out, |code| f32::from(code) * scale + min),
                (Codes::E2m1, _) => {
                    each_nibble(codes, out, |code| f32::from(E2M1[usize::from(code & 15)]) * scale);
                }
                (Codes::E4m3, _) => each_byte(codes, out, |code| e4m3(code).to_f32() * scale),
            }
        }
    }
}

/// Maps each 4-bit code, low nibble first.
fn each_nibble(codes: &[u8], out: &mut [f32], value: impl Fn(u8) -> f32) {
    for (out, &byte) in out.chunks_mut(2).zip(codes) {
        for (nibble, out) in out.iter_mut().enumerate() {
            *out = value(byte >> (4 * nibble) & 15);
        }
    }
}

/// Maps each byte code.
fn each_byte(codes: &[u8], out: &mut [f32], value: impl Fn(u8) -> f32) {
    out.iter_mut().zip(codes).for_each(|(out, &code)| *out = value(code));
}

/// Minimum E4M3 group, unless the row is shorter.
const E4M3_GROUP_MIN: usize = 32;

/// Refuses forms that exist in no file format and have no kernel.
fn check_form(form: QuantForm, cols: usize) -> Result<(), QuantError> {
    let QuantForm { kind, group, mins } = form;
    check_group(group, cols)?;
    let small = kind == Codes::E4m3 && group < E4M3_GROUP_MIN && group < cols;
    if kind.is_float() && (mins || small) { Err(QuantError::FloatForm { found: form }) } else { Ok(()) }
}

fn check_group(group: usize, cols: usize) -> Result<(), QuantError> {
    match group {
        16 | 32 | 64 | 128 => Ok(()),
        _ if group == cols && group > 0 => Ok(()),
        _ => Err(QuantError::Group { found: group, cols }),
    }
}

fn check_length(part: &'static str, expected: usize, found: usize) -> Result<(), QuantError> {
    if expected == found { Ok(()) } else { Err(QuantError::Length { part, expected, found }) }
}

/// Position of the first value that fails `good`. Whole chunks are tested without branches, near memory
/// bandwidth.
fn position_in_chunks<T: Copy>(values: &[T], good: impl Fn(T) -> bool) -> Option<usize> {
    let chunk_len = 256;
    let chunk =
        values.chunks(chunk_len).position(|chunk| !chunk.iter().fold(true, |all, &v| all & good(v)))?;
    let start = chunk * chunk_len;
    values[start..].iter().position(|&v| !good(v)).map(|at| start + at)
}

/// A weight matrix from a file or from the quantiser.
#[derive(Clone, Debug, PartialEq)]
pub enum WeightMatrix {
    /// Codes of 4 to 8 bits with scales.
    Quant(QuantMatrix),
    /// 16- or 32-bit floats.
    Dense(DenseMatrix),
}

impl WeightMatrix {
    /// Number of rows (output features, N).
    pub fn rows(&self) -> usize {
        match self {
            WeightMatrix::Quant(m) => m.rows(),
            WeightMatrix::Dense(m) => m.rows(),
        }
    }

    /// Number of columns (input features, K).
    pub fn cols(&self) -> usize {
        match self {
            WeightMatrix::Quant(m) => m.cols(),
            WeightMatrix::Dense(m) => m.cols(),
        }
    }

    /// Dequantises or widens one row to f32 into `out`, which has `cols` elements.
    ///
    /// # Panics
    /// If `row >= rows`, or `out` does not have `cols` elements.
    pub fn dequantize_row(&self, row: usize, out: &mut [f32]) {
        match self {
            WeightMatrix::Quant(m) => m.dequantize_row(row, out),
            WeightMatrix::Dense(m) => m.widen_row(row, out),
        }
    }
}
