//! The engine: many requests share one model, one step at a time.
//!
//! [`Handle::spawn`] starts a named thread that owns the model and the KV books; a [`Handle`] is
//! what everyone else holds. `request` says what can be asked, `generation` is the stream of
//! events, `inbox` connects the two sides, `scheduler` decides what a step works on, `worker` is
//! the loop, `sequence` one request on its way, `job` scores and snapshots, `stats` the counters.
//! Text and templates of requests are made by [`crate::api`].

#![forbid(unsafe_code)]

mod generation;
mod inbox;
mod job;
mod request;
mod scheduler;
mod sequence;
mod stats;
#[cfg(test)]
mod tests;
mod worker;

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Instant;

pub use generation::{Event, FinishReason, Generation, GenerationError, Logprobs, Usage};
pub use request::TokenRequest;
pub use stats::{Stats, Timings};

use crate::{backend::PAGE_TOKENS, kv, model::Decoder, token::TokenId};
use generation::Channel;
use inbox::{Admitted, Inbox, Job};
use request::{RequestLimits, check_prompt};
use stats::{Counters, add};
use worker::Worker;

/// How the engine schedules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineConfig {
    /// Most requests that are admitted and not ended; further ones are refused.
    pub queue_max: usize,
    /// Most sequences at work at once.
    pub sequences_max: usize,
    /// Most prompt tokens of a step, so that prompts do not stall running answers.
    pub prefill_chunk: usize,
    /// Whether requests that begin alike share what was computed for the beginning.
    pub share_prefixes: bool,
    /// Events that a reader may leave unread before its sequence pauses.
    pub event_buffer: usize,
}

impl Default for EngineConfig {
    fn default() -> Self {
        EngineConfig {
            queue_max: 256,
            sequences_max: 64,
            prefill_chunk: 256,
            share_prefixes: true,
            event_buffer: 64,
        }
    }
}

/// Why the engine could not start, or could not do a job.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// A setting that cannot work.
    #[error("{name}: expected at least 1, found 0")]
    Config {
        /// The setting.
        name: &'static str,
    },
    /// The operating system gave no thread.
    #[error("the engine's thread could not start: {0}")]
    Thread(#[from] std::io::Error),
    /// The model's step failed.
    #[error("the step failed: {0}")]
    Step(String),
    /// The cache's books refused.
    #[error(transparent)]
    Kv(#[from] kv::KvError),
    /// A snapshot could not be written or read.
    #[error(transparent)]
    Snapshot(#[from] kv::snapshot::SnapshotError),
    /// The tokens are not acceptable.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// The engine stopped before it was done.
    #[error("the engine has stopped")]
    Stopped,
}

/// Why a request was not let in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// Too many requests are waiting; try again later.
    #[error("overloaded: {waiting} requests are admitted already")]
    Overloaded {
        /// Requests that have not ended.
        waiting: usize,
    },
    /// The prompt leaves no room in the context.
    #[error("the prompt has {tokens} tokens, the context {context_max}")]
    TooLong {
        /// Tokens of the prompt.
        tokens: usize,
        /// Most tokens of a sequence.
        context_max: usize,
    },
    /// Even alone it would not fit in the KV cache.
    #[error("{tokens} tokens need {needed} pages of the KV cache, which has {pages}")]
    TooLarge {
        /// Prompt and answer.
        tokens: usize,
        /// Pages that they take.
        needed: usize,
        /// Pages of the pool.
        pages: usize,
    },
    /// A field makes no sense.
    #[error("invalid request: {0}")]
    Invalid(String),
    /// The engine has stopped.
    #[error("the engine has stopped")]
    Stopped,
}

/// How likely the model finds given tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scores {
    /// Negative log-likelihood (natural log) of each token after the first, given those before.
    pub nll: Vec<f64>,
    /// After each token, the best logits, best first; empty if none were asked for.
    pub top: Vec<Vec<(TokenId, f32)>>,
}

/// The engine as others see it: cheap to clone, usable from any thread. When the last clone goes,
/// the engine's thread ends and running generations with it.
#[derive(Clone, Debug)]
pub struct Handle {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    inbox: Arc<Inbox>,
    counters: Arc<Counters>,
    config: EngineConfig,
    limits: RequestLimits,
    pages: usize,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Handle {
    /// Starts the engine's thread over a loaded model.
    ///
    /// # Errors
    /// [`EngineError::Config`] for a setting of 0, [`EngineError::Thread`].
    pub fn spawn<D: Decoder + 'static>(decoder: D, mut config: EngineConfig) -> Result<Handle, EngineError> {
        let settings = [
            ("queue_max", config.queue_max),
            ("sequences_max", config.sequences_max),
            ("prefill_chunk", config.prefill_chunk),
            ("event_buffer", config.event_buffer),
        ];
        if let Some(&(name, _)) = settings.iter().find(|&&(_, value)| value == 0) {
            return Err(EngineError::Config { name });
        }
        let step = decoder.limits();
        config.sequences_max = config.sequences_max.min(step.outputs_max).min(step.tokens_max);
        let (inbox, counters) = (Arc::new(Inbox::new()), Arc::new(Counters::default()));
        let limits = RequestLimits { vocab: decoder.vocab_size(), context_max: decoder.context_max() };
        let pages = decoder.pages();
        let worker = Worker::new(decoder, config, Arc::clone(&inbox), Arc::clone(&counters));
        let closing = Arc::clone(&inbox);
        let thread = std::thread::Builder::new().name("ottava-engine".into()).spawn(move || {
            let _closing = CloseOnExit(closing);
            worker.run();
        })?;
        let thread = Mutex::new(Some(thread));
        Ok(Handle { inner: Arc::new(Inner { inbox, counters, config, limits, pages, thread }) })
    }

    /// Queues a request.
    ///
    /// # Errors
    /// [`SubmitError`]; nothing was queued then.
    pub fn submit(&self, request: TokenRequest) -> Result<Generation, SubmitError> {
        let inner = &self.inner;
        request.check(inner.limits)?;
        self.check_pages(&request)?;
        let channel = Channel::new(inner.config.event_buffer, Arc::clone(&inner.inbox));
        let generation = Generation { channel: Arc::clone(&channel) };
        let admitted = Admitted { request, channel, submitted: Instant::now() };
        // Counted first, so that requests from several threads cannot all take the last place.
        add(&inner.counters.admitted, 1);
        let waiting = (inner.counters.live() as usize).saturating_sub(1);
        let refusal = if waiting >= inner.config.queue_max {
            SubmitError::Overloaded { waiting }
        } else if inner.inbox.put_request(admitted) {
            return Ok(generation);
        } else {
            SubmitError::Stopped
        };
        inner.counters.admitted.fetch_sub(1, Ordering::Relaxed);
        Err(refusal)
    }

    /// A sequence that cannot fit even alone would wait for ever.
    fn check_pages(&self, request: &TokenRequest) -> Result<(), SubmitError> {
        let inner = &self.inner;
        let tokens = request.prompt.len().saturating_add(request.max_tokens).min(inner.limits.context_max);
        let kept = request.window.map_or(tokens, |window| {
            // Pages at three edges are kept in part, and a chunk is written before old pages go.
            let edges = 3 * PAGE_TOKENS + inner.config.prefill_chunk;
            (window.sinks as usize).saturating_add(window.window as usize).saturating_add(edges).min(tokens)
        });
        let needed = kept.div_ceil(PAGE_TOKENS);
        if needed > inner.pages {
            return Err(SubmitError::TooLarge { tokens: kept, needed, pages: inner.pages });
        }
        Ok(())
    }

    /// Scores given tokens: their negative log-likelihoods and the `top` best logits after each.
    ///
    /// # Errors
    /// [`EngineError::Submit`] if the tokens are too many or unknown, [`EngineError::Step`].
    pub fn score(&self, ids: &[TokenId], top: usize) -> Result<Scores, EngineError> {
        self.score_from(ids, 0, top)
    }

    /// The same for the rows from `first` on: the likelihoods of `ids[first + 1..]`.
    ///
    /// # Errors
    /// As [`Handle::score`].
    pub fn score_from(&self, ids: &[TokenId], first: usize, top: usize) -> Result<Scores, EngineError> {
        self.check_ids(ids)?;
        self.ask(|reply| Job::Score { ids: ids.to_vec(), first, top, reply })
    }

    /// Computes the keys and values of a prompt and saves them to a file.
    ///
    /// # Errors
    /// As [`Handle::score`], and [`EngineError::Snapshot`] if the file cannot be written.
    pub fn save(&self, ids: &[TokenId], path: &Path) -> Result<(), EngineError> {
        self.check_ids(ids)?;
        self.ask(|reply| Job::Save { ids: ids.to_vec(), path: path.to_owned(), reply })
    }

    /// Brings back a saved prompt, so that requests which begin with it find it in the cache.
    /// Gives its tokens.
    ///
    /// # Errors
    /// [`EngineError::Snapshot`] if the file is damaged or another model's; the cache is as before.
    pub fn restore(&self, path: &Path) -> Result<usize, EngineError> {
        self.ask(|reply| Job::Restore { path: PathBuf::from(path), reply })
    }

    /// Counters and gauges.
    pub fn stats(&self) -> Stats {
        self.inner.counters.read()
    }

    fn check_ids(&self, ids: &[TokenId]) -> Result<(), SubmitError> {
        let RequestLimits { vocab, context_max } = self.inner.limits;
        check_prompt(ids, vocab)?;
        if ids.len() > context_max {
            return Err(SubmitError::TooLong { tokens: ids.len(), context_max });
        }
        Ok(())
    }

    fn ask<T>(
        &self,
        job: impl FnOnce(mpsc::SyncSender<Result<T, EngineError>>) -> Job,
    ) -> Result<T, EngineError> {
        let (reply, answer) = mpsc::sync_channel(1);
        if !self.inner.inbox.put_job(job(reply)) {
            return Err(EngineError::Stopped);
        }
        answer.recv().unwrap_or(Err(EngineError::Stopped))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.inbox.stop();
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != std::thread::current().id()) {
            // A panic of the engine's thread has already reached every reader as an error.
            drop(thread.join());
        }
    }
}

/// Refuses and answers what still arrives when the engine's thread ends, however it ends.
struct CloseOnExit(Arc<Inbox>);

impl Drop for CloseOnExit {
    fn drop(&mut self) {
        for admitted in self.0.close() {
            admitted.channel.push(Err(GenerationError::Stopped));
        }
    }
}
