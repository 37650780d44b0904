//! The scheduler: which sequences a step computes, and how many of their tokens. A pure function of plain
//! data.
//!
//! Decodes come first, one token each, so that a long prompt never stalls a running answer. The remaining
//! room goes to prompts, in their order, at most one prefill chunk in all. If the first prompt needs more
//! than a chunk, short ones may take half of it instead of waiting for all of the long one. The job, if there
//! is one, precedes the prompts and decodes in every other step and follows them in the rest, so that neither
//! side starves. [`plan`](super::plan) finds the pages.

use super::table::SlotId;
use crate::ir::StepLimits;

/// The scheduler's view of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) slot: SlotId,
    /// Tokens not computed yet: 1 for a running decode.
    pub(super) pending: usize,
    /// Pending tokens before the first that needs an output.
    pub(super) without_output: usize,
    /// Pending tokens that the cache seems to have.
    pub(super) cached: usize,
    pub(super) priority: i16,
    /// Whether it has pages.
    pub(super) running: bool,
    /// Whether its reader's buffer is full or its mask is late.
    pub(super) paused: bool,
    /// Whether it is a job, which takes no sequence slot.
    pub(super) job: bool,
}

impl Candidate {
    /// Tokens still to be computed. If the cache has lost some by then, another step computes the rest.
    fn uncached(&self) -> usize {
        self.pending - self.cached.min(self.pending)
    }
}

/// A sequence's part of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Scheduled {
    pub(super) slot: SlotId,
    /// Tokens to compute.
    pub(super) tokens: usize,
    /// Output of the previous step that feeds this row its token; `None` if the token is known.
    pub(super) fed: Option<usize>,
}

/// The capacity of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    pub(super) limits: StepLimits,
    /// Most tokens of prompts and jobs in a step.
    pub(super) prefill_chunk: usize,
    /// Most sequences at work: with pages and not paused.
    pub(super) sequences_max: usize,
    /// Whether the job is scheduled before the answers.
    pub(super) job_first: bool,
}

/// The remaining capacity of a step.
struct Left<'s> {
    limits: StepLimits,
    prefill: usize,
    scheduled: &'s mut Vec<Scheduled>,
}

impl Left<'_> {
    /// Schedules up to `most` tokens of a candidate. Returns the number scheduled.
    fn take(&mut self, candidate: &Candidate, most: usize) -> usize {
        let StepLimits { tokens_max, outputs_max } = &mut self.limits;
        let with_outputs = candidate.without_output.saturating_add(*outputs_max);
        let tokens = candidate.pending.min(most).min(*tokens_max).min(with_outputs);
        if tokens > 0 {
            *tokens_max -= tokens;
            *outputs_max -= tokens.saturating_sub(candidate.without_output);
            self.scheduled.push(Scheduled { slot: candidate.slot, tokens, fed: None });
        }
        tokens
    }

    /// As [`Left::take`], within the prefill chunk.
    fn take_chunk(&mut self, candidate: &Candidate, most: usize) -> usize {
        let tokens = self.take(candidate, most.min(self.prefill));
        self.prefill -= tokens;
        tokens
    }

    /// As [`Left::take_chunk`], for a prompt that is not in the step yet. A prompt without a sequence slot
    /// waits, while younger ones that have theirs go on.
    fn take_prompt(&mut self, prompt: &Candidate, most: usize, slots: &mut usize) -> usize {
        let has_no_slot = !prompt.running && *slots == 0;
        if has_no_slot || self.prefill == 0 || self.scheduled.iter().any(|part| part.slot == prompt.slot) {
            return 0;
        }
        let tokens = self.take_chunk(prompt, most.min(prompt.uncached()));
        *slots -= usize::from(tokens > 0 && !prompt.running);
        tokens
    }

    /// Most prompt tokens that still fit.
    fn chunk(&self) -> usize {
        self.prefill.min(self.limits.tokens_max)
    }
}

/// Schedules the next step: decodes first, then prompts. `candidates` are ordered by priority, highest first,
/// then by arrival.
pub(super) fn schedule(candidates: &[Candidate], room: &Room, scheduled: &mut Vec<Scheduled>) {
    let ready = || candidates.iter().filter(|candidate| !candidate.paused && candidate.pending > 0);
    let decodes = || ready().filter(|c| !c.job && c.running && c.pending == 1);
    let job = ready().find(|candidate| candidate.job);
    scheduled.clear();
    let mut left = Left { limits: room.limits, prefill: room.prefill_chunk, scheduled };
    if let Some(job) = job.filter(|_| room.job_first) {
        left.take_chunk(job, beside_decodes(decodes().count(), job, room.limits));
    }
    for decode in decodes() {
        left.take(decode, 1);
    }
    // A paused sequence keeps its pages until they are needed, but takes no sequence slot.
    let running = candidates.iter().filter(|c| !c.job && c.running && !c.paused).count();
    let mut slots = room.sequences_max.saturating_sub(running);
    let prompts = || ready().filter(|c| !c.job && (!c.running || c.pending > 1));
    let mut half = left.chunk() / 2;
    if let Some(long) = prompts().next().filter(|first| first.uncached() > left.chunk()) {
        // The long prompt's own slot is kept, or later prompts would always take it.
        let slot = usize::from(!long.running).min(slots);
        slots -= slot;
        for prompt in prompts().skip(1).filter(|prompt| prompt.priority == long.priority) {
            if prompt.uncached() <= half {
                half -= left.take_prompt(prompt, half, &mut slots);
            }
        }
        slots += slot;
    }
    for prompt in prompts() {
        left.take_prompt(prompt, usize::MAX, &mut slots);
    }
    if let Some(job) = job.filter(|_| !room.job_first) {
        left.take_chunk(job, usize::MAX);
    }
}

/// Most tokens of a job that comes first: decodes keep the room that they need, up to half of the step.
fn beside_decodes(decodes: usize, job: &Candidate, limits: StepLimits) -> usize {
    let left = |max: usize| max - decodes.min(max / 2);
    left(limits.tokens_max).min(job.without_output.saturating_add(left(limits.outputs_max)))
}
