//! Scales that are a tensor of their own, beside one of 8-bit floats: what shares one, and those of some rows.

use std::ops::Range;

use half::{bf16, f16};

use super::{TensorInfo, TensorType};

/// Rows and columns of a block.
pub(super) const BLOCK: usize = 128;

/// What shares a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spread {
    /// All of the tensor.
    Tensor,
    /// A row.
    Row,
    /// 128 rows by 128 columns, fewer at the ends.
    Block,
}

impl Spread {
    /// The shape of the scales of a matrix, rows first.
    pub fn shape(self, [rows, cols]: [usize; 2]) -> [usize; 2] {
        match self {
            Spread::Tensor => [1, 1],
            Spread::Row => [rows, 1],
            Spread::Block => [rows.div_ceil(BLOCK), cols.div_ceil(BLOCK)],
        }
    }

    /// Columns that share a scale.
    pub fn group(self, cols: usize) -> usize {
        match self {
            Spread::Tensor | Spread::Row => cols,
            Spread::Block => BLOCK,
        }
    }

    /// The row of the scales that a row of the matrix has.
    fn row(self, row: usize) -> usize {
        match self {
            Spread::Tensor => 0,
            Spread::Row => row,
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

    /// What lies there.
    pub fn new(scales: &TensorInfo, spread: Spread, rows: &Range<usize>, bytes: &[u8]) -> RowScales {
        let values = widen(scales.dtype, bytes);
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
    if spread == Spread::Block { scales.cols() } else { 1 }
}

fn widen(dtype: TensorType, bytes: &[u8]) -> Vec<f32> {
    match dtype {
        TensorType::F16 => {
            bytes.as_chunks().0.iter().map(|&chunk| f16::from_le_bytes(chunk).to_f32()).collect()
        }
        TensorType::Bf16 => {
            bytes.as_chunks().0.iter().map(|&chunk| bf16::from_le_bytes(chunk).to_f32()).collect()
        }
        _ => bytes.as_chunks().0.iter().map(|&chunk| f32::from_le_bytes(chunk)).collect(),
    }
}
