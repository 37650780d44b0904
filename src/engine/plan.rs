//! The plan of a step: which sequences compute how many tokens, and the pages for them. Where pages are short,
//! sequences that can wait give theirs up and are computed again later.
//!
//! Running ahead is a second plan, whose rows are fed with what the step in flight samples. That step is launched
//! before the host has seen those tokens, so that a device has work while the host settles them, makes text and
//! schedules. Only decodes run ahead, and only while they are all there is to do: whatever arrives, ends a wait or
//! needs the host's eye is taken up one step later, by the ordinary plan.

use super::batch::Part;
use super::failure::Failure;
use super::scheduler::{Candidate, Room, Scheduled, schedule};
use super::sequence::Sequence;
use super::table::{SequenceTable, SlotId};
use crate::kv::{CopyPage, KvCacheManager, KvError, SeqId};

/// What the next step computes, and what became of others on the way.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) scheduled: Vec<Scheduled>,
    /// To be done in this order, and before the step: until then no page is written.
    pub(super) copies: Vec<(SlotId, CopyPage)>,
    /// Those that gave up their pages.
    pub(super) preempted: Vec<SlotId>,
    /// Those that the page table refused for a reason that waiting does not cure.
    pub(super) failed: Vec<(SlotId, Failure)>,
    /// Prompt tokens found in the cache.
    pub(super) cached_tokens: usize,
    /// Parts that have all that they need.
    secured: usize,
}

impl Plan {
    pub(super) fn clear(&mut self) {
        self.scheduled.clear();
        self.copies.clear();
        self.preempted.clear();
        self.failed.clear();
        self.cached_tokens = 0;
        self.secured = 0;
    }
}

/// Makes plans; keeps its scratch between them.
#[derive(Debug)]
pub(super) struct Planner {
    room: Room,
    candidates: Vec<Candidate>,
}

impl Planner {
    pub(super) fn new(room: Room) -> Planner {
        Planner { room, candidates: Vec::new() }
    }

    /// Plans the next step over all sequences.
    pub(super) fn plan(&mut self, table: &mut SequenceTable, kv: &mut KvCacheManager, plan: &mut Plan) {
        plan.clear();
        self.candidates.clear();
        self.candidates.extend(table.iter().map(|(slot, sequence)| Candidate {
            slot,
            pending: sequence.pending(),
            without_output: sequence.without_output(),
            cached: sequence.cached,
            priority: sequence.priority(),
            running: sequence.pages.is_some(),
            paused: sequence.is_paused(),
            job: sequence.is_job(),
        }));
        schedule(&self.candidates, &self.room, &mut plan.scheduled);
        self.room.job_first = !self.room.job_first;
        Pages { table, kv, plan }.secure_all(self.room.limits.outputs_max);
    }

    /// Plans the rows behind those of a step in flight; none where the host must look at its tokens first.
    pub(super) fn plan_ahead(
        &self,
        under_way: &[Part],
        table: &SequenceTable,
        kv: &mut KvCacheManager,
        plan: &mut Plan,
    ) {
        plan.clear();
        // A step ahead would need a third slot of state.
        if kv.has_states() || !self.all_decode(under_way, table) {
            return;
        }
        for part in under_way {
            let Some(sequence) = table.get(part.slot).filter(|sequence| sequence.goes_on()) else { continue };
            let tokens = sequence.tokens.len() + 1 - sequence.computed;
            // Its last page has been its own since the step under way was planned, so nothing is copied.
            let has_pages = sequence.pages.is_some_and(|id| matches!(kv.reserve(id, tokens), Ok([])));
            if !has_pages {
                return plan.clear();
            }
            plan.scheduled.push(Scheduled { slot: part.slot, tokens: 1, fed: Some(part.outputs.start) });
        }
    }

    /// Whether nothing but the step in flight and what follows from it is to be done. A penalised row depends on
    /// the token before it, so it waits.
    fn all_decode(&self, under_way: &[Part], table: &SequenceTable) -> bool {
        let penalised = |part: &Part| {
            let answer = table.get(part.slot).and_then(Sequence::answer);
            answer.is_none_or(|answer| answer.request.sampling.penalises())
        };
        // As the scheduler counts: a reader that does not read has no seat.
        let awake = || table.iter().filter(|(_, sequence)| !sequence.is_paused());
        let seated = awake().filter(|(_, sequence)| sequence.pages.is_some()).count();
        let full = seated >= self.room.sequences_max || awake().all(|(_, s)| s.pages.is_some());
        !table.has_job()
            && under_way.len() == seated
            && full
            && under_way.iter().all(|part| part.sampled && !penalised(part))
    }
}

/// Finds pages for a plan.
#[derive(Debug)]
pub(super) struct Pages<'p> {
    pub(super) table: &'p mut SequenceTable,
    pub(super) kv: &'p mut KvCacheManager,
    pub(super) plan: &'p mut Plan,
}

impl Pages<'_> {
    /// Gets each part its pages, in the order of the plan. A sequence without pages waits for another step.
    fn secure_all(&mut self, outputs_max: usize) {
        let mut outputs_left = outputs_max;
        for part in 0..self.plan.scheduled.len() {
            let Scheduled { slot, tokens, .. } = self.plan.scheduled[part];
            if self.plan.preempted.contains(&slot) {
                continue;
            }
            let secured = self.secure(slot, tokens).unwrap_or_else(|error| {
                self.plan.failed.push((slot, error.into()));
                0
            });
            // A prefix found in the cache can bring a prompt to its end sooner than planned.
            let without_output = self.table.get(slot).map_or(0, Sequence::without_output);
            let tokens = secured.min(without_output.saturating_add(outputs_left));
            outputs_left -= tokens.saturating_sub(without_output);
            self.plan.secured += usize::from(tokens > 0);
            self.plan.scheduled[part].tokens = tokens;
        }
        let Plan { scheduled, preempted, .. } = &mut *self.plan;
        scheduled.retain(|part| part.tokens > 0 && !preempted.contains(&part.slot));
    }

    /// Makes room for up to `tokens` tokens of a sequence; how many it got room for.
    fn secure(&mut self, slot: SlotId, tokens: usize) -> Result<usize, KvError> {
        let Some(sequence) = self.table.get_mut(slot) else { return Ok(0) };
        let id = match sequence.pages {
            Some(id) => id,
            // A new one starts from the longest prefix in the cache.
            None => {
                let (findable, spec) = sequence.spec();
                let allocation = self.kv.allocate(findable, spec)?;
                self.plan.cached_tokens += sequence.start(allocation.seq, allocation.cached_tokens);
                allocation.seq
            }
        };
        let (tokens, computed) = (tokens.min(sequence.pending()), sequence.computed);
        let tokens = self.kv.to_a_whole_page(id, tokens)?;
        match self.reserve(id, tokens, Some(slot)) {
            Ok(()) => Ok(tokens),
            Err(KvError::OutOfPages { .. } | KvError::OutOfStates { .. }) => {
                if computed == 0 {
                    self.give_up(slot);
                }
                Ok(0)
            }
            Err(error) => Err(error),
        }
    }

    /// Makes room for `tokens` more tokens of `id`, and takes pages from other sequences for that. `slot` is
    /// the sequence that `id` belongs to, if it is in the table. A slot of state is free again after the
    /// step, so others give theirs up only where nothing would run without.
    ///
    /// # Errors
    /// Those of [`KvCacheManager::reserve`], when no other sequence has pages to give up.
    pub(super) fn reserve(&mut self, id: SeqId, tokens: usize, slot: Option<SlotId>) -> Result<(), KvError> {
        loop {
            let error = match self.kv.reserve(id, tokens) {
                Ok(copies) => {
                    self.plan
                        .copies
                        .extend(slot.iter().flat_map(|&slot| copies.iter().map(move |&copy| (slot, copy))));
                    return Ok(());
                }
                Err(error) => error,
            };
            let short = match error {
                KvError::OutOfPages { .. } => true,
                KvError::OutOfStates { .. } => self.plan.secured == 0,
                _ => false,
            };
            let victim = victim(slot, self.table).filter(|_| short).ok_or(error)?;
            self.give_up(victim);
            self.plan.preempted.push(victim);
        }
    }

    /// Takes a sequence's pages and its state; it is computed again when there is room.
    fn give_up(&mut self, slot: SlotId) {
        let Some(sequence) = self.table.get_mut(slot) else { return };
        sequence.computed = 0;
        if let Some(id) = sequence.pages.take() {
            let released = self.kv.release(id);
            debug_assert!(released.is_ok(), "a running sequence's id is live: {released:?}");
        }
    }
}

/// The sequence that gives up its pages for `slot`, or for one outside the table: the youngest whose reader sleeps,
/// else the youngest of all, unless that is `slot` itself.
fn victim(slot: Option<SlotId>, table: &SequenceTable) -> Option<SlotId> {
    let with_pages = || table.iter().rev().filter(|(_, sequence)| sequence.pages.is_some());
    let asleep = with_pages().find(|&(id, sequence)| Some(id) != slot && sequence.is_paused());
    let youngest = || with_pages().next().filter(|&(id, _)| Some(id) != slot);
    asleep.or_else(youngest).map(|(id, _)| id)
}
