//! The threads that masks run on: a few, started with the first mask and ended with the engine.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use crate::room;

/// Longest time that a mask may take for one choice, from when a thread has it.
pub(super) const TIME_MAX: Duration = Duration::from_secs(if cfg!(test) { 2 } else { 5 });
/// Most threads.
const THREADS_MAX: usize = 4;
/// Most threads that are started in the stead of such as do not come back from a mask.
pub(super) const LOST_MAX: u32 = 8;
/// Bytes of a thread's stack: grammars call themselves.
const STACK_BYTES: usize = 16 << 20;

/// A piece of work. It does not panic.
pub(super) type Work = Box<dyn FnOnce(&Queue) + Send>;

/// The pool. Work that waits is at most one piece for each sequence at work.
pub(super) struct MaskPool {
    shared: Arc<Queue>,
    /// What a thread does first: it is the engine's, and nothing may wait there for the engine.
    enter: Arc<dyn Fn() + Send + Sync>,
}

/// What the threads share.
pub(super) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// What the engine waits for, and what it will want after its step.
    now: VecDeque<Work>,
    later: VecDeque<Work>,
    /// Most threads that do come back: the model needs the processors, too.
    most: usize,
    threads: usize,
    idle: usize,
    /// Since when threads are at work.
    busy: Vec<Instant>,
    closed: bool,
}

impl MaskPool {
    pub(super) fn new(enter: impl Fn() + Send + Sync + 'static) -> MaskPool {
        let most = available_parallelism().map_or(1, |cores| (cores.get() / 2).clamp(1, THREADS_MAX));
        let state = Mutex::new(State { most, ..State::default() });
        MaskPool { shared: Arc::new(Queue { state, changed: Condvar::new() }), enter: Arc::new(enter) }
    }

    /// Runs work on a thread; on this one if there is none and none can be had.
    pub(super) fn run(&self, work: Work) {
        let mut state = self.shared.lock();
        state.now.push_back(work);
        self.start(&mut state);
        while state.threads == 0
            && let Some(work) = state.take()
        {
            drop(state);
            work(&self.shared);
            state = self.shared.lock();
        }
        drop(state);
        self.shared.changed.notify_one();
    }

    /// Starts others in the stead of threads that do not come back, if there is work for them.
    pub(super) fn replace_lost(&self) {
        self.start(&mut self.shared.lock());
    }

    /// Starts a thread if there is work for it.
    fn start(&self, state: &mut State) {
        if state.idle >= state.now.len() + state.later.len() || state.threads >= state.threads_max() {
            return;
        }
        let (shared, enter) = (Arc::clone(&self.shared), Arc::clone(&self.enter));
        let started = room::spawn_deep("ottava-mask".into(), STACK_BYTES, move || {
            enter();
            shared.serve();
        });
        // The others go on where there is no room for one more.
        state.threads += usize::from(started.is_ok());
    }
}

impl State {
    /// How many threads there may be.
    fn threads_max(&self) -> usize {
        let lost = self.busy.iter().filter(|since| since.elapsed() > TIME_MAX).count();
        self.most + lost.min(LOST_MAX as usize)
    }

    fn take(&mut self) -> Option<Work> {
        self.now.pop_front().or_else(|| self.later.pop_front())
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing under this lock can leave the state half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves work for when nothing is waited for.
    pub(super) fn later(&self, work: Work) {
        let mut state = self.lock();
        // An engine that has gone has no use for it.
        if state.closed {
            return drop(state);
        }
        state.later.push_back(work);
        drop(state);
        self.changed.notify_one();
    }

    /// A thread's life.
    fn serve(&self) {
        let mut state = self.lock();
        while !state.closed && state.threads <= state.threads_max() {
            let Some(work) = state.take() else {
                state.idle += 1;
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
                continue;
            };
            let since = Instant::now();
            state.busy.push(since);
            drop(state);
            work(self);
            state = self.lock();
            // Which of those that began together does not matter.
            if let Some(at) = state.busy.iter().position(|other| *other == since) {
                state.busy.swap_remove(at);
            }
        }
        state.threads -= 1;
    }
}

impl std::fmt::Debug for MaskPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MaskPool").finish_non_exhaustive()
    }
}

/// The threads end after what they are at; nobody waits for that.
impl Drop for MaskPool {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.closed = true;
        let left = (std::mem::take(&mut state.now), std::mem::take(&mut state.later));
        drop(state);
        self.shared.changed.notify_all();
        drop(left);
    }
}
