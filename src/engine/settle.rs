//! Settling a step: the computed tokens are booked, picks become events, and whoever has ended is named. Then ended
//! sequences leave the table.

use super::choose::Pick;
use super::failure::Failure;
use super::generation::FinishReason;
use super::sequence::{Picked, Sequence};
use super::table::{SequenceTable, SlotId};
use crate::kv::{KvCacheManager, KvError};

/// How a sequence ends.
pub(super) type End = Result<FinishReason, Failure>;

/// What a step came to.
#[derive(Debug, Default)]
pub(super) struct Settled {
    pub(super) ends: Vec<(SlotId, End)>,
    /// Prompt tokens computed.
    pub(super) prefill_tokens: usize,
    /// Tokens chosen.
    pub(super) decode_tokens: usize,
}

/// Books a step and hands out its picks. `ahead`: it was fed with what the step before sampled.
pub(super) fn settle(
    picks: &mut Vec<Pick>,
    ahead: bool,
    table: &mut SequenceTable,
    kv: &mut KvCacheManager,
) -> Settled {
    let mut settled = Settled::default();
    for Pick { slot, tokens, picked } in picks.drain(..) {
        // What was computed for a sequence that has ended is dropped.
        let Some(sequence) = table.get_mut(slot) else { continue };
        let prompt = sequence.answer().map_or(0, |answer| answer.request.prompt.len());
        let generated = usize::from(sequence.computed >= prompt);
        let booked = book(sequence, tokens, ahead, kv).map_err(Failure::from);
        if booked.is_ok() && !sequence.is_job() {
            settled.prefill_tokens += tokens - generated.min(tokens);
        }
        let end = match booked.and(picked) {
            Ok(picked) => {
                settled.decode_tokens += usize::from(matches!(picked, Picked::Token(..)));
                sequence.accept(picked).map(Ok)
            }
            Err(failure) => Some(Err(failure)),
        };
        settled.ends.extend(end.map(|end| (slot, end)));
    }
    settled
}

/// Moves a sequence over the tokens that the step computed. Those of a step ahead were reserved together with the
/// ones before them.
fn book(sequence: &mut Sequence, tokens: usize, ahead: bool, kv: &mut KvCacheManager) -> Result<(), KvError> {
    let Some(id) = sequence.pages else { return Ok(()) };
    if ahead {
        kv.reserve(id, tokens)?;
    }
    let end = sequence.computed + tokens;
    kv.advance(id, sequence.tokens.get(sequence.computed..end).unwrap_or_default())?;
    sequence.computed = end;
    Ok(())
}

/// Takes an ended sequence out of the table and gives its pages back. What a failed one computed must not be found
/// by others.
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
