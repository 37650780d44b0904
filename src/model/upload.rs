//! Bringing weights to a backend: several threads decode matrices from the file, one prepares
//! them as they come; each matrix's source pages are released as soon as it is decoded.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use crate::backend::{Backend, Weights};
use crate::graph::{MatrixSpec, Plan};
use crate::quant::{Quality, QuantFormat, WeightMatrix, quantize};
use crate::weights::ModelFile;

use super::ModelError;
use super::load::LoadProgress;

/// Threads that decode at most: more only hold more decoded matrices at once.
const THREADS_MAX: usize = 8;

/// Where matrices come from.
#[derive(Clone, Copy)]
pub(super) struct Source<'f> {
    pub file: &'f ModelFile,
    /// What float matrices become.
    pub quantise: Option<QuantFormat>,
}

/// A matrix in canonical form, and what was lost if it was quantised just now.
type Canonical = (WeightMatrix, Option<Quality>);

/// A decoded matrix and its number.
type Decoded = (usize, Result<Canonical, ModelError>);

impl Source<'_> {
    fn matrix(&self, name: &str) -> Result<Canonical, ModelError> {
        self.file.prefetch(name);
        let matrix = self.file.matrix(name)?;
        self.file.release(name);
        let (WeightMatrix::Dense(dense), Some(format)) = (&matrix, self.quantise) else {
            return Ok((matrix, None));
        };
        let failed = |source| ModelError::Quantise { tensor: name.into(), source };
        let (quantised, quality) = quantize(dense, format).map_err(failed)?;
        Ok((WeightMatrix::Quant(quantised), Some(quality)))
    }
}

/// Loads every weight of a plan.
pub(super) fn upload<B: Backend>(
    source: Source<'_>,
    plan: &Plan,
    backend: &B,
    progress: &mut dyn FnMut(LoadProgress<'_>),
) -> Result<Weights<B>, ModelError> {
    let mut report = Report::new(source.file, plan, progress);
    let matrices = upload_matrices(source, plan.matrices(), backend, &mut report)?;
    let mut vectors = Vec::with_capacity(plan.vectors().len());
    for spec in plan.vectors() {
        vectors.push(backend.upload_vector(&source.file.vector(&spec.name)?)?);
        report.loaded(&spec.name, None);
    }
    Ok(Weights { matrices, vectors })
}

fn upload_matrices<B: Backend>(
    source: Source<'_>,
    specs: &[MatrixSpec],
    backend: &B,
    report: &mut Report<'_>,
) -> Result<Vec<B::Matrix>, ModelError> {
    let threads = thread::available_parallelism().map_or(1, NonZeroUsize::get).min(THREADS_MAX);
    let next = AtomicUsize::new(0);
    let mut prepared: Vec<Option<B::Matrix>> = specs.iter().map(|_| None).collect();
    thread::scope(|scope| {
        let (sender, receiver) = sync_channel(1);
        for _ in 0..threads.min(specs.len()) {
            let (sender, next) = (sender.clone(), &next);
            scope.spawn(move || decode(source, specs, next, &sender));
        }
        // The channel ends with the last thread.
        drop(sender);
        prepare(specs, backend, receiver, &mut prepared, report)
    })?;
    // Every number was sent exactly once, or the scope has panicked.
    Ok(prepared.into_iter().flatten().collect())
}

/// One decoding thread: takes the next matrix until there is none, or nobody wants it.
fn decode(source: Source<'_>, specs: &[MatrixSpec], next: &AtomicUsize, sender: &SyncSender<Decoded>) {
    loop {
        let index = next.fetch_add(1, Ordering::Relaxed);
        let Some(spec) = specs.get(index) else { return };
        if sender.send((index, source.matrix(&spec.name))).is_err() {
            return;
        }
    }
}

/// Prepares matrices as they come. A failure drops the receiver, which ends the threads.
fn prepare<B: Backend>(
    specs: &[MatrixSpec],
    backend: &B,
    receiver: Receiver<Decoded>,
    prepared: &mut [Option<B::Matrix>],
    report: &mut Report<'_>,
) -> Result<(), ModelError> {
    for (index, matrix) in receiver {
        let (matrix, quality) = matrix?;
        let matrix = backend.prepare(matrix)?;
        if let (Some(slot), Some(spec)) = (prepared.get_mut(index), specs.get(index)) {
            *slot = Some(matrix);
            report.loaded(&spec.name, quality);
        }
    }
    Ok(())
}

/// What the caller is told.
struct Report<'a> {
    file: &'a ModelFile,
    done: usize,
    total: usize,
    bytes_done: u64,
    bytes_total: u64,
    progress: &'a mut dyn FnMut(LoadProgress<'_>),
}

impl<'a> Report<'a> {
    fn new(file: &'a ModelFile, plan: &Plan, progress: &'a mut dyn FnMut(LoadProgress<'_>)) -> Self {
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

fn bytes(file: &ModelFile, tensor: &str) -> u64 {
    file.tensor(tensor).map_or(0, |info| info.bytes)
}
