//! [`Scales`]: the tensor beside one of 8-bit floats that holds its scales, and what it covers of it.

use std::ops::Range;
use std::sync::Arc;

use half::{bf16, f16};

use super::stored::StoredFile;
use super::{TensorInfo, TensorType, WeightsError};

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

/// The scales of a tensor.
pub(super) struct Scales {
    /// The file that has them, which may be another shard than the tensor's.
    pub file: Arc<StoredFile>,
    /// Floats, of the shape that the spread asks for.
    pub info: TensorInfo,
    pub spread: Spread,
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

impl Scales {
    /// Those of some rows of the tensor.
    pub fn read(&self, rows: &Range<usize>) -> Result<RowScales, WeightsError> {
        let Scales { info, spread, .. } = self;
        // A spread of rows has one column, whatever the tensor's dimensions are.
        let width = if *spread == Spread::Block { info.cols() } else { 1 };
        let (first, last) = (spread.row(rows.start), spread.row(rows.end.saturating_sub(1)));
        let row_bytes = width * info.dtype.block_bytes();
        let start = info.offset as usize;
        let range = start + first * row_bytes..start + (last + 1) * row_bytes;
        let values = self.file.with(range, |bytes| widen(info.dtype, bytes))?;
        Ok(RowScales { values, spread: *spread, first: rows.start, width })
    }
}

impl RowScales {
    /// The scale of a row, counted from the first of them, and of a group of columns.
    pub fn at(&self, row: usize, group: usize) -> f32 {
        let line = self.spread.row(self.first + row) - self.spread.row(self.first);
        // As many were read as the rows have.
        self.values.get(line * self.width + group).copied().unwrap_or(f32::NAN)
    }
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
