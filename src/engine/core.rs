//! The machine that the engine's thread works: decoder, KV books and sampler, and what one step
//! does with them. Who takes part in a step is decided elsewhere (`scheduler`, `worker`).

use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use super::generate::{Generate, Logprobs};
use super::generation::{FinishReason, GenerationError};
use super::request::Facts;
use super::scheduler::{Share, View};
use super::sequence::{Outcome, Sequence, Task};
use super::stats::Stats;
use crate::backend::{StepInput, StepSequence};
use crate::kv::{KvCacheManager, KvError};
use crate::model::Decoder;
use crate::sample::{Draw, Sampler};
use crate::token::TokenId;

/// Everything that a step works with, but for the sequences.
#[derive(Debug)]
pub(super) struct Core<D> {
    pub(super) decoder: D,
    pub(super) kv: KvCacheManager,
    pub(super) stats: Stats,
    sampler: Sampler,
    /// One row, `[vocab_size]`.
    logits: Vec<f32>,
    input: StepInput,
}

impl<D: Decoder> Core<D> {
    pub(super) fn new(decoder: D, kv: KvCacheManager, facts: &Facts) -> Core<D> {
        Core {
            decoder,
            kv,
            stats: Stats::default(),
            sampler: Sampler::new(facts.vocab_size),
            logits: vec![0.0; facts.vocab_size],
            input: StepInput::default(),
        }
    }

    /// What the scheduler sees of a sequence.
    pub(super) fn view(&self, sequence: &Sequence) -> View {
        let pages = sequence.kv.and_then(|seq| self.kv.pages(seq).ok());
        sequence.view(pages.map_or(0, <[_]>::len))
    }

    /// Brings a sequence into the cache, with what the cache has of it already.
    pub(super) fn start(&mut self, sequence: &mut Sequence) -> Result<(), KvError> {
        let allocation = self.kv.allocate(&sequence.tokens, sequence.spec)?;
        sequence.kv = Some(allocation.seq);
        sequence.computed = allocation.cached_tokens.min(sequence.skippable());
        if sequence.computed < allocation.cached_tokens {
            self.kv.truncate(allocation.seq, sequence.computed)?;
        }
        if sequence.cached_tokens.is_none() {
            let cached = sequence.computed.min(sequence.prompt_len);
            sequence.cached_tokens = Some(cached);
            sequence.clock.scheduled = Some(Instant::now());
            self.stats.cached_tokens += cached as u64;
        }
        Ok(())
    }

    /// Makes room for the next `tokens` of a sequence. False if there are not enough pages.
    pub(super) fn reserve(&mut self, sequence: &Sequence, tokens: usize) -> Result<bool, GenerationError> {
        let Some(seq) = sequence.kv else { return Ok(false) };
        match self.kv.reserve(seq, tokens) {
            Ok(copies) => {
                for copy in copies {
                    self.decoder.copy_page(copy.from, copy.to).map_err(step_error)?;
                }
                Ok(true)
            }
            Err(KvError::OutOfPages { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes a sequence out of the cache. Its full pages can be found again until someone needs
    /// them.
    pub(super) fn release(&mut self, sequence: &mut Sequence) {
        if let Some(seq) = sequence.kv.take() {
            // An id that the books no longer know holds no pages.
            let _ = self.kv.release(seq);
        }
        sequence.computed = 0;
    }

    /// Ends a sequence whose keys and values are not to be trusted.
    pub(super) fn fail(&mut self, sequence: &mut Sequence, error: GenerationError) {
        if let Some(seq) = sequence.kv.take() {
            let _ = self.kv.release_unshared(seq);
        }
        sequence.computed = 0;
        sequence.outcome = Some(Outcome::Failed(error));
    }

    /// Runs a step over the reserved `shares` of `active` and settles what follows from it. If
    /// the step fails, each share is tried alone, so that only those fail that cannot be run.
    pub(super) fn run(&mut self, active: &mut [Sequence], shares: &[Share]) {
        let begun = Instant::now();
        match self.assemble(active, shares).and_then(|()| self.step()) {
            Ok(()) => {
                self.settle(active, shares);
                let tokens: usize = shares.iter().map(|share| share.tokens).sum();
                let decodes = shares.iter().filter(|share| share.tokens == 1).count();
                self.stats.count_step(tokens - decodes, decodes, begun.elapsed());
            }
            Err(GenerationError::Step(_)) if shares.len() > 1 => {
                shares.chunks(1).for_each(|share| self.run(active, share));
            }
            Err(error) => {
                for share in shares {
                    self.fail(&mut active[share.index], error.clone());
                }
            }
        }
    }

    /// Writes down the step's input.
    fn assemble(&mut self, active: &[Sequence], shares: &[Share]) -> Result<(), GenerationError> {
        let input = &mut self.input;
        input.clear();
        for share in shares {
            let sequence = &active[share.index];
            let seq = sequence.kv.ok_or(GenerationError::Stopped)?;
            let positions = sequence.computed..sequence.computed + share.tokens;
            let (row, page) = (input.tokens.len() as u32, input.pages.len() as u32);
            input.tokens.extend_from_slice(&sequence.tokens[positions.clone()]);
            input.positions.extend(positions.map(|position| position as u32));
            input.pages.extend_from_slice(self.kv.pages(seq)?);
            let rows = row..input.tokens.len() as u32;
            let outputs = sequence.outputs().count(share.tokens, sequence.pending()) as u32;
            input.outputs.extend(rows.end - outputs..rows.end);
            let pages = page..input.pages.len() as u32;
            input.sequences.push(StepSequence { rows, pages, window: sequence.spec.window });
        }
        Ok(())
    }

    fn step(&mut self) -> Result<(), GenerationError> {
        guarded(|| self.decoder.step(&self.input).map_err(step_error))?
    }

    /// Moves each sequence on, and makes of its outputs what it wants.
    fn settle(&mut self, active: &mut [Sequence], shares: &[Share]) {
        let mut output = 0;
        for share in shares {
            let sequence = &mut active[share.index];
            let count = sequence.outputs().count(share.tokens, sequence.pending());
            if let Err(error) = self.settle_one(sequence, share.tokens, output..output + count) {
                self.fail(sequence, error);
            }
            output += count;
        }
    }

    fn settle_one(
        &mut self,
        sequence: &mut Sequence,
        count: usize,
        outputs: Range<usize>,
    ) -> Result<(), GenerationError> {
        let seq = sequence.kv.ok_or(GenerationError::Stopped)?;
        let positions = sequence.computed..sequence.computed + count;
        self.kv.advance(seq, &sequence.tokens[positions.clone()])?;
        sequence.computed = positions.end;
        let is_computed = sequence.pending() == 0;
        let (tokens, prompt_len) = (&mut sequence.tokens, sequence.prompt_len);
        let finish = match &mut sequence.task {
            Task::Generate(_) if outputs.is_empty() => None,
            Task::Generate(generate) => {
                let (token, logprobs) = self.draw(generate, tokens, prompt_len, outputs.start)?;
                tokens.push(token);
                if sequence.clock.first_token.is_none() {
                    sequence.clock.first_token = Some(Instant::now());
                    self.stats.count_first_token(sequence.clock.submitted.elapsed());
                }
                generate.emit(token, tokens.len() - prompt_len, logprobs)
            }
            Task::Score(score) => {
                let first = positions.start;
                for position in score.rows_new(positions) {
                    let output = outputs.start + position - first;
                    self.fetch_row(output)?;
                    score.take(tokens, position, &self.logits)?;
                }
                is_computed.then_some(FinishReason::Length)
            }
            Task::Save(save) if is_computed => {
                save.take(tokens, self.kv.pages(seq)?, &self.decoder).map_err(step_error)?;
                Some(FinishReason::Length)
            }
            Task::Save(_) => None,
        };
        sequence.outcome = finish.map(Outcome::Finished);
        Ok(())
    }

    /// Makes an output of the step the current row.
    fn fetch_row(&mut self, output: usize) -> Result<(), GenerationError> {
        guarded(|| self.decoder.logits(output, &mut self.logits).map_err(step_error))?
    }

    /// Draws the next token from an output of the step. A panic here is the mask's.
    fn draw(
        &mut self,
        generate: &mut Generate,
        tokens: &[TokenId],
        prompt_len: usize,
        output: usize,
    ) -> Result<(TokenId, Logprobs), GenerationError> {
        self.fetch_row(output)?;
        let draw = Draw { sampling: &generate.sampling, tokens, prompt_len };
        let token = guarded(|| {
            let token = self.sampler.sample(&mut self.logits, &draw, generate.mask.as_deref_mut())?;
            if let Some(mask) = &mut generate.mask {
                mask.accept(token);
            }
            Ok::<_, GenerationError>(token)
        })??;
        let Some(count) = generate.logprobs else { return Ok((token, Logprobs::default())) };
        // The sampler has changed the row: fetch it anew.
        self.fetch_row(output)?;
        Ok((token, Logprobs::of(&self.logits, token, count)))
    }
}

fn step_error(error: crate::model::ModelError) -> GenerationError {
    GenerationError::Step(Arc::new(error))
}

/// Turns a panic of `work` into an error. What `work` changes must not be trusted after one: its
/// sequences fail, and their pages are not shared.
fn guarded<T>(work: impl FnOnce() -> T) -> Result<T, GenerationError> {
    catch_unwind(AssertUnwindSafe(work))
        .map_err(|payload| GenerationError::Panicked { message: message(&*payload) })
}

fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message").to_owned()
}
