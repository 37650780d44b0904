//! A generation on the engine's thread: from a drawn token to an event, and when it is the last.

use std::sync::Arc;

use super::channel::{Item, Sender};
use super::generation::{Event, FinishReason, Timings, Usage};
use super::request::TokenRequest;
use super::sequence::Outcome;
use crate::sample::{Sampling, TokenMask, log_sum_exp, top_logits};
use crate::text::{Detokenizer, StopMatcher, Vocab};
use crate::token::TokenId;

/// What a generation keeps besides its tokens.
#[derive(Debug)]
pub(super) struct Generate {
    pub(super) sampling: Sampling,
    pub(super) mask: Option<Box<dyn TokenMask>>,
    pub(super) logprobs: Option<usize>,
    pub(super) sender: Sender,
    max_tokens: usize,
    eos_ids: Vec<TokenId>,
    stop_ids: Vec<TokenId>,
    text: Option<TextStream>,
}

/// Probabilities that an event tells.
#[derive(Debug, Default)]
pub(super) struct Logprobs {
    pub(super) own: Option<f32>,
    pub(super) top: Vec<(TokenId, f32)>,
}

impl Logprobs {
    /// Of `token` and of the `count` best, by the untouched `logits`.
    pub(super) fn of(logits: &[f32], token: TokenId, count: usize) -> Logprobs {
        let total = log_sum_exp(logits);
        let logprob = |logit: f32| (f64::from(logit) - total) as f32;
        let mut top = Vec::new();
        top_logits(logits, count, &mut top);
        top.iter_mut().for_each(|(_, value)| *value = logprob(*value));
        Logprobs { own: logits.get(token.index()).map(|&logit| logprob(logit)), top }
    }
}

impl Generate {
    /// The request without its prompt.
    pub(super) fn new(request: TokenRequest, sender: Sender) -> Generate {
        let stop_strings = request.stop_strings;
        Generate {
            sampling: request.sampling,
            mask: request.mask,
            logprobs: request.logprobs,
            sender,
            max_tokens: request.max_tokens,
            eos_ids: request.eos_ids,
            stop_ids: request.stop_ids,
            text: request.text.map(|vocab| TextStream::new(&vocab, stop_strings)),
        }
    }

    /// Sends the event of a new token, number `generated` (from 1); says why it is the last, if
    /// it is.
    pub(super) fn emit(&mut self, id: TokenId, generated: usize, logprobs: Logprobs) -> Option<FinishReason> {
        let mut text = String::new();
        let finish = self.advance_to(id, generated, &mut text);
        if let (Some(_), Some(stream)) = (finish, &mut self.text) {
            stream.finish(&mut text);
        }
        self.sender.send(Event::Token { id, text, logprob: logprobs.own, top: logprobs.top });
        finish
    }

    /// Adds the text that a token makes certain; says why the token is the last, if it is.
    fn advance_to(&mut self, id: TokenId, generated: usize, text: &mut String) -> Option<FinishReason> {
        if self.eos_ids.contains(&id) {
            return Some(FinishReason::Eos);
        }
        if self.stop_ids.contains(&id) {
            return Some(FinishReason::Stop);
        }
        let stopped = self.text.as_mut().is_some_and(|stream| stream.push(id, text));
        if stopped {
            return Some(FinishReason::Stop);
        }
        (generated >= self.max_tokens).then_some(FinishReason::Length)
    }

    /// Sends the end.
    pub(super) fn conclude(self, outcome: Outcome, usage: Usage, timings: Timings) {
        let end: Item = match outcome {
            Outcome::Finished(finish) => Ok(Event::Done { finish, usage, timings }),
            Outcome::Failed(error) => Err(error),
        };
        self.sender.finish(end);
    }
}

/// From tokens to text that a reader may see.
#[derive(Debug)]
struct TextStream {
    detokenizer: Detokenizer,
    stops: StopMatcher,
}

impl TextStream {
    fn new(vocab: &Arc<Vocab>, stop_strings: Vec<String>) -> TextStream {
        TextStream { detokenizer: Detokenizer::new(vocab), stops: StopMatcher::new(stop_strings) }
    }

    /// Adds what this token makes certain to `text`; true if a stop string is complete.
    fn push(&mut self, id: TokenId, text: &mut String) -> bool {
        let outcome = self.stops.push(self.detokenizer.push(id));
        text.push_str(outcome.emit);
        outcome.stopped
    }

    /// Adds what was held back and is certain now that no more comes.
    fn finish(&mut self, text: &mut String) {
        text.push_str(self.stops.push(self.detokenizer.finish()).emit);
        text.push_str(self.stops.flush());
    }
}
