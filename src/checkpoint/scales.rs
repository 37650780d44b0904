//! Scales that are a tensor of their own, beside one of 8-bit or 4-bit floats: what shares one, and those of some rows.

use std::ops::Range;

use half::{bf16, f16};

use super::{TensorInfo, TensorType};
use crate::quant::{e4m3, is_e4m3_number};

/// Rows and columns of a block.
pub(super) const BLOCK: usize = 128;

/// Columns of a group of 4-bit floats.
pub(super) const GROUP: usize = 16;

/// What shares a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spread {
    /// All of the tensor.
    Tensor,
    /// A row.
    Row,
    /// 128 rows by 128 columns, fewer at the ends.
    Block,
    /// 16 columns of a row, fewer at the end.
    Group,
}

impl Spread {
    /// The shape of the scales of a matrix, rows first.
    pub fn shape(self, [rows, cols]: [usize; 2]) -> [usize; 2] {
        match self {
            Spread::Tensor => [1, 1],
            Spread::Row => [rows, 1],
            Spread::Block => [rows.div_ceil(BLOCK), cols.div_ceil(BLOCK)],
            Spread::Group => [rows, cols.div_ceil(GROUP)],
        }
    }

    /// Columns that share a scale.
    pub fn group(self, cols: usize) -> usize {
        match self {
            Spread::Tensor | Spread::Row => cols,
            Spread::Block => BLOCK,
            Spread::Group => GROUP,
        }
    }

    /// The row of the scales that a row of the matrix has.
    fn row(self, row: usize) -> usize {
        match self {
            Spread::Tensor => 0,
            Spread::Row | Spread::Group => row,
            Spread::Block => row / BLOCK,
        }
    }
}

/// The scales of some rows of a tensor.
pub(super) struct RowScales {
    values: Vec<f32>,
    spread: Spread,
    /// The first of the rows.
    first: usize,
    /// Scales of a row.
    width: usize,
}

impl RowScales {
    /// Where the scales of some rows lie in the file of `scales`, which has the shape of the spread.
    pub fn place(scales: &TensorInfo, spread: Spread, rows: &Range<usize>) -> Range<usize> {
        let row_bytes = width(scales, spread) * scales.dtype.block_bytes();
        let (first, last) = (spread.row(rows.start), spread.row(rows.end.saturating_sub(1)));
        let start = scales.offset as usize;
        start + first * row_bytes..start + (last + 1) * row_bytes
    }

    /// What lies there, times `factor`.
    pub fn new(
        scales: &TensorInfo,
        spread: Spread,
        factor: f32,
        rows: &Range<usize>,
        bytes: &[u8],
    ) -> RowScales {
        let mut values = widen(scales.dtype, bytes);
        values.iter_mut().for_each(|value| *value *= factor);
        RowScales { values, spread, first: rows.start, width: width(scales, spread) }
    }

    /// The scale of a row, counted from the first of them, and of a group of columns.
    pub fn at(&self, row: usize, group: usize) -> f32 {
        let line = self.spread.row(self.first + row) - self.spread.row(self.first);
        // As many were read as the rows have.
        self.values.get(line * self.width + group).copied().unwrap_or(f32::NAN)
    }
}

/// Scales of a row. Those of one column may have one dimension.
fn width(scales: &TensorInfo, spread: Spread) -> usize {
    if matches!(spread, Spread::Block | Spread::Group) { scales.cols() } else { 1 }
}

fn widen(dtype: TensorType, bytes: &[u8]) -> Vec<f32> {
    match dtype {
        TensorType::F16 => {
            bytes.as_chunks().0.iter().map(|&chunk| f16::from_le_bytes(chunk).to_f32()).collect()
        }
        TensorType::Bf16 => {
            bytes.as_chunks().0.iter().map(|&chunk| bf16::from_le_bytes(chunk).to_f32()).collect()
        }
        TensorType::F8E4m3 => bytes.iter().map(|&code| eight_bits(code)).collect(),
        _ => bytes.as_chunks().0.iter().map(|&chunk| f32::from_le_bytes(chunk)).collect(),
    }
}

/// The value of a scale of eight bits.
fn eight_bits(code: u8) -> f32 {
    if is_e4m3_number(code) { 256.0 * e4m3(code).to_f32() } else { f32::NAN }
}
