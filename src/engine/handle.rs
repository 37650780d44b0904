//! [`Handle`]: thread-safe access to the engine. Requests are checked, and files read and written, on the
//! caller's thread. The engine's thread ends when the last handle is dropped.

use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Instant;

use super::cache_events::CacheEvents;
use super::generation::{Channel, Generation};
use super::request::{RequestLimits, TokenRequest, check_prompt};
use super::request_queue::{Job, Order, Refused, RequestQueue};
use super::sequence::{Goal, Reply, Sequence};
use super::stats::{Counters, Stats};
use super::store::SnapshotSpec;
use super::worker::Worker;
use super::{
    Drained, EngineConfig, EngineError, EngineFailure, EngineState, Profile, ScoreOptions, Scores,
    SubmitError, check_count,
};
use crate::ir::PAGE_TOKENS;
use crate::kv::snapshot;
use crate::model::Decoder;
use crate::token::TokenId;
use crate::{file, headroom};

/// Most logits that one call of a `score` method returns: 512 MiB of them.
const SCORES_MAX: usize = 1 << 26;

/// A handle to the engine: cheap to clone, usable from any thread. When the last clone is dropped, the
/// engine's thread ends after its step, and running generations with it. The drop does not wait for that.
#[derive(Clone)]
pub struct Handle {
    inner: Arc<Inner>,
}

/// Prints request counts on one line, without requests' contents.
impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Stats { waiting, running, .. } = self.stats();
        f.debug_struct("Handle").field("waiting", &waiting).field("running", &running).finish_non_exhaustive()
    }
}

struct Inner {
    queue: Arc<RequestQueue>,
    counters: Arc<Counters>,
    config: EngineConfig,
    prefill_chunk: usize,
    limits: RequestLimits,
    snapshot_spec: SnapshotSpec,
    cache_events: Option<CacheEvents>,
}

impl Handle {
    /// Starts the engine's thread over a loaded model.
    ///
    /// # Errors
    /// [`EngineError::Config`] if a setting or a limit of the decoder is out of range, [`EngineError::Kv`] if
    /// the host is out of memory for the cache's accounting, [`EngineError::Thread`]. No thread is left
    /// running.
    pub fn spawn<D: Decoder + 'static>(decoder: D, mut config: EngineConfig) -> Result<Handle, EngineError> {
        config.check()?;
        let step = decoder.limits();
        let limits = [
            ("the decoder's tokens of a step", step.tokens_max),
            ("the decoder's outputs of a step", step.outputs_max),
            ("the decoder's pages", decoder.pages()),
        ];
        // Rows and pages have 32-bit indices.
        limits.into_iter().try_for_each(|(name, found)| check_count(name, found, u32::MAX as usize))?;
        config.sequences_max = config.sequences_max.min(step.outputs_max).min(step.tokens_max);
        let (queue, counters) = (Arc::new(RequestQueue::new(&config)), Arc::new(Counters::default()));
        let prefill_chunk = config.chunk_in(step);
        let limits = RequestLimits { vocab: decoder.vocab_size(), context_max: decoder.context_max() };
        let snapshot_spec = SnapshotSpec::of(&decoder, &config);
        let mut worker = Worker::new(decoder, config, Arc::clone(&queue), Arc::clone(&counters))?;
        let cache_events = (config.cache_events > 0).then(|| worker.announce(config.cache_events));
        let leaving = Leaving(Arc::clone(&queue));
        headroom::spawn("ottava-engine".into(), move || {
            let leaving = leaving;
            leaving.0.enter();
            worker.run();
        })?;
        Ok(Handle {
            inner: Arc::new(Inner {
                queue,
                counters,
                config,
                prefill_chunk,
                limits,
                snapshot_spec,
                cache_events,
            }),
        })
    }

    /// Queues a request.
    ///
    /// # Errors
    /// [`SubmitError`]; nothing is queued then.
    pub fn submit(&self, mut request: TokenRequest) -> Result<Generation, SubmitError> {
        let inner = &self.inner;
        request.check(inner.limits)?;
        request.forbid_early_ends(inner.limits.vocab);
        self.check_pages(&request)?;
        let channel = Channel::new(inner.config.event_buffer, Arc::clone(inner.queue.wake()));
        let generation = Generation::new(Arc::clone(&channel), request.id);
        let sequence = Sequence::generate(request, channel, inner.limits.context_max);
        match inner.queue.put_request(sequence, &inner.counters) {
            Ok(()) => Ok(generation),
            Err(Refused::Full { waiting }) => Err(SubmitError::Overloaded { waiting }),
            Err(Refused::Closed(failure)) => Err(failure.map_or(SubmitError::Stopped, SubmitError::Dead)),
        }
    }

    /// The reader of cache changes; `None` if [`EngineConfig::cache_events`] is 0.
    pub fn cache_events(&self) -> Option<CacheEvents> {
        self.inner.cache_events.clone()
    }

    /// Refuses a sequence that cannot fit even alone: it would wait for ever.
    fn check_pages(&self, request: &TokenRequest) -> Result<(), SubmitError> {
        let inner = &self.inner;
        let tokens = request.prompt.len().saturating_add(request.max_tokens).min(inner.limits.context_max);
        let kept = request.window.map_or(tokens, |window| {
            // Pages at three edges are partly used, and a chunk is written before old pages are released.
            let edges = 3 * PAGE_TOKENS + inner.prefill_chunk;
            (window.sinks as usize).saturating_add(window.window as usize).saturating_add(edges).min(tokens)
        });
        self.check_fit(kept)
    }

    fn check_fit(&self, tokens: usize) -> Result<(), SubmitError> {
        let (needed, pages) = (tokens.div_ceil(PAGE_TOKENS), self.inner.snapshot_spec.pages);
        if needed > pages {
            return Err(SubmitError::TooLarge { tokens, needed, pages });
        }
        Ok(())
    }

    /// Scores given tokens: their negative log-likelihoods, and the `top` best logits after each.
    ///
    /// # Errors
    /// [`EngineError::Submit`] if the tokens are too many or outside the vocabulary, [`EngineError::Step`],
    /// [`EngineError::JobsFull`] if too many jobs are waiting, [`EngineError::Stopped`].
    pub fn score(&self, ids: &[TokenId], top: usize) -> Result<Scores, EngineError> {
        self.score_from(ids, 0, top)
    }

    /// As [`Handle::score`], for the rows from `first` on: the likelihoods of `ids[first + 1..]`.
    ///
    /// # Errors
    /// As [`Handle::score`].
    pub fn score_from(&self, ids: &[TokenId], first: usize, top: usize) -> Result<Scores, EngineError> {
        self.score_with(ids, ScoreOptions { first, top, ..ScoreOptions::default() })
    }

    /// As [`Handle::score_from`], with all options.
    ///
    /// # Errors
    /// As [`Handle::score`], and [`EngineError::Cancelled`].
    pub fn score_with(&self, ids: &[TokenId], options: ScoreOptions) -> Result<Scores, EngineError> {
        let ScoreOptions { first, top, cache_salt, cancelled } = options;
        self.check_ids(ids)?;
        let rows = ids.len().saturating_sub(first).max(1);
        let most = self.inner.limits.vocab.min(SCORES_MAX / rows);
        if top > most {
            let tokens = ids.len();
            let message = format!("expected at most {most} for {tokens} tokens, found {top}");
            return Err(SubmitError::invalid("top", message).into());
        }
        self.ask(|reply| {
            let goal = Goal::Score { first, top, scores: Scores::default(), cancelled, reply };
            Job::Compute(Sequence::job(ids.to_vec(), cache_salt, goal))
        })
    }

    /// Computes the keys and values of a prompt and saves them to a file atomically. The engine's thread
    /// copies them to memory; the calling thread writes the file.
    ///
    /// # Errors
    /// As [`Handle::score`], and [`EngineError::Snapshot`] if the file cannot be written.
    pub fn save(&self, ids: &[TokenId], path: &Path) -> Result<(), EngineError> {
        self.check_ids(ids)?;
        // Checked before anything is computed, and again when the file is written.
        file::check_target(path).map_err(|source| snapshot::io_error(path, "write", source))?;
        let exported = self.ask(|reply| {
            Job::Compute(Sequence::job(ids.to_vec(), None, Goal::Save { exported: None, reply }))
        })?;
        Ok(exported.write(path)?)
    }

    /// Restores a saved prompt, so that requests which begin with it find it in the cache. Returns the number
    /// of its tokens. The calling thread reads the file; the engine's thread copies the pages from memory.
    ///
    /// # Errors
    /// [`EngineError::Snapshot`] if the file is damaged or belongs to another model, [`EngineError::Restore`]
    /// if it does not fit this cache. The cache is unchanged then.
    pub fn restore(&self, path: &Path) -> Result<usize, EngineError> {
        let snapshot_spec = &self.inner.snapshot_spec;
        let found = snapshot::Found::open(path, &snapshot_spec.fingerprint, &snapshot_spec.layout)?;
        snapshot_spec.check_size(&found)?;
        let snapshot = found.read()?;
        snapshot_spec.check(&snapshot)?;
        self.ask(|reply| Job::Restore { snapshot, reply })
    }

    /// Recounts the KV accounting: no page is lost, shared wrongly or written twice. For tests and health
    /// checks; it takes time in proportion to the pages.
    ///
    /// # Errors
    /// [`EngineError::Integrity`] if the accounting contradicts itself, [`EngineError::JobsFull`],
    /// [`EngineError::Stopped`].
    pub fn check_integrity(&self) -> Result<(), EngineError> {
        self.ask(|reply| Job::Check { reply })
    }

    /// Starts a profile from zero. While it is on, a step's operations run one by one and each is waited for,
    /// which slows a GPU down.
    ///
    /// # Errors
    /// [`EngineError::JobsFull`], [`EngineError::Stopped`].
    pub fn start_profile(&self) -> Result<(), EngineError> {
        self.ask(|reply| Job::StartProfile { reply })
    }

    /// Ends the profile and returns it; it is empty if none was started.
    ///
    /// # Errors
    /// [`EngineError::JobsFull`], [`EngineError::Stopped`].
    pub fn take_profile(&self) -> Result<Profile, EngineError> {
        self.ask(|reply| Job::TakeProfile { reply })
    }

    /// Most sequences at work at once: [`EngineConfig::sequences_max`] within the decoder's limits.
    pub fn sequences_max(&self) -> usize {
        self.inner.config.sequences_max
    }

    /// The engine's state. Takes a short lock and calls no driver.
    pub fn state(&self) -> EngineState {
        self.inner.queue.engine_state()
    }

    /// Drains the engine: it admits nothing more, and works until all requests have ended or `until` has
    /// passed. It then cancels the rest, and frees its memory before this returns. A running step is waited
    /// for. The call blocks, so an async task moves it to a thread that may block. On the engine's own
    /// threads, in a mask or a waker, it cannot wait: it cancels at once and returns.
    pub fn drain(&self, until: Instant) -> Drained {
        self.inner.queue.drain(until)
    }

    /// Counters and gauges.
    pub fn stats(&self) -> Stats {
        self.inner.counters.read()
    }

    fn check_ids(&self, ids: &[TokenId]) -> Result<(), SubmitError> {
        let RequestLimits { vocab, context_max } = self.inner.limits;
        if ids.len() > context_max {
            return Err(SubmitError::TooLong { tokens: ids.len(), context_max });
        }
        check_prompt(ids, vocab)?;
        self.check_fit(ids.len())
    }

    fn ask<T>(&self, job: impl FnOnce(Reply<T>) -> Job) -> Result<T, EngineError> {
        if self.inner.queue.is_own_thread() {
            return Err(EngineError::Internal(
                "a mask or a waker, on the engine's own threads, cannot wait for the engine",
            ));
        }
        let (reply, answer) = mpsc::sync_channel(1);
        self.inner.queue.put_job(job(reply)).map_err(|refused| match refused {
            Refused::Full { waiting } => EngineError::JobsFull { waiting },
            Refused::Closed(failure) => ended(failure),
        })?;
        answer.recv().unwrap_or_else(|_| Err(ended(self.inner.queue.failure())))
    }
}

/// The error of a job if the engine has ended.
fn ended(failure: Option<EngineFailure>) -> EngineError {
    failure.map_or(EngineError::Stopped, EngineError::Dead)
}

/// Does not wait, because an async task may drop it. [`Handle::drain`] waits.
impl Drop for Inner {
    fn drop(&mut self) {
        self.queue.order(Order::Stop);
    }
}

/// Dropped last on the engine's thread: marks the thread as ended.
struct Leaving(Arc<RequestQueue>);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.leave();
    }
}
