//! Where the engine's thread finds new work, and sleeps while there is none. What waits here is
//! bounded: whatever finds no room is refused at once, so nobody waits to get in.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use super::stats::{Counters, add};
use super::store::Exported;
use super::{EngineConfig, EngineError, Profile, Scores, generation::Channel, request::TokenRequest};
use crate::kv::snapshot::Snapshot;
use crate::token::TokenId;

/// Longest sleep of an idle engine: a lost wake-up costs at most this.
const NAP: Duration = Duration::from_secs(1);

/// A request that was checked and let in.
#[derive(Debug)]
pub(super) struct Admitted {
    pub(super) request: TokenRequest,
    pub(super) channel: std::sync::Arc<Channel>,
    pub(super) submitted: std::time::Instant,
}

/// Work that is answered once.
#[derive(Debug)]
pub(super) enum Job {
    Score {
        ids: Vec<TokenId>,
        first: usize,
        top: usize,
        reply: mpsc::SyncSender<Result<Scores, EngineError>>,
    },
    Save {
        ids: Vec<TokenId>,
        reply: mpsc::SyncSender<Result<Exported, EngineError>>,
    },
    Restore {
        snapshot: Snapshot,
        reply: mpsc::SyncSender<Result<usize, EngineError>>,
    },
    /// Proves the KV books.
    Check {
        reply: mpsc::SyncSender<Result<(), EngineError>>,
    },
    StartProfile {
        reply: mpsc::SyncSender<Result<(), EngineError>>,
    },
    TakeProfile {
        reply: mpsc::SyncSender<Result<Profile, EngineError>>,
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
    pub(super) requests: VecDeque<Admitted>,
    pub(super) stop: bool,
}

#[derive(Debug, Default)]
struct State {
    requests: VecDeque<Admitted>,
    jobs: VecDeque<Job>,
    stop: bool,
    woken: bool,
    closed: bool,
}

/// The engine's inbox.
#[derive(Debug)]
pub(super) struct Inbox {
    state: Mutex<State>,
    changed: Condvar,
    requests_max: usize,
    jobs_max: usize,
}

impl Inbox {
    pub(super) fn new(config: &EngineConfig) -> Inbox {
        Inbox {
            state: Mutex::default(),
            changed: Condvar::new(),
            requests_max: config.queue_max,
            jobs_max: config.jobs_max,
        }
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
        state.woken = true;
        drop(state);
        self.changed.notify_one();
        Ok(())
    }

    /// Makes the engine look again. Takes no room: a wake-up cannot be refused.
    pub(super) fn wake(&self) {
        // An engine that has gone has nothing to look at.
        let _ = self.change(|_| Ok(()));
    }

    /// Lets a request in and counts it, unless as many as there may be have not ended yet.
    pub(super) fn put_request(&self, admitted: Admitted, counters: &Counters) -> Result<(), Refused> {
        self.change(|state| {
            // Requests are admitted under this lock only, so none can slip in after the count.
            let waiting = usize::try_from(counters.live()).unwrap_or(usize::MAX);
            if waiting >= self.requests_max {
                return Err(Refused::Full { waiting });
            }
            add(&counters.admitted, 1);
            state.requests.push_back(admitted);
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

    /// Lets nothing in any more; gives the requests that nobody will serve. Jobs that nobody will
    /// do are dropped, which their callers notice.
    pub(super) fn close(&self) -> VecDeque<Admitted> {
        let mut state = self.lock();
        state.closed = true;
        state.jobs.clear();
        std::mem::take(&mut state.requests)
    }

    /// Asks the engine to end. Takes no room.
    pub(super) fn stop(&self) {
        // An engine that has gone has ended.
        let _ = self.change(|state| {
            state.stop = true;
            Ok(())
        });
    }

    /// What has arrived, without waiting.
    pub(super) fn take(&self) -> Arrivals {
        let mut state = self.lock();
        state.woken = false;
        Arrivals { requests: std::mem::take(&mut state.requests), stop: state.stop }
    }

    /// Whether nothing has arrived and nobody wants it to look.
    pub(super) fn is_empty(&self) -> bool {
        let state = self.lock();
        !state.woken && !state.stop && state.requests.is_empty() && state.jobs.is_empty()
    }

    /// The job that has waited longest. The others keep waiting here, where they are counted.
    pub(super) fn take_job(&self) -> Option<Job> {
        self.lock().jobs.pop_front()
    }

    /// Sleeps until something changes (or a moment has passed).
    pub(super) fn wait(&self) {
        let state = self.lock();
        if !state.woken {
            // Whether it was a wake-up or the time does not matter: the caller looks again.
            drop(self.changed.wait_timeout(state, NAP).unwrap_or_else(PoisonError::into_inner));
        }
    }
}
