//! Separate scale tensors of FP8 and NVFP4 weights: their granularity, and the scales of a range of rows.

use std::ops::Range;

use half::{bf16, f16};

use super::{TensorInfo, TensorType};
use crate::quant::{e4m3, is_e4m3_number};

/// Rows and columns per FP8 block.
pub(super) const BLOCK: usize = 128;

/// Columns per NVFP4 group.
pub(super) const GROUP: usize = 16;

/// Granularity of the scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spread {
    /// Per tensor.
    Tensor,
    /// Per row.
    Row,
    /// Per block of 128 x 128, smaller at the edges.
    Block,
    /// Per 16 columns of a row, fewer at the end.
    Group,
}

impl Spread {
    /// Shape of the scales for a matrix of `[rows, cols]`, rows first.
    pub fn shape(self, [rows, cols]: [usize; 2]) -> [usize; 2] {
        match self {
            Spread::Tensor => [1, 1],
            Spread::Row => [rows, 1],
            Spread::Block => [rows.div_ceil(BLOCK), cols.div_ceil(BLOCK)],
            Spread::Group => [rows, cols.div_ceil(GROUP)],
        }
    }

    /// Number of columns that share a scale.
    pub fn group(self, cols: usize) -> usize {
        match self {
            Spread::Tensor | Spread::Row => cols,
            Spread::Block => BLOCK,
            Spread::Group => GROUP,
        }
    }

    /// Row of the scale tensor for a row of the matrix.
    fn row(self, row: usize) -> usize {
        match self {
            Spread::Tensor => 0,
            Spread::Row | Spread::Group => row,
            Spread::Block => row / BLOCK,
        }
    }
}

/// Scales of a range of rows.
pub(super) struct RowScales {
    values: Vec<f32>,
    spread: Spread,
    /// First row of the range.
    first: usize,
    /// Scales per row.
    width: usize,
}

impl RowScales {
    /// Byte range of the scales of `rows` in the file of `scales`, whose shape is `spread.shape()`.
    pub fn place(scales: &TensorInfo, spread: Spread, rows: &Range<usize>) -> Range<usize> {
        let row_bytes = width(scales, spread) * scales.dtype.block_bytes();
        let (first, last) = (spread.row(rows.start), spread.row(rows.end.saturating_sub(1)));
        let start = scales.offset as usize;
        start + first * row_bytes..start + (last + 1) * row_bytes
    }

    /// Decodes `bytes`, read from [`RowScales::place`], and multiplies by `factor`.
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

    /// The scale of `row`, relative to the first row, and of column group `group`.
    pub fn at(&self, row: usize, group: usize) -> f32 {
        let line = self.spread.row(self.first + row) - self.spread.row(self.first);
        // In range: [`RowScales::place`] covers all rows. NaN is refused by the decoder.
        self.values.get(line * self.width + group).copied().unwrap_or(f32::NAN)
    }
}

/// Scales per row. Per-row and per-tensor scales may be one-dimensional.
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

/// Value of an E4M3 scale; NaN for a NaN code.
fn eight_bits(code: u8) -> f32 {
    if is_e4m3_number(code) { 256.0 * e4m3(code).to_f32() } else { f32::NAN }
}
