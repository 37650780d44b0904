//! Steps under way, and running ahead: where the backend samples and feeds what it sampled to the next
//! step, that one is launched before the tokens of the one before are looked at, so that the device
//! has work while the host books tokens, makes text and schedules.
//!
//! Only decodes run ahead, and only while they are all there is to do: whatever arrives, ends a wait
//! or needs the host's eye is taken up one step later, by the ordinary way.

use super::scheduler::Share;
use super::step::push_sequence;
use super::worker::Worker;
use crate::ir::{FedRow, RowSampling};
use crate::model::Decoder;
use crate::sample::row_sampling;
use crate::token::TokenId;

/// A sequence's part of a step under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// Place in the worker's list and tokens to compute.
    pub(super) share: Share,
    /// The number of its output, if these are its last pending tokens.
    pub(super) output: Option<usize>,
    /// Whether the step samples that output.
    pub(super) sampled: bool,
}

/// A step that was launched and whose tokens are not booked yet.
#[derive(Debug, Default)]
pub(super) struct Flight {
    /// As the decoder counts steps.
    pub(super) number: u64,
    pub(super) parts: Vec<Part>,
    pub(super) outputs: usize,
    /// Whether it was launched before the tokens of the one before were known.
    pub(super) launched_ahead: bool,
}

impl Flight {
    pub(super) fn clear(&mut self) {
        self.parts.clear();
        (self.outputs, self.launched_ahead) = (0, false);
    }

    /// The sequence at `index` leaves the worker's list: whatever is computed for it is nobody's.
    pub(super) fn forget(&mut self, index: usize) {
        self.parts.retain(|part| part.share.index != index);
        for part in self.parts.iter_mut().filter(|part| part.share.index > index) {
            part.share.index -= 1;
        }
    }
}

impl<D: Decoder> Worker<D> {
    /// How a sequence's next token is sampled, `unknown` tokens behind those that it has; and whether
    /// the decoder does that, or the logits must be looked at.
    pub(super) fn push_sampling(&mut self, index: usize, unknown: u64) -> bool {
        let sequence = &self.sequences[index];
        let request = &sequence.request;
        if request.mask.is_some() || request.top.is_some() {
            self.step.sampling.push(RowSampling::default());
            return false;
        }
        let (history, first) = (sequence.history(), self.step.adjustments.len());
        let position = history.position() + unknown;
        let mut row = row_sampling(&request.sampling, history, position, &mut self.step.adjustments);
        let sampled = self.decoder.samples(&row);
        if !sampled {
            self.step.adjustments.truncate(first);
            row.adjustments = 0..0;
        }
        self.step.sampling.push(row);
        sampled
    }

    /// Launches the step after the one under way, if that may be; then it is in `self.ahead`.
    pub(super) fn run_ahead(&mut self) {
        self.ahead.clear();
        if !self.decoder.runs_ahead() || !self.may_run_ahead() {
            return;
        }
        self.step.clear();
        for part in 0..self.flight.parts.len() {
            let Part { share: Share { index, .. }, output, .. } = self.flight.parts[part];
            let goes_on = self.sequences[index].goes_on();
            if let (Some(output), true) = (output, goes_on)
                && !self.push_fed_row(index, output)
            {
                self.ahead.clear();
                return;
            }
        }
        self.ahead.outputs = self.step.outputs.len();
        // A failure shows again in the step that is run in this one's stead.
        if self.ahead.parts.is_empty() || self.run_step().is_err() {
            self.ahead.clear();
            return;
        }
        (self.ahead.number, self.ahead.launched_ahead) = (self.decoder.steps(), true);
        // Before the step under way ends sequences: the pages are at their most.
        self.publish();
    }

    /// Whether nothing but the step under way and what follows from it is to be done.
    fn may_run_ahead(&self) -> bool {
        let Worker { flight, sequences, config, .. } = self;
        let sampled = |part: &Part| part.sampled && !sequences[part.share.index].request.sampling.penalises();
        // As the scheduler counts: a reader that does not read has no place.
        let awake = || sequences.iter().filter(|sequence| !sequence.is_paused());
        let seated = awake().filter(|sequence| sequence.pages.is_some()).count();
        let full = seated >= config.sequences_max || awake().all(|sequence| sequence.pages.is_some());
        flight.parts.iter().all(sampled)
            && flight.parts.len() == seated
            && full
            && self.prefill.is_none()
            && self.inbox.is_empty()
    }

    /// Adds the row behind a sequence's tokens, whose token is not known yet; whether there are pages for
    /// it, and the decoder samples what follows it.
    fn push_fed_row(&mut self, index: usize, output: usize) -> bool {
        let Some(id) = self.sequences[index].pages else { return false };
        let computed = self.sequences[index].computed;
        let position = self.sequences[index].tokens.len();
        match self.kv.reserve(id, position + 1 - computed) {
            // Its last page has been its own since the step under way was scheduled.
            Ok([]) => {}
            _ => return false,
        }
        let row = self.step.tokens.len() as u32;
        if push_sequence(&mut self.step, &self.kv, id, &[TokenId(0)], position).is_err() {
            return false;
        }
        self.step.fed.push(FedRow { row, output: output as u32 });
        let share = Share { index, tokens: 1 };
        let part = Part { share, output: Some(self.step.outputs.len()), sampled: true };
        self.step.outputs.push(row);
        self.ahead.parts.push(part);
        self.push_sampling(index, 1)
    }
}
