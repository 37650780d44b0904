//! Cache events: changes of the prefix cache, from the engine's thread to a reader such as a prefix-aware
//! router. The queue is bounded: on overflow the reader gets `Cleared` followed by a full listing.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::kv::{CacheEvent, KvCacheManager};

#[derive(Debug, Default)]
struct Queue {
    state: Mutex<PendingEvents>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct PendingEvents {
    events: VecDeque<CacheEvent>,
    /// Number of `events` that are changes; the others list the pages present at the last overflow.
    changes: usize,
    closed: bool,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, PendingEvents> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Changes of an engine's prefix cache: see
/// [`EngineConfig::cache_events`](super::EngineConfig::cache_events). Clones share one queue, so each change
/// is read once.
#[derive(Clone, Debug)]
pub struct CacheEvents(Arc<Queue>);

impl CacheEvents {
    /// Waits for changes and returns all of them in order; the list is empty after `timeout` without a
    /// change. `None` once the engine has ended and no change is left.
    pub fn recv_timeout(&self, timeout: Duration) -> Option<Vec<CacheEvent>> {
        let waiting = self
            .0
            .changed
            .wait_timeout_while(self.0.lock(), timeout, |state| state.events.is_empty() && !state.closed);
        let (mut state, _) = waiting.unwrap_or_else(PoisonError::into_inner);
        match state.events.is_empty() && state.closed {
            true => None,
            false => {
                state.changes = 0;
                Some(state.events.drain(..).collect())
            }
        }
    }
}

/// The engine's end of the queue.
#[derive(Debug)]
pub(super) struct Announcer {
    queue: Arc<Queue>,
    /// Most unread changes before an overflow.
    capacity: usize,
}

impl Announcer {
    /// Both ends of a queue of `capacity` changes.
    pub(super) fn new(capacity: usize) -> (Announcer, CacheEvents) {
        let queue = Arc::new(Queue::default());
        (Announcer { queue: Arc::clone(&queue), capacity }, CacheEvents(queue))
    }

    /// Queues the changes since the last call.
    pub(super) fn announce(&self, kv: &mut KvCacheManager) {
        let changes = kv.take_events();
        if changes.is_empty() {
            return;
        }
        let mut state = self.queue.lock();
        state.changes += changes.len();
        if state.changes > self.capacity {
            state.changes = 0;
            state.events.clear();
            state.events.push_back(CacheEvent::Cleared);
            state.events.extend(kv.stored());
        } else {
            state.events.extend(changes);
        }
        drop(state);
        self.queue.changed.notify_all();
    }
}

impl Drop for Announcer {
    fn drop(&mut self) {
        self.queue.lock().closed = true;
        self.queue.changed.notify_all();
    }
}
