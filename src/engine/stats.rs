//! Statistics: counters and gauges that the engine's thread writes and any thread reads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::model::DecoderMemory;

/// Token counts of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Prompt tokens found in the cache.
    pub cached_tokens: usize,
    /// Tokens generated.
    pub completion_tokens: usize,
}

/// Durations in seconds, and rates, of one generation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Timings {
    /// From submission to the first step that worked on the prompt, in seconds.
    pub queued_s: f64,
    /// From submission to the first token, in seconds.
    pub first_token_s: f64,
    /// From the first step to the first token, in seconds.
    pub prefill_s: f64,
    /// From the first token to the last, in seconds.
    pub decode_s: f64,
    /// Prompt tokens computed (not found in the cache) per second.
    pub prefill_tokens_per_s: f64,
    /// Tokens after the first per second.
    pub decode_tokens_per_s: f64,
}

/// Timestamps of one generation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    submitted: Instant,
    started: Option<Instant>,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
}

impl Clock {
    pub(super) fn new(submitted: Instant) -> Clock {
        Clock { submitted, started: None, first_token: None, last_token: None }
    }

    /// Notes a start. Returns whether it is the first one.
    pub(super) fn start(&mut self) -> bool {
        let first = self.started.is_none();
        self.started.get_or_insert_with(Instant::now);
        first
    }

    pub(super) fn token(&mut self) {
        let now = Instant::now();
        self.first_token.get_or_insert(now);
        self.last_token = Some(now);
    }

    /// Timings of a generation with these token counts.
    pub(super) fn timings(&self, usage: Usage) -> Timings {
        let seconds = |from: Option<Instant>, to: Option<Instant>| match (from, to) {
            (Some(from), Some(to)) => to.duration_since(from).as_secs_f64(),
            _ => 0.0,
        };
        let rate = |count: usize, seconds: f64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        let prefill_s = seconds(self.started, self.first_token);
        let decode_s = seconds(self.first_token, self.last_token);
        Timings {
            queued_s: seconds(Some(self.submitted), self.started),
            first_token_s: seconds(Some(self.submitted), self.first_token),
            prefill_s,
            decode_s,
            prefill_tokens_per_s: rate(usage.prompt_tokens - usage.cached_tokens, prefill_s),
            decode_tokens_per_s: rate(usage.completion_tokens.saturating_sub(1), decode_s),
        }
    }
}

/// Counters and gauges of the engine. Every admitted request is in exactly one of `finished`, `failed`,
/// `cancelled`, `waiting` and `running`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Stats {
    /// Requests admitted.
    pub admitted: u64,
    /// Requests ended by a stop, the end of the turn, the length, a mask or the deadline.
    pub finished: u64,
    /// Requests ended by an error.
    pub failed: u64,
    /// Requests cancelled by their readers or by a drain.
    pub cancelled: u64,
    /// Requests without pages: new or preempted.
    pub waiting: u64,
    /// Requests with pages.
    pub running: u64,
    /// Number of preemptions: a sequence gave up its pages for one that comes before it.
    pub preemptions: u64,
    /// Steps run.
    pub steps: u64,
    /// Tokens computed other than by single decodes: prompts, recomputed tokens, and runs forced by a mask.
    pub prefill_tokens: u64,
    /// Prompt tokens found in the cache.
    pub cached_tokens: u64,
    /// Tokens generated, including those that end a turn.
    pub decode_tokens: u64,
    /// Prompt tokens of requests, computed or found in the cache: each once, after the step with it, however
    /// the request ends.
    pub prompt_tokens: u64,
    /// Tokens of answers, without those that end a turn: each after its step, however the answer ends.
    pub answer_tokens: u64,
    /// Seconds spent in steps.
    pub step_s: f64,
    /// Seconds since the current step began; 0 between steps. A hanging device shows here.
    pub step_running_s: f64,
    /// Pages of the pool.
    pub pages: u64,
    /// Pages held by sequences.
    pub pages_used: u64,
    /// Pages kept only for prefix sharing.
    pub pages_cached: u64,
    /// Memory by kind, in bytes.
    pub memory: MemoryStats,
}

/// Memory of one kind, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct MemoryUse {
    /// Bytes now.
    pub bytes: u64,
    /// Most bytes at any time since the start.
    pub bytes_max: u64,
}

/// Memory of the engine and its model, by kind. Weights, pool and arena are allocated at load and do not
/// change; the rest varies with the work. Not counted: the scratch of a backend's operations, and the
/// vocabulary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct MemoryStats {
    /// Weights, in the backend's form.
    pub weights: MemoryUse,
    /// The arena of a step's intermediates.
    pub arena: MemoryUse,
    /// The pool of KV pages, used or not.
    pub kv_pool: MemoryUse,
    /// Part of the pool: pages held by sequences or kept for their prefix.
    pub kv_pages: MemoryUse,
    /// Token ids of requests at work, including the room reserved for their answers.
    pub sequences: MemoryUse,
    /// Snapshots in memory, on their way to a file or from one.
    pub snapshots: MemoryUse,
}

/// The shared counters.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) admitted: AtomicU64,
    pub(super) finished: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) cancelled: AtomicU64,
    pub(super) running: AtomicU64,
    pub(super) preemptions: AtomicU64,
    pub(super) steps: AtomicU64,
    pub(super) prefill_tokens: AtomicU64,
    pub(super) cached_tokens: AtomicU64,
    pub(super) decode_tokens: AtomicU64,
    pub(super) prompt_tokens: AtomicU64,
    pub(super) answer_tokens: AtomicU64,
    pub(super) step_us: AtomicU64,
    step: Mutex<Option<Instant>>,
    pub(super) pages: AtomicU64,
    pub(super) pages_used: AtomicU64,
    pub(super) pages_cached: AtomicU64,
    pub(super) weights: Gauge,
    pub(super) arena: Gauge,
    pub(super) kv_pool: Gauge,
    pub(super) kv_pages: Gauge,
    pub(super) sequences: Gauge,
    pub(super) snapshots: Gauge,
}

/// A gauge of bytes, and its maximum.
#[derive(Debug, Default)]
pub(super) struct Gauge {
    now: AtomicU64,
    max: AtomicU64,
}

impl Gauge {
    pub(super) fn set(&self, bytes: usize) {
        set(&self.now, bytes);
        self.max.fetch_max(bytes as u64, Ordering::Relaxed);
    }

    fn add(&self, bytes: usize) {
        let before = self.now.fetch_add(bytes as u64, Ordering::Relaxed);
        self.max.fetch_max(before.saturating_add(bytes as u64), Ordering::Relaxed);
    }

    fn read(&self) -> MemoryUse {
        let get = |bytes: &AtomicU64| bytes.load(Ordering::Relaxed);
        MemoryUse { bytes: get(&self.now), bytes_max: get(&self.max) }
    }
}

/// Counts the bytes of a snapshot while they are in memory.
#[derive(Debug)]
pub(super) struct SnapshotBytes {
    counters: Arc<Counters>,
    bytes: usize,
}

impl SnapshotBytes {
    pub(super) fn count(counters: &Arc<Counters>, bytes: usize) -> SnapshotBytes {
        counters.snapshots.add(bytes);
        SnapshotBytes { counters: Arc::clone(counters), bytes }
    }
}

impl Drop for SnapshotBytes {
    fn drop(&mut self) {
        self.counters.snapshots.now.fetch_sub(self.bytes as u64, Ordering::Relaxed);
    }
}

/// Adds to a counter. Counters are independent of each other, so relaxed order suffices.
pub(super) fn add(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Ordering::Relaxed);
}

/// Sets a gauge.
pub(super) fn set(gauge: &AtomicU64, n: usize) {
    gauge.store(n as u64, Ordering::Relaxed);
}

impl Counters {
    /// Sets the gauges that are fixed from the start.
    pub(super) fn start(&self, pages: usize, memory: DecoderMemory) {
        set(&self.pages, pages);
        self.weights.set(memory.weight_bytes);
        self.arena.set(memory.arena_bytes);
        self.kv_pool.set(memory.kv_bytes);
    }

    /// Notes when the current step began; `None` between steps.
    pub(super) fn set_step(&self, started: Option<Instant>) {
        *self.step.lock().unwrap_or_else(PoisonError::into_inner) = started;
    }

    fn step(&self) -> Option<Instant> {
        *self.step.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests admitted and not ended.
    pub(super) fn live(&self) -> u64 {
        let ended = [&self.finished, &self.failed, &self.cancelled];
        let ended: u64 = ended.iter().map(|counter| counter.load(Ordering::Relaxed)).sum();
        self.admitted.load(Ordering::Relaxed).saturating_sub(ended)
    }

    /// Marks the engine as ended: live requests have failed, and gauges drop to 0.
    pub(super) fn close(&self) {
        let live = usize::try_from(self.live()).unwrap_or(usize::MAX);
        add(&self.failed, live);
        for gauge in [&self.running, &self.pages_used, &self.pages_cached] {
            set(gauge, 0);
        }
        for gauge in [&self.weights, &self.arena, &self.kv_pool, &self.kv_pages, &self.sequences] {
            gauge.set(0);
        }
    }

    pub(super) fn read(&self) -> Stats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let running = get(&self.running);
        Stats {
            admitted: get(&self.admitted),
            finished: get(&self.finished),
            failed: get(&self.failed),
            cancelled: get(&self.cancelled),
            waiting: self.live().saturating_sub(running),
            running,
            preemptions: get(&self.preemptions),
            steps: get(&self.steps),
            prefill_tokens: get(&self.prefill_tokens),
            cached_tokens: get(&self.cached_tokens),
            decode_tokens: get(&self.decode_tokens),
            prompt_tokens: get(&self.prompt_tokens),
            answer_tokens: get(&self.answer_tokens),
            step_s: Duration::from_micros(get(&self.step_us)).as_secs_f64(),
            step_running_s: self.step().map_or(0.0, |started| started.elapsed().as_secs_f64()),
            pages: get(&self.pages),
            pages_used: get(&self.pages_used),
            pages_cached: get(&self.pages_cached),
            memory: MemoryStats {
                weights: self.weights.read(),
                arena: self.arena.read(),
                kv_pool: self.kv_pool.read(),
                kv_pages: self.kv_pages.read(),
                sequences: self.sequences.read(),
                snapshots: self.snapshots.read(),
            },
        }
    }
}
