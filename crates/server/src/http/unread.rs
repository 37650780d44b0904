//! The rest of a body that no handler reads. It is discarded within bounds, so that a client which writes all
//! of its request first sees the answer and not a broken connection.

use axum::body::{Body, HttpBody as _};
use http_body_util::BodyExt as _;
use tokio::time::timeout;

use crate::Config;

/// Most bytes discarded. A longer body costs more than its connection.
const DISCARDED_MAX: u64 = 32 << 20;

/// Discards the rest of a body in the background, while the answer is sent.
pub(crate) fn discard(config: &Config, mut body: Body) {
    if body.is_end_stream() || body.size_hint().lower() > DISCARDED_MAX {
        return;
    }
    let discarded = async move {
        let mut left = DISCARDED_MAX;
        while let Some(Ok(frame)) = body.frame().await {
            let length = frame.data_ref().map_or(0, |bytes| bytes.len() as u64);
            match left.checked_sub(length) {
                Some(rest) => left = rest,
                // Dropping the body ends the connection.
                None => break,
            }
        }
    };
    tokio::spawn(timeout(config.read_timeout, discarded));
}
