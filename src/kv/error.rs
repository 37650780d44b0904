//! Errors of the KV accounting, which is unchanged after any of them.

use crate::kind::ErrorKind;

/// A refused call; nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KvError {
    /// The sequence of this id has been released.
    #[error("stale sequence: place {index} no longer holds generation {generation}")]
    StaleSequence {
        /// The id's slot.
        index: usize,
        /// The id's generation.
        generation: u64,
    },
    /// All pages are used by sequences.
    #[error("out of pages: {needed} needed, {free} free or evictable")]
    OutOfPages {
        /// Pages needed.
        needed: usize,
        /// Pages that are free or can be evicted.
        free: usize,
    },
    /// One slot of state is not enough: a step reads one slot and writes another.
    #[error("{found} slot of state: expected none, or at least 2")]
    StateSlots {
        /// Slots given.
        found: usize,
    },
    /// All slots of state are used by sequences.
    #[error("out of states: sequences use all {slots} slots")]
    OutOfStates {
        /// Slots in all.
        slots: usize,
    },
    /// The sequence would exceed its `tokens_max`.
    #[error("too long: {len} tokens and {tokens} more, expected at most {tokens_max}")]
    TooLong {
        /// Tokens of the sequence.
        len: usize,
        /// Tokens to add.
        tokens: usize,
        /// The sequence's limit.
        tokens_max: usize,
    },
    /// `advance` over positions that were not reserved.
    #[error("not reserved: {tokens} tokens at position {len}, but only {reserved} are reserved")]
    NotReserved {
        /// Tokens of the sequence.
        len: usize,
        /// Tokens to advance by.
        tokens: usize,
        /// Tokens that are reserved.
        reserved: usize,
    },
    /// A second `advance` after one `reserve`.
    #[error("advanced twice: {tokens} tokens at position {len} whose reservation is already spent")]
    AdvancedTwice {
        /// Tokens of the sequence.
        len: usize,
        /// Tokens to advance by.
        tokens: usize,
    },
    /// The prompt is empty; a sequence starts with at least one token.
    #[error("empty prompt: expected at least one token")]
    EmptyPrompt,
    /// The window is empty; a query must at least see itself.
    #[error("empty window: expected a window of at least 1 token, found 0")]
    EmptyWindow,
    /// `tokens_max` exceeds the range of positions.
    #[error("tokens_max {tokens_max} is beyond the last position, {}", u32::MAX)]
    PositionRange {
        /// The value given.
        tokens_max: usize,
    },
    /// `truncate` to more tokens than there are.
    #[error("cannot truncate {len} tokens to {target}")]
    TruncateBeyond {
        /// Tokens of the sequence.
        len: usize,
        /// The requested length.
        target: usize,
    },
    /// `truncate` to a length with a window that reaches back into dropped pages.
    #[error("cannot truncate to {target} tokens: the window's positions below {dropped} are gone")]
    WindowGone {
        /// The requested length.
        target: usize,
        /// Positions below this one, except the sinks, were dropped.
        dropped: usize,
    },
    /// `truncate` to a length without a kept state.
    #[error("cannot truncate to {target} tokens: their state is gone")]
    StateGone {
        /// The requested length.
        target: usize,
    },
    /// The host is out of memory for the pool's accounting.
    #[error("no memory for the books of {pages} pages")]
    MetadataMemory {
        /// Pages of the pool.
        pages: usize,
    },
    /// The host is out of memory for the sequence's page table.
    #[error("no memory for the books of a sequence of {tokens_max} tokens")]
    HostMemory {
        /// The sequence's limit.
        tokens_max: usize,
    },
}

impl KvError {
    /// The error's kind, which a service can map to a status.
    pub fn kind(&self) -> ErrorKind {
        match self {
            KvError::OutOfPages { .. } | KvError::OutOfStates { .. } => ErrorKind::Overloaded,
            KvError::TooLong { .. } => ErrorKind::TooLong,
            KvError::MetadataMemory { .. } | KvError::HostMemory { .. } => ErrorKind::OutOfMemory,
            KvError::EmptyPrompt | KvError::EmptyWindow | KvError::PositionRange { .. } => ErrorKind::Invalid,
            _ => ErrorKind::Internal,
        }
    }
}

/// The accounting is inconsistent: a defect of this crate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("KV books are inconsistent: {0}")]
pub struct IntegrityError(pub String);
