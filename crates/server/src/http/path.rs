//! Paths: routes without a key, and other spellings of routes, from base URLs without `/v1`, with two of
//! them, or with a slash at the end.
//!
//! Paths are rewritten before any check, so that checks and routes see the same one.

use axum::http::Uri;
use axum::http::uri::PathAndQuery;

/// Routes without a key: liveness tells nothing about the model.
pub(crate) const OPEN: &[&str] = &["/health", "/v1/health", "/ready"];
/// Routes of the APIs below `/v1`. A longer one precedes its own ending.
const APIS: &[&str] = &["chat/completions", "completions", "responses", "messages", "models", "embeddings"];
const V1: &str = "/v1";

/// Rewrites a URI to the path of a route, if its own is another spelling of that path.
pub(crate) fn rewrite(uri: &mut Uri) {
    let Some(path) = route_of(uri.path()) else { return };
    let text = uri.query().map_or_else(|| path.to_owned(), |query| format!("{path}?{query}"));
    let mut parts = std::mem::take(uri).into_parts();
    let rewritten = PathAndQuery::try_from(text);
    parts.path_and_query = rewritten.ok().or(parts.path_and_query);
    *uri = Uri::from_parts(parts).unwrap_or_default();
}

/// The path without repeated slashes at its start, slashes at its end and a repeated `/v1`, and with `/v1` if
/// that makes it a route of an API; `None` if nothing changes.
fn route_of(path: &str) -> Option<String> {
    let mut rest = path.strip_prefix('/')?.trim_matches('/');
    while let Some(inner) = rest.strip_prefix("v1/").filter(|inner| is_below(inner, "v1")) {
        rest = inner;
    }
    let lacks = APIS.iter().any(|api| is_below(rest, api));
    let route = if lacks { format!("{V1}/{rest}") } else { format!("/{rest}") };
    (route != path).then_some(route)
}

/// Whether a path is the route or continues it.
fn is_below(path: &str, route: &str) -> bool {
    path.strip_prefix(route).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The route that an unknown path ends with, for an error's message.
pub(crate) fn nearest(path: &str) -> Option<String> {
    let ends = |api: &&&str| path.strip_suffix(**api).is_some_and(|start| start.ends_with('/'));
    APIS.iter().find(ends).map(|api| format!("{V1}/{api}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewritten(uri: &str) -> String {
        let mut uri: Uri = uri.parse().expect("a URI");
        rewrite(&mut uri);
        uri.to_string()
    }

    #[test]
    fn other_spellings_lead_to_their_route() {
        for (given, route) in [
            ("/chat/completions", "/v1/chat/completions"),
            ("/chat/completions/", "/v1/chat/completions"),
            ("//v1/chat/completions", "/v1/chat/completions"),
            ("/v1/chat/completions//", "/v1/chat/completions"),
            ("/v1/v1/messages", "/v1/messages"),
            ("/v1/v1/v1/messages/count_tokens", "/v1/messages/count_tokens"),
            ("/messages/count_tokens?beta=true", "/v1/messages/count_tokens?beta=true"),
            ("/models/org/model", "/v1/models/org/model"),
            ("/models/", "/v1/models"),
            ("/v1/responses/?a=b", "/v1/responses?a=b"),
            ("/health/", "/health"),
            ("http://localhost:1/completions", "http://localhost:1/v1/completions"),
        ] {
            assert_eq!(rewritten(given), route);
        }
    }

    #[test]
    fn other_paths_stay() {
        for path in [
            "/",
            "/v1/chat/completions",
            "/v1/models/a%2Fb",
            "/v1/models/v1/x",
            "/v1",
            "/v1/v1x",
            "/chat",
            "/modelsx",
            "/x/../v1/models",
            "/%2e/v1/models",
            "*",
        ] {
            assert_eq!(rewritten(path), path);
        }
    }

    #[test]
    fn an_unknown_path_has_the_route_that_it_ends_with() {
        assert_eq!(nearest("/api/v1/chat/completions").as_deref(), Some("/v1/chat/completions"));
        assert_eq!(nearest("/v1/chat/completions/completions").as_deref(), Some("/v1/completions"));
        assert_eq!(nearest("/openai/models").as_deref(), Some("/v1/models"));
        assert_eq!((nearest("/v1/nothing"), nearest("/supermodels"), nearest("/")), (None, None, None));
    }
}
