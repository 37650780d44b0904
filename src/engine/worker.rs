//! The engine's thread: it owns the model and the KV books, and turns requests into steps.
//!
//! Each round: take what has arrived, schedule and secure pages (`pages`), run (`step`, `flight`),
//! sample and end what has ended (`postprocess`). Work that is answered once (scores, snapshots) is in `job`.

use std::sync::Arc;

use super::EngineConfig;
use super::flight::Flight;
use super::generation::{FinishReason, GenerationError};
use super::inbox::{Arrivals, Inbox};
use super::job::Prefill;
use super::profile::Profiler;
use super::scheduler::{Candidate, Share};
use super::sequence::Sequence;
use super::stats::{Counters, set};
use crate::ir::StepInput;
use crate::kv::{KvCacheManager, KvConfig, KvError, PrefixSharing};
use crate::model::Decoder;
use crate::sample::Sampler;
use crate::token::TokenId;

/// Everything that the engine's thread owns.
#[derive(Debug)]
pub(super) struct Worker<D> {
    pub(super) decoder: D,
    pub(super) kv: KvCacheManager,
    pub(super) config: EngineConfig,
    pub(super) inbox: Arc<Inbox>,
    pub(super) counters: Arc<Counters>,
    /// In order of arrival.
    pub(super) sequences: Vec<Sequence>,
    /// The job at work, if any.
    pub(super) prefill: Option<Prefill>,
    pub(super) candidates: Vec<Candidate>,
    pub(super) shares: Vec<Share>,
    pub(super) step: StepInput,
    /// The step under way, and the one launched ahead of its tokens: empty where there is none.
    pub(super) flight: Flight,
    pub(super) ahead: Flight,
    pub(super) logits: Vec<f32>,
    /// What the step under way sampled.
    pub(super) sampled: Vec<Option<TokenId>>,
    pub(super) best: Vec<(TokenId, f64)>,
    pub(super) sampler: Sampler,
    /// While a profile is on.
    pub(super) profiler: Option<Profiler>,
}

impl<D: Decoder> Worker<D> {
    pub(super) fn new(
        decoder: D,
        config: EngineConfig,
        inbox: Arc<Inbox>,
        counters: Arc<Counters>,
    ) -> Result<Worker<D>, KvError> {
        let prefix = match config.share_prefixes {
            true => PrefixSharing::On { salt: decoder.fingerprint() },
            false => PrefixSharing::Off,
        };
        let kv = KvCacheManager::new(KvConfig { pages: decoder.pages(), prefix })?;
        let logits = vec![0.0; decoder.vocab_size()];
        set(&counters.pages, decoder.pages());
        let memory = decoder.memory();
        counters.weights.set(memory.weight_bytes);
        counters.arena.set(memory.arena_bytes);
        counters.kv_pool.set(memory.kv_bytes);
        Ok(Worker {
            decoder,
            kv,
            config,
            inbox,
            counters,
            sequences: Vec::new(),
            prefill: None,
            candidates: Vec::new(),
            shares: Vec::new(),
            step: StepInput::default(),
            flight: Flight::default(),
            ahead: Flight::default(),
            logits,
            sampled: Vec::new(),
            best: Vec::new(),
            sampler: Sampler::default(),
            profiler: None,
        })
    }

    /// Works until it is told to stop.
    pub(super) fn run(mut self) {
        loop {
            let arrivals = self.inbox.take();
            let stop = arrivals.stop;
            self.admit(arrivals);
            if stop {
                return;
            }
            self.end_cancelled_and_refused();
            let worked = self.work_on_jobs() | self.work_on_sequences();
            self.publish();
            if !worked {
                self.sleep();
            }
        }
    }

    fn admit(&mut self, arrivals: Arrivals) {
        for admitted in arrivals.requests {
            self.sequences.push(Sequence::new(admitted, self.decoder.context_max()));
        }
    }

    fn end_cancelled_and_refused(&mut self) {
        for index in (0..self.sequences.len()).rev() {
            if let Some(error) = self.sequences[index].failure.take() {
                self.end(index, Err(error));
            } else if self.sequences[index].is_cancelled() {
                self.end(index, Ok(FinishReason::Cancelled));
            }
        }
    }

    pub(super) fn publish(&self) {
        let stats = self.kv.stats();
        set(&self.counters.pages_used, stats.used);
        set(&self.counters.pages_cached, stats.cached);
        let kv_bytes = (stats.used + stats.cached) * self.decoder.kv_layout().page_bytes();
        self.counters.kv_pages.set(kv_bytes);
        self.counters.sequences.set(self.sequences.iter().map(Sequence::bytes).sum());
        set(&self.counters.running, self.sequences.iter().filter(|s| s.pages.is_some()).count());
    }

    /// One chunk of the job at work, or the next job.
    fn work_on_jobs(&mut self) -> bool {
        let job = if self.prefill.is_none() { self.inbox.take_job() } else { None };
        if job.is_none() && self.prefill.is_none() {
            return false;
        }
        // A job has steps of its own.
        self.finish_step();
        if let Some(job) = job {
            self.start_job(job);
        }
        self.continue_job();
        true
    }

    /// One step over the sequences; whether there was anything to do.
    fn work_on_sequences(&mut self) -> bool {
        if self.flight.parts.is_empty() && !self.launch() {
            return false;
        }
        self.run_ahead();
        self.finish_step();
        std::mem::swap(&mut self.flight, &mut self.ahead);
        true
    }

    /// Launches the next step; whether there was anything to do.
    fn launch(&mut self) -> bool {
        self.schedule();
        self.secure_pages();
        // Before the step ends sequences: the pages are at their most.
        self.publish();
        if self.shares.is_empty() {
            return false;
        }
        match self.run_shares() {
            Ok(()) => {}
            Err(_) if self.shares.len() > 1 => self.run_one_by_one(),
            Err(error) => self.fail_share(error),
        }
        true
    }
}

/// However the thread ends: nothing more is let in, the books of requests are closed, and whoever
/// waits is told. Sequences and jobs tell when they are dropped, after this.
impl<D> Drop for Worker<D> {
    fn drop(&mut self) {
        let unserved = self.inbox.close();
        self.counters.close();
        for admitted in unserved {
            admitted.channel.push(Err(GenerationError::Stopped));
        }
    }
}
