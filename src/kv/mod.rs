//! The KV cache's accounting: which page of the pool holds which positions of which sequence.
//!
//! Page tables only. The backend owns the memory and never hears of sequences; this module
//! never touches a key or a value. A caller (the engine) goes around this loop:
//!
//! ```text
//! allocate ──► reserve ──► copy the listed pages ──► run all layers ──► advance ──► … ──► release
//!     (prefix found)  ▲                                                    │
//!                     └────────────────────────────────────────────────────┘
//! ```
//!
//! What holds after every call (and [`KvCacheManager::check_integrity`] proves):
//! - A page is in exactly one place: **free**, **cached** (no sequence has it, but a prefix can
//! - A page that more than one sequence has, or that a prefix can be found in, is never written.
//! - A call that fails changes nothing.
//!
//! Recurrent layers keep a state of fixed size instead of pages. Its slots are booked here, too
//! ([`KvCacheManager::with_states`]): `reserve` finds the slot that a step writes, `advance` moves on to it.
//! A prefix is then shared up to a page whose state is kept as a snapshot, and computed again behind it.
//!
//! `manager` is the way in, `queries` what it says; `sequence` keeps one sequence's page table, `page` the
//! references and the free list, `prefix` the hash chain and the cached pages, `state` the slots of state, `events` and `changes` what changes
//! in what can be found, `snapshot` one sequence in a file.

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

/// Names a full page together with all that precedes it.
type ChainHash = [u8; 32];

/// A sequence of a [`KvCacheManager`]. The generation tag makes an id useless after its release,
/// even when the place is taken again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SeqId {
    index: usize,
    generation: u64,
}

/// Whether sequences that begin alike share the pages of what they begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefixSharing {
    /// Full pages are found again by a hash over the tokens and `salt`: the model's fingerprint,
    /// and whatever else must keep caches apart (adapter, tenant).
    On {
        /// Goes into every hash.
        salt: [u8; 32],
    },
    /// Pages are never found again.
    Off,
}

/// What a [`KvCacheManager`] manages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvConfig {
    /// Pages of the backend's pool; more than `u32::MAX` are not used.
    pub pages: usize,
    /// Sharing of prefixes.
    pub prefix: PrefixSharing,
}

impl KvConfig {
    /// As many pages as fit in `bytes`, to the byte: nothing but pages is in a pool.
    pub fn within(bytes: usize, layout: &KvLayout, prefix: PrefixSharing) -> KvConfig {
        KvConfig { pages: layout.pages_in(bytes), prefix }
    }
}

/// What a sequence asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceSpec {
    /// Most tokens that it will ever have, prompt included; at most `u32::MAX`.
    pub tokens_max: usize,
    /// Its sliding window: pages that no query can see any more are given back.
    pub window: Option<Window>,
    /// Goes into every hash as well: only sequences of the same salt find each other's pages.
    pub salt: Option<[u8; 32]>,
}

/// A new sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Its id.
    pub seq: SeqId,
    /// Positions `0 .. cached_tokens` are in shared pages already: start at `cached_tokens`.
    pub cached_tokens: usize,
}

/// A page whose content the backend must copy before the next step runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyPage {
    /// The shared page.
    pub from: PageId,
    /// The sequence's own page.
    pub to: PageId,
}

/// Counts since the start, and the pages as they are now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvStats {
    /// Pages of the pool.
    pub pages: usize,
    /// Pages that sequences have.
    pub used: usize,
    /// Pages that no sequence has, kept for their prefix until someone needs the room.
    pub cached: usize,
    /// Pages that hold nothing.
    pub free: usize,
    /// Sequences that live.
    pub sequences: usize,
    /// Prompt tokens found in cached or shared pages.
    pub prefix_tokens: u64,
    /// Cached pages given up for room.
    pub evictions: u64,
    /// Pages copied because they were shared and about to be written.
    pub copies: u64,
    /// Slots of state that sequences have.
    pub states: usize,
    /// States kept for their prefix until a sequence needs their slots.
    pub snapshots: usize,
}

/// An empty vector with room for `len` elements.
fn with_room<T>(len: usize) -> Result<Vec<T>, TryReserveError> {
    let mut vec = Vec::new();
    vec.try_reserve_exact(len)?;
    Ok(vec)
}
