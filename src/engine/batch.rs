//! The batch of a step: the plan's rows in the decoder's form, and the outputs of each sequence.

use std::ops::Range;

use super::failure::Failure;
use super::scheduler::Scheduled;
use super::sequence::Sequence;
use super::table::{SequenceTable, SlotId};
use crate::ir::{FedRow, RowSampling, StepInput, StepSequence};
use crate::kv::{KvCacheManager, KvError, SeqId};
use crate::sample::row_sampling;
use crate::token::TokenId;

/// A sequence's part of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) slot: SlotId,
    /// Tokens to compute.
    pub(super) tokens: usize,
    /// Indices of its outputs, which belong to its last rows.
    pub(super) outputs: Range<usize>,
    /// Whether the decoder samples them.
    pub(super) sampled: bool,
}

/// One step: ready to run, or in flight until its tokens are committed.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) input: StepInput,
    pub(super) parts: Vec<Part>,
    /// The step's number in the decoder's count, once it runs.
    pub(super) number: u64,
}

impl Batch {
    /// Empties the batch and keeps its memory.
    pub(super) fn clear(&mut self) {
        self.input.clear();
        self.parts.clear();
    }

    /// Whether its rows are fed with tokens that the previous step sampled.
    pub(super) fn is_ahead(&self) -> bool {
        !self.input.fed.is_empty()
    }

    /// Drops the parts of sequences that have ended, and with them their results.
    pub(super) fn keep_live(&mut self, table: &SequenceTable) {
        self.parts.retain(|part| table.get(part.slot).is_some());
    }

    /// Fills the batch with the scheduled rows. `samples` is whether the decoder samples a row itself.
    ///
    /// # Errors
    /// [`Failure::Kv`] if the page table lacks a sequence.
    pub(super) fn fill(
        &mut self,
        scheduled: &[Scheduled],
        table: &SequenceTable,
        kv: &KvCacheManager,
        samples: impl Fn(&RowSampling) -> bool,
    ) -> Result<(), Failure> {
        self.clear();
        for part in scheduled {
            // A failed page copy has ended the sequence already.
            let Some(sequence) = table.get(part.slot) else { continue };
            let id = sequence.pages.ok_or(Failure::Internal("a scheduled sequence has no pages"))?;
            let outputs = self.push_rows(part, sequence, id, kv)?;
            let unknown = u64::from(part.fed.is_some());
            let sampled =
                outputs.clone().fold(true, |all, _| self.push_sampling(sequence, unknown, &samples) && all);
            self.parts.push(Part {
                slot: part.slot,
                tokens: part.tokens,
                sampled: sampled && !outputs.is_empty(),
                outputs,
            });
        }
        Ok(())
    }

    /// Adds a sequence's rows with its page table. Returns the indices of their outputs.
    fn push_rows(
        &mut self,
        part: &Scheduled,
        sequence: &Sequence,
        id: SeqId,
        kv: &KvCacheManager,
    ) -> Result<Range<usize>, KvError> {
        let input = &mut self.input;
        let (row, page, output) = (input.tokens.len() as u32, input.pages.len() as u32, input.outputs.len());
        let (first, without_output) = match part.fed {
            None => (sequence.computed, sequence.without_output()),
            // The token after all known ones.
            Some(output) => {
                input.fed.push(FedRow { row, output: output as u32 });
                (sequence.tokens.len(), 0)
            }
        };
        let known = sequence.tokens.iter().skip(first).copied();
        input.tokens.extend(known.chain(std::iter::repeat(TokenId(0))).take(part.tokens));
        let rows = row..input.tokens.len() as u32;
        input.positions.extend((first as u32..).take(part.tokens));
        input.pages.extend_from_slice(kv.pages(id)?);
        let pages = page..input.pages.len() as u32;
        input.sequences.push(StepSequence { rows: rows.clone(), pages, window: kv.window(id)? });
        input.states.extend(kv.states(id)?);
        input.outputs.extend(rows.skip(without_output));
        Ok(output..input.outputs.len())
    }

    /// Adds the sampling parameters of a sequence's next token, `unknown` positions after its known tokens.
    /// Returns whether the decoder samples it; otherwise the host reads the logits.
    fn push_sampling(
        &mut self,
        sequence: &Sequence,
        unknown: u64,
        samples: &impl Fn(&RowSampling) -> bool,
    ) -> bool {
        let StepInput { sampling, adjustments, .. } = &mut self.input;
        let answer = sequence.answer().filter(|answer| answer.mask.is_none() && answer.request.top.is_none());
        let Some(request) = answer.map(|answer| &answer.request) else {
            sampling.push(RowSampling::default());
            return false;
        };
        let (history, first) = (sequence.history(), adjustments.len());
        let mut row = row_sampling(&request.sampling, history, history.position() + unknown, adjustments);
        let sampled = samples(&row);
        if !sampled {
            adjustments.truncate(first);
            row.adjustments = 0..0;
        }
        sampling.push(row);
        sampled
    }
}
