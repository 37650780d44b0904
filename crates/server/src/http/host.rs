//! The `Host` header: names by which clients may reach the server.
//!
//! The check prevents DNS rebinding: a web site maps its own name to this machine's address and reads the
//! answers to its visitors.

use std::net::IpAddr;

use axum::http::{HeaderMap, StatusCode, Uri, header};

use crate::error::{ApiError, quoted};
use crate::http::path::OPEN;

/// Ports that clients leave out of the header: those of HTTP and HTTPS.
const IMPLIED: [&str; 2] = ["80", "443"];

/// Whether a text is a host as settings have it: a name or an address, perhaps with a port.
pub(crate) fn is_host(text: &str) -> bool {
    let (name, port) = split(text);
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    let is_name = match address {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !name.is_empty() && name.bytes().all(plain),
    };
    is_name && port.is_none_or(|port| port.parse::<u16>().is_ok())
}

/// Refuses a request for a host that is neither loopback nor `own`, the address of the server, nor allowed.
/// Several `Host` headers are refused, too: proxies and servers may read different ones.
pub(crate) fn check(
    own: IpAddr,
    allowed_hosts: &[String],
    headers: &HeaderMap,
    uri: &Uri,
) -> Result<(), ApiError> {
    if headers.get_all(header::HOST).iter().nth(1).is_some() {
        let message = "expected one Host header, found several";
        return Err(ApiError::new(StatusCode::BAD_REQUEST, "invalid_request_error", message));
    }
    let host = headers.get(header::HOST).map(|host| host.to_str().unwrap_or_default());
    let said = host.or(uri.authority().map(|authority| authority.as_str()));
    // Browsers always send one; old probes of load balancers do not.
    if said.is_none() && OPEN.contains(&uri.path()) {
        return Ok(());
    }
    let said = said.unwrap_or_default();
    let name = split(said).0;
    let listed = allowed_hosts.iter().any(|allowed| matches(allowed, said));
    let local = ["localhost", "127.0.0.1", "[::1]"].iter().any(|local| local.eq_ignore_ascii_case(name));
    // A public address has a key; its host names are configured by the operator or not checked at all.
    let anywhere = !own.is_loopback() && allowed_hosts.is_empty();
    if listed || local || name == shown(own) || anywhere {
        return Ok(());
    }
    let message = format!("requests for the host {} are not answered (--allowed-host)", quoted(said));
    Err(ApiError::new(StatusCode::FORBIDDEN, "permission_error", message).with_code("unknown_host"))
}

/// Whether a header's host is the allowed one. Without a port in `allowed`, any port is.
fn matches(allowed: &str, found: &str) -> bool {
    let ((name, port), (found_name, found_port)) = (split(allowed), split(found));
    let same_port = match (port, found_port) {
        (None, _) => true,
        (Some(port), Some(found)) => port == found,
        (Some(port), None) => IMPLIED.contains(&port),
    };
    same_port && name.eq_ignore_ascii_case(found_name)
}

/// A host's name, and its port.
fn split(host: &str) -> (&str, Option<&str>) {
    match host.rsplit_once(':') {
        Some((name, port)) if !name.is_empty() && port.bytes().all(|c| c.is_ascii_digit()) => {
            (name, Some(port))
        }
        _ => (host, None),
    }
}

fn shown(host: IpAddr) -> String {
    match host {
        IpAddr::V4(host) => host.to_string(),
        IpAddr::V6(host) => format!("[{host}]"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_a_name_and_perhaps_a_port() {
        let cases = [
            ("localhost:8080", ("localhost", Some("8080"))),
            ("[::1]:80", ("[::1]", Some("80"))),
            ("[::1]", ("[::1]", None)),
            ("a.b", ("a.b", None)),
        ];
        for (host, parts) in cases {
            assert_eq!(split(host), parts);
            assert!(is_host(host), "{host}");
        }
        let wrong =
            ["", ":80", "a:b", "a:99999", "http://a.b", "a.b/", "*", "*.a.b", "a b", "u@a.b", "::1", "[x]"];
        for host in wrong {
            assert!(!is_host(host), "{host}");
        }
    }

    #[test]
    fn an_allowed_port_is_compared_and_those_of_http_may_be_left_out() {
        for (allowed, found, expected) in [
            ("box", "BOX:8080", true),
            ("box:8080", "box:8080", true),
            ("box:8080", "box:8081", false),
            ("box:8080", "box", false),
            ("box:443", "box", true),
            ("box:80", "box:443", false),
            ("box", "box.evil", false),
        ] {
            assert_eq!(matches(allowed, found), expected, "{allowed} {found}");
        }
    }
}
