//! Penalties for tokens that came before: counting them and lowering their logits.

use super::Sampling;
use super::sampler::Draw;
use crate::token::TokenId;

/// How often each token came; all zero between calls.
#[derive(Debug)]
pub(super) struct Penalties {
    /// `[vocab_size]`: times in prompt and output, times in the output.
    counts: Vec<[u32; 2]>,
    /// The tokens whose counts are not zero, each once.
    seen: Vec<TokenId>,
}

impl Penalties {
    pub(super) fn new(vocab_size: usize) -> Penalties {
        Penalties { counts: vec![[0; 2]; vocab_size], seen: Vec::with_capacity(vocab_size) }
    }

    /// Lowers the logits of what is among the last `penalty_last_n` tokens of the draw's past.
    pub(super) fn apply(&mut self, logits: &mut [f32], draw: &Draw<'_>) {
        if is_neutral(draw.sampling) {
            return;
        }
        self.count(draw);
        for token in self.seen.drain(..) {
            let Some(counts) = self.counts.get_mut(token.index()) else { continue };
            if let Some(logit) = logits.get_mut(token.index()) {
                *logit = penalised(*logit, draw.sampling, *counts);
            }
            *counts = [0; 2];
        }
    }

    #[cfg(test)]
    pub(super) fn scratch_capacity(&self) -> usize {
        self.counts.capacity() + self.seen.capacity()
    }

    fn count(&mut self, draw: &Draw<'_>) {
        let start = draw.tokens.len().saturating_sub(draw.sampling.penalty_last_n);
        for (position, &token) in draw.tokens.iter().enumerate().skip(start) {
            let Some(counts) = self.counts.get_mut(token.index()) else { continue };
            if counts[0] == 0 {
                self.seen.push(token);
            }
            counts[0] += 1;
            counts[1] += u32::from(position >= draw.prompt_len);
        }
    }
}

fn is_neutral(sampling: &Sampling) -> bool {
    sampling.repetition_penalty == 1.0
        && sampling.presence_penalty == 0.0
        && sampling.frequency_penalty == 0.0
}

fn penalised(logit: f32, sampling: &Sampling, [_, in_output]: [u32; 2]) -> f32 {
    let by = sampling.repetition_penalty;
    let repeated = if logit > 0.0 { logit / by } else { logit * by };
    let present = if in_output > 0 { sampling.presence_penalty } else { 0.0 };
    repeated - in_output as f32 * sampling.frequency_penalty - present
}
