//! Keys, hosts, origins, sizes.

use ottava::EngineConfig;
use serde_json::{Value, json};

use super::Running;
use super::client::{get, post, raw, request};

/// All routes with their methods.
const ROUTES: &[(&str, &str)] = &[
    ("GET", "/"),
    ("GET", "/health"),
    ("GET", "/v1/health"),
    ("GET", "/ready"),
    ("GET", "/version"),
    ("GET", "/openapi.json"),
    ("GET", "/metrics"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{id}"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/chat/completions/input_tokens"),
    ("POST", "/v1/chat/completions/render"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/responses"),
    ("POST", "/v1/responses/input_tokens"),
    ("POST", "/v1/messages"),
    ("POST", "/v1/messages/count_tokens"),
    ("POST", "/v1/embeddings"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
];
/// Routes without a key.
const OPEN: &[&str] = &["/", "/health", "/v1/health", "/ready"];

#[test]
fn the_document_of_routes_has_them_all() {
    let server = Running::with(|_| {});
    let document = get(server.address, "/openapi.json").json();
    let paths = document["paths"].as_object().expect("paths");
    let mut documented: Vec<(String, String)> = Vec::new();
    for (path, methods) in paths {
        let methods = methods.as_object().expect("methods");
        documented.extend(methods.keys().map(|method| (method.to_uppercase(), path.clone())));
    }
    documented.sort();
    let mut all: Vec<_> =
        ROUTES.iter().map(|(method, path)| ((*method).to_owned(), (*path).to_owned())).collect();
    all.sort();
    assert_eq!(documented, all);
}

/// A null field is a no-op, but an unknown one is still named in the header.
#[test]
fn every_field_of_the_document_is_one_and_none_that_says_what_answers_follow_is_missing() {
    let server = Running::with(|_| {});
    let document = get(server.address, "/openapi.json").json();
    let follows = [
        "response_format",
        "structured_outputs",
        "guided_json",
        "guided_json_object",
        "guided_regex",
        "guided_choice",
        "guided_grammar",
        "guided_whitespace_pattern",
        "json_schema",
        "grammar",
    ];
    let calls = ["tools", "tool_choice", "parallel_tool_calls"];
    for (path, more) in [("/v1/chat/completions", &calls[..]), ("/v1/completions", &[])] {
        let schema = &document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"];
        let documented = schema["properties"].as_object().expect("fields");
        for name in follows.iter().chain(more) {
            assert!(documented.contains_key(*name), "{path}: {name}");
        }
        let mut body: Value = documented.keys().map(|name| (name.clone(), Value::Null)).collect();
        body["max_tokens"] = 1.into();
        match more {
            [] => body["prompt"] = "a".into(),
            _ => body["messages"] = json!([{"role": "user", "content": "a"}]),
        }
        let answer = post(server.address, path, &body);
        assert_eq!((answer.status, answer.header("x-ottava-ignored")), (200, None), "{answer:?}");
    }
}

#[test]
fn every_route_needs_the_key_but_what_says_that_the_server_lives() {
    for server in Running::both(EngineConfig::default(), |config| {
        config.keys = vec!["right-key".into(), "other".into()]
    }) {
        for (method, path) in ROUTES {
            let path = path.replace("{id}", "x");
            let wrong: [&[(&str, &str)]; 7] = [
                &[],
                &[("authorization", "Bearer wrong")],
                &[("authorization", "Bearer RIGHT-KEY")],
                &[("authorization", "Bearer ")],
                &[("authorization", "right-key")],
                &[("x-api-key", "right-ke")],
                &[("authorization", "Basic right-key")],
            ];
            for headers in wrong {
                let answer = raw(server.address, &request(method, &path, headers, ""));
                let expected = if OPEN.contains(&path.as_str()) { 200 } else { 401 };
                assert_eq!(answer.status, expected, "{method} {path} {headers:?}");
                if expected == 401 {
                    let error = &answer.json()["error"];
                    let other = path.starts_with("/v1/messages");
                    let (name, value) =
                        if other { ("type", "authentication_error") } else { ("code", "invalid_api_key") };
                    assert_eq!(error[name], value, "{method} {path}");
                }
            }
            for right in [("authorization", "Bearer right-key"), ("x-api-key", "other")] {
                assert_ne!(
                    raw(server.address, &request(method, &path, &[right], "")).status,
                    401,
                    "{method} {path}"
                );
            }
            // No other spelling of a path bypasses the middleware. The first two are the route's own.
            let expected = if OPEN.contains(&path.as_str()) { 200 } else { 401 };
            for (other, expected) in [
                (format!("/{path}"), expected),
                (format!("{path}/"), expected),
                (path.replacen('/', "/%2e/", 1), 401),
                (format!("/x/..{path}"), 401),
            ] {
                let answer = raw(server.address, &request(method, &other, &[], ""));
                assert_eq!(answer.status, expected, "{method} {other}");
            }
        }
    }
}

#[test]
fn head_needs_a_key_where_get_does() {
    let server = Running::with(|config| config.keys = vec!["right-key".into()]);
    for (_, path) in ROUTES.iter().filter(|(method, _)| *method == "GET") {
        let path = path.replace("{id}", "x");
        let [get, head] = ["GET", "HEAD"].map(|method| raw(server.address, &request(method, &path, &[], "")));
        assert_eq!((get.status, &*head.body), (head.status, ""), "{path}");
        let key = [("authorization", "Bearer right-key")];
        let [get, head] =
            ["GET", "HEAD"].map(|method| raw(server.address, &request(method, &path, &key, "")));
        assert_eq!((get.status, &*head.body), (head.status, ""), "{path}");
    }
}

#[test]
fn a_compressed_body_is_refused_by_its_coding() {
    let server = Running::with(|_| {});
    for (method, path) in ROUTES.iter().filter(|(method, _)| *method == "POST") {
        for coding in ["gzip", "br", "zstd", "deflate", "identity, gzip"] {
            let answer = raw(server.address, &request(method, path, &[("content-encoding", coding)], "{}"));
            assert_eq!(answer.status, 415, "{path}");
            let name = coding.split(' ').next_back().unwrap_or_default();
            assert!(answer.json()["error"]["message"].to_string().contains(name), "{path}: {answer:?}");
        }
    }
    let plain = request("POST", "/tokenize", &[("content-encoding", "identity")], r#"{"content": "a"}"#);
    assert_eq!(raw(server.address, &plain).status, 200);
}

#[test]
fn two_hosts_are_a_bad_request() {
    let server = Running::with(|config| config.allowed_hosts = vec!["models.example".into()]);
    for hosts in [["localhost", "evil.example"], ["evil.example", "localhost"], ["localhost", "localhost"]] {
        let [first, second] = hosts.map(|host| ("host", host));
        for (method, path) in ROUTES {
            let answer = raw(server.address, &request(method, path, &[first, second], ""));
            assert_eq!(answer.status, 400, "{method} {path}");
        }
    }
}

#[test]
fn hosts_with_ports_and_patterns_of_origins_are_settings() {
    let server = Running::with(|config| {
        config.allowed_hosts = vec!["box.example:8080".into()];
        config.allowed_origins =
            ["moz-extension://*", "http://localhost:*", "https://*.example.org"].map(str::to_owned).to_vec();
    });
    let ask = |headers: &[(&str, &str)]| raw(server.address, &request("GET", "/v1/models", headers, ""));
    assert_eq!(ask(&[("host", "box.example:8080")]).status, 200);
    assert_eq!(ask(&[("host", "box.example:8081")]).status, 403);
    for origin in ["moz-extension://0b0c1d2e", "http://localhost:3000", "https://app.example.org"] {
        let answer = ask(&[("origin", origin)]);
        assert_eq!((answer.status, answer.header("access-control-allow-origin")), (200, Some(origin)));
    }
    for origin in ["chrome-extension://x", "https://localhost:3000", "https://example.org.evil"] {
        assert_eq!(ask(&[("origin", origin)]).status, 403, "{origin}");
    }
    let refused = |change: fn(&mut ottava_server::Config)| {
        let mut config = ottava_server::Config::default();
        config.port = 0;
        change(&mut config);
        let error = ottava_server::Server::bind(server.engine.clone(), config).expect_err("refused");
        error.to_string()
    };
    let hosts = refused(|config| config.allowed_hosts = vec!["http://box.example".into()]);
    assert!(hosts.starts_with("an allowed host: ") && hosts.contains("http://box.example"), "{hosts}");
    let origins = refused(|config| config.allowed_origins = vec!["https://a*".into()]);
    assert!(origins.starts_with("an allowed origin: "), "{origins}");
    let keys = refused(|config| config.keys = vec!["secret # of May".into()]);
    assert!(keys.contains("a comment has a line of its own") && !keys.contains("secret"), "{keys}");
}

#[test]
fn requests_for_another_host_or_of_another_site_are_refused() {
    let server = Running::with(|config| {
        config.allowed_hosts = vec!["models.example".into()];
        config.allowed_origins = vec!["https://app.example".into()];
    });
    let status =
        |headers: &[(&str, &str)]| raw(server.address, &request("GET", "/v1/models", headers, "")).status;
    for host in
        ["localhost", "LocalHost:8080", "127.0.0.1:1", "[::1]:80", "models.example", "MODELS.example:443"]
    {
        assert_eq!(status(&[("host", host)]), 200, "{host}");
    }
    for host in
        ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "", "models.example.evil"]
    {
        assert_eq!(status(&[("host", host)]), 403, "{host}");
    }
    assert_eq!(status(&[("host", "localhost:80"), ("origin", "http://localhost:80")]), 200);
    assert_eq!(status(&[("origin", "https://app.example")]), 200);
    for origin in ["https://evil.example", "null", "http://localhost:9999", "https://app.example.evil"] {
        assert_eq!(status(&[("origin", origin)]), 403, "{origin}");
    }
}

/// The requests of a browser, with keys, errors and streams.
#[test]
fn scripts_of_a_listed_site_may_read_what_they_are_answered() {
    let server = Running::with(|config| {
        config.allowed_origins = vec!["https://app.example".into()];
        config.keys = vec!["secret".into()];
    });
    let ask = |method: &str, path: &str, headers: &[(&str, &str)], body: &str| {
        raw(server.address, &request(method, path, headers, body))
    };
    let site = ("origin", "https://app.example");
    let asked = [
        site,
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "authorization, content-type, x-stainless-lang"),
    ];
    let preflight = ask("OPTIONS", "/v1/chat/completions", &asked, "");
    assert_eq!((preflight.status, preflight.header("vary")), (204, Some("origin")));
    assert_eq!(preflight.header("access-control-allow-origin"), Some("https://app.example"));
    assert!(preflight.header("access-control-allow-methods").is_some_and(|methods| methods.contains("POST")));
    assert_eq!(preflight.header("access-control-allow-headers"), Some(asked[2].1));

    let key = ("authorization", "Bearer secret");
    let body = r#"{"prompt": "a", "max_tokens": 1, "stream": true}"#;
    let answers = [
        (ask("GET", "/v1/models", &[site, key], ""), 200),
        (ask("GET", "/v1/models", &[site], ""), 401),
        (ask("GET", "/nothing", &[site, key], ""), 404),
        (ask("POST", "/v1/completions", &[site, key], body), 200),
    ];
    for (answer, status) in answers {
        assert_eq!(answer.status, status);
        assert_eq!(answer.header("access-control-allow-origin"), Some("https://app.example"), "{status}");
        assert!(
            answer
                .header("access-control-expose-headers")
                .is_some_and(|names| names.contains("x-request-id"))
        );
    }
    let others = [("origin", "https://evil.example"), asked[1]];
    let refused = ask("OPTIONS", "/v1/chat/completions", &others, "");
    assert_eq!((refused.status, refused.header("access-control-allow-origin")), (403, None));
    let program = ask("GET", "/v1/models", &[key], "");
    assert_eq!((program.status, program.header("access-control-allow-origin")), (200, None));
    // Not a preflight: the route has no such method.
    assert_eq!(ask("OPTIONS", "/v1/chat/completions", &[key], "").status, 405);
}

#[test]
fn a_star_stands_for_all_sites() {
    let server = Running::with(|config| config.allowed_origins = vec!["*".into()]);
    let answer =
        raw(server.address, &request("GET", "/v1/models", &[("origin", "http://any.example:1")], ""));
    assert_eq!(answer.header("access-control-allow-origin"), Some("http://any.example:1"));
}

#[test]
fn a_body_may_have_four_mebibytes() {
    for server in Running::both(EngineConfig::default(), |_| {}) {
        let of = |bytes: usize| json!({"content": "a ".repeat(bytes / 2)});
        let frame = of(0).to_string().len();
        let status = |bytes: usize| post(server.address, "/tokenize", &of(bytes - frame)).status;
        assert_eq!([status(4 << 20), status((4 << 20) + 2)], [200, 413]);
    }
}

#[test]
fn a_body_that_is_too_large_is_refused_before_it_is_read() {
    for server in Running::both(EngineConfig::default(), |config| config.body_max = 1000) {
        let long = json!({"prompt": "x".repeat(1000)});
        let answer = post(server.address, "/v1/completions", &long);
        assert_eq!(answer.status, 413);
        let promised =
            b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99999999999\r\n\r\n";
        assert_eq!(raw(server.address, promised).status, 413);
        let mut chunked =
            b"POST /tokenize HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
        for _ in 0..11 {
            chunked.extend(format!("64\r\n{}\r\n", "x".repeat(100)).into_bytes());
        }
        chunked.extend(b"0\r\n\r\n");
        assert_eq!(raw(server.address, &chunked).status, 413);
    }
}

#[test]
fn old_probes_that_name_no_host_are_answered() {
    for server in Running::both(EngineConfig::default(), |_| {}) {
        assert_eq!(raw(server.address, b"GET /health HTTP/1.0\r\n\r\n").status, 200);
        assert_eq!(raw(server.address, b"GET /health HTTP/1.0\r\nhost: example.com\r\n\r\n").status, 403);
    }
}

#[test]
fn an_address_for_others_needs_a_key() {
    let mut config = ottava_server::Config::default();
    config.host = "0.0.0.0".parse().expect("an address");
    config.port = 0;
    let server = Running::with(|_| {});
    let error = ottava_server::Server::bind(server.engine.clone(), config.clone()).expect_err("refused");
    assert!(error.to_string().contains("needs a key"), "{error}");
    config.keys = vec!["  ".into()];
    assert!(ottava_server::Server::bind(server.engine.clone(), config).is_err(), "an empty key");
}

#[test]
fn request_ids_come_back_if_they_are_plain() {
    let server = Running::with(|_| {});
    let with = |id| raw(server.address, &request("GET", "/health", &[("x-request-id", id)], ""));
    assert_eq!(with("run-7").header("x-request-id"), Some("run-7"));
    let other = with("run 7; x");
    assert_eq!(other.header("x-request-id").map(str::len), Some(32));
}
