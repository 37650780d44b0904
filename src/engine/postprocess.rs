//! What follows a step: its tokens are booked, the next tokens chosen, ended sequences told so.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use super::flight::{Flight, Part};
use super::generation::{FinishReason, GenerationError, Logprobs};
use super::scheduler::Share;
use super::stats::add;
use super::worker::Worker;
use crate::{
    kv::KvError,
    model::Decoder,
    sample::{SampleError, best_logits, log_sum_exp},
    token::TokenId,
};

impl<D: Decoder> Worker<D> {
    /// Books the tokens of the step under way, if there is one, chooses the next token of each output,
    /// ends what has ended.
    pub(super) fn finish_step(&mut self) {
        let mut flight = std::mem::take(&mut self.flight);
        let tokens = self.wait_for_tokens(&flight);
        let mut ended = Vec::new();
        for &part in &flight.parts {
            let index = part.share.index;
            let chosen = match (self.book(part.share, flight.launched_ahead), part.output, &tokens) {
                (Err(error), ..) => Err(GenerationError::Step(error.to_string())),
                (Ok(()), None, _) => continue,
                (Ok(()), Some(_), Err(error)) => Err(error.clone()),
                (Ok(()), Some(output), Ok(())) => self.choose(part, output, flight.number),
            };
            let end = match chosen {
                Ok((token, logprobs)) => self.sequences[index].accept(token, logprobs).map(Ok),
                Err(error) => Some(Err(error)),
            };
            ended.extend(end.map(|end| (index, end)));
        }
        ended.sort_unstable_by_key(|&(index, _)| std::cmp::Reverse(index));
        for (index, end) in ended {
            self.end(index, end);
        }
        flight.clear();
        self.flight = flight;
    }

    /// Fetches what the step sampled, if anything.
    fn wait_for_tokens(&mut self, flight: &Flight) -> Result<(), GenerationError> {
        self.sampled.clear();
        if !flight.parts.iter().any(|part| part.sampled) {
            return Ok(());
        }
        self.sampled.resize(flight.outputs, None);
        let started = Instant::now();
        let read = AssertUnwindSafe(|| self.decoder.sampled(flight.number, &mut self.sampled));
        let read = catch_unwind(read);
        add(&self.counters.step_us, started.elapsed().as_micros() as usize);
        match read {
            Ok(read) => read.map_err(|error| GenerationError::Step(error.to_string())),
            Err(_) => Err(GenerationError::Step("the backend panicked".into())),
        }
    }

    /// Moves a sequence over the tokens that the step computed. Those of a step ahead were reserved
    /// together with the ones before them.
    fn book(&mut self, share: Share, launched_ahead: bool) -> Result<(), KvError> {
        let sequence = &mut self.sequences[share.index];
        let Some(id) = sequence.pages else { return Ok(()) };
        let end = sequence.computed + share.tokens;
        let generated = usize::from(sequence.computed >= sequence.request.prompt.len());
        if launched_ahead {
            self.kv.reserve(id, share.tokens)?;
        }
        self.kv.advance(id, &sequence.tokens[sequence.computed..end])?;
        sequence.computed = end;
        add(&self.counters.prefill_tokens, share.tokens - generated.min(share.tokens));
        Ok(())
    }

    /// What the step sampled, or else what the logits say.
    fn choose(
        &mut self,
        part: Part,
        output: usize,
        step: u64,
    ) -> Result<(TokenId, Option<Logprobs>), GenerationError> {
        match self.sampled.get(output) {
            Some(&Some(token)) if part.sampled => {
                add(&self.counters.decode_tokens, 1);
                Ok((token, None))
            }
            _ if self.decoder.steps() == step => self.sample_caught(part.share.index, output),
            // The logits are those of the step ahead by now.
            _ => Err(SampleError::Unusable.into()),
        }
    }

    /// A mask is the caller's code: its panic is its own request's failure.
    fn sample_caught(
        &mut self,
        index: usize,
        output: usize,
    ) -> Result<(TokenId, Option<Logprobs>), GenerationError> {
        // The request ends with its panic, and the scratch is refilled for each choice.
        let result = catch_unwind(AssertUnwindSafe(|| self.sample(index, output)));
        result.unwrap_or_else(|_| Err(GenerationError::Step("choosing a token panicked".into())))
    }

    fn sample(
        &mut self,
        index: usize,
        output: usize,
    ) -> Result<(TokenId, Option<Logprobs>), GenerationError> {
        let read = self.decoder.logits(output, &mut self.logits);
        read.map_err(|error| GenerationError::Step(error.to_string()))?;
        let sequence = &mut self.sequences[index];
        let mut mask = sequence.request.mask.take();
        let normaliser = sequence.request.top.map(|_| log_sum_exp(&self.logits)).transpose()?;
        best_logits(&self.logits, sequence.request.top.unwrap_or(0), &mut self.best);
        let own = normaliser.map(|_| self.logits.clone());
        let history = sequence.history();
        let mask_now = mask.as_deref_mut();
        let sampling = &sequence.request.sampling;
        let token = self.sampler.choose(&mut self.logits, sampling, mask_now, history)?;
        sequence.request.mask = mask;
        add(&self.counters.decode_tokens, 1);
        let logprobs = normaliser.zip(own).map(|(normaliser, own)| Logprobs {
            chosen: f64::from(own[token.index()]) - normaliser,
            top: self.best.iter().map(|&(id, logit)| (id, logit - normaliser)).collect(),
        });
        Ok((token, logprobs))
    }

    /// Takes a sequence out of the list and tells its reader.
    pub(super) fn end(&mut self, index: usize, end: Result<FinishReason, GenerationError>) {
        let mut sequence = self.sequences.remove(index);
        self.flight.forget(index);
        self.ahead.forget(index);
        if let Some(id) = sequence.pages.take() {
            // What a failed sequence computed must not be found by others.
            let released = if end.is_err() { self.kv.release_unshared(id) } else { self.kv.release(id) };
            debug_assert!(released.is_ok(), "a running sequence's id is live: {released:?}");
        }
        let counter = match end {
            Ok(FinishReason::Cancelled) => &self.counters.cancelled,
            Ok(_) => &self.counters.finished,
            Err(_) => &self.counters.failed,
        };
        add(counter, 1);
        // Whoever reads the last event finds it in the statistics.
        self.publish();
        match end {
            Ok(finish) => sequence.finish(finish),
            Err(error) => sequence.fail(error),
        }
    }
}
