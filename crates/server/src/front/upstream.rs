//! A request to a model's process, which can be sent again until the client has seen any of its answer.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, StatusCode, Uri, header, response};
use axum::response::{IntoResponse, Response};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};

use super::Shared;
use super::worker::{AtWork, Worker};
use crate::error::{ApiError, LOST_HEADER};
use crate::http::files;

/// Most processes that get a request: two that end may have ended because of it.
const SENDS_MAX: usize = 2;

/// Headers of one connection, and those that the middleware has checked.
const NOT_FORWARDED: &[HeaderName] = &[
    header::HOST,
    header::ORIGIN,
    header::CONNECTION,
    header::TRANSFER_ENCODING,
    header::CONTENT_LENGTH,
    header::TE,
    header::TRAILER,
    header::UPGRADE,
    header::EXPECT,
];

/// A request that can be sent again.
pub(super) struct UpstreamRequest {
    pub(super) shared: Arc<Shared>,
    pub(super) worker: Arc<Worker>,
    pub(super) parts: Parts,
    pub(super) body: Bytes,
    /// Keeps the model loaded. Only POST requests have one.
    pub(super) at_work: Option<AtWork>,
    /// Number of times that the request was sent.
    pub(super) sends: AtomicUsize,
}

impl UpstreamRequest {
    /// Sends the request, and a second time if no answer begins or the engine is lost. `broken` is a run that
    /// has failed before. A request is sent [`SENDS_MAX`] times in all.
    pub(super) async fn send(
        &self,
        mut broken: Option<u64>,
    ) -> Result<(hyper::Response<Incoming>, u64), ApiError> {
        loop {
            if broken.is_some_and(|run| !self.worker.repeats(run)) {
                return Err(lost().never_retry());
            }
            if self.sends.fetch_add(1, Ordering::Relaxed) >= SENDS_MAX {
                return Err(lost_again());
            }
            let up = match &self.at_work {
                Some(_) => self.worker.up(broken).await,
                None => self.worker.now(),
            };
            let (address, run) = up.map_err(unavailable)?;
            let path = self.parts.uri.path_and_query().map_or("/", |path| path.as_str());
            let uri: Uri = format!("http://{address}{path}").parse().map_err(|_| lost())?;
            let mut request = hyper::Request::new(Full::new(self.body.clone()));
            *request.method_mut() = self.parts.method.clone();
            *request.uri_mut() = uri;
            *request.headers_mut() = kept(&self.parts.headers);
            match self.shared.client.request(request).await {
                Ok(response) if !response.headers().contains_key(LOST_HEADER) => return Ok((response, run)),
                Err(error) if is_shortage(&error) => {
                    return Err(unavailable("the server is short of files".into()));
                }
                _ => broken = Some(run),
            }
        }
    }

    /// The answer; in `/metrics` with the front's own counter.
    pub(super) fn finish(&self, head: response::Parts, body: Bytes) -> Response {
        let body = match self.path() {
            "/metrics" if head.status == StatusCode::OK => {
                let name = label(self.worker.name());
                let line = format!(
                    "# HELP ottava:engine_restarts The engine's process ended without being asked to.\n\
                     # TYPE ottava:engine_restarts counter\n\
                     ottava:engine_restarts_total{{model_name=\"{name}\"}} {}\n# EOF\n",
                    self.worker.deaths()
                );
                Body::from(String::from_utf8_lossy(&body).replace("# EOF\n", "") + &line)
            }
            _ => Body::from(body),
        };
        let mut response = (head.status, body).into_response();
        *response.headers_mut() = kept(&head.headers);
        response
    }

    pub(super) fn path(&self) -> &str {
        self.parts.uri.path()
    }
}

/// Escapes a label's value.
fn label(name: &str) -> String {
    name.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Headers to forward.
pub(super) fn kept(headers: &HeaderMap) -> HeaderMap {
    let mut kept = headers.clone();
    for name in NOT_FORWARDED {
        kept.remove(name);
    }
    // This header is for the front alone.
    kept.remove(LOST_HEADER);
    kept
}

/// The error of a process that ended during the request.
pub(super) fn lost() -> ApiError {
    ApiError::lost("the engine ended while it worked on this request").retry_after(5)
}

/// The error of a request during which two processes ended.
pub(super) fn lost_again() -> ApiError {
    ApiError::lost("the engine ended twice while it worked on this request").never_retry()
}

/// Whether a connection failed by a shortage of the front or the system.
fn is_shortage(error: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if error.downcast_ref().is_some_and(files::is_shortage) {
            return true;
        }
        cause = error.source();
    }
    false
}

fn unavailable(reason: String) -> ApiError {
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", reason)
        .with_code("unavailable")
        .retry_after(5)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_escaped() {
        assert_eq!(label("a\"b\\c\nd"), r#"a\"b\\c\nd"#);
    }
}
