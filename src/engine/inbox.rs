//! Where the engine's thread finds new work. What waits here is bounded: a request or a job without room is refused
//! at once, so no caller waits to get in.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use super::sequence::{Reply, Sequence};
use super::stats::{Counters, add};
use super::{Death, Drained, EngineConfig, EngineState, Profile, wake::WakeFlag};
use crate::kv::snapshot::Snapshot;

/// Work that is answered once.
#[derive(Debug)]
pub(super) enum Job {
    /// Scores, or a prompt to save.
    Compute(Sequence),
    Restore {
        snapshot: Snapshot,
        reply: Reply<usize>,
    },
    /// Proves the KV accounting.
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

/// Why something did not get in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// There is no room.
    Full {
        /// What takes it.
        waiting: usize,
    },
    /// The engine admits nothing more: it drains, has stopped, or has died of this.
    Closed(Option<Death>),
}

/// What the engine is to do. It never goes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Order {
    /// Admit and work.
    #[default]
    Work,
    /// Admit no more, and end with the last that it has.
    Drain,
    /// End all that it has, and then itself.
    CutOff,
    /// End itself.
    Stop,
}

/// What has arrived since the last look.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    pub(super) requests: VecDeque<Sequence>,
    pub(super) order: Order,
}

#[derive(Debug, Default)]
struct State {
    requests: VecDeque<Sequence>,
    jobs: VecDeque<Job>,
    order: Order,
    /// The thread is ending.
    closed: bool,
    /// It has ended, and its model is gone.
    gone: bool,
    death: Option<Death>,
    cut_off: usize,
    /// The engine's threads.
    threads: Vec<ThreadId>,
}

/// The engine's inbox.
#[derive(Debug)]
pub(super) struct Inbox {
    state: Mutex<State>,
    ended: Condvar,
    wake: Arc<WakeFlag>,
    requests_max: usize,
    jobs_max: usize,
}

impl Inbox {
    pub(super) fn new(config: &EngineConfig) -> Inbox {
        let (requests_max, jobs_max) = (config.queue_max, config.jobs_max);
        let (state, ended, wake) = Default::default();
        Inbox { state, ended, wake, requests_max, jobs_max }
    }

    /// The calling thread is one of the engine's.
    pub(super) fn enter(&self) {
        self.lock().threads.push(thread::current().id());
    }

    /// Whether the calling thread is one of the engine's: it must not wait for the engine.
    pub(super) fn is_own_thread(&self) -> bool {
        self.lock().threads.contains(&thread::current().id())
    }

    /// What wakes the engine.
    pub(super) fn wake(&self) -> &Arc<WakeFlag> {
        &self.wake
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing under this lock can leave the state half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state and wakes the engine.
    fn change(&self, change: impl FnOnce(&mut State) -> Result<(), Refused>) -> Result<(), Refused> {
        let mut state = self.lock();
        if state.closed || state.death.is_some() || state.order != Order::Work {
            return Err(Refused::Closed(state.death.clone()));
        }
        change(&mut state)?;
        drop(state);
        self.wake.set();
        Ok(())
    }

    /// Lets a request in and counts it, unless as many as there may be have not ended yet.
    pub(super) fn put_request(&self, request: Sequence, counters: &Counters) -> Result<(), Refused> {
        // One that is refused is dropped behind the lock: its mask is the caller's code.
        let mut request = Some(request);
        self.change(|state| {
            // Requests are admitted under this lock only, so none can slip in after the count.
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

    /// Lets nothing in any more; returns what is left undone. Each caller gets its error when that is dropped.
    pub(super) fn close(&self) -> (VecDeque<Sequence>, VecDeque<Job>) {
        let mut state = self.lock();
        state.closed = true;
        (std::mem::take(&mut state.requests), std::mem::take(&mut state.jobs))
    }

    /// Gives an order. It takes no room; an engine that has gone has no use for it.
    pub(super) fn order(&self, order: Order) {
        let mut state = self.lock();
        state.order = state.order.max(order);
        drop(state);
        self.wake.set();
    }

    /// Drains the engine: what has not ended at `until` is cut off. Returns when the engine's thread has gone.
    pub(super) fn drain(&self, until: Instant) -> Drained {
        if self.is_own_thread() {
            self.order(Order::CutOff);
            return Drained::default();
        }
        self.order(Order::Drain);
        let left = until.saturating_duration_since(Instant::now());
        if !self.wait_until_gone(left).gone {
            self.order(Order::CutOff);
        }
        Drained { cut_off: self.wait_until_gone(Duration::MAX).cut_off }
    }

    fn wait_until_gone(&self, most: Duration) -> MutexGuard<'_, State> {
        let waited = self.ended.wait_timeout_while(self.lock(), most, |state| !state.gone);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// The thread has gone, and the model with it.
    pub(super) fn leave(&self) {
        self.lock().gone = true;
        self.ended.notify_all();
    }

    /// The engine dies: it admits nothing from here on. Returns what it died of first.
    pub(super) fn die(&self, death: Death) -> Death {
        self.lock().death.get_or_insert(death).clone()
    }

    /// What the engine has died of.
    pub(super) fn death(&self) -> Option<Death> {
        self.lock().death.clone()
    }

    pub(super) fn engine_state(&self) -> EngineState {
        let state = self.lock();
        match (&state.death, state.order) {
            (Some(death), _) => EngineState::Dead(death.clone()),
            (None, Order::Stop) => EngineState::Stopped,
            _ if state.closed => EngineState::Stopped,
            (None, Order::Work) => EngineState::Running,
            (None, Order::Drain | Order::CutOff) => EngineState::Draining,
        }
    }

    /// Drops the jobs that wait, which tells their callers, and counts what is cut off besides.
    pub(super) fn cut_off(&self, sequences: usize) {
        let mut state = self.lock();
        let jobs = std::mem::take(&mut state.jobs);
        state.cut_off += sequences + jobs.len();
        // Snapshots may be large: they go behind the lock.
        drop(state);
        drop(jobs);
    }

    /// What has arrived, without waiting.
    pub(super) fn take(&self) -> Arrivals {
        // In this order: what arrives after the look sets the flag again.
        self.wake.clear();
        let mut state = self.lock();
        Arrivals { requests: std::mem::take(&mut state.requests), order: state.order }
    }

    /// Whether nothing has arrived and nothing has woken the engine.
    pub(super) fn is_empty(&self) -> bool {
        let state = self.lock();
        !self.wake.is_set()
            && state.order != Order::Stop
            && state.requests.is_empty()
            && state.jobs.is_empty()
    }

    /// The job that has waited longest. The others keep waiting here, where they are counted.
    pub(super) fn take_job(&self) -> Option<Job> {
        self.lock().jobs.pop_front()
    }
}
