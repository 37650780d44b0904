//! One request on its way: its tokens so far, its pages, its text, its clock.

use super::generation::{Channel, Event, FinishReason, GenerationError, Logprobs, Usage};
use super::inbox::Admitted;
use super::request::TokenRequest;
use super::stats::Clock;
use crate::{
    kv::SeqId,
    sample::History,
    text::{Detokenizer, StopMatcher},
    token::TokenId,
};
use std::sync::Arc;

/// A request that was admitted and has not ended.
#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) request: TokenRequest,
    /// Prompt and generated tokens. Those beyond `computed` have no keys and values yet.
    pub(super) tokens: Vec<TokenId>,
    /// Pages, if it has any, and how many tokens are in them.
    pub(super) pages: Option<SeqId>,
    pub(super) computed: usize,
    pub(super) clock: Clock,
    /// Most tokens it can ever have.
    pub(super) tokens_max: usize,
    /// Why it must end, if it must.
    pub(super) failure: Option<GenerationError>,
    cached: Option<usize>,
    channel: Arc<Channel>,
    text: Option<Text>,
}

/// Tokens to text, stop strings held back.
#[derive(Debug)]
struct Text {
    detokenizer: Detokenizer,
    stops: StopMatcher,
}

impl Sequence {
    pub(super) fn new(admitted: Admitted, context_max: usize) -> Sequence {
        let Admitted { mut request, channel, submitted } = admitted;
        let text = request.text.as_ref().map(|vocab| Text {
            detokenizer: Detokenizer::new(vocab),
            stops: StopMatcher::new(std::mem::take(&mut request.stop_strings)),
        });
        let tokens_max = request.prompt.len().saturating_add(request.max_tokens).min(context_max);
        let mut tokens = Vec::new();
        let reserved = tokens.try_reserve_exact(tokens_max);
        let failure = reserved.err().map(|_| GenerationError::HostMemory { tokens: tokens_max });
        if failure.is_none() {
            tokens.extend_from_slice(&request.prompt);
        }
        Sequence {
            request,
            tokens,
            pages: None,
            computed: 0,
            clock: Clock::new(submitted),
            tokens_max,
            failure,
            cached: None,
            channel,
            text,
        }
    }

    /// Tokens to compute before the next one can be chosen.
    pub(super) fn pending(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// Bytes of its token ids.
    pub(super) fn bytes(&self) -> usize {
        (self.tokens.capacity() + self.request.prompt.capacity()) * size_of::<TokenId>()
    }

    pub(super) fn is_paused(&self) -> bool {
        !self.channel.has_room_for(1)
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.channel.is_cancelled()
    }

    pub(super) fn history(&self) -> History<'_> {
        History { tokens: &self.tokens, prompt: self.request.prompt.len() }
    }

    /// Whether another token may follow the next one: it is not too long then, and its reader has room for
    /// both and has not gone.
    pub(super) fn goes_on(&self) -> bool {
        self.tokens.len() + 1 < self.tokens_max && self.channel.has_room_for(2) && !self.is_cancelled()
    }

    fn generated(&self) -> usize {
        self.tokens.len() - self.request.prompt.len()
    }

    /// Pages were found or taken for it; `cached` tokens of its prompt were there already. What a
    /// sequence finds again after a preemption was its own and does not count.
    pub(super) fn start(&mut self, pages: SeqId, cached: usize) -> usize {
        self.pages = Some(pages);
        self.computed = cached;
        self.clock.start();
        let counts = self.cached.is_none();
        self.cached.get_or_insert(cached);
        if counts { cached } else { 0 }
    }

    /// Takes a chosen token and says whether the answer ends with it.
    pub(super) fn accept(&mut self, id: TokenId, logprobs: Option<Logprobs>) -> Option<FinishReason> {
        self.clock.token();
        if self.request.stop_ids.contains(&id) {
            return Some(FinishReason::Eos);
        }
        self.tokens.push(id);
        let (text, stopped) = match &mut self.text {
            Some(text) => {
                let outcome = text.stops.push(text.detokenizer.push(id));
                (outcome.emit.to_owned(), outcome.stopped)
            }
            None => (String::new(), false),
        };
        self.channel.push(Ok(Event::Token { id, text, logprobs }));
        if stopped {
            return Some(FinishReason::Stop);
        }
        (self.tokens.len() >= self.tokens_max).then_some(FinishReason::Length)
    }

    /// Sends the last event.
    pub(super) fn finish(mut self, finish: FinishReason) {
        let text = self.text.take().map_or_else(String::new, |mut text| match finish {
            FinishReason::Stop => String::new(),
            _ => {
                let rest = text.stops.push(text.detokenizer.finish()).emit.to_owned();
                rest + text.stops.flush()
            }
        });
        let usage = Usage {
            prompt_tokens: self.request.prompt.len(),
            cached_tokens: self.cached.unwrap_or(0),
            completion_tokens: self.generated(),
        };
        let computed = usage.prompt_tokens - usage.cached_tokens;
        let timings = self.clock.timings(computed, usage.completion_tokens);
        self.channel.push(Ok(Event::Done { finish, text, usage, timings }));
    }

    /// Sends an error as the last event.
    pub(super) fn fail(self, error: GenerationError) {
        self.channel.push(Err(error));
    }
}

/// Whatever happens to the engine, a reader gets a last event.
impl Drop for Sequence {
    fn drop(&mut self) {
        self.channel.push(Err(GenerationError::Stopped));
    }
}
