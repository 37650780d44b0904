//! The answer to a request: turns tokens into text and events until a stop, the length limit or an error.

use std::sync::Arc;
use std::time::Instant;

use super::error::GenerationError;
use super::event::{Done, Event, FinishReason, Logprobs, Token};
use super::generation::Channel;
use super::mask_task::MaskTask;
use super::request::TokenRequest;
use super::stats::Clock;
use crate::{
    text::{Detokenizer, ScopedStops},
    token::TokenId,
};

/// The answer to one request, from its admission to its last event.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) request: TokenRequest,
    pub(super) mask: Option<MaskTask>,
    /// Mask result that is overdue. Until it arrives, no step computes rows for the answer.
    pub(super) pending_mask: Option<PendingMask>,
    clock: Clock,
    channel: Arc<Channel>,
    /// Prompt tokens in the engine's counters.
    counted: usize,
    text: Option<Text>,
    /// The stop string that ended the answer.
    stop: Option<String>,
    /// The token that ended the answer.
    end: Option<Box<Token>>,
}

/// A mask result that a step did not wait for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum PendingMask {
    /// The tokens forced after its last tokens, and whether the answer is complete.
    Advance,
    /// The tokens allowed next. Its last row is recomputed when they arrive.
    Next,
}

/// Detokenizes, and holds back text that may begin a stop string.
#[derive(Debug)]
struct Text {
    detokenizer: Detokenizer,
    stops: ScopedStops,
}

impl Answer {
    /// A new answer; its clock starts now.
    pub(super) fn new(mut request: TokenRequest, channel: Arc<Channel>) -> Answer {
        let text = request.text.clone().map(|vocab| {
            let stops = std::mem::take(&mut request.stop_strings);
            let stops = ScopedStops::new(stops, request.stop_scope.take());
            let shown = std::mem::take(&mut request.show_control_tokens);
            Text {
                detokenizer: Detokenizer::with_shown(&vocab, shown),
                stops: if request.include_stop { stops.including_stop() } else { stops },
            }
        });
        channel.set_prompt(request.prompt.len(), 0);
        let mask = request.mask.take().map(MaskTask::new);
        Answer {
            request,
            mask,
            pending_mask: None,
            clock: Clock::new(Instant::now()),
            channel,
            counted: 0,
            text,
            stop: None,
            end: None,
        }
    }

    /// Number of further tokens that the reader's buffer can take.
    pub(super) fn room(&self) -> usize {
        self.channel.room()
    }

    /// The reason to end the answer early, if it was cancelled or is past its deadline.
    pub(super) fn given_up(&self, now: Instant) -> Option<FinishReason> {
        let late = self.request.deadline.is_some_and(|deadline| deadline <= now);
        let late = late.then_some(FinishReason::Deadline);
        if self.channel.is_cancelled() { Some(FinishReason::Cancelled) } else { late }
    }

    /// Starts the answer: its sequence got pages with `cached` of its tokens in them. Returns the number to
    /// count as cache hits: 0 after a preemption, because a sequence then finds its own pages.
    pub(super) fn start(&mut self, cached: usize) -> usize {
        if !self.clock.start() {
            return 0;
        }
        self.channel.set_prompt(self.request.prompt.len(), cached);
        cached
    }

    /// Prompt tokens among the first `computed` of the sequence that were not counted before.
    pub(super) fn count_prompt(&mut self, computed: usize) -> usize {
        let new = computed.min(self.request.prompt.len()).saturating_sub(self.counted);
        self.counted += new;
        new
    }

    /// Adds a chosen token to `tokens` and sends its event. Returns the finish reason if the answer ends with
    /// it.
    pub(super) fn accept(
        &mut self,
        tokens: &mut Vec<TokenId>,
        id: TokenId,
        logprobs: Option<Logprobs>,
    ) -> Option<FinishReason> {
        self.clock.token();
        if self.request.stop_ids.contains(&id) {
            self.end = Some(Box::new(Token { id, text: String::new(), logprobs }));
            return Some(FinishReason::Eos);
        }
        tokens.push(id);
        let mut shown = String::new();
        let may_stop = tokens.len() > self.request.prompt.len().saturating_add(self.request.min_tokens);
        match &mut self.text {
            Some(text) if may_stop => {
                let outcome = text.stops.push(text.detokenizer.push(id));
                shown = outcome.emit.to_owned();
                self.stop = outcome.stop.map(str::to_owned);
            }
            Some(text) => shown = text.stops.pass(text.detokenizer.push(id)).to_owned(),
            None => {}
        }
        self.channel.token(Token { id, text: shown, logprobs });
        self.stop.is_some().then_some(FinishReason::Stop)
    }

    /// Sends [`Event::Done`] with the tokens of the answer.
    pub(super) fn finish(mut self, finish: FinishReason, tokens: Vec<TokenId>) {
        let included = self.end.as_ref().filter(|_| self.request.include_stop).map(|token| token.id);
        let text = self.text.take().map_or_else(String::new, |mut text| match finish {
            FinishReason::Stop => String::new(),
            _ => {
                let mut rest = String::new();
                if let Some(id) = included {
                    rest += text.stops.push(text.detokenizer.push(id)).emit;
                }
                rest += text.stops.push(text.detokenizer.finish()).emit;
                rest + text.stops.flush()
            }
        });
        let (usage, stop, end) = (self.channel.usage(), self.stop.take(), self.end.take());
        let timings = self.clock.timings(usage);
        self.channel.push(Ok(Event::Done(Done { finish, stop, text, tokens, end, usage, timings })));
    }

    /// Sends an error as the last event.
    pub(super) fn fail(self, error: GenerationError) {
        self.channel.push(Err(error));
    }
}

/// Sends a last event if none was sent: the channel ignores events after the end.
impl Drop for Answer {
    fn drop(&mut self) {
        self.channel.push(Err(GenerationError::Stopped));
    }
}
