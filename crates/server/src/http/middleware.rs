//! Checks before every route: request id, host, origin, key, body size.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::error::{ApiError, stopping};
use crate::http::auth::{Guard, Phase};
use crate::http::path::OPEN;
use crate::http::{cors, encoding, host, limits, unread};
use crate::ids::random_hex;
use crate::state::App;

/// The chat page; its script prompts for the key.
const PAGE: &str = "/";
/// Prefix of the routes with Anthropic's form of errors.
const ANTHROPIC: &str = "/v1/messages";
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Longest request id of a client.
const ID_MAX: usize = 64;

/// API key of a request, as the handlers get it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Client {
    key: Option<String>,
}

impl Client {
    pub(crate) fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }
}

impl<S: Sync> FromRequestParts<S> for Client {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Client, Self::Rejection> {
        Ok(parts.extensions.get().cloned().unwrap_or_default())
    }
}

/// Passes a request on, or answers it with an error.
pub(crate) async fn gate(State(guard): State<Arc<Guard>>, request: Request, next: Next) -> Response {
    let id = request_id(request.headers());
    let anthropic = request.uri().path().starts_with(ANTHROPIC);
    let site = cors::site(&guard.config.allowed_origins, request.headers()).ok().flatten().cloned();
    let (parts, mut body) = request.into_parts();
    // A client that waits for `100 Continue` has sent nothing.
    let waits = parts.headers.contains_key(header::EXPECT);
    let answered = answered(&guard, parts, &mut body, next).await;
    if !waits {
        unread::discard(&guard.config, body);
    }
    let mut response = answered.unwrap_or_else(ApiError::into_response);
    let error = response.extensions_mut().remove::<ApiError>();
    if let Some(error) = error.filter(|_| anthropic) {
        let body = error.to_anthropic().to_string();
        response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(body.len()));
        *response.body_mut() = Body::from(body);
    }
    let headers = response.headers_mut();
    if anthropic {
        headers.insert("request-id", id.clone());
    }
    headers.insert(REQUEST_ID, id);
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if let Some(site) = site {
        cors::show(&mut response, site);
    }
    response
}

/// Counts answers by their status.
pub(crate) async fn count(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    app.metrics.answered(response.status());
    response
}

async fn answered(
    guard: &Guard,
    mut parts: Parts,
    body: &mut Body,
    next: Next,
) -> Result<Response, ApiError> {
    let config = &guard.config;
    host::check(config.host, &config.allowed_hosts, &parts.headers, &parts.uri)?;
    let site = cors::site(&config.allowed_origins, &parts.headers)?;
    if let Some(answer) = cors::preflight(&parts.method, &parts.headers).filter(|_| site.is_some()) {
        return Ok(answer);
    }
    let is_open = admit(guard, &mut parts)?;
    // Other methods have no use for a body, and an open route takes nothing from strangers.
    if parts.method != Method::POST || is_open {
        return Ok(next.run(Request::from_parts(parts, Body::empty())).await);
    }
    let (bytes, room) = limits::read_body(guard, &parts.headers, body).await?;
    parts.extensions.insert(room);
    Ok(next.run(Request::from_parts(parts, bytes.into())).await)
}

/// Checks the key, and the phase for requests with an answer of the model. Returns whether the route is open.
fn admit(guard: &Guard, parts: &mut Parts) -> Result<bool, ApiError> {
    let path = parts.uri.path();
    let reads = [Method::GET, Method::HEAD].contains(&parts.method);
    let is_open = OPEN.contains(&path) || (path == PAGE && reads);
    let key = key(&parts.headers);
    if guard.asks_for_keys() && !is_open && !key.as_deref().is_some_and(|key| guard.knows(key)) {
        return Err(unknown_key(key.is_some()));
    }
    if parts.method == Method::POST && *guard.phase.borrow() != Phase::Serving {
        return Err(stopping());
    }
    encoding::check(&parts.headers)?;
    // Without configured keys all clients share the cache, whatever key they send.
    parts.extensions.insert(Client { key: key.filter(|_| guard.asks_for_keys()) });
    Ok(is_open)
}

/// The client's request id if it is plain, or else a random one.
fn request_id(headers: &HeaderMap) -> HeaderValue {
    let plain = |id: &&HeaderValue| {
        let id = id.as_bytes();
        let fits = (1..=ID_MAX).contains(&id.len());
        fits && id.iter().all(|c| c.is_ascii_alphanumeric() || b"._-".contains(c))
    };
    let random = || HeaderValue::from_str(&random_hex::<16>());
    match headers.get(REQUEST_ID).filter(plain) {
        Some(id) => id.clone(),
        None => random().unwrap_or(HeaderValue::from_static("none")),
    }
}

/// The key of `Authorization: Bearer` or `x-api-key`.
fn key(headers: &HeaderMap) -> Option<String> {
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let bearer = text(header::AUTHORIZATION).and_then(|value| {
        let (scheme, key) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
    });
    bearer.or_else(|| text(HeaderName::from_static("x-api-key"))).map(str::to_owned)
}

fn unknown_key(given: bool) -> ApiError {
    let message =
        if given { "the API key is not known" } else { "expected an API key: Authorization: Bearer KEY" };
    ApiError::new(StatusCode::UNAUTHORIZED, "authentication_error", message).with_code("invalid_api_key")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(entries: &[(&'static str, &'static str)]) -> HeaderMap {
        let entry = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        entries.iter().map(entry).collect()
    }

    #[test]
    fn keys_come_by_either_header() {
        assert_eq!(key(&headers(&[("authorization", "Bearer abc")])).as_deref(), Some("abc"));
        assert_eq!(key(&headers(&[("authorization", "bearer abc")])).as_deref(), Some("abc"));
        assert_eq!(key(&headers(&[("x-api-key", "abc")])).as_deref(), Some("abc"));
        assert_eq!(key(&headers(&[("authorization", "Basic abc")])), None);
    }

    #[test]
    fn only_plain_request_ids_are_echoed() {
        assert_eq!(request_id(&headers(&[("x-request-id", "run-7.a_B")])), "run-7.a_B");
        for id in ["two words", "a\u{7f}", "<b>", ""] {
            let mut map = HeaderMap::new();
            if let Ok(value) = HeaderValue::from_bytes(id.as_bytes()) {
                map.insert(REQUEST_ID, value);
            }
            assert_eq!(request_id(&map).len(), 32, "{id:?}");
        }
    }
}
