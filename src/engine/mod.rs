//! The engine: many requests share one model, one step at a time.
//!
//! [`Handle::spawn`] starts a named thread that owns the model and the KV accounting; callers hold a
//! [`Handle`]. A `request` is the input, an `event` the output, `generation` the stream of events, and
//! `request_queue` connects the two sides. On the thread, `worker` is the loop over the stages, each of which
//! takes and returns values:
//!
//! ```text
//! queue ─► table ─► plan ─► batch ─► runner ─► choose ─► commit ─► events, ends
//!          slots    rows,   step     outputs   tokens,   page tables,
//!                   pages   input    or error  scores    text
//! ```
//!
//! `scheduler` makes the plan's decision. A `sequence` has a goal: an `answer` (with its `mask_task`, on the
//! threads of `pool`), scores, or a prompt to save. `store` copies its pages, `failure` is the reason that
//! ends it, `error` the caller's view of that reason, and `life` the engine's state. `stats` counts,
//! `profile` measures, `wake` wakes the thread. Text and templates of requests are handled by [`crate::api`].
//!
//! # Bounds
//!
//! Nothing here grows with the number of callers:
//!
//! - requests that have not ended, queued or at work: [`EngineConfig::queue_max`], then
//!   [`SubmitError::Overloaded`]; each has at most one context of tokens;
//! - scores, saves and restores that wait: [`EngineConfig::jobs_max`], then
//!   [`EngineError::JobsFull`]; each has at most one context of tokens, or one snapshot that fits
//!   in the KV cache;
//! - unread events of a request: [`EngineConfig::event_buffer`] and the last one; its sequence
//!   pauses, the engine does not wait;
//! - keys and values: the decoder's pages; a sequence that finds none waits or is preempted;
//! - unread changes of the cache: [`EngineConfig::cache_events`], then [`CacheEvent::Cleared`] and the pages
//!   that are present;
//! - sequences and tokens of a step: [`EngineConfig::sequences_max`] and the decoder's limits.
//!
//! Cancelling and stopping are flags, not messages: they need no room, so they are never lost and never wait.
//!
//! # Reading an answer
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use ottava::engine::{Event, Received};
//! use ottava::{Engine, Request, TokenId};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let engine = Engine::builder("model.gguf").build()?;
//! let mut answer = engine.submit(Request::tokens(vec![TokenId(1)]).max_tokens(64))?;
//! loop {
//!     match answer.recv_timeout(Duration::from_millis(500)) {
//!         Received::Event(event) => match event? {
//!             Event::Done(done) => break println!("{}, {} tokens", done.finish, done.usage.completion_tokens),
//!             token => print!("{}", token.text()),
//!         },
//!         // Gives up after half a second; dropping the answer cancels it.
//!         _ => break,
//!     }
//! }
//! # Ok(()) }
//! ```

#![forbid(unsafe_code)]

mod answer;
mod batch;
mod cache_events;
mod choose;
mod commit;
mod error;
mod event;
mod failure;
mod generation;
mod handle;
mod life;
mod mask_task;
mod plan;
mod pool;
mod profile;
mod request;
mod request_queue;
mod runner;
mod scheduler;
mod sequence;
mod stats;
mod store;
mod table;
#[cfg(test)]
mod tests;
mod wake;
mod worker;

pub use crate::kv::{CacheEvent, StoredPage};
pub use cache_events::CacheEvents;
pub use error::{EngineError, GenerationError, RestoreError, SubmitError};
pub use event::{Answer, Done, Event, FinishReason, Logprobs, Token};
pub use generation::{Canceller, Events, Generation, Received};
pub use handle::Handle;
pub use life::{Drained, EngineFailure, EngineState};
pub use profile::{Profile, StepProfile};
pub use request::TokenRequest;
pub use stats::{MemoryStats, MemoryUse, Stats, Timings, Usage};

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::ir::StepLimits;
pub use crate::ir::{OpKind, OpTime, OpTimes, Work};
use crate::token::TokenId;

/// Upper limit of every count in [`EngineConfig`]: beyond any real machine, and small enough that sums and
/// products of counts do not overflow.
pub const COUNT_MAX: usize = 1 << 20;

/// Scheduling and queue limits of the engine. Each count is 1 to [`COUNT_MAX`]; `cache_events` may be 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineConfig {
    /// Most requests that are admitted and not ended; further ones are refused. Default: 256.
    pub queue_max: usize,
    /// Most waiting scores, saves and restores, not counting the one at work; further ones are refused.
    /// Default: 16.
    pub jobs_max: usize,
    /// Most sequences at work at once. Default: 64.
    pub sequences_max: usize,
    /// Most prompt tokens of a step, so that prompts do not stall running answers: their next token waits for
    /// the step. Default: `None`, the capacity of a step. For an [`InferenceEngine`](crate::InferenceEngine)
    /// that is the chunk that suits its [backend](crate::backend::Backend::PREFILL_CHUNK).
    pub prefill_chunk: Option<usize>,
    /// Whether requests with a common prefix share its keys and values. Default: true.
    pub share_prefixes: bool,
    /// Events that a reader may leave unread before its sequence pauses. With 1 a GPU waits for the reader
    /// after each token. Default: 64.
    pub event_buffer: usize,
    /// Capacity of the cache-event queue, in changes. On overflow the reader of [`CacheEvents`] gets
    /// [`CacheEvent::Cleared`] followed by a full listing. Default: 0, which disables events.
    pub cache_events: usize,
}

impl Default for EngineConfig {
    fn default() -> Self {
        EngineConfig {
            queue_max: 256,
            jobs_max: 16,
            sequences_max: 64,
            prefill_chunk: None,
            share_prefixes: true,
            event_buffer: 64,
            cache_events: 0,
        }
    }
}

impl EngineConfig {
    /// Checks every count.
    ///
    /// # Errors
    /// [`EngineError::Config`] for the first that is out of its range.
    pub fn check(&self) -> Result<(), EngineError> {
        let counts = [
            ("queue_max", self.queue_max),
            ("jobs_max", self.jobs_max),
            ("sequences_max", self.sequences_max),
            ("prefill_chunk", self.prefill_chunk.unwrap_or(1)),
            ("event_buffer", self.event_buffer),
            // 0 disables cache events.
            ("cache_events", self.cache_events.max(1)),
        ];
        counts.into_iter().try_for_each(|(name, found)| check_count(name, found, COUNT_MAX))
    }

    /// Most prompt tokens of a step within `limits`.
    fn chunk_in(&self, limits: StepLimits) -> usize {
        self.prefill_chunk.unwrap_or(limits.tokens_max).min(limits.tokens_max)
    }
}

fn check_count(name: &'static str, found: usize, most: usize) -> Result<(), EngineError> {
    let fits = (1..=most).contains(&found);
    if fits { Ok(()) } else { Err(EngineError::Config { name, most, found }) }
}

/// Options of [`Handle::score_with`]; set field by field.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ScoreOptions {
    /// First row to score: the likelihoods are those of the tokens after it. Default: 0.
    pub first: usize,
    /// Number of best logits to return per row. Default: 0.
    pub top: usize,
    /// Prefix-cache salt: pages are shared only between prompts with equal salts, see
    /// [`TokenRequest::cache_salt`]. Default: `None`.
    pub cache_salt: Option<[u8; 32]>,
    /// Cancels the scores when set to true. The engine checks it between steps, and the call fails with
    /// [`EngineError::Cancelled`]. Default: `None`.
    pub cancelled: Option<Arc<AtomicBool>>,
}

/// The model's likelihoods of given tokens.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Scores {
    /// Negative log-likelihood (natural log) of each token after the first, given those before.
    pub nll: Vec<f64>,
    /// The best logits after each token, best first; empty if not requested.
    pub top: Vec<Vec<(TokenId, f32)>>,
    /// Logarithm of the sum of all logits' exponentials, per entry of `top`. A logit minus this value is that
    /// token's log-probability.
    pub log_sums: Vec<f64>,
}
