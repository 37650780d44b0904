//! Scripts of web sites: whose are answered, and what their browsers are told so that they may read the answers
//! (the Fetch standard, "CORS protocol").

use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::error::{ApiError, quoted};

/// Stands for every web site.
const ANY: &str = "*";
/// What a script may read beside the headers that it always may.
const EXPOSED: &str = "x-request-id, request-id, x-ottava-ignored, retry-after";
/// Seconds for which a browser need not ask again.
const MAX_AGE: &str = "600";

/// Whether an origin is one that a browser could send: a scheme, a host and perhaps a port. Or all of them.
pub(crate) fn is_origin(text: &str) -> bool {
    let host = text.split_once("://").map(|(_, host)| host);
    text == ANY || host.is_some_and(|host| !host.is_empty() && !host.contains(['/', '?', '#', '@', ' ', '*']))
}

/// The site that a request's script is of, where the site is another one and is answered.
///
/// # Errors
/// The script is of a site that is not answered. Programs name no site.
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

/// The answer to a browser that asks whether it may send a request. It brings no key.
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

/// Lets the scripts of a site read an answer.
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
