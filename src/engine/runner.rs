//! The decoder's side of a step: launches a batch and holds its outputs. An error or a panic of the decoder
//! fails the batch, not the engine.

use std::sync::Arc;
use std::time::Instant;

use super::batch::Batch;
use super::choose::Outputs;
use super::failure::{Failure, caught};
use super::profile::Profiler;
use super::sequence::Sequence;
use super::stats::{Counters, add};
use super::store::Exported;
use crate::ir::PAGE_TOKENS;
use crate::kv::KvCacheManager;
use crate::model::{Decoder, ModelError};
use crate::{sample::SampleError, token::TokenId};

/// The decoder with its profiler and counters.
#[derive(Debug)]
pub(super) struct Runner<D> {
    pub(super) decoder: D,
    /// Set while a profile is on.
    pub(super) profiler: Option<Profiler>,
    counters: Arc<Counters>,
    /// Tokens sampled by the last step that was waited for.
    sampled: Vec<Option<TokenId>>,
}

impl<D: Decoder> Runner<D> {
    pub(super) fn new(decoder: D, counters: Arc<Counters>) -> Runner<D> {
        Runner { decoder, profiler: None, counters, sampled: Vec::new() }
    }

    /// Launches a batch and counts it; the step is in flight then.
    ///
    /// # Errors
    /// The decoder's error, or [`Failure::Internal`] if it panicked.
    pub(super) fn run(&mut self, batch: &mut Batch) -> Result<(), Failure> {
        let (decoder, profiler) = (&mut self.decoder, &mut self.profiler);
        timed(&self.counters, || match profiler {
            None => decoder.step(&batch.input),
            Some(profiler) => decoder.step_timed(&batch.input, profiler.begin(&batch.input)),
        })?;
        add(&self.counters.steps, 1);
        batch.number = self.decoder.steps();
        Ok(())
    }

    /// Waits for the tokens of a step in flight, if it samples any, and returns its outputs.
    pub(super) fn ran<'r>(&'r mut self, batch: &Batch, kv: &'r KvCacheManager) -> Ran<'r, D> {
        self.sampled.clear();
        let mut error = None;
        if batch.parts.iter().any(|part| part.sampled) {
            self.sampled.resize(batch.input.outputs.len(), None);
            let (decoder, sampled) = (&mut self.decoder, &mut self.sampled);
            error = timed(&self.counters, || decoder.sampled(batch.number, sampled)).err();
        }
        Ran { runner: self, kv, number: batch.number, error }
    }
}

/// Runs a call of the decoder, counts its time, and turns a panic into an error. The decoder stays usable: a
/// step changes only pages, and a failure makes those void.
fn timed(counters: &Counters, call: impl FnOnce() -> Result<(), ModelError>) -> Result<(), Failure> {
    match clocked(counters, || caught(call)) {
        Some(result) => Ok(result?),
        None => Err(Failure::Internal("the backend panicked")),
    }
}

/// Counts a call's time as step time: each call may wait for a device.
fn clocked<T>(counters: &Counters, call: impl FnOnce() -> T) -> T {
    let started = Instant::now();
    counters.set_step(Some(started));
    let result = call();
    counters.set_step(None);
    add(&counters.step_us, started.elapsed().as_micros() as usize);
    result
}

/// The outputs of a finished step.
#[derive(Debug)]
pub(super) struct Ran<'r, D> {
    runner: &'r Runner<D>,
    kv: &'r KvCacheManager,
    number: u64,
    /// Why the sampled tokens could not be read.
    error: Option<Failure>,
}

impl<D: Decoder> Outputs for Ran<'_, D> {
    fn sampled(&self, output: usize) -> Result<Option<TokenId>, Failure> {
        match &self.error {
            Some(error) => Err(error.clone()),
            None => Ok(self.runner.sampled.get(output).copied().flatten()),
        }
    }

    fn logits(&self, output: usize, out: &mut [f32]) -> Result<(), Failure> {
        if self.runner.decoder.steps() != self.number {
            // The decoder's logits belong to the step ahead by now.
            return Err(SampleError::Unusable.into());
        }
        let Runner { decoder, counters, .. } = self.runner;
        Ok(clocked(counters, || decoder.logits(output, out))?)
    }

    fn export(&self, sequence: &Sequence) -> Result<Exported, Failure> {
        let id = sequence.pages.ok_or(Failure::Internal("a computed sequence has no pages"))?;
        let Runner { decoder, counters, .. } = self.runner;
        let (pages, len) = (self.kv.pages(id)?, sequence.tokens.len());
        let state = self.kv.state_of_whole_pages(id, len)?;
        if self.kv.has_states() && state.is_none() && len >= PAGE_TOKENS {
            return Err(Failure::NoState);
        }
        clocked(counters, || Exported::copy(decoder, (pages, state), &sequence.tokens, counters))
    }
}
