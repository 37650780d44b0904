//! Cache events of the manager: switching them on and reading them. They are not in `events`, because the
//! prefix index writes to `events`, which must not depend on the manager.

use super::events::EventLog;
use super::{CacheEvent, KvCacheManager};

impl KvCacheManager {
    /// Starts to record cache events. Each event takes memory until it is taken.
    pub fn keep_events(&mut self) {
        if self.pool.prefix.shares() {
            self.pool.prefix.log = Some(EventLog::new(self.pool.len()));
        }
    }

    /// The events since the last call, in order; empty unless [`KvCacheManager::keep_events`] was called.
    pub fn take_events(&mut self) -> Vec<CacheEvent> {
        self.pool.prefix.log.as_mut().map(EventLog::take).unwrap_or_default()
    }

    /// All findable pages as [`CacheEvent::Stored`], each after its parent.
    pub fn stored(&self) -> Vec<CacheEvent> {
        self.pool.prefix.log.as_ref().map(EventLog::all).unwrap_or_default()
    }
}
