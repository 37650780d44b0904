//! The engine's thread: it owns the model, the KV accounting and the table of sequences, and runs the stages
//! in order.
//!
//! One turn: admit arrivals, [plan](super::plan) a step, fill the [batch](super::batch), [run](super::runner)
//! it, [choose](super::choose) the result of each sequence, and [commit](super::commit). If the decoder runs
//! ahead, the next batch is launched before the host looks at the tokens of this one.

mod restore;

use std::sync::Arc;
use std::time::Instant;

use super::batch::Batch;
use super::cache_events::{Announcer, CacheEvents};
use super::choose::{Chooser, RowResult};
use super::commit::{End, commit, take_out};
use super::event::FinishReason;
use super::failure::Failure;
use super::mask_task::masks_due;
use super::plan::{Plan, Planner};
use super::profile::{Profile, Profiler};
use super::request_queue::{Arrivals, Job, Order, RequestQueue};
use super::runner::Runner;
use super::scheduler::Room;
use super::sequence::Sequence;
use super::stats::{Counters, add, set};
use super::table::{SequenceTable, SlotId};
use super::{EngineConfig, EngineError, EngineFailure};
use crate::{
    kind::ErrorKind,
    kv::{KvCacheManager, KvConfig, KvError, PrefixSharing},
    model::{Decoder, ModelError},
};

/// Everything that the engine's thread owns.
#[derive(Debug)]
pub(super) struct Worker<D> {
    runner: Runner<D>,
    kv: KvCacheManager,
    table: SequenceTable,
    planner: Planner,
    plan: Plan,
    /// The step in flight (`batch`), and the one launched ahead of its tokens (`ahead`); empty if there is
    /// none.
    batch: Batch,
    ahead: Batch,
    chooser: Chooser,
    results: Vec<RowResult>,
    queue: Arc<RequestQueue>,
    counters: Arc<Counters>,
    announcer: Option<Announcer>,
}

impl<D: Decoder> Worker<D> {
    pub(super) fn new(
        decoder: D,
        config: EngineConfig,
        queue: Arc<RequestQueue>,
        counters: Arc<Counters>,
    ) -> Result<Worker<D>, KvError> {
        let prefix = match config.share_prefixes {
            true => PrefixSharing::On { salt: decoder.fingerprint() },
            false => PrefixSharing::Off,
        };
        let kv = KvCacheManager::new(KvConfig { pages: decoder.pages(), prefix })?;
        let kv = kv.with_states(decoder.states().slots)?;
        counters.start(decoder.pages(), decoder.memory());
        let limits = decoder.limits();
        let (prefill_chunk, sequences_max) = (config.chunk_in(limits), config.sequences_max);
        Ok(Worker {
            kv,
            table: SequenceTable::default(),
            planner: Planner::new(Room { limits, prefill_chunk, sequences_max, job_first: true }),
            plan: Plan::default(),
            batch: Batch::default(),
            ahead: Batch::default(),
            chooser: Chooser::new(decoder.vocab_size(), Arc::clone(&queue)),
            results: Vec::new(),
            runner: Runner::new(decoder, Arc::clone(&counters)),
            queue,
            counters,
            announcer: None,
        })
    }

    /// Starts to record cache changes, and returns their reader.
    pub(super) fn announce(&mut self, capacity: usize) -> CacheEvents {
        self.kv.keep_events();
        let (announcer, events) = Announcer::new(capacity);
        self.announcer = Some(announcer);
        events
    }

    /// Runs until the last handle is dropped, the engine is drained, or its device is lost.
    pub(super) fn run(mut self) {
        loop {
            let arrivals = self.queue.take();
            let order = arrivals.order;
            self.admit(arrivals);
            match order {
                Order::Work | Order::Drain => {}
                Order::Abort => self.abort(),
                Order::Stop => return,
            }
            let worked = self.turn();
            let drained = !worked && order != Order::Work && self.table.iter().next().is_none();
            if drained || self.queue.failure().is_some() {
                return;
            }
            if !worked {
                self.sleep();
            }
        }
    }

    pub(super) fn admit(&mut self, arrivals: Arrivals) {
        for mut sequence in arrivals.requests {
            self.chooser.adopt_mask(&mut sequence);
            sequence.look_up(&self.kv);
            let no_memory = sequence.tokens.is_empty().then(|| Failure::HostMemory(sequence.tokens_max()));
            let slot = self.table.insert(sequence);
            if let Some(failure) = no_memory {
                self.end(slot, Err(failure));
            }
        }
    }

    /// One round over jobs and sequences. Returns whether there was work.
    pub(super) fn turn(&mut self) -> bool {
        self.end_given_up();
        self.take_pending();
        let worked = self.take_up_job() | self.step();
        self.publish();
        if let Some(announcer) = &self.announcer {
            announcer.announce(&mut self.kv);
        }
        worked
    }

    /// Ends sequences that were cancelled or are past their deadline, in any phase.
    fn end_given_up(&mut self) {
        for (slot, finish) in self.table.given_up(Instant::now()) {
            self.end(slot, Ok(finish));
        }
    }

    /// Continues answers with masks that were late.
    fn take_pending(&mut self) {
        self.chooser.take_pending(&mut self.table, &mut self.results);
        self.commit(false);
    }

    /// Cancels everything. Answers keep their text so far; the callers of jobs get [`EngineError::Stopped`].
    fn abort(&mut self) {
        let slots: Vec<SlotId> = self.table.iter().map(|(slot, _)| slot).collect();
        self.queue.abort(slots.len());
        for slot in slots {
            let job = self.table.get(slot).is_some_and(Sequence::is_job);
            self.end(slot, if job { Err(Failure::Stopped) } else { Ok(FinishReason::Cancelled) });
        }
    }

    fn publish(&self) {
        let stats = self.kv.stats();
        set(&self.counters.pages_used, stats.used);
        set(&self.counters.pages_cached, stats.cached);
        let kv_bytes = (stats.used + stats.cached) * self.runner.decoder.kv_layout().page_bytes();
        self.counters.kv_pages.set(kv_bytes);
        self.counters.sequences.set(self.table.iter().map(|(_, sequence)| sequence.bytes()).sum());
        let running = |sequence: &Sequence| !sequence.is_job() && sequence.pages.is_some();
        set(&self.counters.running, self.table.iter().filter(|(_, sequence)| running(sequence)).count());
    }

    /// Starts the oldest waiting job, unless one is at work. A caller that no longer listens is ignored.
    fn take_up_job(&mut self) -> bool {
        let job = if self.table.has_job() { None } else { self.queue.take_job() };
        let Some(job) = job else { return false };
        // Jobs read pages and times between steps.
        self.finish_step();
        match job {
            Job::Compute(sequence) => _ = self.table.insert(sequence),
            Job::Restore { snapshot, reply } => drop(reply.send(self.restore(&snapshot))),
            Job::Check { reply } => drop(reply.send(self.kv.check_integrity().map_err(EngineError::from))),
            Job::StartProfile { reply } => {
                self.runner.profiler = Some(Profiler::new());
                drop(reply.send(Ok(())));
            }
            Job::TakeProfile { reply } => {
                let profiler = self.runner.profiler.take();
                drop(reply.send(Ok(profiler.map_or_else(Profile::default, Profiler::end))));
            }
        }
        true
    }

    /// One step over the sequences. Returns whether there was work.
    fn step(&mut self) -> bool {
        self.batch.keep_live(&self.table);
        if self.batch.parts.is_empty() && !self.launch() {
            return false;
        }
        self.launch_ahead();
        self.finish_step();
        std::mem::swap(&mut self.batch, &mut self.ahead);
        true
    }

    /// Plans and launches the next step. Returns whether there was work.
    fn launch(&mut self) -> bool {
        self.planner.plan(&mut self.table, &mut self.kv, &mut self.plan);
        add(&self.counters.cached_tokens, self.plan.cached_tokens);
        self.count_preempted();
        // Published before the step ends sequences: the page count is at its maximum.
        self.publish();
        self.copy_pages();
        let worked = !self.plan.scheduled.is_empty() || !self.plan.failed.is_empty();
        for (slot, failure) in std::mem::take(&mut self.plan.failed) {
            self.end(slot, Err(failure));
        }
        match self.run_plan() {
            Ok(()) => {}
            Err(_) if self.plan.scheduled.len() > 1 => self.run_one_by_one(),
            Err(failure) => self.fail_scheduled(failure),
        }
        worked
    }

    fn count_preempted(&mut self) {
        add(&self.counters.preemptions, self.plan.preempted.len());
        self.plan.preempted.clear();
    }

    fn copy_pages(&mut self) {
        for (slot, copy) in std::mem::take(&mut self.plan.copies) {
            if let Err(error) = self.runner.decoder.kv_mut().copy_page(copy.from, copy.to) {
                self.plan.failed.push((slot, ModelError::from(error).into()));
            }
        }
    }

    /// Launches the scheduled batch; the step is in flight then.
    fn run_plan(&mut self) -> Result<(), Failure> {
        let Worker { runner, kv, table, plan, batch, chooser, .. } = self;
        batch.fill(&plan.scheduled, table, kv, |row| runner.decoder.samples(row))?;
        chooser.start_masks(&batch.parts, table);
        if batch.parts.is_empty() { Ok(()) } else { runner.run(batch) }
    }

    /// Runs each sequence of a failed step alone, because the error does not name the one at fault.
    fn run_one_by_one(&mut self) {
        for part in std::mem::take(&mut self.plan.scheduled) {
            self.plan.scheduled.push(part);
            match self.run_plan() {
                Ok(()) => self.finish_step(),
                Err(failure) => self.fail_scheduled(failure),
            }
            self.plan.scheduled.clear();
            if self.queue.failure().is_some() {
                return;
            }
        }
    }

    /// Ends the only sequence of a step that failed.
    fn fail_scheduled(&mut self, failure: Failure) {
        self.batch.clear();
        if let Some(part) = self.plan.scheduled.pop() {
            self.end(part.slot, Err(failure));
        }
    }

    /// Launches the step after the one in flight, unless the host must look at its tokens first.
    fn launch_ahead(&mut self) {
        self.ahead.clear();
        if !self.runner.decoder.runs_ahead() || !self.queue.is_empty() {
            return;
        }
        let Worker { runner, kv, table, planner, plan, batch, ahead, .. } = self;
        planner.plan_ahead(&batch.parts, table, kv, plan);
        let filled = ahead.fill(&plan.scheduled, table, kv, |row| runner.decoder.samples(row));
        let sampled = ahead.parts.iter().all(|part| part.sampled);
        // A failure recurs in the ordinary step that runs instead.
        if ahead.parts.is_empty() || filled.is_err() || !sampled || runner.run(ahead).is_err() {
            ahead.clear();
            return;
        }
        self.publish();
    }

    /// Chooses the results of the step in flight, if there is one, and commits it.
    fn finish_step(&mut self) {
        let Worker { runner, kv, table, batch, chooser, results, .. } = self;
        let ran = runner.ran(batch, kv);
        chooser.choose_all(&batch.parts, masks_due(kv.has_states()), &ran, table, results);
        let ahead = batch.is_ahead();
        batch.clear();
        self.commit(ahead);
    }

    /// Commits results, and ends finished sequences.
    fn commit(&mut self, ahead: bool) {
        let committed = commit(&mut self.results, ahead, &mut self.table, &mut self.kv);
        committed.count(&self.counters);
        for (slot, end) in committed.ends {
            self.end(slot, end);
        }
    }

    /// Marks the engine as failed if the device is lost, before any reader gets the error.
    fn fatal(&self, failure: Failure) -> Failure {
        match failure {
            Failure::Step(error) if error.kind() == ErrorKind::DeviceLost => {
                Failure::Dead(self.queue.fail(EngineFailure::DeviceLost(error)))
            }
            other => other,
        }
    }

    /// Takes a sequence out of the table and notifies its reader.
    fn end(&mut self, slot: SlotId, end: End) {
        let end = end.map_err(|failure| self.fatal(failure));
        let Some(sequence) = take_out(slot, end.is_err(), &mut self.table, &mut self.kv) else { return };
        if !sequence.is_job() {
            let counter = match end {
                Ok(FinishReason::Cancelled) => &self.counters.cancelled,
                Ok(_) => &self.counters.finished,
                Err(_) => &self.counters.failed,
            };
            add(counter, 1);
        }
        // Published first, so that the reader of the last event finds it in the statistics.
        self.publish();
        sequence.tell(end);
    }

    /// Sleeps until something arrives or a deadline passes.
    fn sleep(&mut self) {
        let asleep = Instant::now();
        self.queue.wake().wait(self.table.wake_at(asleep));
        if let Some(profiler) = &mut self.runner.profiler {
            profiler.skip(asleep.elapsed());
        }
    }
}

/// Runs however the thread ends: the queue and the counters are closed first. After a failure, sequences and
/// jobs get its cause. Otherwise they are dropped, which notifies their callers.
impl<D> Drop for Worker<D> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.queue.fail(EngineFailure::Panicked);
        }
        let (unserved, _jobs) = self.queue.close();
        self.counters.close();
        let Some(failure) = self.queue.failure() else { return };
        for sequence in std::mem::take(&mut self.table).into_sequences().chain(unserved) {
            sequence.tell(Err(Failure::Dead(failure.clone())));
        }
    }
}
