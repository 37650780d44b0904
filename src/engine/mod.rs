//! The engine: requests on token ids in, events out.
//!
//! One named thread owns the [`Decoder`](crate::model::Decoder) and the KV books. [`Handle`]s, on
//! any thread, check requests and put them in a bounded queue; each accepted request is a
//! [`Generation`] to iterate over. The thread goes from step to step:
//!
//! ```text
//! take in ──► look ──► schedule ──► run ──► sample, emit ──► retire
//!    ▲    (who can go on) (shares, pages)                      │
//!    └─────────────────────────────────────────────────────────┘
//! ```
//!
//! What is promised:
//! - A request's tokens do not depend on what runs beside it, on how its prompt is cut into
//!   chunks, on preemption, or on what the cache has of it, as far as the decoder's rows do not.
//! - A failing request fails alone. A step that fails is tried again sequence by sequence; after
//!   a panic in the decoder all of the step's requests fail; the engine goes on.
//! - A reader that does not read has its own sequence paused, and nobody else's. A paused sequence
//!   keeps its pages until someone needs them.
//! - A request that is cancelled, or whose [`Generation`] is dropped, is gone within one step.
//! - When a reader has got the end, the request's pages are free and [`Stats`] says so.
//! - Every reader gets an end, even if the engine breaks down.
//!
//! Pages are short? The youngest gives up its pages and is computed again later; the oldest always
//! goes on. A request that would not fit alone is not accepted.
//!
//! Where to read: `handle` (the way in), `request` (what is accepted), `inbox` and `channel` (the
//! ways between threads), `worker` (the loop), `scheduler` (the decisions, pure), `core` (one
//! step), `generate`, `score` and `store` (what sequences are for).

#![forbid(unsafe_code)]

mod channel;
mod core;
mod generate;
mod generation;
mod handle;
mod inbox;
mod request;
mod scheduler;
mod score;
mod sequence;
mod stats;
mod store;
#[cfg(test)]
mod tests;
mod worker;

pub use generation::{Event, FinishReason, Generation, GenerationError, Timings, Usage};
pub use handle::Handle;
pub use request::{
    InvalidRequest, LOGPROBS_MAX, STOP_STRING_BYTES_MAX, STOP_STRINGS_MAX, SubmitError, TokenRequest,
};
pub use score::Scores;
pub use stats::Stats;
pub use store::RestoreError;

use crate::kv::snapshot::SnapshotError;

/// Whether prompts that begin like earlier ones reuse what was computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefixReuse {
    /// They do, within one model.
    On,
    /// They do not.
    Off,
}

/// The bounds of an engine. Every number is at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineConfig {
    /// Requests that may wait to be taken in; more are refused as overload.
    pub queue_max: usize,
    /// Sequences taken in that can go on. As many as `queue_max` may wait for their readers
    /// beside them.
    pub sequences_max: usize,
    /// Most tokens of prefill in a step; less if the decoder's steps are smaller.
    pub prefill_chunk: usize,
    /// Events that a request's buffer holds before its sequence is paused.
    pub event_buffer: usize,
    /// Reuse of prefixes.
    pub prefix: PrefixReuse,
}

impl Default for EngineConfig {
    fn default() -> EngineConfig {
        EngineConfig {
            queue_max: 128,
            sequences_max: 64,
            prefill_chunk: 256,
            event_buffer: 64,
            prefix: PrefixReuse::On,
        }
    }
}

/// Why an engine was not started, or a call that waits for its answer got none.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// Nothing could ever run.
    #[error("engine: {what} is 0, expected at least 1")]
    Config {
        /// What is 0.
        what: &'static str,
    },
    /// The thread could not be started.
    #[error("engine: no thread: {0}")]
    Thread(#[source] std::io::Error),
    /// The request was not accepted.
    #[error(transparent)]
    Refused(#[from] SubmitError),
    /// The request failed.
    #[error(transparent)]
    Failed(#[from] GenerationError),
    /// A snapshot was not written or not read.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// A snapshot was read but not put into the cache.
    #[error(transparent)]
    Restore(#[from] RestoreError),
}
