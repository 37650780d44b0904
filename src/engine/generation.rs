//! What a submitted request gives back: an iterator of events that ends with one `Done` or one
//! error.

use std::sync::Arc;
use std::time::Duration;

use super::channel::Receiver;
use crate::kv::KvError;
use crate::model::ModelError;
use crate::sample::SampleError;
use crate::token::TokenId;

/// Why a generation came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FinishReason {
    /// A stop string or a stop id of the request.
    Stop,
    /// One of the request's end-of-sequence ids.
    Eos,
    /// `max_tokens` were generated.
    Length,
    /// The reader asked for it.
    Cancelled,
    /// It failed. An iterator tells of a failure by a [`GenerationError`]; this is for those who
    /// pass a finish reason on.
    Error,
}

/// What a request took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens of the prompt whose keys and values were in the cache already.
    pub cached_tokens: usize,
    /// Tokens generated: as many as there were [`Event::Token`]s.
    pub completion_tokens: usize,
}

/// How long a request took, from its submission on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timings {
    /// Until it first had a share of a step.
    pub queued: Duration,
    /// Until its first token; as `total` if there was none.
    pub first_token: Duration,
    /// Until its end.
    pub total: Duration,
}

impl Timings {
    /// Prompt tokens computed a second.
    pub fn prefill_rate(&self, usage: &Usage) -> f64 {
        let tokens = usage.prompt_tokens.saturating_sub(usage.cached_tokens);
        super::stats::rate(tokens as u64, self.first_token.saturating_sub(self.queued))
    }

    /// Tokens generated a second after the first one.
    pub fn decode_rate(&self, usage: &Usage) -> f64 {
        let tokens = usage.completion_tokens.saturating_sub(1);
        super::stats::rate(tokens as u64, self.total.saturating_sub(self.first_token))
    }
}

/// What happens in a generation.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A token was generated. The last one may be an end-of-sequence or stop id.
    Token {
        /// The token.
        id: TokenId,
        /// The text that is certain now: whole UTF-8, without anything that belongs, or may still
        /// come to belong, to a stop string. Empty without
        /// [`TokenRequest::text`](super::TokenRequest::text).
        text: String,
        /// Natural logarithm of the token's probability before sampling parameters change it, if
        /// asked for.
        logprob: Option<f32>,
        /// The most probable tokens and the logarithms of their probabilities, if asked for.
        top: Vec<(TokenId, f32)>,
    },
    /// The end.
    Done {
        /// Why.
        finish: FinishReason,
        /// What it took.
        usage: Usage,
        /// How long it took.
        timings: Timings,
    },
}

/// Why a request failed. The requests beside it go on, but for [`GenerationError::Stopped`].
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GenerationError {
    /// The model could not run the request's step.
    #[error("step failed: {0}")]
    Step(#[source] Arc<ModelError>),
    /// No token could be drawn.
    #[error("sampling failed: {0}")]
    Sample(#[from] SampleError),
    /// The KV cache refused.
    #[error("KV cache: {0}")]
    Kv(#[from] KvError),
    /// A panic while the request was worked on: a defect of this crate, or of a token mask.
    #[error("panic in the engine: {message}")]
    Panicked {
        /// What the panic said.
        message: String,
    },
    /// The engine has ended: its last handle was dropped, or it broke down.
    #[error("the engine has stopped")]
    Stopped,
}

/// A running request: iterate for its events; drop it, or call [`Generation::cancel`], to end it.
#[derive(Debug)]
pub struct Generation {
    pub(super) receiver: Receiver,
}

impl Generation {
    /// Asks the engine to end the generation within one step. Events that have come already can
    /// still be read, then [`FinishReason::Cancelled`] follows.
    pub fn cancel(&self) {
        self.receiver.cancel();
    }
}

impl Iterator for Generation {
    type Item = Result<Event, GenerationError>;

    /// Waits for the next event. None after `Done` or an error.
    fn next(&mut self) -> Option<Self::Item> {
        self.receiver.wait()
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        self.receiver.cancel();
    }
}

/// The same events without blocking a thread, for any runtime. (Feature `async`.)
#[cfg(feature = "async")]
impl futures_core::Stream for Generation {
    type Item = Result<Event, GenerationError>;

    fn poll_next(
        self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        self.receiver.poll(context)
    }
}
