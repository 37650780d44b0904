//! The engine's thread: it owns the model and the KV books, and turns requests into steps.
//!
//! Each round: take what has arrived, schedule, secure pages, run, sample, postprocess. Jobs that
//! are answered once (scores, snapshots) are in `job`.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use super::EngineConfig;
use super::generation::{FinishReason, GenerationError, Logprobs};
use super::inbox::{Arrivals, Inbox, Job};
use super::job::Prefill;
use super::scheduler::{Candidate, Room, Share, schedule};
use super::sequence::Sequence;
use super::stats::{Counters, add, set};
use crate::{
    backend::{StepInput, StepSequence},
    kv::{KvCacheManager, KvConfig, KvError, PrefixSharing, SeqId, SequenceSpec},
    model::Decoder,
    sample::{Sampler, best_logits, log_sum_exp},
    token::TokenId,
};

/// Everything that the engine's thread owns.
#[derive(Debug)]
pub(super) struct Worker<D> {
    pub(super) decoder: D,
    pub(super) kv: KvCacheManager,
    pub(super) config: EngineConfig,
    pub(super) inbox: Arc<Inbox>,
    pub(super) counters: Arc<Counters>,
    /// In order of arrival.
    sequences: Vec<Sequence>,
    jobs: VecDeque<Job>,
    /// The job at work, if any.
    pub(super) prefill: Option<Prefill>,
    candidates: Vec<Candidate>,
    shares: Vec<Share>,
    pub(super) step: StepInput,
    pub(super) logits: Vec<f32>,
    pub(super) best: Vec<(TokenId, f64)>,
    sampler: Sampler,
}

impl<D: Decoder> Worker<D> {
    pub(super) fn new(
        decoder: D,
        config: EngineConfig,
        inbox: Arc<Inbox>,
        counters: Arc<Counters>,
    ) -> Worker<D> {
        let prefix = match config.share_prefixes {
            true => PrefixSharing::On { salt: decoder.fingerprint() },
            false => PrefixSharing::Off,
        };
        let kv = KvCacheManager::new(KvConfig { pages: decoder.pages(), prefix });
        let logits = vec![0.0; decoder.vocab_size()];
        set(&counters.pages, decoder.pages());
        Worker {
            decoder,
            kv,
            config,
            inbox,
            counters,
            sequences: Vec::new(),
            jobs: VecDeque::new(),
            prefill: None,
            candidates: Vec::new(),
            shares: Vec::new(),
            step: StepInput::default(),
            logits,
            best: Vec::new(),
            sampler: Sampler::default(),
        }
    }

    /// Works until it is told to stop.
    pub(super) fn run(mut self) {
        loop {
            let arrivals = self.inbox.take();
            let stop = arrivals.stop;
            self.admit(arrivals);
            if stop {
                // Sequences that are dropped tell their readers.
                return;
            }
            self.end_cancelled_and_refused();
            let worked = self.work_on_jobs() | self.work_on_sequences();
            self.publish();
            if !worked {
                self.inbox.wait();
            }
        }
    }

    fn admit(&mut self, arrivals: Arrivals) {
        self.jobs.extend(arrivals.jobs);
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

    fn publish(&self) {
        let stats = self.kv.stats();
        set(&self.counters.pages_used, stats.used);
        set(&self.counters.pages_cached, stats.cached);
        set(&self.counters.running, self.sequences.iter().filter(|s| s.pages.is_some()).count());
    }

    /// One chunk of the job at work, or the next job.
    fn work_on_jobs(&mut self) -> bool {
        if self.prefill.is_none() {
            match self.jobs.pop_front() {
                Some(job) => self.start_job(job),
                None => return false,
            }
        }
        self.continue_job();
        true
    }

    /// One step over the sequences; whether there was anything to do.
    fn work_on_sequences(&mut self) -> bool {
        self.schedule();
        self.secure_pages();
        if self.shares.is_empty() {
            return false;
        }
        match self.run_shares() {
            Ok(()) => self.sample_and_postprocess(),
            Err(_) if self.shares.len() > 1 => self.run_one_by_one(),
            Err(error) => self.fail_share(error),
        }
        true
    }

    fn schedule(&mut self) {
        self.candidates.clear();
        self.candidates.extend(self.sequences.iter().enumerate().map(|(index, sequence)| Candidate {
            index,
            pending: sequence.pending(),
            running: sequence.pages.is_some(),
            paused: sequence.is_paused(),
        }));
        let room = Room {
            limits: self.decoder.limits(),
            prefill_chunk: self.config.prefill_chunk,
            sequences_max: self.config.sequences_max,
        };
        schedule(&self.candidates, &room, &mut self.shares);
    }

    /// Gets each share its pages, oldest first; who finds none waits for another step.
    fn secure_pages(&mut self) {
        let mut outputs_left = self.decoder.limits().outputs_max;
        for i in 0..self.shares.len() {
            let Share { index, tokens } = self.shares[i];
            if tokens == 0 {
                continue;
            }
            let mut tokens = self.secure(index, tokens);
            let sequence = &self.sequences[index];
            if tokens > 0 && tokens == sequence.pending() {
                // A prefix found in the cache can bring a prompt to its end sooner than planned.
                tokens -= usize::from(outputs_left == 0);
                outputs_left = outputs_left.saturating_sub(1);
            }
            self.shares[i].tokens = tokens;
        }
        self.shares.retain(|share| share.tokens > 0);
    }

    /// Makes room for up to `tokens` tokens of a sequence; how many it got room for.
    fn secure(&mut self, index: usize, tokens: usize) -> usize {
        let id = match self.pages_of(index) {
            Ok(id) => id,
            Err(error) => return self.refuse(index, &error),
        };
        let tokens = tokens.min(self.sequences[index].pending());
        loop {
            match self.kv.reserve(id, tokens) {
                Ok(copies) => {
                    for copy in copies {
                        if let Err(error) = self.decoder.copy_page(copy.from, copy.to) {
                            return self.refuse(index, &error);
                        }
                    }
                    return tokens;
                }
                Err(KvError::OutOfPages { .. }) => match self.victim(Some(index)) {
                    Some(victim) => self.preempt(victim),
                    None => {
                        if self.sequences[index].computed == 0 {
                            self.give_up_pages(index);
                        }
                        return 0;
                    }
                },
                Err(error) => return self.refuse(index, &error),
            }
        }
    }

    /// The sequence's id in the books; a new one starts from the longest prefix in the cache.
    fn pages_of(&mut self, index: usize) -> Result<SeqId, KvError> {
        let sequence = &mut self.sequences[index];
        if let Some(id) = sequence.pages {
            return Ok(id);
        }
        let spec = SequenceSpec { tokens_max: sequence.tokens_max, window: sequence.request.window };
        let allocation = self.kv.allocate(&sequence.tokens, spec)?;
        add(&self.counters.cached_tokens, sequence.start(allocation.seq, allocation.cached_tokens));
        Ok(allocation.seq)
    }

    /// Who gives up its pages for `index` (or for a job): first those whose readers sleep, then
    /// those that came later, the youngest first.
    pub(super) fn victim(&self, index: Option<usize>) -> Option<usize> {
        let with_pages = || (0..self.sequences.len()).rev().filter(|&i| self.sequences[i].pages.is_some());
        let asleep = with_pages().find(|&i| Some(i) != index && self.sequences[i].is_paused());
        asleep.or_else(|| with_pages().find(|&i| index.is_none_or(|index| i > index)))
    }

    /// Takes a sequence's pages; it is computed again when there is room.
    pub(super) fn preempt(&mut self, victim: usize) {
        self.give_up_pages(victim);
        add(&self.counters.preemptions, 1);
        if let Some(share) = self.shares.iter_mut().find(|share| share.index == victim) {
            share.tokens = 0;
        }
    }

    fn give_up_pages(&mut self, index: usize) {
        let sequence = &mut self.sequences[index];
        sequence.computed = 0;
        if let Some(id) = sequence.pages.take() {
            let released = self.kv.release(id);
            debug_assert!(released.is_ok(), "a running sequence's id is live: {released:?}");
        }
    }

    /// The books or the copy refused for a reason that waiting does not cure: the sequence ends
    /// in the next round, when no share names a place in the list any more.
    fn refuse(&mut self, index: usize, error: &dyn std::error::Error) -> usize {
        self.sequences[index].failure = Some(GenerationError::Step(error.to_string()));
        self.inbox.wake();
        0
    }

    /// Runs the step that the shares describe.
    fn run_shares(&mut self) -> Result<(), String> {
        self.step.clear();
        for share in &self.shares {
            let sequence = &self.sequences[share.index];
            let outputs = sequence.pending() == share.tokens;
            push_rows(&mut self.step, &self.kv, sequence, share.tokens, outputs)?;
        }
        self.run_step()
    }

    /// Runs the step, counts it, and makes an error of a panic.
    pub(super) fn run_step(&mut self) -> Result<(), String> {
        let started = Instant::now();
        // A step leaves nothing behind in the decoder but pages that a failure makes void.
        let result = catch_unwind(AssertUnwindSafe(|| self.decoder.step(&self.step)));
        add(&self.counters.steps, 1);
        add(&self.counters.step_us, started.elapsed().as_micros() as usize);
        match result {
            Ok(result) => result.map_err(|error| error.to_string()),
            Err(_) => Err("the backend panicked".into()),
        }
    }

    /// A failed step does not say whose fault it was: each share alone does.
    fn run_one_by_one(&mut self) {
        let mut shares = std::mem::take(&mut self.shares);
        // Sequences that end leave the list, so later places go first.
        shares.sort_unstable_by_key(|share| std::cmp::Reverse(share.index));
        for share in shares {
            self.shares = vec![share];
            match self.run_shares() {
                Ok(()) => self.sample_and_postprocess(),
                Err(error) => self.fail_share(error),
            }
        }
    }

    fn fail_share(&mut self, error: String) {
        for share in std::mem::take(&mut self.shares) {
            self.end(share.index, Err(GenerationError::Step(error.clone())));
        }
    }

    /// Books the step's tokens, chooses the next token of each output, ends what has ended.
    fn sample_and_postprocess(&mut self) {
        let mut shares = std::mem::take(&mut self.shares);
        let mut output = 0;
        let mut ended = Vec::new();
        for share in &shares {
            let chosen = match self.book(share) {
                Ok(false) => continue,
                Ok(true) => self.sample_caught(share.index, output),
                Err(error) => Err(GenerationError::Step(error.to_string())),
            };
            output += 1;
            let end = match chosen {
                Ok((token, logprobs)) => self.sequences[share.index].accept(token, logprobs).map(Ok),
                Err(error) => Some(Err(error)),
            };
            ended.extend(end.map(|end| (share.index, end)));
        }
        ended.sort_unstable_by_key(|&(index, _)| std::cmp::Reverse(index));
        for (index, end) in ended {
            self.end(index, end);
        }
        shares.clear();
        self.shares = shares;
    }

    /// Moves a sequence over the tokens that the step computed; whether an output came of it.
    fn book(&mut self, share: &Share) -> Result<bool, KvError> {
        let sequence = &mut self.sequences[share.index];
        let Some(id) = sequence.pages else { return Ok(false) };
        let end = sequence.computed + share.tokens;
        let generated = usize::from(sequence.computed >= sequence.request.prompt.len());
        self.kv.advance(id, &sequence.tokens[sequence.computed..end])?;
        sequence.computed = end;
        add(&self.counters.prefill_tokens, share.tokens - generated.min(share.tokens));
        Ok(sequence.pending() == 0)
    }

    /// A mask is the caller's code: its panic is its own request's failure.
    fn sample_caught(
        &mut self,
        index: usize,
        output: usize,
    ) -> Result<(TokenId, Option<Logprobs>), GenerationError> {
        // The request ends with its panic, and the scratch is refilled for each choice.
        let result = catch_unwind(AssertUnwindSafe(|| self.sample(index, output)));
        result.unwrap_or_else(|_| Err(GenerationError::Step("choosing a token panicked".into())))
    }

    fn sample(
        &mut self,
        index: usize,
        output: usize,
    ) -> Result<(TokenId, Option<Logprobs>), GenerationError> {
        let read = self.decoder.logits(output, &mut self.logits);
        read.map_err(|error| GenerationError::Step(error.to_string()))?;
        let sequence = &mut self.sequences[index];
        let mut mask = sequence.request.mask.take();
        let normaliser = sequence.request.top.map(|_| log_sum_exp(&self.logits)).transpose()?;
        best_logits(&self.logits, sequence.request.top.unwrap_or(0), &mut self.best);
        let own = normaliser.map(|_| self.logits.clone());
        let history = sequence.history();
        let mask_now = mask.as_deref_mut();
        let sampling = &sequence.request.sampling;
        let token = self.sampler.choose(&mut self.logits, sampling, mask_now, history)?;
        sequence.request.mask = mask;
        add(&self.counters.decode_tokens, 1);
        let logprobs = normaliser.zip(own).map(|(normaliser, own)| Logprobs {
            chosen: f64::from(own[token.index()]) - normaliser,
            top: self.best.iter().map(|&(id, logit)| (id, logit - normaliser)).collect(),
        });
        Ok((token, logprobs))
    }

    /// Takes a sequence out of the list and tells its reader.
    fn end(&mut self, index: usize, end: Result<FinishReason, GenerationError>) {
        let mut sequence = self.sequences.remove(index);
        if let Some(id) = sequence.pages.take() {
            // What a failed sequence computed must not be found by others.
            let released = if end.is_err() { self.kv.release_unshared(id) } else { self.kv.release(id) };
            debug_assert!(released.is_ok(), "a running sequence's id is live: {released:?}");
        }
        let counter = match end {
            Ok(FinishReason::Cancelled) => &self.counters.cancelled,
            Ok(_) => &self.counters.finished,
            Err(_) => &self.counters.failed,
        };
        add(counter, 1);
        // Whoever reads the last event finds it in the statistics.
        self.publish();
        match end {
            Ok(finish) => sequence.finish(finish),
            Err(error) => sequence.fail(error),
        }
    }
}

/// Adds the next `tokens` tokens of a sequence to the step.
fn push_rows(
    step: &mut StepInput,
    kv: &KvCacheManager,
    sequence: &Sequence,
    tokens: usize,
    output: bool,
) -> Result<(), String> {
    let id = sequence.pages.ok_or("a share without pages")?;
    let rows = &sequence.tokens[sequence.computed..sequence.computed + tokens];
    push_sequence(step, kv, id, rows, sequence.computed).map_err(|error| error.to_string())?;
    if output {
        step.outputs.push(step.tokens.len() as u32 - 1);
    }
    Ok(())
}

/// Adds rows of one sequence, the first at position `first`, with its page table.
pub(super) fn push_sequence(
    step: &mut StepInput,
    kv: &KvCacheManager,
    id: SeqId,
    rows: &[TokenId],
    first: usize,
) -> Result<(), KvError> {
    let (row, page) = (step.tokens.len() as u32, step.pages.len() as u32);
    step.tokens.extend_from_slice(rows);
    step.positions.extend(first as u32..(first + rows.len()) as u32);
    step.pages.extend_from_slice(kv.pages(id)?);
    let window = kv.window(id)?;
    let (rows, pages) = (row..step.tokens.len() as u32, page..step.pages.len() as u32);
    step.sequences.push(StepSequence { rows, pages, window });
    Ok(())
}
