//! The step itself: the rows of the shares, the run, and what happens when it fails.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use super::flight::Part;
use super::generation::GenerationError;
use super::sequence::Sequence;
use super::stats::add;
use super::worker::Worker;
use crate::ir::{StepInput, StepSequence};
use crate::kv::{KvCacheManager, KvError, SeqId};
use crate::model::Decoder;
use crate::token::TokenId;

impl<D: Decoder> Worker<D> {
    /// Runs the step that the shares describe: after that it is under way.
    pub(super) fn run_shares(&mut self) -> Result<(), String> {
        self.step.clear();
        self.flight.clear();
        for share in 0..self.shares.len() {
            let share = self.shares[share];
            let sequence = &self.sequences[share.index];
            let last = sequence.pending() == share.tokens;
            let output = last.then_some(self.step.outputs.len());
            push_rows(&mut self.step, &self.kv, sequence, share.tokens, last)?;
            let sampled = last && self.push_sampling(share.index, 0);
            self.flight.parts.push(Part { share, output, sampled });
        }
        self.run_step()?;
        (self.flight.number, self.flight.outputs) = (self.decoder.steps(), self.step.outputs.len());
        Ok(())
    }

    /// Runs the step, counts it, and makes an error of a panic.
    pub(super) fn run_step(&mut self) -> Result<(), String> {
        let started = Instant::now();
        // A step leaves nothing behind in the decoder but pages that a failure makes void.
        let result = catch_unwind(AssertUnwindSafe(|| match &mut self.profiler {
            None => self.decoder.step(&self.step),
            Some(profiler) => self.decoder.step_timed(&self.step, profiler.begin(&self.step)),
        }));
        add(&self.counters.step_us, started.elapsed().as_micros() as usize);
        match result {
            Ok(result) => result.map_err(|error| error.to_string())?,
            Err(_) => return Err("the backend panicked".into()),
        }
        add(&self.counters.steps, 1);
        Ok(())
    }

    /// A failed step does not say whose fault it was: each share alone does.
    pub(super) fn run_one_by_one(&mut self) {
        let mut shares = std::mem::take(&mut self.shares);
        // Sequences that end leave the list, so later places go first.
        shares.sort_unstable_by_key(|share| std::cmp::Reverse(share.index));
        for share in shares {
            self.shares = vec![share];
            match self.run_shares() {
                Ok(()) => self.finish_step(),
                Err(error) => self.fail_share(error),
            }
        }
    }

    pub(super) fn fail_share(&mut self, error: String) {
        for share in std::mem::take(&mut self.shares) {
            self.end(share.index, Err(GenerationError::Step(error.clone())));
        }
    }
}

/// Adds the next `tokens` tokens of a sequence to the step.
fn push_rows(
    step: &mut StepInput,
    kv: &KvCacheManager,
    sequence: &Sequence,
    tokens: usize,
    output: bool,
) -> Result<(), String> {
    let id = sequence.pages.ok_or("a share without pages")?;
    let rows = &sequence.tokens[sequence.computed..sequence.computed + tokens];
    push_sequence(step, kv, id, rows, sequence.computed).map_err(|error| error.to_string())?;
    if output {
        step.outputs.push(step.tokens.len() as u32 - 1);
    }
    Ok(())
}

/// Adds rows of one sequence, the first at position `first`, with its page table.
pub(super) fn push_sequence(
    step: &mut StepInput,
    kv: &KvCacheManager,
    id: SeqId,
    rows: &[TokenId],
    first: usize,
) -> Result<(), KvError> {
    let (row, page) = (step.tokens.len() as u32, step.pages.len() as u32);
    step.tokens.extend_from_slice(rows);
    step.positions.extend(first as u32..(first + rows.len()) as u32);
    step.pages.extend_from_slice(kv.pages(id)?);
    let window = kv.window(id)?;
    let (rows, pages) = (row..step.tokens.len() as u32, page..step.pages.len() as u32);
    step.sequences.push(StepSequence { rows, pages, window });
    Ok(())
}
