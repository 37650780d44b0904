//! Work that is answered once: scores of given tokens, prompts to save or restore (`store` copies
//! their pages), proofs of the books, profiles. A job takes turns with the sequences, a chunk a round.

use std::sync::mpsc::SyncSender;

use super::inbox::Job;
use super::step::push_sequence;
use super::store::Exported;
use super::worker::Worker;
use super::{EngineError, Scores};
use crate::{
    kv::{KvError, SeqId, SequenceSpec},
    model::Decoder,
    sample::{best_logits, log_sum_exp},
    token::TokenId,
};

/// A job that computes given tokens, chunk after chunk.
#[derive(Debug)]
pub(super) struct Prefill {
    ids: Vec<TokenId>,
    seq: SeqId,
    /// Tokens computed.
    done: usize,
    goal: Goal,
}

#[derive(Debug)]
enum Goal {
    /// Logits of the rows from `first` on are looked at.
    Score { first: usize, top: usize, scores: Scores, reply: SyncSender<Result<Scores, EngineError>> },
    /// The pages are copied out at the end.
    Save { reply: SyncSender<Result<Exported, EngineError>> },
}

impl Goal {
    /// Answers with an error. A caller that no longer listens is no concern.
    fn fail(self, error: EngineError) {
        match self {
            Goal::Score { reply, .. } => drop(reply.send(Err(error))),
            Goal::Save { reply, .. } => drop(reply.send(Err(error))),
        }
    }

    /// The first row whose logits are wanted.
    fn first_output(&self) -> usize {
        match self {
            Goal::Score { first, .. } => *first,
            Goal::Save { .. } => usize::MAX,
        }
    }
}

impl<D: Decoder> Worker<D> {
    pub(super) fn start_job(&mut self, job: Job) {
        let (ids, goal) = match job {
            Job::Score { ids, first, top, reply } => {
                (ids, Goal::Score { first, top, scores: Scores::default(), reply })
            }
            Job::Save { ids, reply } => (ids, Goal::Save { reply }),
            // Callers that no longer listen are no concern.
            Job::Restore { snapshot, reply } => return drop(reply.send(self.import(&snapshot))),
            Job::Check { reply } => {
                return drop(reply.send(self.kv.check_integrity().map_err(EngineError::from)));
            }
            Job::StartProfile { reply } => {
                self.start_profile();
                return drop(reply.send(Ok(())));
            }
            Job::TakeProfile { reply } => return drop(reply.send(Ok(self.take_profile()))),
        };
        let spec = SequenceSpec { tokens_max: ids.len(), window: None };
        // Allocated by its first token only: every token is to be computed, none found.
        match self.kv.allocate(&ids[..1], spec) {
            Ok(allocation) => self.prefill = Some(Prefill { ids, seq: allocation.seq, done: 0, goal }),
            Err(error) => goal.fail(error.into()),
        }
    }

    /// Computes the next chunk of the job at work, and answers after the last.
    pub(super) fn continue_job(&mut self) {
        let Some(mut prefill) = self.prefill.take() else { return };
        match self.compute_chunk(&mut prefill) {
            Ok(()) if prefill.done < prefill.ids.len() => self.prefill = Some(prefill),
            Ok(()) => self.finish_job(prefill),
            Err(error) => {
                let released = self.kv.release_unshared(prefill.seq);
                debug_assert!(released.is_ok(), "the job's sequence is live: {released:?}");
                prefill.goal.fail(error);
            }
        }
    }

    fn compute_chunk(&mut self, prefill: &mut Prefill) -> Result<(), EngineError> {
        let rows = self.chunk(prefill);
        self.reserve_for_job(prefill.seq, rows.len())?;
        self.step.clear();
        push_sequence(&mut self.step, &self.kv, prefill.seq, &prefill.ids[rows.clone()], rows.start)?;
        let first_output = prefill.goal.first_output().max(rows.start);
        self.step.outputs.extend((first_output..rows.end).map(|row| (row - rows.start) as u32));
        self.run_step().map_err(EngineError::Step)?;
        if let Goal::Score { top, scores, .. } = &mut prefill.goal {
            for (output, row) in (first_output..rows.end).enumerate() {
                self.decoder
                    .logits(output, &mut self.logits)
                    .map_err(|e| EngineError::Step(e.to_string()))?;
                self.score_row(&prefill.ids, row, *top, scores)?;
            }
        }
        self.kv.advance(prefill.seq, &prefill.ids[rows.clone()])?;
        prefill.done = rows.end;
        Ok(())
    }

    /// The next rows: a prefill chunk, or as many as there may be outputs.
    fn chunk(&self, prefill: &Prefill) -> std::ops::Range<usize> {
        let limits = self.decoder.limits();
        let start = prefill.done;
        let end = (start + self.config.chunk_in(limits)).min(prefill.ids.len());
        let outputs_end = prefill.goal.first_output().max(start).saturating_add(limits.outputs_max);
        start..end.min(outputs_end)
    }

    pub(super) fn reserve_for_job(&mut self, seq: SeqId, tokens: usize) -> Result<(), EngineError> {
        loop {
            match self.kv.reserve(seq, tokens) {
                // A job's pages are its own: nothing is ever copied.
                Ok(_) => {
                    self.publish();
                    return Ok(());
                }
                Err(KvError::OutOfPages { needed, free }) => match self.victim(None) {
                    Some(victim) => self.preempt(victim),
                    None => return Err(KvError::OutOfPages { needed, free }.into()),
                },
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn score_row(
        &mut self,
        ids: &[TokenId],
        row: usize,
        top: usize,
        scores: &mut Scores,
    ) -> Result<(), EngineError> {
        if let Some(next) = ids.get(row + 1) {
            let normaliser =
                log_sum_exp(&self.logits).map_err(|error| EngineError::Step(error.to_string()))?;
            scores.nll.push(normaliser - f64::from(self.logits[next.index()]));
        }
        if top > 0 {
            best_logits(&self.logits, top, &mut self.best);
            let mut best = Vec::new();
            let no_memory = |_| EngineError::HostMemory { bytes: top * size_of::<(TokenId, f32)>() };
            best.try_reserve_exact(self.best.len()).map_err(no_memory)?;
            best.extend(self.best.iter().map(|&(id, logit)| (id, logit as f32)));
            scores.top.push(best);
        }
        Ok(())
    }

    fn finish_job(&mut self, prefill: Prefill) {
        let Prefill { ids, seq, goal, .. } = prefill;
        // A caller that no longer listens is no concern.
        match goal {
            Goal::Score { scores, reply, .. } => drop(reply.send(Ok(scores))),
            Goal::Save { reply } => drop(reply.send(self.export(ids, seq))),
        }
        let released = self.kv.release(seq);
        debug_assert!(released.is_ok(), "the job's sequence is live: {released:?}");
    }
}
