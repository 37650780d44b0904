//! Why the KV accounting refuses. After any of these it is as it was.

use crate::kind::ErrorKind;

/// A call that was refused; nothing changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KvError {
    /// The id's sequence has been released.
    #[error("stale sequence: place {index} no longer holds generation {generation}")]
    StaleSequence {
        /// The id's place.
        index: usize,
        /// The id's generation.
        generation: u64,
    },
    /// The pool is full of pages that sequences use.
    #[error("out of pages: {needed} needed, {free} free or evictable")]
    OutOfPages {
        /// Pages asked for.
        needed: usize,
        /// Pages that could be had.
        free: usize,
    },
    /// A step reads one slot of state and writes another.
    #[error("{found} slot of state: expected none, or at least 2")]
    StateSlots {
        /// Slots asked for.
        found: usize,
    },
    /// All slots of state are used by sequences.
    #[error("out of states: sequences use all {slots} slots")]
    OutOfStates {
        /// Slots that there are.
        slots: usize,
    },
    /// More tokens than the sequence was allocated for.
    #[error("too long: {len} tokens and {tokens} more, expected at most {tokens_max}")]
    TooLong {
        /// Tokens that the sequence has.
        len: usize,
        /// Tokens to come.
        tokens: usize,
        /// What it was allocated for.
        tokens_max: usize,
    },
    /// `advance` over positions that `reserve` has not prepared.
    #[error("not reserved: {tokens} tokens at position {len}, but only {reserved} are reserved")]
    NotReserved {
        /// Tokens that the sequence has.
        len: usize,
        /// Tokens to advance by.
        tokens: usize,
        /// Tokens that are reserved.
        reserved: usize,
    },
    /// A second `advance` for one `reserve`.
    #[error("advanced twice: {tokens} tokens at position {len} whose reservation is already spent")]
    AdvancedTwice {
        /// Tokens that the sequence has.
        len: usize,
        /// Tokens to advance by.
        tokens: usize,
    },
    /// A sequence starts with at least one token.
    #[error("empty prompt: expected at least one token")]
    EmptyPrompt,
    /// A query must at least see itself.
    #[error("empty window: expected a window of at least 1 token, found 0")]
    EmptyWindow,
    /// `tokens_max` goes beyond what a position can say.
    #[error("tokens_max {tokens_max} is beyond the last position, {}", u32::MAX)]
    PositionRange {
        /// What was asked for.
        tokens_max: usize,
    },
    /// `truncate` to more tokens than there are.
    #[error("cannot truncate {len} tokens to {target}")]
    TruncateBeyond {
        /// Tokens that the sequence has.
        len: usize,
        /// Tokens it was to have.
        target: usize,
    },
    /// `truncate` to a length whose window reaches back into pages that were dropped.
    #[error("cannot truncate to {target} tokens: the window's positions below {dropped} are gone")]
    WindowGone {
        /// Tokens that the sequence was to have.
        target: usize,
        /// Positions below this one, sinks apart, were dropped.
        dropped: usize,
    },
    /// `truncate` to a length whose state is not kept.
    #[error("cannot truncate to {target} tokens: their state is gone")]
    StateGone {
        /// Tokens that the sequence was to have.
        target: usize,
    },
    /// The host has no memory for the pool's accounting.
    #[error("no memory for the books of {pages} pages")]
    BooksMemory {
        /// Pages of the pool.
        pages: usize,
    },
    /// The host has no memory for the sequence's page table.
    #[error("no memory for the books of a sequence of {tokens_max} tokens")]
    HostMemory {
        /// Tokens that the sequence asked for.
        tokens_max: usize,
    },
}

impl KvError {
    /// What to do about it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            KvError::OutOfPages { .. } | KvError::OutOfStates { .. } => ErrorKind::Overloaded,
            KvError::TooLong { .. } => ErrorKind::TooLong,
            KvError::BooksMemory { .. } | KvError::HostMemory { .. } => ErrorKind::OutOfMemory,
            KvError::EmptyPrompt | KvError::EmptyWindow | KvError::PositionRange { .. } => ErrorKind::Invalid,
            _ => ErrorKind::Internal,
        }
    }
}

/// The accounting contradicts itself: a defect of this crate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("KV books are inconsistent: {0}")]
pub struct IntegrityError(pub String);
