//! The request queue of the engine's thread. It is bounded: a request or a job without room is refused at
//! once, so no caller waits for admission.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use super::sequence::{Reply, Sequence};
use super::stats::{Counters, add};
use super::{Drained, EngineConfig, EngineFailure, EngineState, Profile, wake::WakeFlag};
use crate::kv::snapshot::Snapshot;

/// Work with a single reply.
#[derive(Debug)]
pub(super) enum Job {
    /// Scores, or a prompt to save.
    Compute(Sequence),
    Restore {
        snapshot: Snapshot,
        reply: Reply<usize>,
    },
    /// Checks the KV accounting.
    Check {
        reply: Reply<()>,
    },
    StartProfile {
        reply: Reply<()>,
    },
    TakeProfile {
        reply: Reply<Profile>,
    },
}

/// Why a request or a job was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// The queue is full.
    Full {
        /// Requests or jobs that take the room.
        waiting: usize,
    },
    /// The engine admits nothing more: it drains, has stopped, or has failed with this error.
    Closed(Option<EngineFailure>),
}

/// The engine's orders. They only move forward.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Order {
    /// Admit and work.
    #[default]
    Work,
    /// Admit no more, and stop after the last request.
    Drain,
    /// Cancel all requests, then stop.
    Abort,
    /// Stop at once.
    Stop,
}

/// Arrivals since the last [`RequestQueue::take`].
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    pub(super) requests: VecDeque<Sequence>,
    pub(super) order: Order,
}

#[derive(Debug, Default)]
struct QueueState {
    requests: VecDeque<Sequence>,
    jobs: VecDeque<Job>,
    order: Order,
    /// Whether the thread is ending.
    closed: bool,
    /// Whether the thread has ended and its model is dropped.
    gone: bool,
    failure: Option<EngineFailure>,
    aborted: usize,
    /// The engine's own thread and those of the mask pool.
    threads: Vec<ThreadId>,
}

/// The request queue, shared by the handles and the engine's thread.
#[derive(Debug)]
pub(super) struct RequestQueue {
    state: Mutex<QueueState>,
    ended: Condvar,
    wake: Arc<WakeFlag>,
    requests_max: usize,
    jobs_max: usize,
}

impl RequestQueue {
    pub(super) fn new(config: &EngineConfig) -> RequestQueue {
        let (requests_max, jobs_max) = (config.queue_max, config.jobs_max);
        let (state, ended, wake) = Default::default();
        RequestQueue { state, ended, wake, requests_max, jobs_max }
    }

    /// Registers the calling thread as one of the engine's.
    pub(super) fn enter(&self) {
        self.lock().threads.push(thread::current().id());
    }

    /// Whether the calling thread is one of the engine's, which must not wait for the engine.
    pub(super) fn is_own_thread(&self) -> bool {
        self.lock().threads.contains(&thread::current().id())
    }

    /// The flag that wakes the engine.
    pub(super) fn wake(&self) -> &Arc<WakeFlag> {
        &self.wake
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        // Poisoning is ignored: no panic under this lock can leave the state half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state and wakes the engine. Refused once the engine admits nothing more.
    fn change(&self, change: impl FnOnce(&mut QueueState) -> Result<(), Refused>) -> Result<(), Refused> {
        let mut state = self.lock();
        if state.closed || state.failure.is_some() || state.order != Order::Work {
            return Err(Refused::Closed(state.failure.clone()));
        }
        change(&mut state)?;
        drop(state);
        self.wake.set();
        Ok(())
    }

    /// Queues and counts a request, unless `requests_max` requests are admitted and not ended.
    pub(super) fn put_request(&self, request: Sequence, counters: &Counters) -> Result<(), Refused> {
        // A refused request is dropped after the lock is released: its mask is user code.
        let mut request = Some(request);
        self.change(|state| {
            // Requests are admitted under this lock only, so none can be added after the count.
            let waiting = usize::try_from(counters.live()).unwrap_or(usize::MAX);
            if waiting >= self.requests_max {
                return Err(Refused::Full { waiting });
            }
            add(&counters.admitted, 1);
            state.requests.extend(request.take());
            Ok(())
        })
    }

    pub(super) fn put_job(&self, job: Job) -> Result<(), Refused> {
        let mut job = Some(job);
        self.change(|state| {
            let waiting = state.jobs.len();
            if waiting >= self.jobs_max {
                return Err(Refused::Full { waiting });
            }
            state.jobs.extend(job.take());
            Ok(())
        })
    }

    /// Closes the queue and returns the remaining work. Each caller gets its error when the work is dropped.
    pub(super) fn close(&self) -> (VecDeque<Sequence>, VecDeque<Job>) {
        let mut state = self.lock();
        state.closed = true;
        (std::mem::take(&mut state.requests), std::mem::take(&mut state.jobs))
    }

    /// Gives an order. It needs no room, and has no effect on an engine that has ended.
    pub(super) fn order(&self, order: Order) {
        let mut state = self.lock();
        state.order = state.order.max(order);
        drop(state);
        self.wake.set();
    }

    /// Drains the engine: requests that have not ended at `until` are cancelled. Returns after the engine's
    /// thread has ended.
    pub(super) fn drain(&self, until: Instant) -> Drained {
        if self.is_own_thread() {
            self.order(Order::Abort);
            return Drained::default();
        }
        self.order(Order::Drain);
        let left = until.saturating_duration_since(Instant::now());
        if !self.wait_until_gone(left).gone {
            self.order(Order::Abort);
        }
        Drained { aborted: self.wait_until_gone(Duration::MAX).aborted }
    }

    fn wait_until_gone(&self, most: Duration) -> MutexGuard<'_, QueueState> {
        let waited = self.ended.wait_timeout_while(self.lock(), most, |state| !state.gone);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Marks the thread as ended and its model as dropped.
    pub(super) fn leave(&self) {
        self.lock().gone = true;
        self.ended.notify_all();
    }

    /// Marks the engine as failed: it admits nothing more. Returns the first cause.
    pub(super) fn fail(&self, failure: EngineFailure) -> EngineFailure {
        self.lock().failure.get_or_insert(failure).clone()
    }

    /// The cause of the engine's failure, if it has failed.
    pub(super) fn failure(&self) -> Option<EngineFailure> {
        self.lock().failure.clone()
    }

    pub(super) fn engine_state(&self) -> EngineState {
        let state = self.lock();
        match (&state.failure, state.order) {
            (Some(failure), _) => EngineState::Dead(failure.clone()),
            (None, Order::Stop) => EngineState::Stopped,
            _ if state.closed => EngineState::Stopped,
            (None, Order::Work) => EngineState::Running,
            (None, Order::Drain | Order::Abort) => EngineState::Draining,
        }
    }

    /// Drops the waiting jobs, which notifies their callers, and adds them and `sequences` to the count of
    /// cancelled work.
    pub(super) fn abort(&self, sequences: usize) {
        let mut state = self.lock();
        let jobs = std::mem::take(&mut state.jobs);
        state.aborted += sequences + jobs.len();
        // Snapshots may be large: they are freed after the lock is released.
        drop(state);
        drop(jobs);
    }

    /// Takes all arrivals, without waiting.
    pub(super) fn take(&self) -> Arrivals {
        // The flag is cleared first: a later arrival sets it again.
        self.wake.clear();
        let mut state = self.lock();
        Arrivals { requests: std::mem::take(&mut state.requests), order: state.order }
    }

    /// Whether nothing has arrived and no wake-up is pending.
    pub(super) fn is_empty(&self) -> bool {
        let state = self.lock();
        !self.wake.is_set()
            && state.order != Order::Stop
            && state.requests.is_empty()
            && state.jobs.is_empty()
    }

    /// The oldest waiting job. The others stay here, where they are counted.
    pub(super) fn take_job(&self) -> Option<Job> {
        self.lock().jobs.pop_front()
    }
}
