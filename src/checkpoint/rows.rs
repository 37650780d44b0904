//! Lazy tensors: [`TensorRows`] is a canonical matrix decoded a block of rows at a time.

use std::ops::Range;

use half::{bf16, f16};

use crate::quant::{
    BlockFormat, Codes, DenseMatrix, DenseValues, MatrixForm, QuantError, QuantForm, WeightMatrix, iq4,
    mxfp4, q2_k, q3_k, q4_0, q4_1, q4_k, q5_0, q5_1, q5_k, q6_k, q8_0, scaled,
};

use super::stack::{Member, pieces};
use super::stored::{Scales, StoredFile};
use super::{TensorInfo, TensorType, WeightsError};

/// A tensor of a file, seen as a canonical matrix: quantised types become codes, floats keep their type.
/// Nothing is decoded before [`TensorRows::read`].
#[derive(Clone, Copy)]
pub struct TensorRows<'f> {
    file: &'f StoredFile,
    info: &'f TensorInfo,
    /// Scales of an FP8 or NVFP4 tensor.
    scales: Option<&'f Scales>,
    /// Members of a stack; empty for a plain tensor.
    members: &'f [Member],
}

impl<'f> TensorRows<'f> {
    /// A tensor with at most three dimensions above 1.
    pub(super) fn new(
        file: &'f StoredFile,
        info: &'f TensorInfo,
        scales: Option<&'f Scales>,
        members: &'f [Member],
    ) -> TensorRows<'f> {
        TensorRows { file, info, scales, members }
    }

    fn of(member: &'f Member) -> TensorRows<'f> {
        TensorRows::new(&member.file, &member.info, member.scales.as_ref(), &[])
    }

    /// The tensor's name.
    pub fn name(&self) -> &'f str {
        &self.info.name
    }

    /// Number of rows (output features): 1 for a tensor of one dimension.
    pub fn rows(&self) -> usize {
        self.info.rows()
    }

    /// Number of columns (input features).
    pub fn cols(&self) -> usize {
        self.info.cols()
    }

    /// Element format of the canonical matrix.
    pub fn form(&self) -> MatrixForm {
        if let Some(first) = self.members.first() {
            return TensorRows::of(first).form();
        }
        match (block_format(self.info.dtype), self.info.dtype) {
            (Some(format), _) => MatrixForm::Quant(format.layout.form()),
            (None, TensorType::F16) => MatrixForm::F16,
            (None, TensorType::Bf16) => MatrixForm::Bf16,
            (None, dtype @ (TensorType::F8E4m3 | TensorType::F4E2m1)) => {
                let group = self.scales.map_or(self.cols(), |scales| scales.spread.group(self.cols()));
                let kind = if dtype == TensorType::F8E4m3 { Codes::E4m3 } else { Codes::E2m1 };
                MatrixForm::Quant(QuantForm { kind, group, mins: false })
            }
            (None, _) => MatrixForm::F32,
        }
    }

    /// Bytes per row in the file.
    pub fn row_bytes(&self) -> usize {
        self.cols() / self.info.dtype.block_len() * self.info.dtype.block_bytes()
    }

    /// Decodes `rows` into `into` and reuses its memory if that suffices. Reads from several threads
    /// may run at once.
    ///
    /// # Errors
    /// [`WeightsError::Tensor`] if a scale or a float is not finite, [`WeightsError::Io`] if the file cannot
    /// be read, [`WeightsError::Changed`] if it was truncated.
    ///
    /// # Panics
    /// If `rows` is out of range.
    pub fn read(&self, rows: Range<usize>, into: &mut WeightMatrix) -> Result<(), WeightsError> {
        assert!(rows.start <= rows.end && rows.end <= self.rows(), "rows {rows:?} of {}", self.rows());
        match self.members {
            [] => self.read_own(rows, into),
            members => self.read_members(pieces(members, rows.clone()), rows.len(), into),
        }
    }

    /// Reads rows of a stack: within one member directly, across members piece by piece.
    fn read_members(
        &self,
        pieces: impl Iterator<Item = (&'f Member, Range<usize>)>,
        rows: usize,
        into: &mut WeightMatrix,
    ) -> Result<(), WeightsError> {
        let mut pieces = pieces.peekable();
        if let Some((member, piece)) = pieces.next_if(|(_, piece)| piece.len() == rows) {
            return TensorRows::of(member).read_own(piece, into);
        }
        let refused = |source| self.file.tensor_error(self.info, source);
        into.reshape(self.form(), [rows, self.cols()]).map_err(refused)?;
        let (mut done, mut part) = (0, WeightMatrix::default());
        for (member, piece) in pieces {
            let count = piece.len();
            TensorRows::of(member).read_own(piece, &mut part)?;
            into.copy_rows(done, &part, 0..count);
            done += count;
        }
        Ok(())
    }

    fn read_own(&self, rows: Range<usize>, into: &mut WeightMatrix) -> Result<(), WeightsError> {
        let refused = |source: QuantError| self.file.tensor_error(self.info, source.after_rows(rows.start));
        into.reshape(self.form(), [rows.len(), self.cols()]).map_err(refused)?;
        let scales = self.scales.map(|scales| scales.read(&rows)).transpose()?;
        let decoded =
            self.file.with(self.bytes(&rows), |bytes| match (into, block_format(self.info.dtype)) {
                (WeightMatrix::Quant(matrix), Some(format)) => (format.decode)(bytes, matrix),
                (WeightMatrix::Dense(matrix), _) => fill_dense(matrix, bytes),
                // Tensors without scales are rejected on open, so the default is never used.
                (WeightMatrix::Quant(matrix), None) => scales
                    .map_or(Ok(()), |scales| scaled::fill(matrix, bytes, |row, group| scales.at(row, group))),
            });
        decoded?.map_err(refused)
    }

    /// Releases the pages of `rows`. [`Checkpoint::release`](super::Checkpoint::release) releases the whole
    /// tensor and the pages around it.
    pub fn release(&self, rows: Range<usize>) {
        match self.members {
            [] => self.file.release(self.bytes(&rows)),
            members => pieces(members, rows).for_each(|(member, rows)| TensorRows::of(member).release(rows)),
        }
    }

    /// Byte range of `rows` in the file.
    fn bytes(&self, rows: &Range<usize>) -> Range<usize> {
        let start = self.info.offset as usize;
        start + rows.start * self.row_bytes()..start + rows.end * self.row_bytes()
    }
}

/// The block format of a type; `None` for types without blocks.
fn block_format(dtype: TensorType) -> Option<&'static BlockFormat> {
    Some(match dtype {
        TensorType::F32 | TensorType::F16 | TensorType::Bf16 => return None,
        TensorType::F8E4m3 | TensorType::F4E2m1 => return None,
        TensorType::Q4_0 => &q4_0::FORMAT,
        TensorType::Q4_1 => &q4_1::FORMAT,
        TensorType::Q5_0 => &q5_0::FORMAT,
        TensorType::Q5_1 => &q5_1::FORMAT,
        TensorType::Q8_0 => &q8_0::FORMAT,
        TensorType::Q2K => &q2_k::FORMAT,
        TensorType::Q3K => &q3_k::FORMAT,
        TensorType::Q4K => &q4_k::FORMAT,
        TensorType::Q5K => &q5_k::FORMAT,
        TensorType::Q6K => &q6_k::FORMAT,
        TensorType::Iq4Nl => &iq4::IQ4_NL,
        TensorType::Iq4Xs => &iq4::IQ4_XS,
        TensorType::Mxfp4 => &mxfp4::FORMAT,
    })
}

fn fill_dense(matrix: &mut DenseMatrix, bytes: &[u8]) -> Result<(), QuantError> {
    match matrix.values_mut() {
        DenseValues::F32(values) => fill(values, bytes, f32::from_le_bytes),
        DenseValues::F16(values) => fill(values, bytes, f16::from_le_bytes),
        DenseValues::Bf16(values) => fill(values, bytes, bf16::from_le_bytes),
    }
    match matrix.first_non_finite() {
        Some((row, col, value)) => Err(QuantError::NonFinite { row, col, value }),
        None => Ok(()),
    }
}

fn fill<const N: usize, T>(values: &mut [T], bytes: &[u8], from: fn([u8; N]) -> T) {
    for (value, &chunk) in values.iter_mut().zip(bytes.as_chunks::<N>().0) {
        *value = from(chunk);
    }
}
