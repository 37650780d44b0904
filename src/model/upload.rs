//! Bringing weights to a backend, a matrix after the other: the backend takes a matrix block by block, on
//! as many threads as it likes, and the file's pages are given back behind it.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use crate::backend::{Backend, MatrixSource, Weights};
use crate::checkpoint::{Checkpoint, TensorRows};
use crate::graph::{MatrixSpec, Plan};
use crate::quant::{Distance, MatrixForm, Quality, QuantFormat, WeightMatrix, quantize_block};

use super::source::Source;
use super::{ModelError, SidecarUse, sidecar};

/// Bytes of a tensor after which the pages read before them are given back.
const SLICE_BYTES: usize = 1 << 20;

/// How far loading is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadProgress<'a> {
    /// The tensor of which a matrix was loaded just now; it may hold several.
    pub tensor: &'a str,
    /// What was lost, if the tensor was quantised.
    pub quality: Option<Quality>,
    /// Matrices and vectors loaded.
    pub done: usize,
    /// Matrices and vectors in all.
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

/// Rows of a tensor that are read once, about in ascending order.
struct Tensor<'f> {
    rows: TensorRows<'f>,
    /// The matrix's rows among them.
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
        report.loaded((&spec.name, 1), None);
    }
    let prepare = || prepare_all(source, plan, backend, &mut report);
    let (matrices, used) = sidecar::matrices(&source, plan, backend, prepare)?;
    if used == SidecarUse::Read {
        plan.matrices().iter().for_each(|spec| report.loaded((&spec.name, spec.rows), None));
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
    // Several may be in one tensor.
    let tensors: Vec<_> = plan.matrices().chunk_by(|a, b| a.name == b.name).collect();
    let mut ahead = tensors.iter().filter_map(|specs| specs.first());
    ahead.next().into_iter().for_each(|spec| source.file.prefetch(&spec.name));
    for specs in &tensors {
        // The system reads the next tensor while this one is packed.
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
        let matrices = plan.matrices().iter().map(|spec| (spec.name.as_str(), spec.rows));
        let all = matrices.chain(plan.vectors().iter().map(|spec| (spec.name.as_str(), 1)));
        let bytes_total = all.map(|rows| bytes(file, rows)).sum();
        let total = plan.matrices().len() + plan.vectors().len();
        Report { file, done: 0, total, bytes_done: 0, bytes_total, progress }
    }

    /// Of a tensor that many rows.
    fn loaded(&mut self, (tensor, rows): (&str, usize), quality: Option<Quality>) {
        self.done += 1;
        self.bytes_done += bytes(self.file, (tensor, rows));
        let Report { done, total, bytes_done, bytes_total, .. } = *self;
        (self.progress)(LoadProgress { tensor, quality, done, total, bytes_done, bytes_total });
    }
}

/// Bytes of so many rows of a tensor.
fn bytes(file: &dyn Checkpoint, (tensor, rows): (&str, usize)) -> u64 {
    file.tensor(tensor).map_or(0, |info| info.bytes / info.rows().max(1) as u64 * rows as u64)
}
