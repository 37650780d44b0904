//! The canonical matrix: what every weight matrix becomes, whatever file it came from.
//!
//! [`QuantMatrix`] holds 4- or 8-bit codes with one f16 scale (and optionally one f16 minimum) per
//! group of columns; [`DenseMatrix`] holds 16- or 32-bit floats. A backend repacks either once, at
//! load ([`crate::backend::Backend::prepare`]). The GGUF block formats are siblings, a file each;
//! the quantiser is in `quantize`. Reading files is not here: see [`crate::weights`].

use half::{bf16, f16};

/// Bits of one code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bits {
    /// Two codes a byte, low nibble first.
    Four,
    /// One code a byte.
    Eight,
}

/// A quantised matrix of `rows` output features by `cols` input features.
///
/// Columns are cut into groups of `group`; the last group of a row may be shorter. With code `q`
/// of a group with scale `s` and minimum `m`, the value is
///
/// | bits | without mins | with mins |
/// |---|---|---|
/// | 8 | `q · s`, `q` stored as `i8` | `q · s + m`, `q` stored as `u8` |
/// | 4 | `(q − 8) · s`, `q` in 0..=15 | `q · s + m`, `q` in 0..=15 |
#[derive(Clone, Debug, PartialEq)]
pub struct QuantMatrix {
    rows: usize,
    cols: usize,
    bits: Bits,
    group: usize,
    codes: Vec<u8>,
    scales: Vec<f16>,
    mins: Option<Vec<f16>>,
}

/// The parts of a [`QuantMatrix`], named, for [`QuantMatrix::new`].
#[derive(Clone, Debug)]
pub struct QuantParts {
    /// Output features.
    pub rows: usize,
    /// Input features.
    pub cols: usize,
    /// Bits of a code.
    pub bits: Bits,
    /// Columns that share a scale: 16, 32, 64, 128, or `cols`.
    pub group: usize,
    /// Row-major codes, each row starting on a byte: `[rows, code_bytes_per_row]`.
    pub codes: Vec<u8>,
    /// `[rows, ceil(cols / group)]`.
    pub scales: Vec<f16>,
    /// `[rows, ceil(cols / group)]`.
    pub mins: Option<Vec<f16>>,
}

/// Why a matrix could not be made.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum QuantError {
    /// The group size is none of those supported.
    #[error("group size {found} is not 16, 32, 64, 128 or the row length {cols}")]
    Group {
        /// What was asked for.
        found: usize,
        /// Columns of the matrix.
        cols: usize,
    },
    /// A part has the wrong number of elements.
    #[error("{part}: expected {expected} elements, found {found}")]
    Length {
        /// Which part: "codes", "scales", "mins", "values".
        part: &'static str,
        /// Elements that the shape asks for.
        expected: usize,
        /// Elements given.
        found: usize,
    },
    /// A value that no code can stand for.
    #[error("value {value} at row {row}, column {col} cannot be quantised")]
    NonFinite {
        /// Row of the value.
        row: usize,
        /// Column of the value.
        col: usize,
        /// NaN or an infinity.
        value: f32,
    },
    /// rows × cols does not fit the address space.
    #[error("a matrix of {rows} x {cols} is too large")]
    TooLarge {
        /// Rows asked for.
        rows: usize,
        /// Columns asked for.
        cols: usize,
    },
}

impl QuantMatrix {
    /// A matrix from its parts; every length is checked against the shape.
    ///
    /// # Errors
    /// [`QuantError::Group`], [`QuantError::Length`], [`QuantError::TooLarge`].
    pub fn new(parts: QuantParts) -> Result<Self, QuantError> {
        let QuantParts { rows, cols, bits, group, codes, scales, mins } = parts;
        if !matches!(group, 16 | 32 | 64 | 128) && group != cols || group == 0 {
            return Err(QuantError::Group { found: group, cols });
        }
        let too_large = QuantError::TooLarge { rows, cols };
        let code_bytes = rows.checked_mul(code_bytes_per_row(bits, cols)).ok_or(too_large.clone())?;
        let groups = rows.checked_mul(cols.div_ceil(group)).ok_or(too_large)?;
        check_length("codes", code_bytes, codes.len())?;
        check_length("scales", groups, scales.len())?;
        if let Some(mins) = &mins {
            check_length("mins", groups, mins.len())?;
        }
        Ok(QuantMatrix { rows, cols, bits, group, codes, scales, mins })
    }

    /// Output features (N).
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Input features (K).
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Bits of a code.
    pub fn bits(&self) -> Bits {
        self.bits
    }

    /// Columns that share a scale.
    pub fn group(&self) -> usize {
        self.group
    }

    /// Groups in a row.
    pub fn groups_per_row(&self) -> usize {
        self.cols.div_ceil(self.group)
    }

    /// Row-major codes, `[rows, code_bytes_per_row]`; see the table at [`QuantMatrix`].
    pub fn codes(&self) -> &[u8] {
        &self.codes
    }

    /// The codes of one row.
    pub fn row_codes(&self, row: usize) -> &[u8] {
        let bytes = code_bytes_per_row(self.bits, self.cols);
        &self.codes[row * bytes..(row + 1) * bytes]
    }

    /// `[rows, groups_per_row]`.
    pub fn scales(&self) -> &[f16] {
        &self.scales
    }

    /// `[rows, groups_per_row]`, if the format has minima.
    pub fn mins(&self) -> Option<&[f16]> {
        self.mins.as_deref()
    }

    /// Bytes of codes, scales and mins.
    pub fn bytes(&self) -> usize {
        self.codes.len() + 2 * self.scales.len() + 2 * self.mins.as_ref().map_or(0, Vec::len)
    }

    /// The code at (`row`, `col`) as the integer that multiplies the scale.
    pub fn code(&self, row: usize, col: usize) -> i32 {
        let codes = self.row_codes(row);
        match (self.bits, &self.mins) {
            (Bits::Eight, None) => i32::from(codes[col] as i8),
            (Bits::Eight, Some(_)) => i32::from(codes[col]),
            (Bits::Four, mins) => {
                let nibble = i32::from(codes[col / 2] >> (4 * (col % 2)) & 15);
                nibble - if mins.is_none() { 8 } else { 0 }
            }
        }
    }

    /// The values of one row in f32, into `out` of `cols` elements.
    ///
    /// # Panics
    /// If `row` is not below `rows` or `out` is not `cols` long.
    pub fn dequantize_row(&self, row: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.cols, "one element a column");
        for (col, value) in out.iter_mut().enumerate() {
            let index = row * self.groups_per_row() + col / self.group;
            let min = self.mins.as_ref().map_or(0.0, |mins| mins[index].to_f32());
            *value = self.code(row, col) as f32 * self.scales[index].to_f32() + min;
        }
    }
}

/// Bytes that the codes of one row take.
pub fn code_bytes_per_row(bits: Bits, cols: usize) -> usize {
    match bits {
        Bits::Four => cols.div_ceil(2),
        Bits::Eight => cols,
    }
}

fn check_length(part: &'static str, expected: usize, found: usize) -> Result<(), QuantError> {
    if expected == found { Ok(()) } else { Err(QuantError::Length { part, expected, found }) }
}

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
    rows: usize,
    cols: usize,
    values: DenseValues,
}

impl DenseMatrix {
    /// A matrix from its values.
    ///
    /// # Errors
    /// [`QuantError::Length`] if there are not `rows · cols` values.
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

    /// The value at (`row`, `col`), widened.
    pub fn get(&self, row: usize, col: usize) -> f32 {
        let index = row * self.cols + col;
        match &self.values {
            DenseValues::F32(v) => v[index],
            DenseValues::F16(v) => v[index].to_f32(),
            DenseValues::Bf16(v) => v[index].to_f32(),
        }
    }
}

/// A weight matrix as it comes from a file or from the quantiser.
#[derive(Clone, Debug, PartialEq)]
pub enum WeightMatrix {
    /// 4- or 8-bit codes.
    Quant(QuantMatrix),
    /// 16- or 32-bit floats.
    Dense(DenseMatrix),
}

impl WeightMatrix {
    /// Output features (N).
    pub fn rows(&self) -> usize {
        match self {
            WeightMatrix::Quant(m) => m.rows(),
            WeightMatrix::Dense(m) => m.rows(),
        }
    }

    /// Input features (K).
    pub fn cols(&self) -> usize {
        match self {
            WeightMatrix::Quant(m) => m.cols(),
            WeightMatrix::Dense(m) => m.cols(),
        }
    }

    /// The values of one row in f32, into `out` of `cols` elements.
    ///
    /// # Panics
    /// If `row` is not below `rows` or `out` is not `cols` long.
    pub fn dequantize_row(&self, row: usize, out: &mut [f32]) {
        match self {
            WeightMatrix::Quant(m) => m.dequantize_row(row, out),
            WeightMatrix::Dense(m) => {
                assert_eq!(out.len(), m.cols, "one element a column");
                (0..m.cols).for_each(|col| out[col] = m.get(row, col));
            }
        }
    }
}
