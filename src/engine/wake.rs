//! The flag that wakes the engine's thread; any thread may set it. It takes no room, so setting it never
//! fails and never waits.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Longest sleep of an idle engine: a lost wake-up costs at most this.
const NAP: Duration = Duration::from_secs(1);

/// Whether there may be work.
#[derive(Debug, Default)]
pub(super) struct WakeFlag {
    set: Mutex<bool>,
    changed: Condvar,
}

impl WakeFlag {
    fn lock(&self) -> MutexGuard<'_, bool> {
        // Poisoning is ignored: a boolean cannot be half changed.
        self.set.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the engine.
    pub(super) fn set(&self) {
        *self.lock() = true;
        self.changed.notify_one();
    }

    /// Clears the flag; the engine then checks for work.
    pub(super) fn clear(&self) {
        *self.lock() = false;
    }

    pub(super) fn is_set(&self) -> bool {
        *self.lock()
    }

    /// Sleeps until the flag is set, until `until` if given, and at most for [`NAP`].
    pub(super) fn wait(&self, until: Option<Instant>) {
        let set = self.lock();
        if !*set {
            let left = until.map_or(NAP, |until| until.saturating_duration_since(Instant::now()));
            // The cause of the wake-up does not matter: the caller checks again.
            drop(self.changed.wait_timeout(set, left.min(NAP)).unwrap_or_else(PoisonError::into_inner));
        }
    }
}
