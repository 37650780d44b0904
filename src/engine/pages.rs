//! Pages for the scheduled shares: who gets them, who gives them up, and who must wait.

use super::generation::GenerationError;
use super::scheduler::{Candidate, Room, Share, schedule};
use super::stats::add;
use super::worker::Worker;
use crate::{
    kv::{KvError, SeqId, SequenceSpec},
    model::Decoder,
};

impl<D: Decoder> Worker<D> {
    pub(super) fn schedule(&mut self) {
        self.candidates.clear();
        self.candidates.extend(self.sequences.iter().enumerate().map(|(index, sequence)| Candidate {
            index,
            pending: sequence.pending(),
            running: sequence.pages.is_some(),
            paused: sequence.is_paused(),
        }));
        let limits = self.decoder.limits();
        let prefill_chunk = self.config.chunk_in(limits);
        let room = Room { limits, prefill_chunk, sequences_max: self.config.sequences_max };
        schedule(&self.candidates, &room, &mut self.shares);
    }

    /// Gets each share its pages, oldest first; who finds none waits for another step.
    pub(super) fn secure_pages(&mut self) {
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
}
