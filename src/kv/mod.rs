//! The KV cache's accounting: which page of the pool holds which positions of which sequence.
//!
//! Page tables only: the backend owns the memory and has no notion of sequences, and this module never
//! touches a key or a value. A caller (the engine) goes around this loop:
//!
//! ```text
//! allocate ──► reserve ──► copy the listed pages ──► run all layers ──► advance ──► … ──► release
//!     (prefix found)  ▲                                                    │
//!                     └────────────────────────────────────────────────────┘
//! ```
//!
//! Invariants after every call (see [`KvCacheManager::check_integrity`]):
//! - A page is in exactly one place: **free**, **cached** (no sequence holds it, but a prefix can be found in
//!   it) or **used** (one reference per sequence that holds it).
//! - A page that more than one sequence holds, or that a prefix can be found in, is never written.
//! - A call that fails changes nothing.
//!
//! Recurrent layers keep a state of fixed size instead of pages. Its slots are managed here, too
//! ([`KvCacheManager::with_states`]): `reserve` takes the slot that a step writes, and `advance` makes it the
//! current one. A prefix is then shared up to a page with a state kept as a snapshot, and recomputed after
//! it.
//!
//! `manager` has the calls that change the accounting, `queries` those that read it. `sequence` holds one
//! sequence's page table, `page` the references and the free list, `prefix` the hash chain and the cached
//! pages, `state` the slots of state. `events` and `changes` report changes of the findable pages, and
//! `snapshot` stores one sequence in a file.

#![forbid(unsafe_code)]

mod changes;
mod error;
mod events;
mod integrity;
mod manager;
mod page;
mod prefix;
mod queries;
mod sequence;
pub mod snapshot;
mod state;
#[cfg(test)]
mod tests;
mod window;

pub use error::{IntegrityError, KvError};
pub use events::{CacheEvent, StoredPage};
pub use manager::KvCacheManager;

use std::collections::TryReserveError;

use crate::ir::{KvLayout, PageId, Window};

/// Hash of a full page together with all that precedes it.
type ChainHash = [u8; 32];

/// The id of a sequence in a [`KvCacheManager`]. The generation tag invalidates the id at the release of its
/// sequence, even if the slot is reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SeqId {
    index: usize,
    generation: u64,
}

/// Whether sequences with a common prefix share its pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefixSharing {
    /// Full pages are found by a hash over the tokens and `salt`: the model's fingerprint, and all else that
    /// must keep caches apart (adapter, tenant).
    On {
        /// Input of every hash.
        salt: [u8; 32],
    },
    /// No page is found by a later sequence.
    Off,
}

/// Configuration of a [`KvCacheManager`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvConfig {
    /// Pages of the backend's pool; more than `u32::MAX` are not used.
    pub pages: usize,
    /// Prefix sharing.
    pub prefix: PrefixSharing,
}

impl KvConfig {
    /// A pool of as many pages as fit in `bytes`; it holds nothing but pages.
    pub fn within(bytes: usize, layout: &KvLayout, prefix: PrefixSharing) -> KvConfig {
        KvConfig { pages: layout.pages_in(bytes), prefix }
    }
}

/// Requirements of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceSpec {
    /// Most tokens that it will ever have, prompt included; at most `u32::MAX`.
    pub tokens_max: usize,
    /// Sliding window: pages that no query can see any more are released.
    pub window: Option<Window>,
    /// Prefix-cache salt, part of every hash: pages are shared only between sequences with equal salts.
    pub salt: Option<[u8; 32]>,
}

/// A new sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// The sequence's id.
    pub seq: SeqId,
    /// Positions `0 .. cached_tokens` are in shared pages already: computing starts at `cached_tokens`.
    pub cached_tokens: usize,
}

/// A page copy that the backend must do before the next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyPage {
    /// The shared page.
    pub from: PageId,
    /// The sequence's own page.
    pub to: PageId,
}

/// Counters since the start, and the pages as they are now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvStats {
    /// Pages of the pool.
    pub pages: usize,
    /// Pages held by sequences.
    pub used: usize,
    /// Pages that no sequence holds, kept for their prefix until they are evicted.
    pub cached: usize,
    /// Free pages, which hold nothing.
    pub free: usize,
    /// Live sequences.
    pub sequences: usize,
    /// Prompt tokens found in cached or shared pages.
    pub prefix_tokens: u64,
    /// Cached pages evicted.
    pub evictions: u64,
    /// Pages copied before a write because they were shared.
    pub copies: u64,
    /// Slots of state held by sequences.
    pub states: usize,
    /// States kept for their prefix until they are evicted.
    pub snapshots: usize,
}

/// An empty vector with room for `len` elements.
fn with_room<T>(len: usize) -> Result<Vec<T>, TryReserveError> {
    let mut vec = Vec::new();
    vec.try_reserve_exact(len)?;
    Ok(vec)
}
