//! Connections that wait for a request: their timeouts, and which of them ends when a further client comes.

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep, sleep_until};

/// Timeouts of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeouts {
    /// From the start of a connection to its first byte, and from a head's first byte to its end.
    pub(crate) head: Duration,
    /// From an answer to the next request.
    pub(crate) idle: Duration,
}

/// All connections that wait for a request, in the order in which they began to.
#[derive(Debug, Default)]
pub(crate) struct IdleQueue(Mutex<Entries>);

#[derive(Debug, Default)]
struct Entries {
    next: u64,
    /// Signals that end a connection, by entry.
    ends: BTreeMap<u64, Arc<Notify>>,
}

impl IdleQueue {
    /// Ends the connection that has waited the longest, if one waits.
    pub(crate) fn end_oldest(&self) {
        if let Some((_, end)) = lock(&self.0).ends.pop_first() {
            end.notify_one();
        }
    }

    fn push(&self, end: Arc<Notify>) -> u64 {
        let mut entries = lock(&self.0);
        let entry = entries.next;
        entries.next += 1;
        entries.ends.insert(entry, end);
        entry
    }

    fn remove(&self, entry: u64) {
        lock(&self.0).ends.remove(&entry);
    }
}

/// State of a connection.
#[derive(Debug)]
enum State {
    /// The next request's head is incomplete, or has no byte yet. The entry is that of [`IdleQueue`].
    Idle { entry: u64, until: Instant, has_bytes: bool },
    /// A request is at work; its body has a timeout of its own.
    Working,
}

/// Activity of one connection.
#[derive(Debug)]
pub(crate) struct Activity {
    queue: Arc<IdleQueue>,
    timeouts: Timeouts,
    state: Mutex<State>,
    end: Arc<Notify>,
}

impl Activity {
    /// A connection that has just been accepted.
    pub(crate) fn new(queue: Arc<IdleQueue>, timeouts: Timeouts) -> Arc<Activity> {
        let end = Arc::new(Notify::new());
        let entry = queue.push(Arc::clone(&end));
        let state = State::Idle { entry, until: Instant::now() + timeouts.head, has_bytes: false };
        Arc::new(Activity { queue, timeouts, state: Mutex::new(state), end })
    }

    /// Ready when the connection should end to make room.
    pub(crate) async fn ended(&self) {
        self.end.notified().await;
    }

    /// Begins a request, which is at work until the guard is dropped.
    pub(crate) fn begin(self: &Arc<Activity>) -> Working {
        self.become_state(State::Working);
        Working(Arc::clone(self))
    }

    /// Whether a request is at work.
    pub(crate) fn is_working(&self) -> bool {
        matches!(*lock(&self.state), State::Working)
    }

    fn received(&self) {
        if let State::Idle { until, has_bytes: has_bytes @ false, .. } = &mut *lock(&self.state) {
            *has_bytes = true;
            *until = Instant::now() + self.timeouts.head;
        }
    }

    fn wait(&self) {
        let entry = self.queue.push(Arc::clone(&self.end));
        self.become_state(State::Idle {
            entry,
            until: Instant::now() + self.timeouts.idle,
            has_bytes: false,
        });
    }

    fn become_state(&self, next: State) {
        let last = std::mem::replace(&mut *lock(&self.state), next);
        if let State::Idle { entry, .. } = last {
            self.queue.remove(entry);
        }
    }

    fn deadline(&self) -> Option<Instant> {
        match *lock(&self.state) {
            State::Idle { until, .. } => Some(until),
            State::Working => None,
        }
    }
}

impl Drop for Activity {
    fn drop(&mut self) {
        self.become_state(State::Working);
    }
}

/// A request at work. The connection waits for the next one when this is dropped.
#[derive(Debug)]
pub(crate) struct Working(Arc<Activity>);

impl Drop for Working {
    fn drop(&mut self) {
        self.0.wait();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A stream with reads that fail after the deadline of its connection's activity.
pub(crate) struct TimedReads<S> {
    stream: S,
    activity: Arc<Activity>,
    timer: Pin<Box<Sleep>>,
}

impl<S> TimedReads<S> {
    pub(crate) fn new(stream: S, activity: Arc<Activity>) -> TimedReads<S> {
        TimedReads { stream, activity, timer: Box::pin(sleep_until(Instant::now())) }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimedReads<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buffer.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            this.activity.received();
        }
        let deadline = this.activity.deadline();
        let (Poll::Pending, Some(deadline)) = (&read, deadline) else { return read };
        if this.timer.deadline() != deadline {
            this.timer.as_mut().reset(deadline);
        }
        ready!(this.timer.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimedReads<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
