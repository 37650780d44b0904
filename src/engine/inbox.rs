//! Where the engine's thread finds new work, and sleeps while there is none.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use super::{EngineError, Scores, generation::Channel, request::TokenRequest};
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
        path: PathBuf,
        reply: mpsc::SyncSender<Result<(), EngineError>>,
    },
    Restore {
        path: PathBuf,
        reply: mpsc::SyncSender<Result<usize, EngineError>>,
    },
}

/// What has arrived since the last look.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    pub(super) requests: VecDeque<Admitted>,
    pub(super) jobs: VecDeque<Job>,
    pub(super) stop: bool,
}

#[derive(Debug, Default)]
struct State {
    arrivals: Arrivals,
    woken: bool,
    closed: bool,
}

/// The engine's inbox.
#[derive(Debug)]
pub(super) struct Inbox {
    state: Mutex<State>,
    changed: Condvar,
}

impl Inbox {
    pub(super) fn new() -> Inbox {
        Inbox { state: Mutex::default(), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing under this lock can leave the state half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the arrivals and wakes the engine; false if it has gone.
    fn change(&self, change: impl FnOnce(&mut Arrivals)) -> bool {
        let mut state = self.lock();
        if state.closed {
            return false;
        }
        change(&mut state.arrivals);
        state.woken = true;
        drop(state);
        self.changed.notify_one();
        true
    }

    pub(super) fn wake(&self) {
        self.change(|_| {});
    }

    pub(super) fn put_request(&self, admitted: Admitted) -> bool {
        self.change(|arrivals| arrivals.requests.push_back(admitted))
    }

    pub(super) fn put_job(&self, job: Job) -> bool {
        self.change(|arrivals| arrivals.jobs.push_back(job))
    }

    /// Lets nothing in any more; gives the requests that nobody will serve. Jobs that nobody will
    /// do are dropped, which their callers notice.
    pub(super) fn close(&self) -> VecDeque<Admitted> {
        let mut state = self.lock();
        state.closed = true;
        std::mem::take(&mut state.arrivals).requests
    }

    pub(super) fn stop(&self) {
        self.change(|arrivals| arrivals.stop = true);
    }

    /// What has arrived, without waiting.
    pub(super) fn take(&self) -> Arrivals {
        let mut state = self.lock();
        state.woken = false;
        let stop = state.arrivals.stop;
        Arrivals { stop, ..std::mem::take(&mut state.arrivals) }
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
