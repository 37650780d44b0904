//! A request on its way to a model's process, and a whole answer on its way back.

use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use serde_json::Value;

use super::Shared;
use super::relay;
use super::worker::{AtWork, Worker};
use crate::error::ApiError;

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
    /// While it is there, the model is not unloaded.
    _at_work: AtWork,
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
    let at_work = worker.begin();
    let question = Question { shared, worker, parts, body, _at_work: at_work };
    let (response, run) = question.ask(None).await?;
    let is_stream = response
        .headers()
        .get(header::CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
    if is_stream {
        return Ok(relay::stream(question, response, run));
    }
    match whole(response).await {
        Some(response) => Ok(question.finish(response)),
        None => {
            let (response, _) = question.ask(Some(run)).await?;
            whole(response).await.map(|response| question.finish(response)).ok_or_else(lost)
        }
    }
}

impl Question {
    /// Asks, and a second time if no answer begins. `broken` is a run that has failed before: then once.
    pub(super) async fn ask(
        &self,
        mut broken: Option<u64>,
    ) -> Result<(hyper::Response<Incoming>, u64), ApiError> {
        let attempts = if broken.is_some() { 1 } else { 2 };
        for _ in 0..attempts {
            let (address, run) = self.worker.up(broken).await.map_err(unavailable)?;
            let path = self.parts.uri.path_and_query().map_or("/", |path| path.as_str());
            let uri: Uri = format!("http://{address}{path}").parse().map_err(|_| lost())?;
            let mut request = hyper::Request::new(Full::new(self.body.clone()));
            *request.method_mut() = self.parts.method.clone();
            *request.uri_mut() = uri;
            *request.headers_mut() = kept(&self.parts.headers);
            match self.shared.client.request(request).await {
                Ok(response) => return Ok((response, run)),
                Err(_) => broken = Some(run),
            }
        }
        Err(lost())
    }

    /// Adds what the front knows to what the process counts.
    fn finish(&self, response: Response) -> Response {
        if self.parts.uri.path() != "/metrics" || response.status() != StatusCode::OK {
            return response;
        }
        let name = self.worker.name().to_owned();
        let line = format!(
            "# HELP ottava:engine_restarts The engine's process ended without being asked to.\n\
             # TYPE ottava:engine_restarts counter\nottava:engine_restarts_total{{model_name=\"{name}\"}} {}\n# EOF\n",
            self.worker.deaths()
        );
        let (parts, body) = response.into_parts();
        let appended = async move {
            let text = to_bytes(body, usize::MAX).await.unwrap_or_default();
            let text = String::from_utf8_lossy(&text).replace("# EOF\n", "");
            Ok::<_, std::convert::Infallible>(Bytes::from(text + &line))
        };
        Response::from_parts(parts, Body::from_stream(futures_util::stream::once(appended)))
    }

    pub(super) fn path(&self) -> &str {
        self.parts.uri.path()
    }
}

/// The model that a request names, in its body or its query.
fn model_of(parts: &Parts, body: &Bytes) -> Option<String> {
    let named = |query: &str| query.split('&').find_map(|pair| Some(pair.strip_prefix("model=")?.to_owned()));
    let of_query = parts.uri.query().and_then(named);
    // What is no JSON the process refuses.
    let of_body = || {
        let value: Value = serde_json::from_slice(body).ok()?;
        value["model"].as_str().filter(|name| !name.is_empty()).map(str::to_owned)
    };
    of_query.or_else(of_body)
}

/// A whole answer; none if it broke off.
async fn whole(response: hyper::Response<Incoming>) -> Option<Response> {
    let (parts, body) = response.into_parts();
    let bytes = body.collect().await.ok()?.to_bytes();
    let mut response = (parts.status, Body::from(bytes)).into_response();
    *response.headers_mut() = kept(&parts.headers);
    Some(response)
}

/// The headers that are forwarded.
pub(super) fn kept(headers: &HeaderMap) -> HeaderMap {
    let mut kept = headers.clone();
    for name in NOT_FORWARDED {
        kept.remove(name);
    }
    kept
}

/// The process ended while it worked on the request.
pub(super) fn lost() -> ApiError {
    unavailable("the engine ended while it worked on this request".into()).with_code("engine_lost")
}

fn unavailable(reason: String) -> ApiError {
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", reason)
        .with_code("unavailable")
        .retry_after(5)
}
