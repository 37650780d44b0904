//! Runs a request's token mask on the [mask pool](super::pool). Masks are user code: a panic or a timeout
//! fails only that request, and masks are dropped on the pool's threads, too. After each choice the mask goes
//! to the pool. It first returns the forced tokens and whether the answer is complete; then it computes the
//! next allowed tokens while the model's step runs. The engine's thread drops a mask only if the pool has
//! ended or its backlog is full.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::failure::caught;
use super::pool::{LOST_MAX, MaskPool, Queue, TIME_MAX};
use crate::sample::{SampleError, TokenMask, TokenSet};
use crate::token::TokenId;

const TOO_SLOW: SampleError = SampleError::MaskFailed("it took too long");
const NO_THREAD: SampleError = SampleError::MaskFailed("no thread can run it");
/// Longest time that a step waits for masks. Slower ones continue during the steps of other sequences.
const PATIENCE: Duration = Duration::from_millis(50);
/// Longest time for one mask, including its wait in the queue: each mask before it may take `TIME_MAX`, too.
const WAIT_MAX: Duration = Duration::from_secs((LOST_MAX as u64 + 1) * TIME_MAX.as_secs());

/// Deadline of a step for its masks. With recurrent states it is as late as masks may take: a late mask has
/// its last row recomputed, and the state would see that token twice.
pub(super) fn masks_due(has_states: bool) -> Instant {
    Instant::now() + if has_states { WAIT_MAX } else { PATIENCE }
}

/// The continuation of an answer.
#[derive(Debug)]
pub(super) enum Next {
    /// None: the answer is complete.
    End,
    /// These tokens, at least one.
    Forced(Vec<TokenId>),
    /// One of these tokens.
    Allowed(TokenSet),
}

/// The tokens forced after a choice.
#[derive(Debug, Default)]
pub(super) struct Advance {
    pub(super) forced: Vec<TokenId>,
    /// Whether the answer is complete with them.
    pub(super) finished: bool,
}

/// A mask, held here or at work in the pool.
#[derive(Debug)]
pub(super) enum MaskTask {
    /// The mask has not processed the beginning of the answer yet.
    New(Box<MaskState>),
    Ready(Box<MaskState>),
    InFlight(InFlight),
    Failed(SampleError),
}

/// A mask with its state, which moves to the pool and back.
pub(super) struct MaskState {
    mask: Guarded,
    /// Pool queue that drops the mask; `None` before the engine adopts it.
    queue: Option<Arc<Queue>>,
    /// All tokens that the mask has seen.
    answer: Vec<TokenId>,
    next: Next,
}

/// A mask that swallows a panic of its own drop: no request waits for it any more.
struct Guarded(Option<Box<dyn TokenMask>>);

/// The engine's end of a mask's work in the pool.
#[derive(Debug)]
pub(super) struct InFlight {
    advance: Receiver<Result<Advance, SampleError>>,
    state: Receiver<Result<Box<MaskState>, SampleError>>,
    stage: Arc<Mutex<Stage>>,
    sent: Instant,
}

/// The pool's end of a mask's work.
struct Reply {
    advance: SyncSender<Result<Advance, SampleError>>,
    state: SyncSender<Result<Box<MaskState>, SampleError>>,
    stage: Arc<Mutex<Stage>>,
}

/// Whether a pool thread runs the mask, and since when it does or does not.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Stage {
    at_work: bool,
    since: Instant,
}

impl MaskTask {
    pub(super) fn new(mask: Box<dyn TokenMask>) -> MaskTask {
        let mask = Guarded(Some(mask));
        MaskTask::New(Box::new(MaskState { mask, queue: None, answer: Vec::new(), next: Next::End }))
    }

    /// Adopts the mask: from now on the pool drops it, however its request ends.
    pub(super) fn adopt(&mut self, pool: &MaskPool) {
        if let MaskTask::New(state) = self {
            state.queue = Some(Arc::clone(pool.queue()));
        }
    }

    /// Starts the mask at the beginning of the answer, unless it has been started.
    pub(super) fn start(&mut self, pool: &MaskPool, vocab: usize) {
        if matches!(self, MaskTask::New(_)) {
            self.advance(&[], 0, pool, vocab);
        }
    }

    /// Continues after chosen tokens; at most `most` forced ones fit.
    pub(super) fn advance(&mut self, tokens: &[TokenId], most: usize, pool: &MaskPool, vocab: usize) {
        let (reply, flight) = Reply::channel();
        let before = std::mem::replace(self, MaskTask::InFlight(flight));
        let (MaskTask::New(mut state) | MaskTask::Ready(mut state)) = before else { return };
        state.answer.extend_from_slice(tokens);
        let work = move |queue: &Queue| state.work((most, vocab), reply, queue);
        if pool.queue().run(Box::new(work)).is_err() {
            *self = MaskTask::Failed(NO_THREAD);
        }
    }

    /// The tokens forced after the last given ones; empty if none were given. `None` if the mask is not done
    /// at `until`.
    ///
    /// # Errors
    /// The mask's own error, a timeout, or that no thread can run it.
    pub(super) fn advanced(
        &mut self,
        pool: &MaskPool,
        until: Instant,
    ) -> Result<Option<Advance>, SampleError> {
        match self {
            MaskTask::New(_) | MaskTask::Ready(_) => Ok(Some(Advance::default())),
            MaskTask::InFlight(flight) => flight.recv(&flight.advance, pool, until),
            MaskTask::Failed(error) => Err(error.clone()),
        }
    }

    /// The continuation of the answer. `None` if the mask is not done at `until`.
    ///
    /// # Errors
    /// As [`MaskTask::advanced`].
    pub(super) fn next(
        &mut self,
        pool: &MaskPool,
        vocab: usize,
        until: Instant,
    ) -> Result<Option<&Next>, SampleError> {
        self.start(pool, vocab);
        if let MaskTask::InFlight(flight) = self {
            *self = match flight.recv(&flight.state, pool, until) {
                Ok(None) => return Ok(None),
                Ok(Some(state)) => MaskTask::Ready(state),
                Err(error) => MaskTask::Failed(error),
            };
        }
        match self {
            MaskTask::Ready(state) => Ok(Some(&state.next)),
            MaskTask::Failed(error) => Err(error.clone()),
            MaskTask::New(_) | MaskTask::InFlight(_) => Ok(None),
        }
    }
}

impl InFlight {
    /// Waits for the pool as long as it can serve, and at most until `until`.
    fn recv<T>(
        &self,
        reply: &Receiver<Result<T, SampleError>>,
        pool: &MaskPool,
        until: Instant,
    ) -> Result<Option<T>, SampleError> {
        let end = self.sent + WAIT_MAX;
        loop {
            let (stage, now) = (stage_of(&self.stage), Instant::now());
            let limit = match stage.at_work {
                true => end.min(stage.since + TIME_MAX),
                false if pool.queue().serves() => end,
                false => now,
            };
            // Queued work is checked again every `TIME_MAX`: threads may get stuck meanwhile.
            match reply.recv_timeout(limit.min(now + TIME_MAX).min(until).saturating_duration_since(now)) {
                Ok(reply) => return reply.map(Some),
                Err(RecvTimeoutError::Disconnected) => return Err(NO_THREAD),
                Err(RecvTimeoutError::Timeout) => {}
            }
            let now = Instant::now();
            if now >= limit && stage_of(&self.stage) == stage {
                return Err(TOO_SLOW);
            }
            if now >= until {
                return Ok(None);
            }
        }
    }
}

fn stage_of(stage: &Mutex<Stage>) -> Stage {
    *stage.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Reply {
    fn channel() -> (Reply, InFlight) {
        let ((to_advance, advance), (to_state, state)) = (sync_channel(1), sync_channel(1));
        let stage = Arc::new(Mutex::new(Stage { at_work: false, since: Instant::now() }));
        let reply = Reply { advance: to_advance, state: to_state, stage: Arc::clone(&stage) };
        (reply, InFlight { advance, state, stage, sent: Instant::now() })
    }

    fn enter(&self, at_work: bool) {
        let stage = Stage { at_work, since: Instant::now() };
        *self.stage.lock().unwrap_or_else(PoisonError::into_inner) = stage;
    }
}

impl MaskState {
    /// Replies with the forced tokens, and leaves the allowed ones for later: no other answer waits for them.
    /// At the beginning of an answer the engine reads the second reply only, so an error is sent on both
    /// channels.
    fn work(mut self: Box<Self>, (most, vocab): (usize, usize), reply: Reply, queue: &Queue) {
        reply.enter(true);
        let advance = guard(|| self.advance(most, vocab));
        let finished = advance.as_ref().map(|advance| advance.finished).map_err(Clone::clone);
        if reply.advance.send(advance).is_err() {
            // The request has ended.
            return;
        }
        match finished {
            Ok(false) => {
                reply.enter(false);
                queue.later(Box::new(move |_| self.work_ahead(vocab, &reply)));
            }
            Ok(true) => {
                self.next = Next::End;
                drop(reply.state.send(Ok(self)));
            }
            Err(error) => drop(reply.state.send(Err(error))),
        }
    }

    fn work_ahead(mut self: Box<Self>, vocab: usize, reply: &Reply) {
        reply.enter(true);
        let looked = guard(|| self.look(vocab)).map(|next| self.next = next);
        drop(reply.state.send(looked.map(|()| self)));
    }

    fn advance(&mut self, most: usize, vocab: usize) -> Result<Advance, SampleError> {
        let mut advance = Advance::default();
        if most > 0 {
            advance.forced = self.forced(most, vocab)?;
            self.answer.extend_from_slice(&advance.forced);
        }
        advance.finished = self.mask.0.as_ref().is_some_and(|mask| mask.is_finished(&self.answer));
        Ok(advance)
    }

    fn look(&mut self, vocab: usize) -> Result<Next, SampleError> {
        let forced = self.forced(usize::MAX, vocab)?;
        if !forced.is_empty() {
            return Ok(Next::Forced(forced));
        }
        let mut allowed = match std::mem::replace(&mut self.next, Next::End) {
            Next::Allowed(mut allowed) if allowed.vocab() == vocab => {
                allowed.clear();
                allowed
            }
            _ => TokenSet::new(vocab),
        };
        if let Some(mask) = &mut self.mask.0 {
            mask.allowed(&self.answer, &mut allowed);
        }
        allowed.check()?;
        Ok(Next::Allowed(allowed))
    }

    /// The first `most` of the forced tokens, checked against the vocabulary.
    fn forced(&mut self, most: usize, vocab: usize) -> Result<Vec<TokenId>, SampleError> {
        let forced = self.mask.0.as_mut().map_or(&[][..], |mask| mask.forced(&self.answer));
        let forced = forced.get(..most).unwrap_or(forced);
        match forced.iter().find(|token| token.index() >= vocab) {
            Some(&token) => Err(SampleError::MaskToken { token, vocab }),
            None => Ok(forced.to_vec()),
        }
    }
}

/// Turns a panic into an error; a mask that has panicked is not called again.
fn guard<T>(call: impl FnOnce() -> Result<T, SampleError>) -> Result<T, SampleError> {
    caught(call).unwrap_or(Err(SampleError::MaskPanicked))
}

impl std::fmt::Debug for MaskState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MaskState").field("next", &self.next).finish_non_exhaustive()
    }
}

/// Drops the mask on the pool: freeing a large grammar takes time, and a user's `Drop` may do anything.
impl Drop for MaskState {
    fn drop(&mut self) {
        let mask = Guarded(self.mask.0.take());
        if let Some(queue) = &self.queue {
            queue.discard(mask);
        }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        let mask = self.0.take();
        let _ = guard(|| {
            drop(mask);
            Ok(())
        });
    }
}
