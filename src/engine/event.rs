//! The events of a generation, the finish reasons, and the collected answer.

use super::stats::{Timings, Usage};
use crate::token::TokenId;

/// An event of a generation. The [`Event::text`] of all events, concatenated, is the answer.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// A token was generated.
    Token(Token),
    /// The last event.
    Done(Done),
}

impl Event {
    /// The text that became certain with this event: whole UTF-8, possibly empty. The last event has the text
    /// held back until the end.
    pub fn text(&self) -> &str {
        match self {
            Event::Token(token) => &token.text,
            Event::Done(done) => &done.text,
        }
    }
}

/// A generated token.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Token {
    /// The token's id.
    pub id: TokenId,
    /// The text that became certain with it: whole UTF-8, possibly empty.
    pub text: String,
    /// The token's log-probability and the best alternatives, if requested. Tokens forced by a mask have
    /// none.
    pub logprobs: Option<Logprobs>,
}

/// The end of an answer.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Done {
    /// Why the answer ended.
    pub finish: FinishReason,
    /// The stop string that ended the answer, if one did.
    pub stop: Option<String>,
    /// Text held back until the end.
    pub text: String,
    /// All tokens of the answer, including those of a stop string, excluding the token that ended the turn.
    pub tokens: Vec<TokenId>,
    /// The token that ended the turn, if one did. It has no text.
    pub end: Option<Box<Token>>,
    /// Token counts.
    pub usage: Usage,
    /// Durations in seconds, and rates.
    pub timings: Timings,
}

/// A whole answer, collected by [`Generation::text`](super::Generation::text).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Answer {
    /// The answer's text.
    pub text: String,
    /// All tokens of the answer, as in [`Done::tokens`].
    pub tokens: Vec<TokenId>,
    /// Why the answer ended.
    pub finish: FinishReason,
    /// The stop string that ended the answer, if one did.
    pub stop: Option<String>,
    /// Token counts.
    pub usage: Usage,
    /// Durations in seconds, and rates.
    pub timings: Timings,
}

/// Natural logarithms of probabilities under the model's own logits, before any adjustment.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Logprobs {
    /// Log-probability of the chosen token.
    pub chosen: f64,
    /// Log-probabilities of the best tokens, best first.
    pub top: Vec<(TokenId, f64)>,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
#[non_exhaustive]
pub enum FinishReason {
    /// A stop string was generated.
    Stop,
    /// The model ended its turn.
    Eos,
    /// `max_tokens` is reached, or the context is full.
    Length,
    /// The reader cancelled, or a drain aborted the answer.
    Cancelled,
    /// The request's deadline passed; the text until then was delivered.
    Deadline,
    /// The request's mask declared the answer complete.
    Mask,
}

impl std::fmt::Display for FinishReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            FinishReason::Stop => "stop",
            FinishReason::Eos => "eos",
            FinishReason::Length => "length",
            FinishReason::Cancelled => "cancelled",
            FinishReason::Deadline => "deadline",
            FinishReason::Mask => "mask",
        })
    }
}
