//! The engine: many requests share one model, one step at a time.
//!
//! [`Handle::spawn`] starts a named thread that owns the model and the KV accounting; callers hold a [`Handle`]. A
//! `request` says what can be asked, `event` what comes back, `generation` is the stream, `inbox` connects the two
//! sides. On the thread, `worker` is the loop over the stages, each of which takes and returns values:
//!
//! ```text
//! inbox ─► table ─► plan ─► batch ─► runner ─► choose ─► settle ─► events, ends
//!          slots    rows,   step     outputs   tokens,   page tables,
//!                   pages   input    or error  scores    text
//! ```
//!
//! `scheduler` is the plan's decision. A `sequence` has a goal: an `answer` (with its `masking`, which works
//! on a `pool` of threads), scores, or a prompt to save; `store` copies its pages, `failure` is why one cannot go
//! on, `error` what callers get for it, `life` whether the engine works at all. `stats` counts, `profile` times, `wake` wakes. Text and templates of requests are made by
//! [`crate::api`].
//!
//! # What bounds what
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
//! - unread changes of the cache: [`EngineConfig::cache_events`], then [`CacheEvent::Cleared`] and the pages that are
//!   there;
//! - sequences and tokens of a step: [`EngineConfig::sequences_max`] and the decoder's limits.
//!
//! Cancelling and stopping are flags, not messages: they need no room, so they are never lost and
//! never wait.
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
//!         // Nobody waits longer; dropping the answer cancels it.
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
mod error;
mod event;
mod failure;
mod generation;
mod handle;
mod inbox;
mod life;
mod masking;
mod plan;
mod pool;
mod profile;
mod request;
mod runner;
mod scheduler;
mod sequence;
mod settle;
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
pub use life::{Death, Drained, EngineState};
pub use profile::{Profile, StepProfile};
pub use request::TokenRequest;
pub use stats::{MemoryStats, MemoryUse, Stats, Timings, Usage};

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::ir::StepLimits;
pub use crate::ir::{OpKind, OpTime, OpTimes, Work};
use crate::token::TokenId;

/// Most that a count of [`EngineConfig`] may be: beyond what any machine could serve, and sums and products of such
/// counts can be computed.
pub const COUNT_MAX: usize = 1 << 20;

/// How the engine schedules. Each count is 1 to [`COUNT_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineConfig {
    /// Most requests that are admitted and not ended; further ones are refused. Default: 256.
    pub queue_max: usize,
    /// Most scores, saves and restores that wait for the one at work; further ones are refused. Default: 16.
    pub jobs_max: usize,
    /// Most sequences at work at once. Default: 64.
    pub sequences_max: usize,
    /// Most prompt tokens of a step, so that prompts do not stall running answers: their next token waits
    /// for the step. None, the default: as many as a step takes, which for an
    /// [`InferenceEngine`](crate::InferenceEngine) is what suits its
    /// [backend](crate::backend::Backend::PREFILL_CHUNK).
    pub prefill_chunk: Option<usize>,
    /// Whether requests that begin alike share what was computed for the beginning. Default: they do.
    pub share_prefixes: bool,
    /// Events that a reader may leave unread before its sequence pauses. With 1 a GPU waits for the reader
    /// after each token. Default: 64.
    pub event_buffer: usize,
    /// Most changes of the cache that wait for the reader of [`CacheEvents`], who is told all that is there when they
    /// are more; with 0, the default, none are kept.
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
            // None are asked for with 0.
            ("cache_events", self.cache_events.max(1)),
        ];
        counts.into_iter().try_for_each(|(name, found)| check_count(name, found, COUNT_MAX))
    }

    /// Most prompt tokens of a step within such limits.
    fn chunk_in(&self, limits: StepLimits) -> usize {
        self.prefill_chunk.unwrap_or(limits.tokens_max).min(limits.tokens_max)
    }
}

fn check_count(name: &'static str, found: usize, most: usize) -> Result<(), EngineError> {
    let fits = (1..=most).contains(&found);
    if fits { Ok(()) } else { Err(EngineError::Config { name, most, found }) }
}

/// What is to be told of given tokens; set field by field.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ScoreOptions {
    /// The first row that is looked at: the likelihoods are those of the tokens after it. Default: 0.
    pub first: usize,
    /// How many of the best logits are told of each row. Default: 0.
    pub top: usize,
    /// Only prompts of the same salt share what the cache has: [`TokenRequest::cache_salt`].
    pub cache_salt: Option<[u8; 32]>,
    /// Who sets it wants no scores any more. The engine looks between steps, and the call ends with
    /// [`EngineError::Cancelled`].
    pub cancelled: Option<Arc<AtomicBool>>,
}

/// How likely the model finds given tokens.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Scores {
    /// Negative log-likelihood (natural log) of each token after the first, given those before.
    pub nll: Vec<f64>,
    /// After each token, the best logits, best first; empty if none were asked for.
    pub top: Vec<Vec<(TokenId, f32)>>,
    /// Of each entry of `top`: the logarithm of the sum of all logits' exponentials. A logit less it is that token's
    /// log-probability.
    pub log_sums: Vec<f64>,
}
