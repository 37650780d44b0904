//! Limits of a request's body: bytes, and time to send them.

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, StatusCode, header};
use http_body_util::BodyExt as _;
use tokio::time::timeout;

use crate::error::ApiError;
use crate::http::auth::Guard;
use crate::http::intake::{Room, too_large};

/// Reads the whole body, within its limits of size and time, once there is room for it. After an error the
/// rest is left in `body`.
pub(crate) async fn read_body(
    guard: &Guard,
    headers: &HeaderMap,
    body: &mut Body,
) -> Result<(Bytes, Room), ApiError> {
    let said = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok());
    let said = said.and_then(|length| length.parse().ok());
    let none = said.is_none() && !headers.contains_key(header::TRANSFER_ENCODING);
    let length = if none { Some(0) } else { said };
    let mut room = guard.intake.admit(length).await?;
    let (most, start) = (guard.config.body_max, length.unwrap_or_default());
    match timeout(guard.config.read_timeout, within(most, start, body)).await {
        Ok(read) => {
            let bytes = read?;
            room.shrink(bytes.len());
            Ok((bytes, room))
        }
        Err(_) => {
            // The client has had its time.
            *body = Body::empty();
            let message = "the body did not come in time";
            Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "invalid_request_error", message))
        }
    }
}

/// Reads at most `most` bytes; `length` is the length if it is known, or else 0.
async fn within(most: usize, length: u64, body: &mut Body) -> Result<Bytes, ApiError> {
    let mut bytes = Vec::with_capacity(usize::try_from(length).map_or(most, |length| length.min(most)));
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| {
            let message = "the body ended before its length";
            ApiError::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
        })?;
        let data = frame.data_ref().map(|data| &data[..]).unwrap_or_default();
        if data.len() > most - bytes.len() {
            return Err(too_large(most));
        }
        bytes.extend_from_slice(data);
    }
    Ok(bytes.into())
}
