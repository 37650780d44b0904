//! The plan of a step: the scheduled sequences, their number of tokens, and the pages for them. When pages
//! are short, sequences that can wait are preempted and recomputed later.
//!
//! Running ahead is a second plan, with rows fed by the tokens that the step in flight samples. It is
//! launched before the host has seen those tokens, so that a device has work while the host commits them,
//! detokenizes and schedules. Only decodes run ahead, and only while there is nothing else to do. Arrivals,
//! resumed sequences and tokens that need the host wait one step, for the ordinary plan.

use super::batch::Part;
use super::failure::Failure;
use super::scheduler::{Candidate, Room, Scheduled, schedule};
use super::sequence::Sequence;
use super::table::{SequenceTable, SlotId};
use crate::kv::{CopyPage, KvCacheManager, KvError, SeqId};

/// The work of the next step, and the sequences that were preempted or failed while it was planned.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) scheduled: Vec<Scheduled>,
    /// Page copies, to be done in this order before the step: until then no page is written.
    pub(super) copies: Vec<(SlotId, CopyPage)>,
    /// Sequences that gave up their pages.
    pub(super) preempted: Vec<SlotId>,
    /// Sequences that the page table refused for a reason that waiting does not cure.
    pub(super) failed: Vec<(SlotId, Failure)>,
    /// Prompt tokens found in the cache.
    pub(super) cached_tokens: usize,
    /// Number of parts with pages and state secured.
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

    /// Plans the rows after those of a step in flight. The plan is empty if the host must look at its tokens
    /// first.
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
            let Some(sequence) = table.get(part.slot).filter(|sequence| sequence.may_continue()) else {
                continue;
            };
            let tokens = sequence.tokens.len() + 1 - sequence.computed;
            // Its last page became its own when the step in flight was planned, so nothing is copied.
            let has_pages = sequence.pages.is_some_and(|id| matches!(kv.reserve(id, tokens), Ok([])));
            if !has_pages {
                return plan.clear();
            }
            plan.scheduled.push(Scheduled { slot: part.slot, tokens: 1, fed: Some(part.outputs.start) });
        }
    }

    /// Whether there is nothing to do but the decodes after the step in flight. A row with penalties depends
    /// on the token before it, so it waits.
    fn all_decode(&self, under_way: &[Part], table: &SequenceTable) -> bool {
        let penalised = |part: &Part| {
            let answer = table.get(part.slot).and_then(Sequence::answer);
            answer.is_none_or(|answer| answer.request.sampling.penalises())
        };
        // As in the scheduler: a paused sequence takes no sequence slot.
        let awake = || table.iter().filter(|(_, sequence)| !sequence.is_paused());
        let running = awake().filter(|(_, sequence)| sequence.pages.is_some()).count();
        let full = running >= self.room.sequences_max || awake().all(|(_, s)| s.pages.is_some());
        !table.has_job()
            && under_way.len() == running
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
    /// Secures the pages of each part, in the order of the plan. A sequence without pages waits for another
    /// step.
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

    /// Secures room for up to `tokens` tokens of a sequence. Returns the number secured.
    fn secure(&mut self, slot: SlotId, tokens: usize) -> Result<usize, KvError> {
        let Some(sequence) = self.table.get_mut(slot) else { return Ok(0) };
        let id = match sequence.pages {
            Some(id) => id,
            // A new sequence starts from the longest prefix in the cache.
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

    /// Reserves room for `tokens` more tokens of `id`, and preempts other sequences if pages are short.
    /// `slot` is the sequence that `id` belongs to, if it is in the table. A slot of state is free again
    /// after the step, so sequences are preempted for one only if nothing could run otherwise.
    ///
    /// # Errors
    /// Those of [`KvCacheManager::reserve`], if no other sequence has pages to give up.
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

    /// Releases a sequence's pages and its state; it is recomputed when there is room.
    fn give_up(&mut self, slot: SlotId) {
        let Some(sequence) = self.table.get_mut(slot) else { return };
        sequence.computed = 0;
        if let Some(id) = sequence.pages.take() {
            let released = self.kv.release(id);
            debug_assert!(released.is_ok(), "a running sequence's id is live: {released:?}");
        }
    }
}

/// The sequence to preempt for `slot`, or for one outside the table. It is the last paused one in the table's
/// order, else the last of all, unless that is `slot` itself.
fn victim(slot: Option<SlotId>, table: &SequenceTable) -> Option<SlotId> {
    let with_pages = || table.iter().rev().filter(|(_, sequence)| sequence.pages.is_some());
    let asleep = with_pages().find(|&(id, sequence)| Some(id) != slot && sequence.is_paused());
    let youngest = || with_pages().next().filter(|&(id, _)| Some(id) != slot);
    asleep.or_else(youngest).map(|(id, _)| id)
}
