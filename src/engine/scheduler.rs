//! Who gets what of the next step: decisions from plain data, without a thread, a clock or a
//! cache.
//!
//! Sequences are listed by age, the oldest first. The promises:
//! - No step exceeds its limits; prefill never exceeds its chunk.
//! - The oldest sequence that can go on has a share of every step, and every page if need be.
//! - Nobody starts before an older sequence that waits to start.
//! - Running decodes come before everyone's prefill, but for that one token of the oldest.

use crate::backend::PAGE_TOKENS;

/// Which rows' logits a sequence wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outputs {
    /// None's.
    None,
    /// That of its last known token.
    Last,
    /// All rows'.
    Each,
}

/// What the scheduler knows of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct View {
    /// Whether it can go on: it is neither at its end nor waiting for its reader.
    pub(super) ready: bool,
    /// Whether it is in the KV cache.
    pub(super) started: bool,
    /// Tokens whose keys and values are there.
    pub(super) computed: usize,
    /// Tokens known but not computed; at least 1 if it is ready.
    pub(super) pending: usize,
    /// Pages it has.
    pub(super) pages: usize,
    pub(super) outputs: Outputs,
}

/// What there is to share out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Budget {
    pub(super) tokens: usize,
    pub(super) outputs: usize,
    /// Most tokens of prefill.
    pub(super) prefill: usize,
    /// Pages that can be had without taking them from anyone.
    pub(super) pages_free: usize,
}

/// A sequence's part of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    /// The sequence's index.
    pub(super) index: usize,
    /// Its next tokens.
    pub(super) tokens: usize,
}

impl View {
    fn runnable(&self) -> bool {
        self.ready && self.started
    }

    fn is_decode(&self) -> bool {
        self.pending == 1
    }

    /// Pages that its pending tokens will take.
    fn pages_missing(&self) -> usize {
        (self.computed + self.pending).div_ceil(PAGE_TOKENS) - self.computed.div_ceil(PAGE_TOKENS)
    }
}

impl Outputs {
    /// Outputs of the next `tokens` of `pending` tokens.
    pub(super) fn count(self, tokens: usize, pending: usize) -> usize {
        match self {
            Outputs::None => 0,
            Outputs::Last => usize::from(tokens == pending),
            Outputs::Each => tokens,
        }
    }
}

/// The sequence to bring into the cache next. The oldest ready one always may; others may if
/// prefill is to be had in this step and there are pages for all that is known, with one page to
/// grow for each that runs.
pub(super) fn next_start(views: &[View], budget: &Budget) -> Option<usize> {
    let waits = |view: &View| view.ready && !view.started;
    let index = views.iter().position(waits)?;
    if views.iter().position(|view| view.ready) == Some(index) {
        return Some(index);
    }
    let runnable = || views.iter().filter(|view| view.runnable());
    let prefill: usize = runnable().filter(|view| !view.is_decode()).map(|view| view.pending).sum();
    let held_idle: usize = views.iter().filter(|view| !view.ready).map(|view| view.pages).sum();
    let claimed: usize = runnable().map(|view| view.pages_missing() + 1).sum();
    let needed = claimed + views.get(index)?.pages_missing() + 1;
    let fits = needed <= budget.pages_free + held_idle;
    (fits && prefill < budget.prefill).then_some(index)
}

/// Shares out a step among the sequences in the cache; the shares are by rising index.
pub(super) fn share_out(views: &[View], budget: &Budget, shares: &mut Vec<Share>) {
    shares.clear();
    let runnable = || views.iter().enumerate().filter(|(_, view)| view.runnable());
    let (mut tokens, mut outputs) = (budget.tokens, budget.outputs);
    let oldest_prefills = runnable().next().is_some_and(|(_, view)| !view.is_decode());
    let held_back = usize::from(oldest_prefills);
    for (index, _) in runnable().filter(|(_, view)| view.is_decode()) {
        if tokens.min(outputs) <= held_back {
            break;
        }
        shares.push(Share { index, tokens: 1 });
        tokens -= 1;
        outputs -= 1;
    }
    let mut prefill = budget.prefill.min(tokens);
    for (index, view) in runnable().filter(|(_, view)| !view.is_decode()) {
        let chunk = prefill_chunk(view, prefill, outputs);
        if chunk > 0 {
            shares.push(Share { index, tokens: chunk });
            prefill -= chunk;
            outputs -= view.outputs.count(chunk, view.pending);
        }
    }
    shares.sort_unstable_by_key(|share| share.index);
}

/// The most of `prefill` tokens that need no more than `outputs` outputs.
fn prefill_chunk(view: &View, prefill: usize, outputs: usize) -> usize {
    let chunk = view.pending.min(prefill);
    match view.outputs {
        Outputs::Each => chunk.min(outputs),
        Outputs::Last if chunk == view.pending && outputs == 0 => chunk - 1,
        Outputs::Last | Outputs::None => chunk,
    }
}

/// Who is to give up its pages so that the sequence at `index` can go on: the youngest that
/// cannot go on itself, else the youngest that is younger.
pub(super) fn victim(views: &[View], index: usize) -> Option<usize> {
    let holds = |other: &usize, view: &View| *other != index && view.pages > 0;
    let candidates = || views.iter().enumerate().rev().filter(move |(other, view)| holds(other, view));
    let idle = candidates().find(|(_, view)| !view.ready);
    idle.or_else(|| candidates().find(|(other, _)| *other > index)).map(|(other, _)| other)
}
