//! Limits of a request's body: bytes, and time to send them.

use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, StatusCode, header};
use tokio::time::timeout;

use crate::Config;
use crate::error::ApiError;

/// Reads the whole body, within its limits of size and time.
pub(crate) async fn read_body(config: &Config, headers: &HeaderMap, body: Body) -> Result<Body, ApiError> {
    let most = config.body_max;
    let too_large = || {
        let message = format!("the body: expected at most {most} bytes");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", message)
    };
    let said = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok());
    if said.and_then(|length| length.parse::<u64>().ok()).is_some_and(|length| length > most as u64) {
        return Err(too_large());
    }
    match timeout(config.read_timeout, to_bytes(body, most)).await {
        Ok(Ok(bytes)) => Ok(Body::from(bytes)),
        Ok(Err(error)) if is_too_large(&error) => Err(too_large()),
        Ok(Err(_)) => {
            let message = "the body ended before its length";
            Err(ApiError::new(StatusCode::BAD_REQUEST, "invalid_request_error", message))
        }
        Err(_) => {
            let message = "the body did not come in time";
            Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "invalid_request_error", message))
        }
    }
}

fn is_too_large(error: &axum::Error) -> bool {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = source {
        if error.is::<http_body_util::LengthLimitError>() {
            return true;
        }
        source = error.source();
    }
    false
}
