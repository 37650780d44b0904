//! The engine's thread: takes requests in, and goes from step to step until it is told to stop.

use std::sync::Arc;

use super::core::Core;
use super::generation::{FinishReason, GenerationError};
use super::inbox::Inbox;
use super::request::Facts;
use super::scheduler::{Budget, Share, View, next_start, share_out, victim};
use super::sequence::{Outcome, Sequence};
use super::store::{self, RestoreError};
use super::{EngineConfig, PrefixReuse};
use crate::kv::KvError;
use crate::model::Decoder;

/// All that the thread owns.
#[derive(Debug)]
pub(super) struct Worker<D> {
    core: Core<D>,
    inbox: Arc<Inbox>,
    facts: Facts,
    config: EngineConfig,
    /// By age, the oldest first.
    active: Vec<Sequence>,
    /// What the scheduler sees of `active`, index by index.
    views: Vec<View>,
    shares: Vec<Share>,
}

impl<D: Decoder> Worker<D> {
    pub(super) fn new(core: Core<D>, inbox: Arc<Inbox>, facts: Facts, config: EngineConfig) -> Worker<D> {
        Worker { core, inbox, facts, config, active: Vec::new(), views: Vec::new(), shares: Vec::new() }
    }

    /// Serves until the inbox is told to stop.
    pub(super) fn serve(&mut self) {
        while self.take_in() {
            self.schedule();
            self.run();
            if self.shares.is_empty() && !self.retire() {
                self.rest();
            }
        }
    }

    /// Sees how everyone stands, and lets requests in while there is room. Those that wait for
    /// their readers take none, but their number has a bound too. False once told to stop.
    fn take_in(&mut self) -> bool {
        // First of all: a ring from here on is for the next time.
        let rung = self.inbox.bell.silence();
        self.take_restores();
        self.views.clear();
        self.look();
        let ready = self.views.iter().filter(|view| view.ready).count();
        let room = self.config.sequences_max.saturating_sub(ready);
        let bound = self.config.sequences_max + self.config.queue_max;
        let room = room.min(bound.saturating_sub(self.active.len()));
        let going_on = self.inbox.take(room, &mut self.active);
        if rung {
            self.inbox.take_given_up(&mut self.active);
        }
        self.look();
        going_on
    }

    fn take_restores(&mut self) {
        while let Some(request) = self.inbox.take_restore() {
            let restored = match self.config.prefix {
                PrefixReuse::On => {
                    store::restore(&request.snapshot, &mut self.core.kv, &mut self.core.decoder)
                }
                PrefixReuse::Off => Err(RestoreError::ReuseOff),
            };
            self.publish();
            // A caller that waits no more needs no answer.
            let _ = request.reply.send(restored);
        }
    }

    /// Views those that have no view yet, and ends what readers have given up.
    fn look(&mut self) {
        for sequence in self.active.iter_mut().skip(self.views.len()) {
            if sequence.is_given_up() {
                sequence.outcome = Some(Outcome::Finished(FinishReason::Cancelled));
                self.core.release(sequence);
            }
            self.views.push(self.core.view(sequence));
        }
    }

    /// Decides who takes part in the step, and gets the pages for it.
    fn schedule(&mut self) {
        while let Some(index) = next_start(&self.views, &self.budget()) {
            let sequence = &mut self.active[index];
            if let Err(error) = self.core.start(sequence) {
                self.core.fail(sequence, error.into());
            }
            self.views[index] = self.core.view(sequence);
        }
        let mut shares = std::mem::take(&mut self.shares);
        share_out(&self.views, &self.budget(), &mut shares);
        // By age: a victim is younger or takes no part, so its share is not reserved yet.
        shares.retain(|share| self.reserve(share));
        self.shares = shares;
    }

    fn budget(&self) -> Budget {
        Budget {
            tokens: self.facts.limits.tokens_max,
            outputs: self.facts.limits.outputs_max,
            prefill: self.facts.prefill_chunk,
            pages_free: self.core.kv.free_pages(),
        }
    }

    /// Gets the pages of one share, from victims if need be. False if the share is void.
    fn reserve(&mut self, share: &Share) -> bool {
        loop {
            match self.core.reserve(&self.active[share.index], share.tokens) {
                Ok(true) => return true,
                Ok(false) if !self.views[share.index].started => return false,
                Ok(false) => match victim(&self.views, share.index) {
                    Some(victim) => self.preempt(victim),
                    None => {
                        self.check_hope(share.index);
                        return false;
                    }
                },
                Err(error) => {
                    self.fail(share.index, error);
                    return false;
                }
            }
        }
    }

    /// A sequence that finds no room although nobody else has pages would wait for ever.
    fn check_hope(&mut self, index: usize) {
        let others = self.views.iter().enumerate().filter(|(other, _)| *other != index);
        if others.map(|(_, view)| view.pages).sum::<usize>() == 0 {
            let needed = self.facts.pages + 1;
            let error = KvError::OutOfPages { needed, free: self.core.kv.free_pages() };
            self.fail(index, error.into());
        }
    }

    fn preempt(&mut self, index: usize) {
        self.core.release(&mut self.active[index]);
        self.core.stats.preemptions += 1;
        let view = &mut self.views[index];
        (view.started, view.pages) = (false, 0);
    }

    fn fail(&mut self, index: usize, error: GenerationError) {
        self.core.fail(&mut self.active[index], error);
        let view = &mut self.views[index];
        (view.ready, view.started, view.pages) = (false, false, 0);
    }

    fn run(&mut self) {
        if !self.shares.is_empty() {
            self.core.run(&mut self.active, &self.shares);
            self.retire();
        }
    }

    /// Takes those that are at their end out, frees their pages, lets the statistics say so, and
    /// only then tells their readers. False if there were none.
    fn retire(&mut self) -> bool {
        let is_ended = |sequence: &Sequence| sequence.outcome.is_some();
        if !self.active.iter().any(is_ended) {
            self.publish();
            return false;
        }
        let mut stay = self.active.iter().map(|sequence| !is_ended(sequence));
        self.views.retain(|_| stay.next() == Some(true));
        let mut ended: Vec<Sequence> = self.active.extract_if(.., |sequence| is_ended(sequence)).collect();
        for sequence in &mut ended {
            self.core.release(sequence);
            let stats = &mut self.core.stats;
            match &sequence.outcome {
                Some(Outcome::Finished(FinishReason::Cancelled)) => stats.cancelled += 1,
                Some(Outcome::Finished(_)) => stats.finished += 1,
                Some(Outcome::Failed(_)) | None => stats.failed += 1,
            }
        }
        self.publish();
        ended.into_iter().for_each(Sequence::conclude);
        true
    }

    fn publish(&mut self) {
        let paused = |(view, sequence): &(&View, &Sequence)| !view.ready && sequence.outcome.is_none();
        self.core.stats.paused = self.views.iter().zip(&self.active).filter(paused).count();
        self.core.stats.kv = self.core.kv.stats();
        self.inbox.publish(&self.core.stats);
    }

    /// Waits for the bell: there is nothing to do, or only readers to wait for.
    fn rest(&mut self) {
        debug_assert_eq!(self.core.kv.check_integrity(), Ok(()));
        self.inbox.bell.wait();
    }
}
