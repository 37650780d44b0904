//! Scoring: how probable a text's own tokens are, computed by chunked prefill beside whatever else
//! runs.

use std::ops::Range;
use std::sync::mpsc::SyncSender;

use super::generation::GenerationError;
use super::sequence::Outcome;
use crate::sample::{SampleError, log_sum_exp, top_logits};
use crate::token::TokenId;

/// A text as the model sees it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scores {
    /// Negative natural logarithm of the probability of each token after the first, given those
    /// before it: `[tokens − 1]`.
    pub nll: Vec<f64>,
    /// The highest logits after each prefix, best first: `[tokens][top]`. Empty if none were asked
    /// for.
    pub top: Vec<Vec<(TokenId, f32)>>,
}

/// What the caller waits for.
pub(super) type ScoreReply = Result<Scores, GenerationError>;

#[derive(Debug)]
pub(super) struct ScoreTask {
    top: usize,
    rows_done: usize,
    scores: Scores,
    reply: SyncSender<ScoreReply>,
}

impl ScoreTask {
    pub(super) fn new(top: usize, reply: SyncSender<ScoreReply>) -> ScoreTask {
        ScoreTask { top, rows_done: 0, scores: Scores::default(), reply }
    }

    /// Rows that are scored; a recomputed sequence does not score them again.
    pub(super) fn rows_done(&self) -> usize {
        self.rows_done
    }

    /// Takes the `logits` after `tokens[..=position]`, for each position once and in order.
    pub(super) fn take(
        &mut self,
        tokens: &[TokenId],
        position: usize,
        logits: &[f32],
    ) -> Result<(), SampleError> {
        if let Some(next) = tokens.get(position + 1) {
            let logit = logits.get(next.index()).copied().unwrap_or(f32::NAN);
            let nll = log_sum_exp(logits) - f64::from(logit);
            if nll.is_nan() {
                return Err(SampleError::NotFinite { token: *next, value: logit });
            }
            self.scores.nll.push(nll);
        }
        if self.top > 0 {
            let mut best = Vec::new();
            top_logits(logits, self.top, &mut best);
            best.shrink_to_fit();
            self.scores.top.push(best);
        }
        self.rows_done = position + 1;
        Ok(())
    }

    /// The rows among `positions` that are not scored yet.
    pub(super) fn rows_new(&self, positions: Range<usize>) -> Range<usize> {
        positions.start.max(self.rows_done)..positions.end
    }

    /// Answers the caller. One that waits no more needs no answer.
    pub(super) fn conclude(self, outcome: Outcome) {
        let answer = match outcome {
            Outcome::Finished(_) => Ok(self.scores),
            Outcome::Failed(error) => Err(error),
        };
        let _ = self.reply.send(answer);
    }
}
