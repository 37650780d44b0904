//! Running ahead: a second plan, whose rows are fed with what the step under way samples. It is launched before the
//! host has seen those tokens, so that a device has work while the host books them, makes text and schedules.
//!
//! Only decodes run ahead, and only while they are all there is to do: whatever arrives, ends a wait or needs the
//! host's eye is taken up one step later, by the ordinary plan.

use super::batch::Part;
use super::scheduler::Scheduled;
use super::table::SequenceTable;
use crate::kv::KvCacheManager;

/// Plans the rows behind those of a step under way; none where the host must look at its tokens first.
/// A penalised row depends on the token before it, so it waits.
pub(super) fn plan_ahead(
    under_way: &[Part],
    sequences_max: usize,
    table: &SequenceTable,
    kv: &mut KvCacheManager,
    scheduled: &mut Vec<Scheduled>,
) {
    scheduled.clear();
    if !all_decode(under_way, sequences_max, table) {
        return;
    }
    for part in under_way {
        let Some(sequence) = table.get(part.slot).filter(|sequence| sequence.goes_on()) else { continue };
        let tokens = sequence.tokens.len() + 1 - sequence.computed;
        // Its last page has been its own since the step under way was planned, so nothing is copied.
        let has_pages = sequence.pages.is_some_and(|id| matches!(kv.reserve(id, tokens), Ok([])));
        if !has_pages {
            return scheduled.clear();
        }
        scheduled.push(Scheduled { slot: part.slot, tokens: 1, fed: Some(part.outputs.start) });
    }
}

/// Whether nothing but the step under way and what follows from it is to be done.
fn all_decode(under_way: &[Part], sequences_max: usize, table: &SequenceTable) -> bool {
    let penalised = |part: &Part| {
        let answer = table.get(part.slot).and_then(|sequence| sequence.answer());
        answer.is_none_or(|answer| answer.request.sampling.penalises())
    };
    // As the scheduler counts: a reader that does not read has no seat.
    let awake = || table.iter().filter(|(_, sequence)| !sequence.is_paused());
    let seated = awake().filter(|(_, sequence)| sequence.pages.is_some()).count();
    let full = seated >= sequences_max || awake().all(|(_, sequence)| sequence.pages.is_some());
    !table.has_job()
        && under_way.len() == seated
        && full
        && under_way.iter().all(|part| part.sampled && !penalised(part))
}
