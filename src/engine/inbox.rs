//! What handles and the engine's thread share: the bounded admission queue, the statistics, and
//! the bell that wakes the thread.

use std::collections::VecDeque;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::request::SubmitError;
use super::sequence::Sequence;
use super::stats::Stats;
use super::store::RestoreError;
use crate::kv::snapshot::Snapshot;

/// Wakes the engine's thread when it has nothing to do. A ring is not lost if nobody waits yet.
#[derive(Debug, Default)]
pub(super) struct Bell {
    rung: Mutex<bool>,
    ringing: Condvar,
}

impl Bell {
    pub(super) fn ring(&self) {
        *self.rung.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.ringing.notify_one();
    }

    /// Waits until the bell has rung; it goes on having rung.
    pub(super) fn wait(&self) {
        let rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.ringing.wait_while(rung, |rung| !*rung));
    }

    /// Whether it has rung since the last call.
    pub(super) fn silence(&self) -> bool {
        std::mem::take(&mut *self.rung.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A snapshot whose pages are to be put into the cache.
#[derive(Debug)]
pub(super) struct Restore {
    pub(super) snapshot: Snapshot,
    /// Gets the number of tokens that the cache now holds.
    pub(super) reply: SyncSender<Result<usize, RestoreError>>,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Sequence>,
    restores: VecDeque<Restore>,
    stopped: bool,
    stats: Stats,
}

/// The way from handles to the engine's thread.
#[derive(Debug)]
pub(super) struct Inbox {
    state: Mutex<State>,
    queue_max: usize,
    pub(super) bell: Arc<Bell>,
}

impl Inbox {
    pub(super) fn new(queue_max: usize) -> Inbox {
        Inbox { state: Mutex::default(), queue_max, bell: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a request in the queue.
    pub(super) fn submit(&self, sequence: Sequence) -> Result<(), SubmitError> {
        let mut state = self.lock();
        self.check_room(&mut state)?;
        state.waiting.push_back(sequence);
        state.stats.admitted += 1;
        drop(state);
        self.bell.ring();
        Ok(())
    }

    /// Puts a snapshot in the queue.
    pub(super) fn restore(&self, restore: Restore) -> Result<(), SubmitError> {
        let mut state = self.lock();
        self.check_room(&mut state)?;
        state.restores.push_back(restore);
        drop(state);
        self.bell.ring();
        Ok(())
    }

    fn check_room(&self, state: &mut State) -> Result<(), SubmitError> {
        if state.stopped {
            return Err(SubmitError::Stopped);
        }
        let waiting = state.waiting.len() + state.restores.len();
        if waiting >= self.queue_max {
            state.stats.overloaded += 1;
            return Err(SubmitError::Overloaded { waiting });
        }
        Ok(())
    }

    /// Moves at most `room` requests to `active`, the oldest first. False, and none, once the
    /// engine is to stop.
    pub(super) fn take(&self, room: usize, active: &mut Vec<Sequence>) -> bool {
        let mut state = self.lock();
        if !state.stopped {
            let count = room.min(state.waiting.len());
            active.extend(state.waiting.drain(..count));
        }
        !state.stopped
    }

    /// Moves the requests that their readers have given up to `active`, which will end them.
    pub(super) fn take_given_up(&self, active: &mut Vec<Sequence>) {
        let mut state = self.lock();
        let waiting = state.waiting.drain(..);
        let (given_up, waiting): (VecDeque<_>, VecDeque<_>) = waiting.partition(Sequence::is_given_up);
        state.waiting = waiting;
        active.extend(given_up);
    }

    /// The oldest snapshot in the queue.
    pub(super) fn take_restore(&self) -> Option<Restore> {
        self.lock().restores.pop_front()
    }

    /// Makes `stats` what handles read; what handles count stays.
    pub(super) fn publish(&self, stats: &Stats) {
        let mut state = self.lock();
        let (admitted, overloaded) = (state.stats.admitted, state.stats.overloaded);
        state.stats = Stats { admitted, overloaded, ..*stats };
    }

    pub(super) fn stats(&self) -> Stats {
        let state = self.lock();
        // `active` includes what the thread has taken since it published last.
        let known = state.stats.finished + state.stats.failed + state.stats.cancelled;
        let queued = state.waiting.len();
        let active = state.stats.admitted.saturating_sub(known) as usize - queued;
        Stats { queued, active, ..state.stats }
    }

    /// Tells the thread to stop.
    pub(super) fn stop(&self) {
        self.lock().stopped = true;
        self.bell.ring();
    }

    /// The thread is gone: lets nobody wait for it.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.stopped = true;
        let ended = state.stats.finished + state.stats.cancelled;
        state.stats.failed = state.stats.admitted.saturating_sub(ended);
        let left = (std::mem::take(&mut state.waiting), std::mem::take(&mut state.restores));
        drop(state);
        drop(left);
    }
}
