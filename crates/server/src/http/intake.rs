//! Admission of request bodies. Memory for a body above 64 KiB is reserved before the first byte is read,
//! and held until the prompt's tokens exist.

use std::sync::Arc;

use axum::http::StatusCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::{ApiError, overloaded};

/// Length up to which a body needs no reservation, and up to which HTTP threads parse and write JSON. Larger
/// texts are work for other threads.
pub(crate) const SMALL: usize = 64 << 10;
/// Room for this number of the largest bodies.
const BODIES: usize = 32;
/// Most requests that wait for room.
const WAITING_MAX: usize = 64;

/// Room for bodies, in units of [`SMALL`].
#[derive(Debug)]
pub(crate) struct Intake {
    room: Arc<Semaphore>,
    waiting: Semaphore,
    body_max: usize,
}

/// Room of one body; empty for a small one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Room {
    units: Option<Arc<OwnedSemaphorePermit>>,
}

impl Room {
    /// Gives back the room that a body of `length` bytes does not need.
    pub(crate) fn shrink(&mut self, length: usize) {
        if length <= SMALL {
            self.units = None;
        }
        if let Some(units) = self.units.as_mut().and_then(Arc::get_mut) {
            let spare = units.num_permits().saturating_sub(length.div_ceil(SMALL));
            drop(units.split(spare));
        }
    }
}

impl Intake {
    /// Room for [`BODIES`] bodies of `body_max` bytes.
    pub(crate) fn new(body_max: usize) -> Intake {
        let room = body_max.div_ceil(SMALL).saturating_mul(BODIES).min(Semaphore::MAX_PERMITS);
        Intake { room: Arc::new(Semaphore::new(room)), waiting: Semaphore::new(WAITING_MAX), body_max }
    }

    /// Reserves room for a body of `length` bytes, in the order of arrival. A body without a length gets room
    /// for the largest.
    ///
    /// # Errors
    /// 413 above the limit of a body; 429 if [`WAITING_MAX`] requests wait.
    pub(crate) async fn admit(&self, length: Option<u64>) -> Result<Room, ApiError> {
        let length = length.unwrap_or(self.body_max as u64);
        let fits = usize::try_from(length).ok().filter(|length| *length <= self.body_max);
        let length = fits.ok_or_else(|| too_large(self.body_max))?;
        if length <= SMALL {
            return Ok(Room::default());
        }
        // At most `body_max`, for which there is room.
        let units = u32::try_from(length.div_ceil(SMALL)).unwrap_or(u32::MAX);
        let units = match Arc::clone(&self.room).try_acquire_many_owned(units) {
            Ok(units) => Some(units),
            Err(_) => {
                let Ok(_waiting) = self.waiting.try_acquire() else { return Err(overloaded(TOO_MANY)) };
                // The semaphore is never closed.
                Arc::clone(&self.room).acquire_many_owned(units).await.ok()
            }
        };
        Ok(Room { units: units.map(Arc::new) })
    }
}

const TOO_MANY: &str = "too many large requests wait to be read";

/// The error of a body above the limit.
pub(crate) fn too_large(body_max: usize) -> ApiError {
    let message = format!("the body: expected at most {body_max} bytes");
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", message)
}

#[cfg(test)]
mod tests {
    use std::future::Future as _;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    const MAX: usize = 4 << 20;

    fn poll(intake: &Intake, length: Option<u64>) -> Poll<Result<Room, ApiError>> {
        pin!(intake.admit(length)).poll(&mut Context::from_waker(Waker::noop()))
    }

    fn room(intake: &Intake, length: Option<u64>) -> Room {
        match poll(intake, length) {
            Poll::Ready(Ok(room)) => room,
            other => panic!("room at once, found {other:?}"),
        }
    }

    #[test]
    fn large_bodies_take_room_and_small_ones_none() {
        let intake = Intake::new(MAX);
        let all = intake.room.available_permits();
        assert_eq!(all * SMALL, BODIES * MAX);
        let small = room(&intake, Some(SMALL as u64));
        assert_eq!(intake.room.available_permits(), all);
        let (one, unknown) = (room(&intake, Some(SMALL as u64 + 1)), room(&intake, None));
        assert_eq!(intake.room.available_permits(), all - 2 - MAX / SMALL);
        drop((small, one, unknown));
        assert_eq!(intake.room.available_permits(), all);
    }

    #[test]
    fn a_body_without_a_length_keeps_the_room_of_its_bytes() {
        let intake = Intake::new(MAX);
        let all = intake.room.available_permits();
        for (length, kept) in [(0, 0), (SMALL, 0), (SMALL + 1, 2), (MAX, MAX / SMALL)] {
            let mut room = room(&intake, None);
            room.shrink(length);
            assert_eq!(intake.room.available_permits(), all - kept, "{length}");
        }
        assert_eq!(intake.room.available_permits(), all);
    }

    #[test]
    fn a_body_above_the_limit_takes_no_room() {
        let intake = Intake::new(MAX);
        for length in [MAX as u64 + 1, u64::MAX] {
            let Poll::Ready(Err(error)) = poll(&intake, Some(length)) else { panic!("refused") };
            assert_eq!(error.status, StatusCode::PAYLOAD_TOO_LARGE);
        }
    }

    #[test]
    fn a_bounded_number_waits_for_room_and_further_ones_are_refused() {
        let intake = Intake::new(MAX);
        let mut held: Vec<Room> = (0..BODIES).map(|_| room(&intake, None)).collect();
        let mut waiting: Vec<_> = (0..WAITING_MAX).map(|_| Box::pin(intake.admit(None))).collect();
        let mut context = Context::from_waker(Waker::noop());
        assert!(waiting.iter_mut().all(|admitted| admitted.as_mut().poll(&mut context).is_pending()));
        let Poll::Ready(Err(error)) = poll(&intake, None) else { panic!("refused") };
        assert_eq!(error.status, StatusCode::TOO_MANY_REQUESTS);
        room(&intake, Some(1));
        held.pop();
        let first = waiting[0].as_mut().poll(&mut context);
        assert!(first.is_ready(), "the first in the queue");
        assert!(waiting[1].as_mut().poll(&mut context).is_pending());
        assert!(poll(&intake, None).is_pending(), "a place in the queue is free");
    }
}
