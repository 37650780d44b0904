//! Commits a step: advances the page tables over the computed tokens, turns results into events, and removes
//! ended sequences from the table.

use super::answer::Answer;
use super::choose::RowResult;
use super::event::FinishReason;
use super::failure::Failure;
use super::sequence::{Sequence, StepOutput};
use super::stats::{Counters, add};
use super::table::{SequenceTable, SlotId};
use crate::kv::{KvCacheManager, KvError};

/// How a sequence ends.
pub(super) type End = Result<FinishReason, Failure>;

/// The result of a committed step.
#[derive(Debug, Default)]
pub(super) struct Committed {
    pub(super) ends: Vec<(SlotId, End)>,
    /// Tokens computed in runs: prompts, recomputed tokens, forced runs.
    pub(super) prefill_tokens: usize,
    /// Tokens chosen.
    pub(super) decode_tokens: usize,
    /// Prompt tokens computed or found in the cache for the first time.
    pub(super) prompt_tokens: usize,
    /// Tokens added to answers.
    pub(super) answer_tokens: usize,
}

impl Committed {
    /// Adds the tokens to the engine's counters.
    pub(super) fn count(&self, counters: &Counters) {
        add(&counters.prefill_tokens, self.prefill_tokens);
        add(&counters.decode_tokens, self.decode_tokens);
        add(&counters.prompt_tokens, self.prompt_tokens);
        add(&counters.answer_tokens, self.answer_tokens);
    }
}

/// Commits a step and hands out its results. `ahead`: the step was fed with tokens that the previous one
/// sampled.
pub(super) fn commit(
    results: &mut Vec<RowResult>,
    ahead: bool,
    table: &mut SequenceTable,
    kv: &mut KvCacheManager,
) -> Committed {
    let mut committed = Committed::default();
    for RowResult { slot, tokens, output } in results.drain(..) {
        // The sequence has ended: its results are dropped.
        let Some(sequence) = table.get_mut(slot) else { continue };
        // A row with a late mask is recomputed.
        let computed = tokens - usize::from(matches!(output, Ok(StepOutput::Late)));
        let end = match advance(sequence, computed, ahead, kv).map_err(Failure::from) {
            Ok(prefilled) => {
                committed.prefill_tokens += prefilled;
                committed.prompt_tokens += sequence.count_prompt();
                output.map(|output| {
                    committed.decode_tokens += match &output {
                        StepOutput::Token(..) => 1,
                        StepOutput::Masked { ids, .. } => ids.len(),
                        _ => 0,
                    };
                    let before = sequence.tokens.len();
                    let end = sequence.accept(output);
                    committed.answer_tokens += sequence.tokens.len() - before;
                    end
                })
            }
            Err(failure) => Err(failure),
        };
        committed.ends.extend(end.transpose().map(|end| (slot, end)));
    }
    committed
}

/// Advances a sequence over its computed tokens. A step ahead has its pages already, from the plan; only its
/// reservation is opened again. Returns the number of tokens that belong to a request's prompt.
fn advance(
    sequence: &mut Sequence,
    tokens: usize,
    ahead: bool,
    kv: &mut KvCacheManager,
) -> Result<usize, KvError> {
    let Some(id) = sequence.pages.filter(|_| tokens > 0) else { return Ok(0) };
    if ahead {
        kv.reserve(id, tokens)?;
    }
    let (start, end) = (sequence.computed, sequence.computed + tokens);
    kv.advance(id, sequence.tokens.get(start..end).unwrap_or_default())?;
    sequence.computed = end;
    let decoded = |answer: &Answer| usize::from(start >= answer.request.prompt.len());
    Ok(sequence.answer().map_or(0, |answer| tokens - decoded(answer).min(tokens)))
}

/// Removes an ended sequence from the table and releases its pages. The pages of a failed one must not be
/// found in the cache.
pub(super) fn take_out(
    slot: SlotId,
    failed: bool,
    table: &mut SequenceTable,
    kv: &mut KvCacheManager,
) -> Option<Sequence> {
    let mut sequence = table.remove(slot)?;
    if let Some(id) = sequence.pages.take() {
        let released = if failed { kv.release_unshared(id) } else { kv.release(id) };
        debug_assert!(released.is_ok(), "a running sequence's id is live: {released:?}");
    }
    Some(sequence)
}
