//! CORS: the origins whose scripts are allowed, and the headers that let browsers read the answers (Fetch
//! standard, "CORS protocol").

use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::error::{ApiError, quoted};

/// Wildcard for every origin.
const ANY: &str = "*";
/// Response headers that scripts may read in addition to the safelisted ones.
const EXPOSED: &str = "x-request-id, request-id, x-ottava-ignored, retry-after";
/// Lifetime of a preflight answer in the browser's cache, in seconds.
const MAX_AGE: &str = "600";

/// Whether a text is `*` or an origin as browsers send it: a scheme, a host, an optional port.
pub(crate) fn is_origin(text: &str) -> bool {
    let host = text.split_once("://").map(|(_, host)| host);
    text == ANY || host.is_some_and(|host| !host.is_empty() && !host.contains(['/', '?', '#', '@', ' ', '*']))
}

/// The allowed foreign origin of a request, if it has one.
///
/// # Errors
/// An origin that is not allowed. Programs send no origin.
pub(crate) fn site<'h>(
    allowed_origins: &[String],
    headers: &'h HeaderMap,
) -> Result<Option<&'h HeaderValue>, ApiError> {
    let Some(found) = headers.get(header::ORIGIN) else { return Ok(None) };
    let origin = found.to_str().unwrap_or_default();
    if allowed_origins.iter().any(|allowed| allowed == ANY || allowed.eq_ignore_ascii_case(origin)) {
        return Ok(Some(found));
    }
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    if origin.split_once("://").is_some_and(|(_, site)| !host.is_empty() && site.eq_ignore_ascii_case(host)) {
        return Ok(None);
    }
    let message = format!("scripts of {} are not answered (--allowed-origin)", quoted(origin));
    Err(ApiError::new(StatusCode::FORBIDDEN, "permission_error", message).with_code("unknown_origin"))
}

/// The answer to a preflight request. Browsers send those without a key.
pub(crate) fn preflight(method: &Method, headers: &HeaderMap) -> Option<Response> {
    headers.get(header::ACCESS_CONTROL_REQUEST_METHOD).filter(|_| method == Method::OPTIONS)?;
    let mut response = StatusCode::NO_CONTENT.into_response();
    let told = response.headers_mut();
    told.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST"));
    told.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static(MAX_AGE));
    if let Some(asked) = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
        told.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, asked.clone());
    }
    Some(response)
}

/// Adds the headers that let scripts of an origin read the answer.
pub(crate) fn show(response: &mut Response, site: HeaderValue) {
    let told = response.headers_mut();
    told.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, site);
    told.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED));
    told.append(header::VARY, HeaderValue::from_static("origin"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_has_a_scheme_and_a_host_and_nothing_behind_it() {
        let sound =
            ["*", "https://example.org", "http://localhost:3000", "tauri://localhost", "http://[::1]:80"];
        assert_eq!(sound.map(is_origin), [true; 5]);
        let wrong = [
            "",
            "example.org",
            "https://",
            "https://a.b/",
            "https://a.b/path",
            "https://*.a.b",
            "https://a@b",
        ];
        assert_eq!(wrong.map(is_origin), [false; 7]);
    }
}
