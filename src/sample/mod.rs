//! Sampling: one row of logits becomes one token id.
//!
//! [`Sampling`] says how, [`Sampler`] does it, with scratch that it reuses: after the first token
//! it allocates nothing. What happens to the logits, in this order:
//!
//! 1. logit bias, then the [`TokenMask`]
//! 2. repetition, then frequency and presence penalty
//! 3. temperature (0: the highest logit wins, ties go to the lowest id, and the rest is left out)
//! 4. top-k, then top-p over what is left, then min-p
//! 5. one draw by the inverse of the cumulative distribution, over what is left by rising id
//!
//! Draw number `n` of a seed is a pure function of `(seed, n)`: replay, batching and preemption
//! cannot change it. `sampler` has the steps, `penalties` the counting, `random` the numbers,
//! `logprob` what is told about a row besides its token. Nothing here knows models or requests.

#![forbid(unsafe_code)]

mod logprob;
mod penalties;
mod random;
mod sampler;
mod sampling;
#[cfg(test)]
mod tests;

pub use logprob::{log_sum_exp, top_logits};
pub use random::{philox4x32, uniform};
pub use sampler::{Draw, SampleError, Sampler};
pub use sampling::{Sampling, SamplingError};

use crate::token::TokenId;

/// Decides which tokens may come next: the hook for grammars.
///
/// The mask of a sequence sees each generated token exactly once and in order, whatever the
/// engine does to the sequence in between.
pub trait TokenMask: std::fmt::Debug + Send {
    /// Sets the logits, `[vocab_size]`, of all tokens that must not come next to
    /// [`f32::NEG_INFINITY`], and leaves the others alone.
    fn mask(&mut self, logits: &mut [f32]);

    /// This token has come.
    fn accept(&mut self, token: TokenId);
}
