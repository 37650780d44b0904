//! Upload of weights to a backend, one matrix at a time. The backend reads a matrix block by block on several
//! threads; pages of the file are released after use.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use crate::backend::{Backend, MatrixSource, Weights};
use crate::checkpoint::{Checkpoint, TensorRows};
use crate::graph::{MatrixSpec, Plan};
use crate::quant::{Distance, MatrixForm, Quality, QuantFormat, WeightMatrix, quantize_block};

use super::source::Source;
use super::{ModelError, SidecarUse, sidecar};

/// Size in bytes of a slice: pages of a tensor are released slice by slice.
const SLICE_BYTES: usize = 1 << 20;

/// Progress of loading.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadProgress<'a> {
    /// Tensor with the matrix just loaded. A tensor may hold several matrices.
    pub tensor: &'a str,
    /// Quantisation error, if the tensor was quantised.
    pub quality: Option<Quality>,
    /// Number of matrices and vectors loaded.
    pub done: usize,
    /// Total number of matrices and vectors.
    pub total: usize,
    /// Bytes loaded, as stored in the file.
    pub bytes_done: u64,
    /// Total bytes of the tensors in the file.
    pub bytes_total: u64,
}

impl Source<'_> {
    /// Prepares one matrix on the backend. Returns the quantisation error if it was quantised.
    fn prepare<B: Backend>(
        &self,
        spec: &MatrixSpec,
        backend: &B,
    ) -> Result<(B::Matrix, Option<Quality>), ModelError> {
        let tensor = Tensor::new(self.file.rows(&spec.name)?, spec);
        Ok(match (tensor.rows.form(), self.quantised(&spec.name)) {
            (MatrixForm::Quant(_), _) | (_, None) => (backend.prepare(&tensor)?, None),
            (_, Some(format)) => {
                let quantised = Quantised { tensor, format, lost: Mutex::default() };
                (backend.prepare(&quantised)?, Some(quantised.quality()))
            }
        })
    }
}

/// Rows of a tensor. Each is read once, in roughly ascending order.
struct Tensor<'f> {
    rows: TensorRows<'f>,
    /// Rows of the matrix within the tensor.
    own: Range<usize>,
    slice_rows: usize,
}

impl<'f> Tensor<'f> {
    fn new(rows: TensorRows<'f>, spec: &MatrixSpec) -> Tensor<'f> {
        let own = spec.first_row..spec.first_row + spec.rows;
        Tensor { rows, own, slice_rows: (SLICE_BYTES / rows.row_bytes().max(1)).max(1) }
    }
}

impl MatrixSource for Tensor<'_> {
    type Error = ModelError;

    fn rows(&self) -> usize {
        self.own.len()
    }

    fn cols(&self) -> usize {
        self.rows.cols()
    }

    fn form(&self) -> MatrixForm {
        self.rows.form()
    }

    fn read(&self, rows: Range<usize>, into: &mut WeightMatrix) -> Result<(), ModelError> {
        let rows = self.own.start + rows.start..self.own.start + rows.end;
        let slices = rows.start / self.slice_rows..rows.end / self.slice_rows;
        self.rows.read(rows, into)?;
        // Other threads may still read the slice that has just ended, so only earlier slices are released. A
        // slower thread reads its pages again.
        if !slices.is_empty() {
            let slice = |number: usize| number.saturating_sub(1) * self.slice_rows;
            self.rows.release(slice(slices.start)..slice(slices.end));
        }
        Ok(())
    }
}

/// A float tensor that is quantised while it is read.
struct Quantised<'f> {
    tensor: Tensor<'f>,
    format: QuantFormat,
    /// Quantisation error of each block, by its first row.
    lost: Mutex<Vec<(usize, Distance)>>,
}

impl Quantised<'_> {
    fn quality(self) -> Quality {
        let mut lost = self.lost.into_inner().unwrap_or_else(PoisonError::into_inner);
        // Sums floats in row order, so that the result does not depend on thread timing.
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
        let first = self.tensor.own.start + rows.start;
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

/// Uploads all weights of a plan.
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
        report.loaded((&spec.name, 1), None);
    }
    let prepare = || prepare_all(source, plan, backend, &mut report);
    let (matrices, used) = sidecar::matrices(&source, plan, backend, prepare)?;
    if used == SidecarUse::Read {
        plan.matrices().iter().for_each(|spec| report.loaded((&spec.name, spec.rows), None));
    }
    Ok((Weights { matrices, vectors }, used))
}

/// Prepares all matrices of a plan on the backend.
fn prepare_all<B: Backend>(
    source: Source<'_>,
    plan: &Plan,
    backend: &B,
    report: &mut Report<'_>,
) -> Result<Vec<B::Matrix>, ModelError> {
    let mut matrices = Vec::with_capacity(plan.matrices().len());
    // A tensor may hold several matrices.
    let tensors: Vec<_> = plan.matrices().chunk_by(|a, b| a.name == b.name).collect();
    let mut ahead = tensors.iter().filter_map(|specs| specs.first());
    ahead.next().into_iter().for_each(|spec| source.file.prefetch(&spec.name));
    for specs in &tensors {
        // Prefetch: the system reads the next tensor while this one is packed.
        ahead.next().into_iter().for_each(|spec| source.file.prefetch(&spec.name));
        for spec in *specs {
            let (matrix, quality) = source.prepare(spec, backend)?;
            matrices.push(matrix);
            report.loaded((&spec.name, spec.rows), quality);
        }
        specs.first().into_iter().for_each(|spec| source.file.release(&spec.name));
    }
    Ok(matrices)
}

/// Progress reports to the caller.
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
        let matrices = plan.matrices().iter().map(|spec| (spec.name.as_str(), spec.rows));
        let all = matrices.chain(plan.vectors().iter().map(|spec| (spec.name.as_str(), 1)));
        let bytes_total = all.map(|rows| bytes(file, rows)).sum();
        let total = plan.matrices().len() + plan.vectors().len();
        Report { file, done: 0, total, bytes_done: 0, bytes_total, progress }
    }

    /// Reports `rows` rows of a tensor as loaded.
    fn loaded(&mut self, (tensor, rows): (&str, usize), quality: Option<Quality>) {
        self.done += 1;
        self.bytes_done += bytes(self.file, (tensor, rows));
        let Report { done, total, bytes_done, bytes_total, .. } = *self;
        (self.progress)(LoadProgress { tensor, quality, done, total, bytes_done, bytes_total });
    }
}

/// Bytes of `rows` rows of a tensor.
fn bytes(file: &dyn Checkpoint, (tensor, rows): (&str, usize)) -> u64 {
    file.tensor(tensor).map_or(0, |info| info.bytes / info.rows().max(1) as u64 * rows as u64)
}
