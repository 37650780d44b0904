//! [`Sampler`]: from a row of logits to a token, step by step as the module says.

use super::penalties::Penalties;
use super::{Sampling, TokenMask, uniform};
use crate::token::TokenId;

/// Tokens this far below the best (in logits divided by the temperature) are left out at once:
/// even a million of them have less than 2⁻⁶⁰ of the probability, which a draw of 53 bits
/// cannot tell from nothing.
const NEGLIGIBLE: f64 = -60.0;

/// Tokens that are put in order first when only the probable ones matter.
const SORTED_FIRST: usize = 64;

/// What a draw depends on besides the logits.
#[derive(Clone, Copy, Debug)]
pub struct Draw<'a> {
    /// How to sample; [`Sampling::validate`] has accepted it.
    pub sampling: &'a Sampling,
    /// Prompt and output so far.
    pub tokens: &'a [TokenId],
    /// How many of `tokens` are the prompt; the rest were drawn, and their number is the draw's.
    pub prompt_len: usize,
}

/// Why no token could be drawn.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SampleError {
    /// The model computed nonsense.
    #[error("the logit of token {token} is {value}, expected a finite number")]
    NotFinite {
        /// The first such token.
        token: TokenId,
        /// Its logit: NaN or +∞.
        value: f32,
    },
    /// Bias, mask or model forbid everything.
    #[error("no token is allowed: every logit is -inf")]
    NothingAllowed,
    /// A row of another model.
    #[error("{found} logits, expected {expected}")]
    Length {
        /// The sampler's vocabulary.
        expected: usize,
        /// Logits of the row.
        found: usize,
    },
}

/// A token that may be drawn.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    token: TokenId,
    logit: f32,
    /// exp((logit − highest logit) / temperature): the probability up to a common factor.
    weight: f64,
}

/// Draws tokens. Holds scratch only: one sampler serves any number of sequences.
#[derive(Debug)]
pub struct Sampler {
    vocab_size: usize,
    penalties: Penalties,
    candidates: Vec<Candidate>,
}

impl Sampler {
    /// A sampler for rows of `vocab_size` logits.
    pub fn new(vocab_size: usize) -> Sampler {
        Sampler {
            vocab_size,
            penalties: Penalties::new(vocab_size),
            candidates: Vec::with_capacity(vocab_size),
        }
    }

    /// Draws the next token. `logits` is scratch from here on.
    ///
    /// # Errors
    /// [`SampleError`]; a logit of −∞ is not an error but a token that is not drawn.
    pub fn sample(
        &mut self,
        logits: &mut [f32],
        draw: &Draw<'_>,
        mask: Option<&mut (dyn TokenMask + 'static)>,
    ) -> Result<TokenId, SampleError> {
        if logits.len() != self.vocab_size {
            return Err(SampleError::Length { expected: self.vocab_size, found: logits.len() });
        }
        check_finite(logits)?;
        for &(token, bias) in &draw.sampling.logit_bias {
            if let Some(logit) = logits.get_mut(token.index()) {
                *logit += bias;
            }
        }
        if let Some(mask) = mask {
            mask.mask(logits);
            check_finite(logits)?;
        }
        self.penalties.apply(logits, draw);
        let best = argmax(logits)?;
        if draw.sampling.is_greedy() {
            return Ok(best);
        }
        self.gather(logits, best, draw.sampling);
        self.keep_top_k(draw.sampling.top_k);
        self.keep_top_p(f64::from(draw.sampling.top_p));
        self.keep_min_p(f64::from(draw.sampling.min_p));
        let number = draw.tokens.len().saturating_sub(draw.prompt_len) as u64;
        Ok(self.pick(uniform(draw.sampling.seed, number)).unwrap_or(best))
    }

    /// All tokens that are not negligible, by rising id.
    fn gather(&mut self, logits: &[f32], best: TokenId, sampling: &Sampling) {
        let max = logits.get(best.index()).copied().map_or(0.0, f64::from);
        let temperature = f64::from(sampling.temperature);
        self.candidates.clear();
        for (token, &logit) in (0u32..).map(TokenId).zip(logits) {
            let below = (f64::from(logit) - max) / temperature;
            if below >= NEGLIGIBLE {
                self.candidates.push(Candidate { token, logit, weight: below.exp() });
            }
        }
    }

    fn keep_top_k(&mut self, top_k: usize) {
        if top_k > 0 && top_k < self.candidates.len() {
            self.candidates.select_nth_unstable_by(top_k, by_rank);
            self.candidates.truncate(top_k);
        }
    }

    fn keep_top_p(&mut self, top_p: f64) {
        if top_p >= 1.0 {
            return;
        }
        // In order of id, so that the sum does not depend on how top-k left them.
        self.candidates.sort_unstable_by_key(|candidate| candidate.token);
        let enough = top_p * self.total();
        let (mut sorted, mut sum) = (0, 0.0);
        while sorted < self.candidates.len() {
            let end = (2 * sorted).max(SORTED_FIRST).min(self.candidates.len());
            sort_front(&mut self.candidates[sorted..], end - sorted);
            for (index, candidate) in self.candidates.iter().enumerate().take(end).skip(sorted) {
                sum += candidate.weight;
                if sum >= enough {
                    self.candidates.truncate(index + 1);
                    return;
                }
            }
            sorted = end;
        }
    }

    /// The best token's weight is 1, so a weight is the fraction itself.
    fn keep_min_p(&mut self, min_p: f64) {
        if min_p > 0.0 {
            self.candidates.retain(|candidate| candidate.weight >= min_p);
        }
    }

    /// The first token, by rising id, up to which more than `u` of the probability lies.
    fn pick(&mut self, u: f64) -> Option<TokenId> {
        self.candidates.sort_unstable_by_key(|candidate| candidate.token);
        let target = u * self.total();
        let mut sum = 0.0;
        let beyond = |candidate: &&Candidate| {
            sum += candidate.weight;
            sum > target
        };
        let picked = self.candidates.iter().find(beyond).or(self.candidates.last());
        picked.map(|candidate| candidate.token)
    }

    #[cfg(test)]
    pub(super) fn scratch_capacity(&self) -> usize {
        self.candidates.capacity() + self.penalties.scratch_capacity()
    }

    fn total(&self) -> f64 {
        self.candidates.iter().map(|candidate| candidate.weight).sum()
    }
}

/// Most probable first, ties by rising id.
fn by_rank(a: &Candidate, b: &Candidate) -> std::cmp::Ordering {
    b.logit.total_cmp(&a.logit).then(a.token.cmp(&b.token))
}

/// Puts the `count` first by rank in front, in order.
fn sort_front(candidates: &mut [Candidate], count: usize) {
    if count < candidates.len() {
        candidates.select_nth_unstable_by(count, by_rank);
    }
    candidates[..count].sort_unstable_by(by_rank);
}

fn check_finite(logits: &[f32]) -> Result<(), SampleError> {
    let fine = |logit: f32| logit.is_finite() || logit == f32::NEG_INFINITY;
    match logits.iter().position(|&logit| !fine(logit)) {
        Some(index) => Err(SampleError::NotFinite { token: TokenId(index as u32), value: logits[index] }),
        None => Ok(()),
    }
}

/// The highest logit's token, the first of equals.
fn argmax(logits: &[f32]) -> Result<TokenId, SampleError> {
    let mut best = (TokenId(0), f32::NEG_INFINITY);
    for (token, &logit) in (0u32..).map(TokenId).zip(logits) {
        if logit > best.1 {
            best = (token, logit);
        }
    }
    if best.1 == f32::NEG_INFINITY { Err(SampleError::NothingAllowed) } else { Ok(best.0) }
}
