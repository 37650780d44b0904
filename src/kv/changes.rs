//! The way from the accounting to who wants to know what changes in it. `events` cannot have it: the index writes
//! there, and would know its owner.

use super::events::EventLog;
use super::{CacheEvent, KvCacheManager};

impl KvCacheManager {
    /// Keeps account of what changes in what can be found. Each change takes memory until it is taken.
    pub fn keep_events(&mut self) {
        if self.pool.prefix.shares() {
            self.pool.prefix.log = Some(EventLog::new(self.pool.len()));
        }
    }

    /// What changed since the last call, in order; nothing unless [`KvCacheManager::keep_events`] was called.
    pub fn take_events(&mut self) -> Vec<CacheEvent> {
        self.pool.prefix.log.as_mut().map(EventLog::take).unwrap_or_default()
    }

    /// All that can be found now, as [`CacheEvent::Stored`], a page before those behind it.
    pub fn stored(&self) -> Vec<CacheEvent> {
        self.pool.prefix.log.as_ref().map(EventLog::all).unwrap_or_default()
    }
}
