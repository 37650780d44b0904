//! Token choice: the result of a finished step for each sequence. A failure concerns one sequence only.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

use super::Scores;
use super::answer::{Answer, PendingMask};
use super::batch::Part;
use super::event::Logprobs;
use super::failure::{Failure, caught};
use super::mask_task::{Advance, Next};
use super::pool::MaskPool;
use super::request::TokenRequest;
use super::request_queue::RequestQueue;
use super::sequence::{Goal, Sequence, StepOutput};
use super::store::Exported;
use super::table::{SequenceTable, SlotId};
use crate::{
    sample::{History, Sampler, Sampling, TokenSet, best_logits, log_sum_exp},
    token::TokenId,
};

/// The outputs of a finished step, by index, and the pages that it wrote.
pub(super) trait Outputs {
    /// The token that the step sampled; `None` if it did not sample this output or found no token to take.
    fn sampled(&self, output: usize) -> Result<Option<TokenId>, Failure>;

    /// Copies out the logits, `[vocab]`.
    fn logits(&self, output: usize, out: &mut [f32]) -> Result<(), Failure>;

    /// Copies out the pages of a sequence.
    fn export(&self, sequence: &Sequence) -> Result<Exported, Failure>;
}

/// A sequence's result for the tokens that a step computed.
#[derive(Debug)]
pub(super) struct RowResult {
    pub(super) slot: SlotId,
    pub(super) tokens: usize,
    pub(super) output: Result<StepOutput, Failure>,
}

/// Chooses tokens and scores rows; keeps its scratch between steps.
#[derive(Debug)]
pub(super) struct Chooser {
    /// `[vocab]`
    logits: Vec<f32>,
    best: Vec<(TokenId, f64)>,
    sampler: Sampler,
    masks: MaskPool,
    /// Deadline for the masks of the current step.
    due: Instant,
}

impl Chooser {
    pub(super) fn new(vocab: usize, queue: Arc<RequestQueue>) -> Chooser {
        let (best, sampler, masks) = (Vec::new(), Sampler::default(), MaskPool::new(move || queue.enter()));
        Chooser { logits: vec![0.0; vocab], best, sampler, masks, due: Instant::now() }
    }

    /// Registers the mask of a new sequence, if it has one, with the mask pool.
    pub(super) fn adopt_mask(&self, sequence: &mut Sequence) {
        if let Some(mask) = sequence.mask() {
            mask.adopt(&self.masks);
        }
    }

    /// Starts the masks of new answers, so that they run in parallel with the answers' first step.
    pub(super) fn start_masks(&self, parts: &[Part], table: &mut SequenceTable) {
        for part in parts.iter().filter(|part| !part.outputs.is_empty()) {
            if let Some(mask) = table.get_mut(part.slot).and_then(Sequence::mask) {
                mask.start(&self.masks, self.logits.len());
            }
        }
    }

    /// Makes a result for each part of a live sequence. Masks process the chosen tokens in parallel; a mask
    /// that is not done at `due` is late, and its result is marked as pending.
    pub(super) fn choose_all(
        &mut self,
        parts: &[Part],
        due: Instant,
        outputs: &impl Outputs,
        table: &mut SequenceTable,
        results: &mut Vec<RowResult>,
    ) {
        self.due = due;
        results.clear();
        for part in parts {
            let Some(sequence) = table.get_mut(part.slot) else { continue };
            let output = self.choose_for(part, outputs, sequence);
            if matches!(output, Ok(StepOutput::Late)) {
                sequence.set_pending(PendingMask::Next);
            }
            results.push(RowResult { slot: part.slot, tokens: part.tokens, output });
        }
        for result in results {
            let Ok(StepOutput::Masked { ids, finished, .. }) = &mut result.output else { continue };
            let Some(sequence) = table.get_mut(result.slot) else { continue };
            let Some(mask) = sequence.mask() else { continue };
            match mask.advanced(&self.masks, due) {
                Ok(Some(advance)) => {
                    ids.extend(advance.forced);
                    *finished |= advance.finished;
                }
                Ok(None) => sequence.set_pending(PendingMask::Advance),
                Err(error) => result.output = Err(error.into()),
            }
        }
    }

    /// Collects the results of late masks that have arrived.
    pub(super) fn take_pending(&mut self, table: &mut SequenceTable, results: &mut Vec<RowResult>) {
        let (now, vocab) = (Instant::now(), self.logits.len());
        results.clear();
        for slot in table.pending_masks().collect::<Vec<_>>() {
            let Some(Goal::Generate(answer)) = table.get_mut(slot).map(|sequence| &mut sequence.goal) else {
                continue;
            };
            let (Some(mask), Some(pending)) = (&mut answer.mask, answer.pending_mask) else { continue };
            let taken = match pending {
                PendingMask::Advance => mask.advanced(&self.masks, now).map(|advance| {
                    advance.map(|Advance { forced: ids, finished }| StepOutput::Masked {
                        ids,
                        logprobs: None,
                        finished,
                    })
                }),
                PendingMask::Next => {
                    mask.next(&self.masks, vocab, now).map(|next| next.map(|_| StepOutput::Nothing))
                }
            };
            let Some(output) = taken.map_err(Failure::from).transpose() else { continue };
            answer.pending_mask = None;
            results.push(RowResult { slot, tokens: 0, output });
        }
    }

    fn choose_for(
        &mut self,
        part: &Part,
        outputs: &impl Outputs,
        sequence: &mut Sequence,
    ) -> Result<StepOutput, Failure> {
        let complete = part.tokens == sequence.pending();
        let left = sequence.tokens_max().saturating_sub(sequence.tokens.len());
        match &mut sequence.goal {
            Goal::Generate(_) if part.outputs.is_empty() => Ok(StepOutput::Nothing),
            Goal::Generate(answer) => self.token(part, outputs, (answer, left), &sequence.tokens),
            Goal::Score { top, .. } => {
                let (top, end) = (*top, sequence.computed + part.tokens);
                let following = sequence.tokens.get(end + 1 - part.outputs.len()..).unwrap_or_default();
                self.scores(part, outputs, following, top)
            }
            Goal::Save { .. } if complete => outputs.export(sequence).map(StepOutput::Pages),
            Goal::Save { .. } => Ok(StepOutput::Nothing),
        }
    }

    /// The token that the step sampled, or else one chosen on the host by mask and logits.
    fn token(
        &mut self,
        part: &Part,
        outputs: &impl Outputs,
        (answer, left): (&mut Answer, usize),
        tokens: &[TokenId],
    ) -> Result<StepOutput, Failure> {
        let output = part.outputs.start;
        if let Some(token) = outputs.sampled(output)?.filter(|_| part.sampled) {
            return Ok(StepOutput::Token(token, None));
        }
        // Unwind safe: the scratch is refilled for each choice.
        let chosen = caught(|| {
            let logits = |out: &mut [f32]| outputs.logits(output, out);
            self.choose(logits, (answer, left), tokens)
        });
        chosen.unwrap_or(Err(Failure::Internal("choosing a token panicked")))
    }

    /// Chooses a token on the host. A mask, if there is one, then starts on the tokens after it.
    fn choose(
        &mut self,
        logits: impl Fn(&mut [f32]) -> Result<(), Failure>,
        (answer, left): (&mut Answer, usize),
        tokens: &[TokenId],
    ) -> Result<StepOutput, Failure> {
        // Free slots of the reader's buffer, capped by the tokens left to the answer; a scheduled sequence
        // has at least one. A longer forced run continues in a later step.
        let (room, vocab) = (answer.room().min(left).max(1), self.logits.len());
        let Answer { request, mask, .. } = answer;
        let Some(mask) = mask else {
            logits(&mut self.logits)?;
            let (token, logprobs) = self.sample(request, None, tokens)?;
            return Ok(StepOutput::Token(token, logprobs));
        };
        let Some(next) = mask.next(&self.masks, vocab, self.due)? else { return Ok(StepOutput::Late) };
        let (ids, logprobs, most) = match next {
            Next::End => return Ok(StepOutput::Masked { ids: Vec::new(), logprobs: None, finished: true }),
            Next::Forced(run) => (run.get(..room).unwrap_or(run).to_vec(), None, Some(0)),
            Next::Allowed(allowed) => {
                logits(&mut self.logits)?;
                let (token, logprobs) = self.sample(request, Some(allowed), tokens)?;
                // No mask result is needed after the end of the turn.
                let continues = !request.stop_ids.contains(&token);
                (vec![token], logprobs, continues.then_some(room - 1))
            }
        };
        if let Some(most) = most {
            mask.advance(&ids, most, &self.masks, vocab);
        }
        Ok(StepOutput::Masked { ids, logprobs, finished: false })
    }

    /// Samples a token from `self.logits`, with log-probabilities if requested.
    fn sample(
        &mut self,
        request: &TokenRequest,
        allowed: Option<&TokenSet>,
        tokens: &[TokenId],
    ) -> Result<(TokenId, Option<Logprobs>), Failure> {
        let normaliser = request.top.map(|_| log_sum_exp(&self.logits)).transpose()?;
        best_logits(&self.logits, request.top.unwrap_or(0), &mut self.best);
        let own = normaliser.map(|_| self.logits.clone());
        let history = History { tokens, prompt: request.prompt.len() };
        let sampling = sampling_within(&request.sampling, allowed, history);
        let token = self.sampler.choose(&mut self.logits, &sampling, allowed, history)?;
        let logprobs = normaliser.zip(own).map(|(normaliser, own)| Logprobs {
            chosen: f64::from(own[token.index()]) - normaliser,
            top: self.best.iter().map(|&(id, logit)| (id, logit - normaliser)).collect(),
        });
        Ok((token, logprobs))
    }

    /// Scores rows. `following` holds the tokens after them, beginning after the first row.
    fn scores(
        &mut self,
        part: &Part,
        outputs: &impl Outputs,
        following: &[TokenId],
        top: usize,
    ) -> Result<StepOutput, Failure> {
        let mut scores = Scores::default();
        let mut following = following.iter();
        for output in part.outputs.clone() {
            let next = following.next();
            if next.is_none() && top == 0 {
                continue;
            }
            outputs.logits(output, &mut self.logits)?;
            let log_sum = log_sum_exp(&self.logits)?;
            scores.nll.extend(next.map(|next| log_sum - f64::from(self.logits[next.index()])));
            if top > 0 {
                scores.log_sums.push(log_sum);
                scores.top.push(self.best(top)?);
            }
        }
        Ok(StepOutput::Scores(scores))
    }

    /// The `top` best logits, best first.
    fn best(&mut self, top: usize) -> Result<Vec<(TokenId, f32)>, Failure> {
        best_logits(&self.logits, top, &mut self.best);
        let mut best = Vec::new();
        let no_memory = |_| Failure::HostMemory(top * size_of::<(TokenId, f32)>());
        best.try_reserve_exact(self.best.len()).map_err(no_memory)?;
        best.extend(self.best.iter().map(|&(id, logit)| (id, logit as f32)));
        Ok(best)
    }
}

/// The sampling parameters for a choice among `allowed`. If a mask allows nothing but the end of the
/// answer, it prevails over `min_tokens`.
fn sampling_within<'s>(
    sampling: &'s Sampling,
    allowed: Option<&TokenSet>,
    history: History<'_>,
) -> Cow<'s, Sampling> {
    let ends = sampling.forbidden_at(history.position());
    let is_over =
        |allowed: &TokenSet| ends.iter().filter(|&&id| allowed.contains(id)).count() == allowed.len();
    if ends.is_empty() || !allowed.is_some_and(is_over) {
        return Cow::Borrowed(sampling);
    }
    Cow::Owned(Sampling { min_tokens: 0, ..sampling.clone() })
}
