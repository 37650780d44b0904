//! Places of open connections. With none free, a new connection gets the place of the one that has been idle
//! for longest.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// Longest wait for an idle connection to close, before the next one is closed.
const CLOSING_MAX: Duration = Duration::from_millis(100);

/// A bounded number of places.
#[derive(Debug)]
pub(crate) struct Places {
    free: Arc<Semaphore>,
    count: u32,
    idle: Mutex<Idle>,
}

/// Connections without a request, by the time at which they became idle.
#[derive(Debug, Default)]
struct Idle {
    next: u64,
    connections: BTreeMap<u64, Arc<Notify>>,
}

/// The place of a connection.
#[derive(Debug)]
pub(crate) struct Place {
    places: Arc<Places>,
    closing: Arc<Notify>,
    /// Key of this connection among the idle ones.
    since: Mutex<Option<u64>>,
    has_begun: AtomicBool,
    _permit: OwnedSemaphorePermit,
}

/// A request at work on a connection, which is not idle until its end.
#[derive(Debug)]
pub(crate) struct AtWork(Arc<Place>);

impl Places {
    pub(crate) fn new(count: usize) -> Arc<Places> {
        let count = u32::try_from(count).unwrap_or(u32::MAX).clamp(1, 1 << 20);
        let free = Arc::new(Semaphore::new(count as usize));
        Arc::new(Places { free, count, idle: Mutex::default() })
    }

    /// A place for a new connection, once one is free.
    pub(crate) async fn take(self: &Arc<Places>) -> Arc<Place> {
        let mut permit = Arc::clone(&self.free).try_acquire_owned().ok();
        loop {
            if let Some(permit) = permit {
                let (places, closing) = (Arc::clone(self), Arc::default());
                let (since, has_begun) = (Mutex::default(), AtomicBool::new(false));
                let place = Arc::new(Place { places, closing, since, has_begun, _permit: permit });
                place.is_idle();
                return place;
            }
            self.close_one();
            let freed = timeout(CLOSING_MAX, Arc::clone(&self.free).acquire_owned()).await;
            // The semaphore is never closed.
            permit = freed.ok().and_then(Result::ok);
        }
    }

    /// Ready when all places are free.
    pub(crate) async fn all_free(&self) {
        // The semaphore is never closed.
        let _ = self.free.acquire_many(self.count).await;
    }

    /// Closes the connection that has been idle for longest.
    fn close_one(&self) {
        if let Some((_, closing)) = self.idle().connections.pop_first() {
            closing.notify_one();
        }
    }

    fn idle(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// Ready when the place is needed for another connection.
    pub(crate) async fn needed(&self) {
        self.closing.notified().await;
    }

    /// Registers a request.
    pub(crate) fn begin(self: &Arc<Place>) -> AtWork {
        self.has_begun.store(true, Ordering::Release);
        self.is_not_idle();
        AtWork(Arc::clone(self))
    }

    /// Whether the connection has had a request.
    pub(crate) fn has_begun(&self) -> bool {
        self.has_begun.load(Ordering::Acquire)
    }

    fn is_idle(&self) {
        let mut idle = self.places.idle();
        let key = idle.next;
        idle.next += 1;
        idle.connections.insert(key, Arc::clone(&self.closing));
        let before = self.since().replace(key);
        before.map(|key| idle.connections.remove(&key));
    }

    fn is_not_idle(&self) {
        let mut idle = self.places.idle();
        self.since().take().map(|key| idle.connections.remove(&key));
    }

    fn since(&self) -> MutexGuard<'_, Option<u64>> {
        self.since.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.is_not_idle();
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        self.0.is_idle();
    }
}

impl AtWork {
    /// An answer's body, at the end of which the request ends.
    pub(crate) fn until_end_of(self, body: Body) -> Body {
        Body::new(Answering { body, _at_work: self })
    }
}

/// The body of a request at work.
struct Answering {
    body: Body,
    _at_work: AtWork,
}

impl HttpBody for Answering {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the place is needed for another connection.
    async fn is_needed(place: &Place) -> bool {
        timeout(Duration::ZERO, place.needed()).await.is_ok()
    }

    #[tokio::test]
    async fn the_connection_that_is_idle_for_longest_makes_room() {
        let places = Places::new(3);
        let [first, second, third] = [places.take().await, places.take().await, places.take().await];
        let answer = first.begin();
        drop(second.begin());
        places.close_one();
        assert!(is_needed(&third).await && !is_needed(&second).await && !is_needed(&first).await);
        places.close_one();
        assert!(is_needed(&second).await);
        // A connection at work keeps its place.
        places.close_one();
        assert!(!is_needed(&first).await);
        drop(answer);
        places.close_one();
        assert!(is_needed(&first).await);
    }

    #[tokio::test]
    async fn a_new_connection_gets_the_place_of_one_that_closes() {
        let places = Places::new(1);
        let first = places.take().await;
        let closes = async move { first.needed().await };
        let (second, ()) = tokio::join!(places.take(), closes);
        drop(second);
        places.all_free().await;
        assert!(places.idle().connections.is_empty());
    }
}
