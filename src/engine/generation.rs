//! The stream of a request's events: a bounded buffer between the engine's thread and a reader.
//!
//! The engine never waits for a reader: a sequence whose buffer is full is left out of steps until
//! the reader has taken something.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::{GenerationError, Timings, wake::WakeFlag};
use crate::token::TokenId;

/// What happens in a generation.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A token was generated.
    Token {
        /// Its id.
        id: TokenId,
        /// The text that became certain with it: whole UTF-8, possibly empty.
        text: String,
        /// If asked for: its log-probability and the best alternatives.
        logprobs: Option<Logprobs>,
    },
    /// The last event.
    Done {
        /// Why the answer ended.
        finish: FinishReason,
        /// Text that was held back until the end was known.
        text: String,
        /// Tokens counted.
        usage: Usage,
        /// Seconds and rates.
        timings: Timings,
    },
}

/// Natural logarithms of probabilities under the model's own logits (before any adjustment).
#[derive(Clone, Debug, PartialEq)]
pub struct Logprobs {
    /// Of the token chosen.
    pub chosen: f64,
    /// Of the best, best first.
    pub top: Vec<(TokenId, f64)>,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FinishReason {
    /// A stop string came.
    Stop,
    /// The model ended its turn.
    Eos,
    /// `max_tokens`, or the context is full.
    Length,
    /// The reader cancelled.
    Cancelled,
}

impl std::fmt::Display for FinishReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            FinishReason::Stop => "stop",
            FinishReason::Eos => "eos",
            FinishReason::Length => "length",
            FinishReason::Cancelled => "cancelled",
        })
    }
}

/// Tokens of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Of the prompt.
    pub prompt_tokens: usize,
    /// Of the prompt, found in the cache.
    pub cached_tokens: usize,
    /// Generated.
    pub completion_tokens: usize,
}

/// The events of one request, in order. Dropping it cancels the request.
#[derive(Debug)]
pub struct Generation {
    pub(super) channel: Arc<Channel>,
}

/// The bounded buffer of one generation.
#[derive(Debug)]
pub(super) struct Channel {
    state: Mutex<State>,
    arrived: Condvar,
    capacity: usize,
    engine: Arc<WakeFlag>,
}

#[derive(Debug, Default)]
struct State {
    events: VecDeque<Result<Event, GenerationError>>,
    cancelled: bool,
    ended: bool,
    #[cfg(feature = "async")]
    waker: Option<std::task::Waker>,
}

impl Channel {
    pub(super) fn new(capacity: usize, engine: Arc<WakeFlag>) -> Arc<Channel> {
        Arc::new(Channel { state: Mutex::default(), arrived: Condvar::new(), capacity, engine })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing under this lock can leave the state half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a further token finds room; the last event always does.
    pub(super) fn has_room_for(&self, events: usize) -> bool {
        self.lock().events.len() + events <= self.capacity
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.lock().cancelled
    }

    pub(super) fn push(&self, event: Result<Event, GenerationError>) {
        let mut state = self.lock();
        if state.ended {
            return;
        }
        state.ended = matches!(event, Err(_) | Ok(Event::Done { .. }));
        state.events.push_back(event);
        #[cfg(feature = "async")]
        let waker = state.waker.take();
        drop(state);
        self.arrived.notify_one();
        // Without the lock: an executor may poll at once, on this very thread.
        #[cfg(feature = "async")]
        if let Some(waker) = waker {
            wake(waker);
        }
    }

    fn cancel(&self) {
        self.lock().cancelled = true;
        self.engine.set();
    }

    /// Takes an event; makes the engine look again if the buffer was full.
    fn take(&self, state: &mut State) -> Option<Result<Event, GenerationError>> {
        let was_full = state.events.len() >= self.capacity;
        let event = state.events.pop_front();
        if was_full {
            self.engine.set();
        }
        event
    }
}

/// A waker is the caller's code: its panic must not reach the engine's thread.
#[cfg(feature = "async")]
fn wake(waker: std::task::Waker) {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    // A waker that panics is dropped with its panic; the other readers are not affected.
    let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
}

impl Generation {
    /// Ends the request within one step; [`Event::Done`] still comes.
    pub fn cancel(&self) {
        self.channel.cancel();
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        self.channel.cancel();
    }
}

impl Iterator for Generation {
    type Item = Result<Event, GenerationError>;

    /// Waits for the next event; `None` after the last.
    fn next(&mut self) -> Option<Self::Item> {
        let mut state = self.channel.lock();
        loop {
            if let Some(event) = self.channel.take(&mut state) {
                return Some(event);
            }
            if state.ended {
                return None;
            }
            state = self.channel.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(feature = "async")]
impl futures_core::Stream for Generation {
    type Item = Result<Event, GenerationError>;

    fn poll_next(
        self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        let mut state = self.channel.lock();
        match self.channel.take(&mut state) {
            Some(event) => std::task::Poll::Ready(Some(event)),
            None if state.ended => std::task::Poll::Ready(None),
            None => {
                state.waker = Some(context.waker().clone());
                std::task::Poll::Pending
            }
        }
    }
}
