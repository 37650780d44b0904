//! The mask pool: a few threads that run and drop masks, started with the first mask and ended with the
//! engine.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use crate::headroom;

/// Longest time that a mask may take for one choice, from its start on a thread.
pub(super) const TIME_MAX: Duration = Duration::from_secs(if cfg!(test) { 2 } else { 5 });
/// Most threads.
const THREADS_MAX: usize = 4;
/// Most threads that are started in place of threads stuck in a mask.
pub(super) const LOST_MAX: u32 = if cfg!(test) { 2 } else { 8 };
/// Backlog at which masks are no longer queued for dropping: they must not pile up while threads are stuck.
const DISCARDED_MAX: usize = 1024;
/// Bytes of a thread's stack: grammars are recursive.
const STACK_BYTES: usize = 16 << 20;

/// A work item. It does not panic.
pub(super) type Work = Box<dyn FnOnce(&Queue) + Send>;

/// The engine's end of the queue. Dropping it ends the threads.
#[derive(Debug)]
pub(super) struct MaskPool(Arc<Queue>);

/// The queue shared by the threads. It holds at most one work item per sequence, and masks to drop.
pub(super) struct Queue {
    state: Mutex<PoolState>,
    changed: Condvar,
    /// Called first on each thread: registers it as the engine's, because it must not wait for the engine.
    enter: Box<dyn Fn() + Send + Sync>,
}

#[derive(Default)]
struct PoolState {
    /// Work that the engine waits for (`now`), and work that it needs after its step (`later`).
    now: VecDeque<Work>,
    later: VecDeque<Work>,
    /// Most threads, not counting stuck ones: the model needs the processors, too.
    most: usize,
    threads: usize,
    idle: usize,
    /// Start times of the threads' current work.
    busy: Vec<Instant>,
    closed: bool,
}

impl MaskPool {
    pub(super) fn new(enter: impl Fn() + Send + Sync + 'static) -> MaskPool {
        let most = available_parallelism().map_or(1, |cores| (cores.get() / 2).clamp(1, THREADS_MAX));
        MaskPool::with_threads(most, enter)
    }

    /// A pool of `most` threads, not counting stuck ones.
    pub(super) fn with_threads(most: usize, enter: impl Fn() + Send + Sync + 'static) -> MaskPool {
        let state = Mutex::new(PoolState { most, ..PoolState::default() });
        MaskPool(Arc::new(Queue { state, changed: Condvar::new(), enter: Box::new(enter) }))
    }

    pub(super) fn queue(&self) -> &Arc<Queue> {
        &self.0
    }
}

impl PoolState {
    /// Most threads, including the replacements of stuck ones.
    fn threads_max(&self) -> usize {
        self.most + self.lost().min(LOST_MAX as usize)
    }

    /// Number of threads that seem stuck.
    fn lost(&self) -> usize {
        self.busy.iter().filter(|since| since.elapsed() > TIME_MAX).count()
    }

    fn take(&mut self) -> Option<Work> {
        self.now.pop_front().or_else(|| self.later.pop_front())
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, PoolState> {
        // Poisoning is ignored: no panic under this lock can leave the state half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues work for a thread; returns the work if no thread can serve it.
    pub(super) fn run(self: &Arc<Self>, work: Work) -> Result<(), Work> {
        let mut state = self.lock();
        state.now.push_back(work);
        let refused = if self.start(&mut state) { None } else { state.now.pop_back() };
        drop(state);
        self.changed.notify_one();
        refused.map_or(Ok(()), Err)
    }

    /// Queues work that runs when no urgent work is queued.
    pub(super) fn later(&self, work: Work) {
        self.lock().later.push_back(work);
        self.changed.notify_one();
    }

    /// Drops a mask on a thread, or here if the threads have ended or the backlog is full.
    pub(super) fn discard(self: &Arc<Self>, mask: impl Send + 'static) {
        let mut state = self.lock();
        let ended = state.closed && state.threads == 0;
        if ended || state.later.len() >= DISCARDED_MAX {
            return drop(state);
        }
        state.later.push_back(Box::new(move |_| drop(mask)));
        self.start(&mut state);
        drop(state);
        self.changed.notify_one();
    }

    /// Whether a thread can take up queued work. Replaces stuck threads.
    pub(super) fn serves(self: &Arc<Self>) -> bool {
        self.start(&mut self.lock())
    }

    /// Starts a thread if there is work for it. Returns whether any thread can serve.
    fn start(self: &Arc<Self>, state: &mut PoolState) -> bool {
        let wanted = state.idle < state.now.len() + state.later.len();
        if wanted && !state.closed && state.threads < state.threads_max() {
            let queue = Arc::clone(self);
            let started = headroom::spawn_deep("ottava-mask".into(), STACK_BYTES, move || {
                (queue.enter)();
                queue.serve();
            });
            // A failed start is ignored: the other threads go on.
            state.threads += usize::from(started.is_ok());
        }
        state.threads > state.lost()
    }

    /// A thread's main loop. Work left when the pool closes is dropped here, because it contains masks.
    fn serve(&self) {
        let mut state = self.lock();
        while state.threads <= state.threads_max() {
            let Some(work) = state.take() else {
                if state.closed {
                    break;
                }
                state.idle += 1;
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
                continue;
            };
            let (since, closed) = (Instant::now(), state.closed);
            state.busy.push(since);
            drop(state);
            if closed {
                drop(work)
            } else {
                work(self)
            }
            state = self.lock();
            // Equal start times are interchangeable.
            if let Some(at) = state.busy.iter().position(|other| *other == since) {
                state.busy.swap_remove(at);
            }
        }
        state.threads -= 1;
    }
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").finish_non_exhaustive()
    }
}

/// The threads end after their current work; the drop does not wait for that.
impl Drop for MaskPool {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.closed = true;
        let left = if state.threads == 0 { std::mem::take(&mut state.later) } else { VecDeque::new() };
        drop(state);
        self.0.changed.notify_all();
        drop(left);
    }
}
