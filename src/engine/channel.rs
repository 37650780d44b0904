//! The bounded buffer between the engine's thread and one request's reader.
//!
//! The engine never waits here: it asks for room before it computes a token, and leaves the
//! sequence alone while there is none. The reader waits. A sender that is dropped leaves an end
//! behind, so that a reader is never left waiting, whatever became of the engine.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::generation::{Event, GenerationError};
use super::inbox::Bell;

/// What a reader gets.
pub(super) type Item = Result<Event, GenerationError>;

/// How the reader is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reader {
    /// There is room for an event.
    Ready,
    /// There is none; the bell rings when there is.
    Full,
    /// It wants no more.
    Cancelled,
}

#[derive(Debug, Default)]
struct State {
    events: VecDeque<Event>,
    /// The last item, beyond the buffer's bound.
    end: Option<Item>,
    /// The sender has sent the end, or is gone.
    ended: bool,
    cancelled: bool,
    /// The engine has found the buffer full.
    paused: bool,
    #[cfg(feature = "async")]
    waker: Option<std::task::Waker>,
}

#[derive(Debug)]
struct Channel {
    capacity: usize,
    state: Mutex<State>,
    arrived: Condvar,
    bell: Arc<Bell>,
}

impl Channel {
    /// No code that can panic runs under the lock, so a poisoned state is whole.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn notify(&self, mut state: MutexGuard<'_, State>) {
        #[cfg(feature = "async")]
        let waker = state.waker.take();
        #[cfg(not(feature = "async"))]
        let _ = &mut state;
        drop(state);
        self.arrived.notify_one();
        #[cfg(feature = "async")]
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The engine's end.
#[derive(Debug)]
pub(super) struct Sender(Arc<Channel>);

/// The reader's end.
#[derive(Debug)]
pub(super) struct Receiver(Arc<Channel>);

/// A buffer for `capacity` events and the end; `bell` wakes the engine.
pub(super) fn channel(capacity: usize, bell: Arc<Bell>) -> (Sender, Receiver) {
    let capacity = capacity.max(1);
    let events = VecDeque::with_capacity(capacity);
    let state = Mutex::new(State { events, ..State::default() });
    let channel = Arc::new(Channel { capacity, state, arrived: Condvar::new(), bell });
    (Sender(Arc::clone(&channel)), Receiver(channel))
}

impl Sender {
    /// Whether the reader wants another event and has room for it.
    pub(super) fn reader(&self) -> Reader {
        let mut state = self.0.lock();
        state.paused = state.events.len() >= self.0.capacity;
        match (state.cancelled, state.paused) {
            (true, _) => Reader::Cancelled,
            (false, true) => Reader::Full,
            (false, false) => Reader::Ready,
        }
    }

    /// Sends an event for which [`Sender::reader`] has found room.
    pub(super) fn send(&self, event: Event) {
        let mut state = self.0.lock();
        state.events.push_back(event);
        self.0.notify(state);
    }

    /// Sends the end.
    pub(super) fn finish(self, end: Item) {
        self.end_with(end);
    }

    fn end_with(&self, end: Item) {
        let mut state = self.0.lock();
        if !state.ended {
            state.ended = true;
            state.end = Some(end);
            self.0.notify(state);
        }
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.end_with(Err(GenerationError::Stopped));
    }
}

impl Receiver {
    /// Waits for the next item; none after the end.
    pub(super) fn wait(&self) -> Option<Item> {
        let mut state = self.0.lock();
        loop {
            if let Some(item) = self.take(&mut state) {
                return item;
            }
            state = self.0.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The next item if there is one; otherwise the context's waker is called when there is.
    #[cfg(feature = "async")]
    pub(super) fn poll(&self, context: &mut std::task::Context<'_>) -> std::task::Poll<Option<Item>> {
        let mut state = self.0.lock();
        match self.take(&mut state) {
            Some(item) => std::task::Poll::Ready(item),
            None => {
                state.waker = Some(context.waker().clone());
                std::task::Poll::Pending
            }
        }
    }

    /// `Some(None)` after the end, `None` if one must wait.
    fn take(&self, state: &mut State) -> Option<Option<Item>> {
        if let Some(event) = state.events.pop_front() {
            if std::mem::take(&mut state.paused) {
                self.0.bell.ring();
            }
            return Some(Some(Ok(event)));
        }
        if state.ended { Some(state.end.take()) } else { None }
    }

    /// Asks the engine to end the request.
    pub(super) fn cancel(&self) {
        let mut state = self.0.lock();
        if !state.ended && !state.cancelled {
            state.cancelled = true;
            drop(state);
            self.0.bell.ring();
        }
    }
}
