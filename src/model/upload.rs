//! Bringing weights to a backend, a matrix after the other: the backend takes a matrix block by block, on
//! as many threads as it likes, and the file's pages are given back behind it.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use crate::backend::{Backend, MatrixSource, Weights};
use crate::checkpoint::{Checkpoint, TensorRows};
use crate::graph::Plan;
use crate::quant::{Distance, MatrixForm, Quality, QuantFormat, WeightMatrix, quantize_block};

use super::source::Source;
use super::{ModelError, SidecarUse, sidecar};

/// Bytes of a tensor after which the pages read before them are given back.
const SLICE_BYTES: usize = 1 << 20;

/// How far loading is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadProgress<'a> {
    /// The tensor that was loaded just now.
    pub tensor: &'a str,
    /// What was lost, if the tensor was quantised.
    pub quality: Option<Quality>,
    /// Tensors loaded.
    pub done: usize,
    /// Tensors in all.
    pub total: usize,
    /// Their bytes in the file.
    pub bytes_done: u64,
    /// Bytes in the file of all tensors.
    pub bytes_total: u64,
}

impl Source<'_> {
    /// Brings one matrix to the backend; what was lost if it was quantised for that.
    fn prepare<B: Backend>(
        &self,
        name: &str,
        backend: &B,
    ) -> Result<(B::Matrix, Option<Quality>), ModelError> {
        let tensor = Tensor::new(self.file.rows(name)?);
        let (matrix, quality) = match (tensor.rows.form(), self.quantise) {
            (MatrixForm::Quant(_), _) | (_, None) => (backend.prepare(&tensor)?, None),
            (_, Some(format)) => {
                let quantised = Quantised { tensor, format, lost: Mutex::default() };
                (backend.prepare(&quantised)?, Some(quantised.quality()))
            }
        };
        self.file.release(name);
        Ok((matrix, quality))
    }
}

/// A tensor whose rows are read once, about in ascending order.
struct Tensor<'f> {
    rows: TensorRows<'f>,
    slice_rows: usize,
}

impl Tensor<'_> {
    fn new(rows: TensorRows<'_>) -> Tensor<'_> {
        Tensor { rows, slice_rows: (SLICE_BYTES / rows.row_bytes().max(1)).max(1) }
    }
}

impl MatrixSource for Tensor<'_> {
    type Error = ModelError;

    fn rows(&self) -> usize {
        self.rows.rows()
    }

    fn cols(&self) -> usize {
        self.rows.cols()
    }

    fn form(&self) -> MatrixForm {
        self.rows.form()
    }

    fn read(&self, rows: Range<usize>, into: &mut WeightMatrix) -> Result<(), ModelError> {
        let slices = rows.start / self.slice_rows..rows.end / self.slice_rows;
        self.rows.read(rows, into)?;
        // Other threads may still be at the slice that was ended, hardly at the one before. Where one is,
        // it reads its pages again.
        if !slices.is_empty() {
            let slice = |number: usize| number.saturating_sub(1) * self.slice_rows;
            self.rows.release(slice(slices.start)..slice(slices.end));
        }
        Ok(())
    }
}

/// A float tensor that is quantised as it is read.
struct Quantised<'f> {
    tensor: Tensor<'f>,
    format: QuantFormat,
    /// What was lost, by the first row of a block.
    lost: Mutex<Vec<(usize, Distance)>>,
}

impl Quantised<'_> {
    fn quality(self) -> Quality {
        let mut lost = self.lost.into_inner().unwrap_or_else(PoisonError::into_inner);
        // Floats are added up in the rows' order, whichever thread was first.
        lost.sort_unstable_by_key(|&(row, _)| row);
        let mut sum = Distance::default();
        lost.iter().for_each(|(_, distance)| sum.add(distance));
        sum.quality()
    }
}

impl MatrixSource for Quantised<'_> {
    type Error = ModelError;

    fn rows(&self) -> usize {
        self.tensor.rows()
    }

    fn cols(&self) -> usize {
        self.tensor.cols()
    }

    fn form(&self) -> MatrixForm {
        MatrixForm::Quant(self.format.form(self.cols()))
    }

    fn read(&self, rows: Range<usize>, into: &mut WeightMatrix) -> Result<(), ModelError> {
        let first = rows.start;
        self.tensor.read(rows, into)?;
        if let WeightMatrix::Dense(floats) = &*into {
            let failed = |source: crate::quant::QuantError| ModelError::Quantise {
                tensor: self.tensor.rows.name().into(),
                source: source.after_rows(first),
            };
            let (matrix, distance) = quantize_block(floats, self.format).map_err(failed)?;
            *into = WeightMatrix::Quant(matrix);
            self.lost.lock().unwrap_or_else(PoisonError::into_inner).push((first, distance));
        }
        Ok(())
    }
}

/// Loads every weight of a plan.
pub(super) fn upload<B: Backend>(
    source: Source<'_>,
    plan: &Plan,
    backend: &B,
    progress: &mut dyn FnMut(LoadProgress<'_>),
) -> Result<(Weights<B>, SidecarUse), ModelError> {
    let mut report = Report::new(source.file, plan, progress);
    let mut vectors = Vec::with_capacity(plan.vectors().len());
    for spec in plan.vectors() {
        vectors.push(backend.upload_vector(&source.vector(&spec.name)?)?);
        source.file.release(&spec.name);
        report.loaded(&spec.name, None);
    }
    let prepare = || prepare_all(source, plan, backend, &mut report);
    let (matrices, used) = sidecar::matrices(&source, plan, backend, prepare)?;
    if used == SidecarUse::Read {
        plan.matrices().iter().for_each(|spec| report.loaded(&spec.name, None));
    }
    Ok((Weights { matrices, vectors }, used))
}

/// Brings all matrices of a plan to the backend.
fn prepare_all<B: Backend>(
    source: Source<'_>,
    plan: &Plan,
    backend: &B,
    report: &mut Report<'_>,
) -> Result<Vec<B::Matrix>, ModelError> {
    let mut matrices = Vec::with_capacity(plan.matrices().len());
    let mut ahead = plan.matrices().iter().map(|spec| &spec.name);
    ahead.next().into_iter().for_each(|name| source.file.prefetch(name));
    for spec in plan.matrices() {
        // The system reads the next matrix while this one is packed.
        ahead.next().into_iter().for_each(|name| source.file.prefetch(name));
        let (matrix, quality) = source.prepare(&spec.name, backend)?;
        matrices.push(matrix);
        report.loaded(&spec.name, quality);
    }
    Ok(matrices)
}

/// What the caller is told.
struct Report<'a> {
    file: &'a dyn Checkpoint,
    done: usize,
    total: usize,
    bytes_done: u64,
    bytes_total: u64,
    progress: &'a mut dyn FnMut(LoadProgress<'_>),
}

impl<'a> Report<'a> {
    fn new(file: &'a dyn Checkpoint, plan: &Plan, progress: &'a mut dyn FnMut(LoadProgress<'_>)) -> Self {
        let matrices = plan.matrices().iter().map(|spec| spec.name.as_str());
        let names = matrices.chain(plan.vectors().iter().map(|spec| spec.name.as_str()));
        let bytes_total = names.map(|name| bytes(file, name)).sum();
        let total = plan.matrices().len() + plan.vectors().len();
        Report { file, done: 0, total, bytes_done: 0, bytes_total, progress }
    }

    fn loaded(&mut self, tensor: &str, quality: Option<Quality>) {
        self.done += 1;
        self.bytes_done += bytes(self.file, tensor);
        let Report { done, total, bytes_done, bytes_total, .. } = *self;
        (self.progress)(LoadProgress { tensor, quality, done, total, bytes_done, bytes_total });
    }
}

fn bytes(file: &dyn Checkpoint, tensor: &str) -> u64 {
    file.tensor(tensor).map_or(0, |info| info.bytes)
}
