//! Requests on token ids, and the whole of their validation: what is let in here cannot hurt the
//! engine's thread.

use std::sync::Arc;

use crate::backend::{KvLayout, PAGE_TOKENS, StepLimits, Window};
use crate::sample::{Sampling, SamplingError, TokenMask};
use crate::text::Vocab;
use crate::token::TokenId;

/// Most stop strings of a request.
pub const STOP_STRINGS_MAX: usize = 16;
/// Most bytes of a stop string.
pub const STOP_STRING_BYTES_MAX: usize = 1024;
/// Most tokens whose probabilities a token event tells.
pub const LOGPROBS_MAX: usize = 256;

/// A prompt of token ids and what is to be made of it.
#[derive(Debug, Default)]
pub struct TokenRequest {
    /// The prompt; at least one token.
    pub prompt: Vec<TokenId>,
    /// Most tokens to generate; at least 1.
    pub max_tokens: usize,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Tokens that end the generation with [`FinishReason::Eos`](super::FinishReason::Eos). None
    /// are implied by `text`.
    pub eos_ids: Vec<TokenId>,
    /// Tokens that end the generation with [`FinishReason::Stop`](super::FinishReason::Stop).
    pub stop_ids: Vec<TokenId>,
    /// Texts that end the generation; they need `text`. At most [`STOP_STRINGS_MAX`] of at most
    /// [`STOP_STRING_BYTES_MAX`] bytes.
    pub stop_strings: Vec<String>,
    /// A sliding window for this sequence.
    pub window: Option<Window>,
    /// What tokens spell, if the events are to have text.
    pub text: Option<Arc<Vocab>>,
    /// If the events are to have log probabilities: of the token, and of this many most probable
    /// ones (at most [`LOGPROBS_MAX`]).
    pub logprobs: Option<usize>,
    /// Decides which tokens may come next.
    pub mask: Option<Box<dyn TokenMask>>,
}

/// What is wrong with a request.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidRequest {
    /// No token to start from.
    #[error("prompt: expected at least one token")]
    EmptyPrompt,
    /// Nothing to generate.
    #[error("max_tokens: expected at least 1, found 0")]
    NoTokens,
    /// An id outside the vocabulary.
    #[error("{field}[{index}]: token {token} is outside the vocabulary of {vocab_size}")]
    Token {
        /// The request's field.
        field: &'static str,
        /// Where in it.
        index: usize,
        /// The id.
        token: TokenId,
        /// Tokens of the vocabulary.
        vocab_size: usize,
    },
    /// A sampling parameter.
    #[error("sampling: {0}")]
    Sampling(#[from] SamplingError),
    /// A stop string that is empty.
    #[error("stop_strings[{index}] is empty")]
    EmptyStopString {
        /// Where among the stop strings.
        index: usize,
    },
    /// Stop strings can only be found in text.
    #[error("stop_strings need `text`")]
    StopStringsWithoutText,
    /// More than there may be.
    #[error("{field}: {found}, expected at most {max}")]
    TooMany {
        /// The request's field.
        field: &'static str,
        /// What it asks for.
        found: usize,
        /// Most there may be.
        max: usize,
    },
    /// A window in which a query does not even see itself.
    #[error("window: expected at least 1 token, found 0")]
    EmptyWindow,
}

/// Why a request was not accepted; nothing of it is left.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// The queue is full: try again later.
    #[error("overloaded: {waiting} requests are waiting already")]
    Overloaded {
        /// Requests in the queue.
        waiting: usize,
    },
    /// It would not fit the model's context, or not even an empty KV cache.
    #[error("too long: prompt and output of {tokens} tokens, expected at most {tokens_max}")]
    TooLong {
        /// Tokens of prompt and output.
        tokens: usize,
        /// Most tokens that one request may have.
        tokens_max: usize,
    },
    /// It makes no sense.
    #[error("invalid request: {0}")]
    Invalid(#[from] InvalidRequest),
    /// The engine has ended.
    #[error("the engine has stopped")]
    Stopped,
}

/// What never changes about an engine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    pub(super) vocab_size: usize,
    pub(super) context_max: usize,
    pub(super) pages: usize,
    pub(super) layout: KvLayout,
    pub(super) fingerprint: [u8; 32],
    pub(super) limits: StepLimits,
    /// Most tokens of prefill in a step.
    pub(super) prefill_chunk: usize,
}

impl Facts {
    /// Most tokens of a sequence without a window.
    pub(super) fn tokens_max(&self) -> usize {
        self.context_max.min(self.pages.saturating_mul(PAGE_TOKENS))
    }

    /// Checks ids against the vocabulary.
    pub(super) fn check_ids(&self, field: &'static str, ids: &[TokenId]) -> Result<(), InvalidRequest> {
        let vocab_size = self.vocab_size;
        match ids.iter().position(|id| id.index() >= vocab_size) {
            Some(index) => Err(InvalidRequest::Token { field, index, token: ids[index], vocab_size }),
            None => Ok(()),
        }
    }

    /// Whether `tokens` tokens fit the context, and an otherwise empty cache.
    pub(super) fn check_fit(&self, tokens: usize, window: Option<Window>) -> Result<(), SubmitError> {
        let pages = pages_peak(tokens, window, self.prefill_chunk);
        if tokens <= self.context_max && pages <= self.pages {
            return Ok(());
        }
        Err(SubmitError::TooLong { tokens, tokens_max: self.tokens_max() })
    }

    /// The whole validation of a request for generation.
    pub(super) fn check(&self, request: &TokenRequest) -> Result<(), SubmitError> {
        if request.prompt.is_empty() {
            return Err(InvalidRequest::EmptyPrompt.into());
        }
        if request.max_tokens == 0 {
            return Err(InvalidRequest::NoTokens.into());
        }
        if request.window.is_some_and(|window| window.window == 0) {
            return Err(InvalidRequest::EmptyWindow.into());
        }
        self.check_fit(request.prompt.len().saturating_add(request.max_tokens), request.window)?;
        self.check_ids("prompt", &request.prompt)?;
        self.check_ids("eos_ids", &request.eos_ids)?;
        self.check_ids("stop_ids", &request.stop_ids)?;
        at_most("eos_ids", request.eos_ids.len(), self.vocab_size)?;
        at_most("stop_ids", request.stop_ids.len(), self.vocab_size)?;
        at_most("logprobs", request.logprobs.unwrap_or(0), LOGPROBS_MAX.min(self.vocab_size))?;
        request.sampling.validate(self.vocab_size).map_err(InvalidRequest::from)?;
        check_stop_strings(request)?;
        Ok(())
    }
}

/// Most pages that a sequence has at once: with a window, the sinks', those that the window and a
/// chunk of prefill touch, and one for either ragged end.
fn pages_peak(tokens: usize, window: Option<Window>, chunk: usize) -> usize {
    let all = tokens.div_ceil(PAGE_TOKENS);
    let Some(window) = window else { return all };
    let sinks = (window.sinks as usize).div_ceil(PAGE_TOKENS);
    let seen = (window.window as usize).saturating_add(chunk).div_ceil(PAGE_TOKENS);
    all.min(sinks.saturating_add(seen).saturating_add(2))
}

fn check_stop_strings(request: &TokenRequest) -> Result<(), InvalidRequest> {
    let stops = &request.stop_strings;
    at_most("stop_strings", stops.len(), STOP_STRINGS_MAX)?;
    if !stops.is_empty() && request.text.is_none() {
        return Err(InvalidRequest::StopStringsWithoutText);
    }
    for (index, stop) in stops.iter().enumerate() {
        if stop.is_empty() {
            return Err(InvalidRequest::EmptyStopString { index });
        }
        at_most("bytes of a stop string", stop.len(), STOP_STRING_BYTES_MAX)?;
    }
    Ok(())
}

pub(super) fn at_most(field: &'static str, found: usize, max: usize) -> Result<(), InvalidRequest> {
    if found <= max { Ok(()) } else { Err(InvalidRequest::TooMany { field, found, max }) }
}
