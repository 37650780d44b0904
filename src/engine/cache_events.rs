//! What changes in the cache, from the engine's thread to whoever tells routers. The queue is bounded: a reader that
//! falls behind hears that it has missed something, and then of all that is there.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::kv::{CacheEvent, KvCacheManager};

#[derive(Debug, Default)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    events: VecDeque<CacheEvent>,
    /// How many of them are changes; the others say what was there when the last of them were too many.
    changes: usize,
    closed: bool,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The changes of an engine's cache: see [`EngineConfig::cache_events`](super::EngineConfig::cache_events). Each
/// change is read once, whoever reads it.
#[derive(Clone, Debug)]
pub struct CacheEvents(Arc<Queue>);

impl CacheEvents {
    /// All that has changed, in order; after `timeout` without a change an empty list. `None` says that the engine has
    /// ended and nothing is left.
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
    /// Most changes that wait.
    capacity: usize,
}

impl Announcer {
    /// Both ends of a queue for so many changes.
    pub(super) fn new(capacity: usize) -> (Announcer, CacheEvents) {
        let queue = Arc::new(Queue::default());
        (Announcer { queue: Arc::clone(&queue), capacity }, CacheEvents(queue))
    }

    /// Hands over what has changed since the last call.
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
