//! What follows a step: its tokens are booked, the next tokens chosen, ended sequences told so.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::generation::{FinishReason, GenerationError, Logprobs};
use super::scheduler::Share;
use super::stats::add;
use super::worker::Worker;
use crate::{
    kv::KvError,
    model::{Decoder, ModelError},
    sample::{best_logits, log_sum_exp},
    token::TokenId,
};

impl<D: Decoder> Worker<D> {
    /// Books the step's tokens, chooses the next token of each output, ends what has ended.
    pub(super) fn sample_and_postprocess(&mut self) {
        let mut shares = std::mem::take(&mut self.shares);
        let mut output = 0;
        let mut ended = Vec::new();
        for share in &shares {
            // The step has an output for it whatever becomes of the books.
            let has_output = self.sequences[share.index].pending() == share.tokens;
            let chosen = match self.book(share) {
                Ok(()) if !has_output => continue,
                Ok(()) => self.sample_caught(share.index, output),
                Err(error) => Err(GenerationError::Step(error.to_string())),
            };
            output += usize::from(has_output);
            let end = match chosen {
                Ok((token, logprobs)) => self.sequences[share.index].accept(token, logprobs).map(Ok),
                Err(error) => Some(Err(error)),
            };
            ended.extend(end.map(|end| (share.index, end)));
        }
        ended.sort_unstable_by_key(|&(index, _)| std::cmp::Reverse(index));
        for (index, end) in ended {
            self.end(index, end);
        }
        shares.clear();
        self.shares = shares;
    }

    /// Moves a sequence over the tokens that the step computed.
    fn book(&mut self, share: &Share) -> Result<(), KvError> {
        let sequence = &mut self.sequences[share.index];
        let Some(id) = sequence.pages else { return Ok(()) };
        let end = sequence.computed + share.tokens;
        let generated = usize::from(sequence.computed >= sequence.request.prompt.len());
        self.kv.advance(id, &sequence.tokens[sequence.computed..end])?;
        sequence.computed = end;
        add(&self.counters.prefill_tokens, share.tokens - generated.min(share.tokens));
        Ok(())
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
        let step_error = |error: ModelError| GenerationError::Step(error.to_string());
        let request = &self.sequences[index].request;
        if request.top.is_none() && request.mask.is_none() && request.sampling.takes_the_best() {
            if self.best_ids.is_empty() {
                self.best_ids.resize(self.step.outputs.len(), None);
                self.decoder.best(&mut self.best_ids).map_err(step_error)?;
            }
            if let Some(Some(token)) = self.best_ids.get(output) {
                add(&self.counters.decode_tokens, 1);
                return Ok((*token, None));
            }
        }
        self.decoder.logits(output, &mut self.logits).map_err(step_error)?;
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
