//! Where the engine's thread finds new work. What waits here is bounded: a request or a job without room is refused
//! at once, so no caller waits to get in.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::sequence::{Reply, Sequence};
use super::stats::{Counters, add};
use super::{EngineConfig, Profile, wake::WakeFlag};
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
    /// Proves the KV books.
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// There is no room.
    Full {
        /// What takes it.
        waiting: usize,
    },
    /// The engine has gone.
    Closed,
}

/// What has arrived since the last look.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    pub(super) requests: VecDeque<Sequence>,
    pub(super) stop: bool,
}

#[derive(Debug, Default)]
struct State {
    requests: VecDeque<Sequence>,
    jobs: VecDeque<Job>,
    stop: bool,
    closed: bool,
}

/// The engine's inbox.
#[derive(Debug)]
pub(super) struct Inbox {
    state: Mutex<State>,
    wake: Arc<WakeFlag>,
    requests_max: usize,
    jobs_max: usize,
}

impl Inbox {
    pub(super) fn new(config: &EngineConfig) -> Inbox {
        let (requests_max, jobs_max) = (config.queue_max, config.jobs_max);
        Inbox { state: Mutex::default(), wake: Arc::default(), requests_max, jobs_max }
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
        if state.closed {
            return Err(Refused::Closed);
        }
        change(&mut state)?;
        drop(state);
        self.wake.set();
        Ok(())
    }

    /// Lets a request in and counts it, unless as many as there may be have not ended yet.
    pub(super) fn put_request(&self, request: Sequence, counters: &Counters) -> Result<(), Refused> {
        self.change(|state| {
            // Requests are admitted under this lock only, so none can slip in after the count.
            let waiting = usize::try_from(counters.live()).unwrap_or(usize::MAX);
            if waiting >= self.requests_max {
                return Err(Refused::Full { waiting });
            }
            add(&counters.admitted, 1);
            state.requests.push_back(request);
            Ok(())
        })
    }

    pub(super) fn put_job(&self, job: Job) -> Result<(), Refused> {
        self.change(|state| {
            let waiting = state.jobs.len();
            if waiting >= self.jobs_max {
                return Err(Refused::Full { waiting });
            }
            state.jobs.push_back(job);
            Ok(())
        })
    }

    /// Lets nothing in any more; returns what is left undone. Each caller gets its error when that is dropped.
    pub(super) fn close(&self) -> (VecDeque<Sequence>, VecDeque<Job>) {
        let mut state = self.lock();
        state.closed = true;
        (std::mem::take(&mut state.requests), std::mem::take(&mut state.jobs))
    }

    /// Makes the engine end. Takes no room.
    pub(super) fn stop(&self) {
        // An engine that has gone has ended.
        let _ = self.change(|state| {
            state.stop = true;
            Ok(())
        });
    }

    /// What has arrived, without waiting.
    pub(super) fn take(&self) -> Arrivals {
        // In this order: what arrives after the look sets the flag again.
        self.wake.clear();
        let mut state = self.lock();
        Arrivals { requests: std::mem::take(&mut state.requests), stop: state.stop }
    }

    /// Whether nothing has arrived and nothing has woken the engine.
    pub(super) fn is_empty(&self) -> bool {
        let state = self.lock();
        !self.wake.is_set() && !state.stop && state.requests.is_empty() && state.jobs.is_empty()
    }

    /// The job that has waited longest. The others keep waiting here, where they are counted.
    pub(super) fn take_job(&self) -> Option<Job> {
        self.lock().jobs.pop_front()
    }
}
