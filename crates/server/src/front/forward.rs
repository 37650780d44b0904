//! The handler of forwarded requests: it picks a model's process, and returns a whole answer or hands a
//! stream to `relay`.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use axum::body::to_bytes;
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{Method, header, response};
use axum::response::Response;
use http_body_util::BodyExt;
use hyper::body::{Bytes, Incoming};
use serde::Deserialize;

use super::Shared;
use super::relay;
use super::upstream::{UpstreamRequest, lost_again};
use crate::error::ApiError;
use crate::request::encoding::unmarked;

/// Forwards a request.
pub(super) async fn forward(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    // The middleware has limited the body.
    let body = to_bytes(body, usize::MAX).await.unwrap_or_default();
    let worker = Arc::clone(shared.worker(model_of(&parts, &body).as_deref())?);
    let at_work = (parts.method == Method::POST).then(|| worker.begin());
    let request = UpstreamRequest { shared, worker, parts, body, at_work, sends: AtomicUsize::new(0) };
    let (response, run) = request.send(None).await?;
    let is_stream = response
        .headers()
        .get(header::CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
    if is_stream {
        return Ok(relay::stream(request, response, run));
    }
    let answer = match whole(response).await {
        Some(answer) => Some(answer),
        None => whole(request.send(Some(run)).await?.0).await,
    };
    answer.map(|(head, body)| request.finish(head, body)).ok_or_else(lost_again)
}

/// The body's field that selects the process.
#[derive(Deserialize)]
struct Named {
    model: Option<String>,
}

/// The model in a request's query or body.
fn model_of(parts: &Parts, body: &Bytes) -> Option<String> {
    let named = |query: &str| query.split('&').find_map(|pair| Some(pair.strip_prefix("model=")?.to_owned()));
    let of_query = parts.uri.query().and_then(named);
    // Invalid JSON is refused by the process.
    let of_body =
        || serde_json::from_slice::<Named>(unmarked(body)).ok()?.model.filter(|name| !name.is_empty());
    of_query.or_else(of_body)
}

/// A complete answer; `None` if the connection broke.
async fn whole(response: hyper::Response<Incoming>) -> Option<(response::Parts, Bytes)> {
    let (parts, body) = response.into_parts();
    Some((parts, body.collect().await.ok()?.to_bytes()))
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    #[test]
    fn a_body_s_model_is_found_beside_anything_and_is_a_text_or_none() {
        let (parts, _) = Request::new(Body::empty()).into_parts();
        let found = |body: &'static str| model_of(&parts, &Bytes::from_static(body.as_bytes()));
        assert_eq!(found("\u{feff}{\"model\": \"x\"}").as_deref(), Some("x"));
        assert_eq!(found(r#"{"a": [{"model": "no"}], "model": "x\u0041", "b": 1e3}"#).as_deref(), Some("xA"));
        for body in
            ["", "[1]", r#"{"model": 1}"#, r#"{"model": ""}"#, r#"{"model": null}"#, r#"{"model": "x""#]
        {
            assert_eq!(found(body), None, "{body}");
        }
    }
}
