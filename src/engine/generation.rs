//! The event stream of a request: a bounded buffer between the engine's thread and a reader.
//!
//! The engine never waits for a reader: a sequence with a full buffer is left out of steps until the reader
//! takes an event.

use std::borrow::BorrowMut;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::error::GenerationError;
use super::event::{Answer, Done, Event, Token};
#[cfg(feature = "async")]
use super::failure::caught;
use super::stats::Usage;
use super::wake::WakeFlag;

/// The events of one request, in order: by iteration, by [`Generation::recv`], and with the feature `async`
/// as a `Stream`. Dropping it cancels the request.
///
/// ```no_run
/// use std::time::Duration;
/// use ottava::engine::{Generation, GenerationError, Received};
///
/// /// Prints the answer; cancels it if no event arrives for a second.
/// fn print(mut generation: Generation) -> Result<(), GenerationError> {
///     loop {
///         match generation.recv_timeout(Duration::from_secs(1)) {
///             Received::Event(event) => print!("{}", event?.text()),
///             Received::Nothing => generation.cancel(),
///             _ => return Ok(()),
///         }
///     }
/// }
/// ```
pub struct Generation {
    channel: Arc<Channel>,
    id: Option<u64>,
}

/// The result of [`Generation::recv_timeout`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Received {
    /// The next event, or the error that ends the answer.
    Event(Result<Event, GenerationError>),
    /// No event arrived in time.
    Nothing,
    /// The last event has been read.
    Ended,
}

/// Cancels a request from any thread, also while another thread waits for its events.
#[derive(Clone, Debug)]
pub struct Canceller {
    channel: Weak<Channel>,
}

/// Iterator over the events of a generation, owned or borrowed.
#[derive(Debug)]
pub struct Events<G>(G);

/// The bounded buffer of one generation.
#[derive(Debug)]
pub(super) struct Channel {
    state: Mutex<ChannelState>,
    arrived: Condvar,
    capacity: usize,
    engine: Arc<WakeFlag>,
}

#[derive(Debug, Default)]
struct ChannelState {
    events: VecDeque<Result<Event, GenerationError>>,
    usage: Usage,
    cancelled: bool,
    ended: bool,
    #[cfg(feature = "async")]
    waker: Option<std::task::Waker>,
}

impl Channel {
    pub(super) fn new(capacity: usize, engine: Arc<WakeFlag>) -> Arc<Channel> {
        Arc::new(Channel { state: Mutex::default(), arrived: Condvar::new(), capacity, engine })
    }

    fn lock(&self) -> MutexGuard<'_, ChannelState> {
        // Poisoning is ignored: no panic under this lock can leave the state half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of further tokens that fit in the buffer; the last event always fits.
    pub(super) fn room(&self) -> usize {
        self.capacity.saturating_sub(self.lock().events.len())
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.lock().cancelled
    }

    /// Sets the number of prompt tokens, and of those found in the cache.
    pub(super) fn set_prompt(&self, prompt_tokens: usize, cached_tokens: usize) {
        let mut state = self.lock();
        (state.usage.prompt_tokens, state.usage.cached_tokens) = (prompt_tokens, cached_tokens);
    }

    /// Token counts so far.
    pub(super) fn usage(&self) -> Usage {
        self.lock().usage
    }

    pub(super) fn token(&self, token: Token) {
        self.push(Ok(Event::Token(token)));
    }

    pub(super) fn push(&self, event: Result<Event, GenerationError>) {
        let mut state = self.lock();
        if state.ended {
            return;
        }
        match event {
            Ok(Event::Token(_)) => state.usage.completion_tokens += 1,
            _ => state.ended = true,
        }
        state.events.push_back(event);
        #[cfg(feature = "async")]
        let waker = state.waker.take();
        drop(state);
        self.arrived.notify_one();
        // Woken without the lock: an executor may poll at once, on this very thread.
        #[cfg(feature = "async")]
        if let Some(waker) = waker {
            wake(waker);
        }
    }

    fn cancel(&self) {
        self.lock().cancelled = true;
        self.engine.set();
    }

    /// Takes an event, and wakes the engine if the buffer was full.
    fn take(&self, state: &mut ChannelState) -> Received {
        let was_full = state.events.len() >= self.capacity;
        let event = state.events.pop_front();
        if was_full {
            self.engine.set();
        }
        match event {
            Some(event) => Received::Event(event),
            None if state.ended => Received::Ended,
            None => Received::Nothing,
        }
    }

    /// Waits for an event, at most until `until` if given.
    fn wait(&self, until: Option<Instant>) -> Received {
        let mut state = self.lock();
        loop {
            let received = self.take(&mut state);
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            state = match left {
                _ if received != Received::Nothing => return received,
                None => self.arrived.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(Duration::ZERO) => return received,
                Some(left) => {
                    self.arrived.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

/// Wakes an async reader. A waker is user code: its panic must not reach the engine's thread.
#[cfg(feature = "async")]
fn wake(waker: std::task::Waker) {
    // A panic is ignored: the other readers are not affected.
    let _ = caught(|| waker.wake());
}

impl Generation {
    pub(super) fn new(channel: Arc<Channel>, id: Option<u64>) -> Generation {
        Generation { channel, id }
    }

    /// The request's id, if its caller set one.
    pub fn id(&self) -> Option<u64> {
        self.id
    }

    #[cfg(test)]
    pub(super) fn channel(&self) -> &Channel {
        &self.channel
    }

    /// Waits for the next event; `None` after the last. An error is the last event of its answer.
    pub fn recv(&mut self) -> Option<Result<Event, GenerationError>> {
        match self.channel.wait(None) {
            Received::Event(event) => Some(event),
            Received::Nothing | Received::Ended => None,
        }
    }

    /// Waits for the next event, at most for `time`; zero does not wait. The request continues if no event
    /// arrived.
    pub fn recv_timeout(&mut self, time: Duration) -> Received {
        // A time beyond the clock's range is no limit.
        self.channel.wait(Instant::now().checked_add(time))
    }

    /// Ends the request within one step; [`Event::Done`] with the text so far still follows.
    pub fn cancel(&self) {
        self.channel.cancel();
    }

    /// A handle that cancels the request from elsewhere. It does not keep the request alive.
    pub fn canceller(&self) -> Canceller {
        Canceller { channel: Arc::downgrade(&self.channel) }
    }

    /// Token counts so far, read or not; also valid for an answer that failed.
    pub fn usage(&self) -> Usage {
        self.channel.usage()
    }

    /// Waits for the end, and returns the answer with the text of all events not read yet.
    ///
    /// # Errors
    /// The error that ended the answer; [`GenerationError::Stopped`] if its end was read already.
    pub fn text(self) -> Result<Answer, GenerationError> {
        let mut text = String::new();
        for event in self {
            let event = event?;
            text.push_str(event.text());
            if let Event::Done(Done { finish, stop, tokens, usage, timings, .. }) = event {
                return Ok(Answer { text, tokens, finish, stop, usage, timings });
            }
        }
        Err(GenerationError::Stopped)
    }
}

impl Canceller {
    /// Ends the request within one step; does nothing if it has ended.
    pub fn cancel(&self) {
        if let Some(channel) = self.channel.upgrade() {
            channel.cancel();
        }
    }
}

/// Prints counts only: events may contain users' texts.
impl std::fmt::Debug for Generation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Generation")
            .field("id", &self.id)
            .field("usage", &self.usage())
            .finish_non_exhaustive()
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        self.channel.cancel();
    }
}

impl<G: BorrowMut<Generation>> Iterator for Events<G> {
    type Item = Result<Event, GenerationError>;

    /// Waits for the next event; `None` after the last.
    fn next(&mut self) -> Option<Self::Item> {
        self.0.borrow_mut().recv()
    }
}

impl IntoIterator for Generation {
    type Item = Result<Event, GenerationError>;
    type IntoIter = Events<Generation>;

    fn into_iter(self) -> Self::IntoIter {
        Events(self)
    }
}

impl<'g> IntoIterator for &'g mut Generation {
    type Item = Result<Event, GenerationError>;
    type IntoIter = Events<&'g mut Generation>;

    fn into_iter(self) -> Self::IntoIter {
        Events(self)
    }
}

#[cfg(feature = "async")]
impl futures_core::Stream for Generation {
    type Item = Result<Event, GenerationError>;

    fn poll_next(
        self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        // Wakers are user code: they are cloned and dropped without the lock.
        let waker = context.waker().clone();
        let mut state = self.channel.lock();
        let received = self.channel.take(&mut state);
        let old = match received {
            Received::Nothing => state.waker.replace(waker),
            _ => None,
        };
        drop(state);
        drop(old);
        match received {
            Received::Event(event) => std::task::Poll::Ready(Some(event)),
            Received::Ended => std::task::Poll::Ready(None),
            Received::Nothing => std::task::Poll::Pending,
        }
    }
}
