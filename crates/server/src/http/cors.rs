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

/// Whether a text is a pattern of origins: `*`, or a scheme, a host and an optional port, where the host may
/// be `*` or begin with `*.`, and the port may be `*`.
pub(crate) fn is_origin(text: &str) -> bool {
    let Some((scheme, site)) = text.split_once("://") else { return text == ANY };
    let (host, port) = split(site);
    let name = host.strip_prefix("*.").unwrap_or(host);
    let is_host = host == ANY || !name.is_empty() && !name.contains(['/', '?', '#', '@', ' ', '*']);
    let is_port = port.is_none_or(|port| port == ANY || port.parse::<u16>().is_ok());
    !scheme.is_empty() && !scheme.contains('*') && is_host && is_port
}

/// Whether a pattern matches an origin. `https://*` matches every host and port of the scheme, `https://*.a`
/// every subdomain of `a`, `http://a:*` every port of `a`, the scheme's own included.
fn matches(pattern: &str, origin: &str) -> bool {
    if pattern == ANY || pattern.eq_ignore_ascii_case(origin) {
        return true;
    }
    let (Some((scheme, pattern)), Some((found, site))) =
        (pattern.split_once("://"), origin.split_once("://"))
    else {
        return false;
    };
    let ((host, port), (found_host, found_port)) = (split(pattern), split(site));
    let same_host = match host.strip_prefix('*') {
        Some("") => !found_host.is_empty(),
        // The dot remains, so that a subdomain matches and a longer name does not.
        Some(domain) => ends_with(found_host, domain) && found_host.len() > domain.len(),
        None => host.eq_ignore_ascii_case(found_host),
    };
    let same_port = match port {
        Some(ANY) => true,
        None if host == ANY => true,
        port => port == found_port,
    };
    scheme.eq_ignore_ascii_case(found) && same_host && same_port
}

/// Whether a host ends with a domain, whatever the case.
fn ends_with(host: &str, domain: &str) -> bool {
    let end = host.len().checked_sub(domain.len()).and_then(|start| host.get(start..));
    end.is_some_and(|end| end.eq_ignore_ascii_case(domain))
}

/// The host and the port of an origin's rest after the scheme.
fn split(site: &str) -> (&str, Option<&str>) {
    match site.rsplit_once(':') {
        // The colons of an IPv6 address are within brackets.
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (site, None),
    }
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
    if allowed_origins.iter().any(|allowed| matches(allowed, origin)) {
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
        let sound = [
            "*",
            "https://example.org",
            "http://localhost:3000",
            "tauri://localhost",
            "http://[::1]:80",
            "https://*.a.b",
            "moz-extension://*",
            "http://localhost:*",
            "http://[::1]:*",
        ];
        for origin in sound {
            assert!(is_origin(origin), "{origin}");
        }
        let wrong = [
            "",
            "example.org",
            "https://",
            "https://a.b/",
            "https://a.b/path",
            "https://a@b",
            "https://*.",
            "*://a",
            "https://a*",
            "https://a.*",
            "https://*a",
            "http://a:x",
            "http://a:",
            "http://a:8*",
            "://a",
        ];
        for origin in wrong {
            assert!(!is_origin(origin), "{origin}");
        }
    }

    #[test]
    fn patterns_match_hosts_subdomains_and_ports_and_nothing_more() {
        let cases = [
            ("*", "null", true),
            ("moz-extension://*", "moz-extension://0b0c1d2e-1111-2222-3333-444455556666", true),
            ("moz-extension://*", "chrome-extension://abcdef", false),
            ("moz-extension://*", "moz-extension://", false),
            ("https://*", "https://a.b:8443", true),
            ("https://*", "http://a.b", false),
            ("http://localhost:*", "http://localhost:3000", true),
            ("http://localhost:*", "http://LOCALHOST", true),
            ("http://localhost:*", "http://localhost.evil:3000", false),
            ("http://localhost:*", "https://localhost:3000", false),
            ("http://localhost", "http://localhost:3000", false),
            ("https://*.a.b", "https://x.A.b", true),
            ("https://*.a.b", "https://x.y.a.b", true),
            ("https://*.a.b", "https://a.b", false),
            ("https://*.a.b", "https://.a.b", false),
            ("https://*.a.b", "https://xa.b", false),
            ("https://*.a.b", "https://x.a.b:8443", false),
            ("https://*.a.b:*", "https://x.a.b:8443", true),
            ("https://*.a.b", "https://x.a.b.evil", false),
            ("http://[::1]:*", "http://[::1]:80", true),
            ("https://a.b", "null", false),
        ];
        for (pattern, origin, expected) in cases {
            assert_eq!(matches(pattern, origin), expected, "{pattern} {origin}");
        }
    }
}
