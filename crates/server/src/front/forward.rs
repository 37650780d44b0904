//! A request on its way to a model's process, and a whole answer on its way back.

use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, Method, StatusCode, Uri, header, response};
use axum::response::{IntoResponse, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use serde::Deserialize;

use super::Shared;
use super::relay;
use super::worker::{AtWork, Worker};
use crate::error::{ApiError, LOST_HEADER};

/// Headers that belong to one connection, and those that the gate has looked at.
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

/// A request that can be asked again.
pub(super) struct Question {
    pub(super) shared: Arc<Shared>,
    pub(super) worker: Arc<Worker>,
    parts: Parts,
    body: Bytes,
    /// While it is there, the model is loaded and stays so. What only looks (`/metrics`) has none.
    at_work: Option<AtWork>,
}

/// Forwards a request.
pub(super) async fn forward(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    // The gate has bounded it.
    let body = to_bytes(body, usize::MAX).await.unwrap_or_default();
    let worker = Arc::clone(shared.worker(model_of(&parts, &body).as_deref())?);
    let at_work = (parts.method == Method::POST).then(|| worker.begin());
    let question = Question { shared, worker, parts, body, at_work };
    let (response, run) = question.ask(None).await?;
    let is_stream = response
        .headers()
        .get(header::CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
    if is_stream {
        return Ok(relay::stream(question, response, run));
    }
    let answer = match whole(response).await {
        Some(answer) => Some(answer),
        None => whole(question.ask(Some(run)).await?.0).await,
    };
    answer.map(|(head, body)| question.finish(head, body)).ok_or_else(lost)
}

impl Question {
    /// Asks, and a second time if no answer begins or the engine is dead. `broken` is a run that has failed before:
    /// then once.
    pub(super) async fn ask(
        &self,
        mut broken: Option<u64>,
    ) -> Result<(hyper::Response<Incoming>, u64), ApiError> {
        let attempts = if broken.is_some() { 1 } else { 2 };
        for _ in 0..attempts {
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
                _ => broken = Some(run),
            }
        }
        Err(lost())
    }

    /// The answer, with what the front knows added to what the process counts.
    fn finish(&self, head: response::Parts, body: Bytes) -> Response {
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

/// A name as a metric's label has it.
fn label(name: &str) -> String {
    name.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// What of a body says where it goes.
#[derive(Deserialize)]
struct Named {
    model: Option<String>,
}

/// The model that a request names, in its body or its query.
fn model_of(parts: &Parts, body: &Bytes) -> Option<String> {
    let named = |query: &str| query.split('&').find_map(|pair| Some(pair.strip_prefix("model=")?.to_owned()));
    let of_query = parts.uri.query().and_then(named);
    // What is no JSON the process refuses.
    let of_body = || serde_json::from_slice::<Named>(body).ok()?.model.filter(|name| !name.is_empty());
    of_query.or_else(of_body)
}

/// A whole answer; none if it broke off.
async fn whole(response: hyper::Response<Incoming>) -> Option<(response::Parts, Bytes)> {
    let (parts, body) = response.into_parts();
    Some((parts, body.collect().await.ok()?.to_bytes()))
}

/// The headers that are forwarded.
pub(super) fn kept(headers: &HeaderMap) -> HeaderMap {
    let mut kept = headers.clone();
    for name in NOT_FORWARDED {
        kept.remove(name);
    }
    // That is said to the front.
    kept.remove(LOST_HEADER);
    kept
}

/// The process ended while it worked on the request.
pub(super) fn lost() -> ApiError {
    ApiError::lost("the engine ended while it worked on this request").retry_after(5)
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
    fn a_body_s_model_is_found_beside_anything_and_is_a_text_or_none() {
        let (parts, _) = Request::new(Body::empty()).into_parts();
        let found = |body: &'static str| model_of(&parts, &Bytes::from_static(body.as_bytes()));
        assert_eq!(found(r#"{"a": [{"model": "no"}], "model": "x\u0041", "b": 1e3}"#).as_deref(), Some("xA"));
        for body in
            ["", "[1]", r#"{"model": 1}"#, r#"{"model": ""}"#, r#"{"model": null}"#, r#"{"model": "x""#]
        {
            assert_eq!(found(body), None, "{body}");
        }
    }

    #[test]
    fn a_label_is_escaped() {
        assert_eq!(label("a\"b\\c\nd"), r#"a\"b\\c\nd"#);
    }
}
