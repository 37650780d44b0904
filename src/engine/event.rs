//! What a reader gets: events, how an answer ended, and the whole answer at once.

use super::stats::{Timings, Usage};
use crate::token::TokenId;

/// What happens in a generation. [`Event::text`] of all events, one behind the other, is the answer.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// A token was generated.
    Token(Token),
    /// The last event.
    Done(Done),
}

impl Event {
    /// The text that became certain with this event: whole UTF-8, possibly empty. The last event has what was held
    /// back until the end was known.
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
    /// Its id.
    pub id: TokenId,
    /// The text that became certain with it: whole UTF-8, possibly empty.
    pub text: String,
    /// If asked for: its log-probability and the best alternatives. Tokens that a mask forced have none.
    pub logprobs: Option<Logprobs>,
}

/// The end of an answer.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Done {
    /// Why the answer ended.
    pub finish: FinishReason,
    /// The stop string that ended it, where one did.
    pub stop: Option<String>,
    /// Text that was held back until the end was known.
    pub text: String,
    /// All tokens of the answer, those of a stop string included, the one that ends the turn not.
    pub tokens: Vec<TokenId>,
    /// The token that ended the turn, where one did. It has no text.
    pub end: Option<Box<Token>>,
    /// Tokens counted.
    pub usage: Usage,
    /// Seconds and rates.
    pub timings: Timings,
}

/// A whole answer: what [`Generation::text`](super::Generation::text) waits for.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Answer {
    /// Its text.
    pub text: String,
    /// All its tokens, as [`Done::tokens`] has them.
    pub tokens: Vec<TokenId>,
    /// Why it ended.
    pub finish: FinishReason,
    /// The stop string that ended it, where one did.
    pub stop: Option<String>,
    /// Tokens counted.
    pub usage: Usage,
    /// Seconds and rates.
    pub timings: Timings,
}

/// Natural logarithms of probabilities under the model's own logits (before any adjustment).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Logprobs {
    /// Of the token chosen.
    pub chosen: f64,
    /// Of the best, best first.
    pub top: Vec<(TokenId, f64)>,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
#[non_exhaustive]
pub enum FinishReason {
    /// A stop string came.
    Stop,
    /// The model ended its turn.
    Eos,
    /// `max_tokens`, or the context is full.
    Length,
    /// The reader cancelled, or a drain cut it off.
    Cancelled,
    /// The request's time was over; what was generated until then has been told.
    Deadline,
    /// The request's mask says that the answer is complete.
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
