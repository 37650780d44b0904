//! [`TokenRequest`], the engine's input, and its validation.

use std::sync::Arc;
use std::time::Instant;

use super::SubmitError;
use crate::ir::Window;
use crate::sample::{Sampling, TokenMask};
use crate::text::{StopScope, Vocab};
use crate::token::TokenId;

/// Most stop strings of a request.
const STOP_STRINGS_MAX: usize = 64;
/// Most bytes of one stop string.
const STOP_BYTES_MAX: usize = 1024;
/// Most alternatives reported per token.
const TOP_MAX: usize = 100;

/// A request in token ids. [`TokenRequest::new`] sets defaults; other fields are set one by one.
#[non_exhaustive]
pub struct TokenRequest {
    /// Prompt tokens; at least one.
    pub prompt: Vec<TokenId>,
    /// Most tokens to generate; at least 1.
    pub max_tokens: usize,
    /// Sampling parameters. Default: greedy.
    pub sampling: Sampling,
    /// Number of tokens before which no stop id is sampled, and within which no stop string ends. A mask may
    /// complete the answer sooner, and so may `max_tokens`. Default: 0.
    pub min_tokens: usize,
    /// Token ids that end the answer and are not part of it: [`super::FinishReason::Eos`]. Default: none.
    pub stop_ids: Vec<TokenId>,
    /// Stop strings, which end the answer and are not part of it. They need `text`. Default: none.
    pub stop_strings: Vec<String>,
    /// Stretches of the text in which stop strings count. Default: `None`, everywhere.
    pub stop_scope: Option<Box<dyn StopScope>>,
    /// Whether the text includes the stop string, or the text of the stop id, that ended the answer. Default:
    /// false.
    pub include_stop: bool,
    /// Sliding window with attention sinks. Default: `None`, the whole context.
    pub window: Option<Window>,
    /// Vocabulary for detokenization. Default: `None`, events carry no text.
    pub text: Option<Arc<Vocab>>,
    /// Control tokens shown in events' text, such as markers that a parser reads. All others are hidden.
    /// Default: none.
    pub show_control_tokens: Vec<TokenId>,
    /// Number of best alternatives to report with each token's log-probability. Default: `None`, no
    /// log-probabilities.
    pub top: Option<usize>,
    /// Mask of allowed tokens, for grammars. Default: `None`.
    pub mask: Option<Box<dyn TokenMask>>,
    /// Time at which the answer ends at the latest: in the queue, in its prompt or among its tokens. Checked
    /// between steps. Default: `None`.
    pub deadline: Option<Instant>,
    /// Higher priority is scheduled first and preempted last; ties by arrival. Default: 0.
    pub priority: i8,
    /// Prefix-cache salt: pages are shared only between requests with equal salts. Default: `None`.
    pub cache_salt: Option<[u8; 32]>,
    /// Id for the caller's use, returned by [`Generation::id`](super::Generation::id). Default: `None`.
    pub id: Option<u64>,
}

/// Limits that requests are checked against.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestLimits {
    pub(super) vocab: usize,
    pub(super) context_max: usize,
}

impl TokenRequest {
    /// A greedy request without text or stops.
    pub fn new(prompt: Vec<TokenId>, max_tokens: usize) -> TokenRequest {
        TokenRequest {
            prompt,
            max_tokens,
            sampling: Sampling::default(),
            min_tokens: 0,
            stop_ids: Vec::new(),
            stop_strings: Vec::new(),
            stop_scope: None,
            include_stop: false,
            window: None,
            text: None,
            show_control_tokens: Vec::new(),
            top: None,
            mask: None,
            deadline: None,
            priority: 0,
            cache_salt: None,
            id: None,
        }
    }

    /// Checks everything that the step loop takes for granted.
    pub(super) fn check(&self, limits: RequestLimits) -> Result<(), SubmitError> {
        let invalid = |field, message: String| Err(SubmitError::invalid(field, message));
        if self.max_tokens == 0 {
            return invalid("max_tokens", "expected at least 1, found 0".into());
        }
        let tokens = self.prompt.len();
        if tokens >= limits.context_max {
            return Err(SubmitError::TooLong { tokens, context_max: limits.context_max });
        }
        check_prompt(&self.prompt, limits.vocab)?;
        if self.stop_strings.len() > STOP_STRINGS_MAX {
            let found = self.stop_strings.len();
            return invalid("stop", format!("expected at most {STOP_STRINGS_MAX} texts, found {found}"));
        }
        let bad = |text: &&String| text.is_empty() || text.len() > STOP_BYTES_MAX;
        if let Some(text) = self.stop_strings.iter().find(bad) {
            let found = text.len();
            return invalid("stop", format!("expected texts of 1 to {STOP_BYTES_MAX} bytes, found {found}"));
        }
        let lists = [("stop", self.stop_ids.len()), ("logit_bias", self.sampling.logit_bias.len())];
        if let Some((name, found)) = lists.into_iter().find(|&(_, len)| len > limits.vocab) {
            return invalid(name, format!("expected at most {} tokens, found {found}", limits.vocab));
        }
        if !self.stop_strings.is_empty() && self.text.is_none() {
            return invalid("stop", "texts need a vocabulary".into());
        }
        if let Some(top) = self.top.filter(|&top| top > TOP_MAX) {
            return invalid("top_logprobs", format!("expected at most {TOP_MAX}, found {top}"));
        }
        if self.window.is_some_and(|window| window.window == 0) {
            return invalid("window", "expected at least 1 token, found 0".into());
        }
        Ok(self.sampling.check(limits.vocab)?)
    }
}

impl TokenRequest {
    /// Sets the sampling parameters that forbid stop ids before `min_tokens` tokens.
    pub(super) fn forbid_early_ends(&mut self, vocab: usize) {
        if self.min_tokens == 0 {
            return;
        }
        let mut ends: Vec<TokenId> = self.stop_ids.iter().copied().filter(|id| id.index() < vocab).collect();
        ends.sort_unstable();
        ends.dedup();
        (self.sampling.min_tokens, self.sampling.ends) = (self.min_tokens, ends);
    }
}

/// Prints counts only: a prompt is a user's text.
impl std::fmt::Debug for TokenRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenRequest")
            .field("prompt_tokens", &self.prompt.len())
            .field("max_tokens", &self.max_tokens)
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// Checks that a prompt is not empty and within the vocabulary.
pub(super) fn check_prompt(prompt: &[TokenId], vocab: usize) -> Result<(), SubmitError> {
    if prompt.is_empty() {
        return Err(SubmitError::invalid("prompt", "expected at least 1 token, found none"));
    }
    match prompt.iter().position(|id| id.index() >= vocab) {
        Some(at) => {
            let id = prompt[at];
            Err(SubmitError::invalid("prompt", format!("token {at} is {id}, the vocabulary has {vocab}")))
        }
        None => Ok(()),
    }
}
