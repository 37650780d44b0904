//! Refused requests, the form of errors, and ignored fields.

use serde_json::{Value, json};

use super::Running;
use super::client::{get, post, raw, request, with};

const CHAT: &str = "/v1/chat/completions";

fn chat(more: Value) -> Value {
    with(json!({"messages": [{"role": "user", "content": "a b c"}], "max_tokens": 2}), more)
}

/// Wrong fields.
fn refused() -> Vec<Value> {
    vec![
        json!({"messages": null}),
        json!({"messages": []}),
        json!({"messages": "hello"}),
        json!({"messages": [1]}),
        json!({"messages": [{"content": "x"}]}),
        json!({"messages": [{"role": "wizard", "content": "x"}]}),
        json!({"messages": [{"role": "user", "content": 5}]}),
        json!({"messages": [{"role": "user", "content": null}]}),
        json!({"messages": [{"role": "user"}]}),
        json!({"messages": ["x"]}),
        json!({"messages": [{"role": "user", "content": ["x"]}]}),
        json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]}),
        json!({"messages": [{"role": "user", "content": [{"type": "text"}]}]}),
        json!({"temperature": -1}),
        json!({"temperature": 101}),
        json!({"temperature": "hot"}),
        json!({"temperature": 1e39}),
        json!({"top_p": -0.1}),
        json!({"top_p": 1.1}),
        json!({"top_k": -2}),
        json!({"top_k": 1.5}),
        json!({"min_p": 2}),
        json!({"repetition_penalty": -1}),
        json!({"max_tokens": 0}),
        json!({"max_tokens": -2}),
        json!({"max_tokens": 1.5}),
        json!({"max_tokens": "9"}),
        json!({"max_tokens": -1e18}),
        json!({"max_completion_tokens": {}}),
        json!({"n": 0}),
        json!({"n": 129}),
        json!({"n": "1"}),
        json!({"stop": 5}),
        json!({"stop": [5]}),
        json!({"stop": vec!["x"; 65]}),
        json!({"stop": "x".repeat(257)}),
        json!({"seed": 1.5}),
        json!({"seed": "x"}),
        json!({"seed": 1e20}),
        json!({"logit_bias": [1]}),
        json!({"logit_bias": {"x": 1}}),
        json!({"logit_bias": {"1": 101}}),
        json!({"logit_bias": {"4294967295": 1}}),
        json!({"logit_bias": {"1": null}}),
        json!({"logprobs": 1}),
        json!({"top_logprobs": 2}),
        json!({"logprobs": true, "top_logprobs": 21}),
        json!({"logprobs": true, "top_logprobs": -1}),
        json!({"stream": "yes"}),
        json!({"stream_options": 1}),
        json!({"stream_options": {"include_usage": 1}}),
        json!({"cache_salt": ""}),
        json!({"cache_salt": 1}),
        json!({"cache_salt": "x".repeat(1025)}),
        json!({"priority": 999}),
        json!({"priority": u64::MAX}),
        json!({"priority": "first"}),
    ]
}

/// Fields without an implementation.
fn absent() -> Vec<Value> {
    vec![
        json!({"tool_choice": "required"}),
        json!({"chat_template": "{{ x }}"}),
        json!({"mirostat": 2}),
        json!({"min_tokens": 3}),
        json!({"stop_token_ids": "x"}),
        json!({"prompt_logprobs": 1}),
        json!({"best_of": 3}),
        json!({"ignore_eos": 1}),
        json!({"reasoning_effort": 3}),
        json!({"chat_template_kwargs": 3}),
        json!({"continue_final_message": true}),
        json!({"model": "another"}),
        json!({"model": 5}),
    ]
}

#[test]
fn what_is_wrong_is_an_error_that_names_its_field() {
    let server = Running::with(|_| {});
    for case in refused().into_iter().chain(absent()) {
        let answer = post(server.address, CHAT, &chat(case.clone()));
        let name = case.as_object().and_then(|case| case.keys().next_back()).expect("a field");
        assert!((400..500).contains(&answer.status), "{case}: {answer:?}");
        let error = &answer.json()["error"];
        assert!(error["message"].is_string() && error["type"].is_string(), "{case}: {error}");
        let param = error["param"].as_str().unwrap_or_default();
        // Errors name inner fields without their object.
        let inner = name == "stream_options" && param == "include_usage";
        assert!(param.starts_with(name.as_str()) || inner, "{case}: {error}");
    }
    assert_eq!(post(server.address, CHAT, &chat(json!({}))).status, 200, "the next good request succeeds");
}

/// The prompt of each API that answers, and the name of its limit of tokens.
fn asked() -> [(&'static str, Value, &'static str); 4] {
    let messages = json!({"messages": [{"role": "user", "content": "a b c"}]});
    [
        (CHAT, messages.clone(), "max_tokens"),
        ("/v1/completions", json!({"prompt": "a b c"}), "max_tokens"),
        ("/v1/responses", json!({"input": "a b c"}), "max_output_tokens"),
        ("/v1/messages", messages, "max_tokens"),
    ]
}

#[test]
fn a_limit_beyond_all_numbers_is_all_of_the_context() {
    let server = Running::with(|_| {});
    for (path, body, name) in asked() {
        for limit in [json!(4_294_967_295_u64), json!(u64::MAX), json!(1e18), json!(1e300)] {
            for stream in [false, true] {
                let answer =
                    post(server.address, path, &with(body.clone(), json!({name: limit, "stream": stream})));
                assert_eq!(answer.status, 200, "{path} {limit}: {answer:?}");
            }
        }
    }
}

#[test]
fn errors_have_the_number_that_was_sent() {
    let server = Running::with(|_| {});
    let sent = [
        ("max_tokens", json!(-2)),
        ("top_k", json!(-9_007_199_254_740_993_i64)),
        ("repeat_last_n", json!(-2)),
        ("priority", json!(u64::MAX - 1)),
        ("n", json!(u64::MAX)),
        ("top_logprobs", json!(u64::MAX)),
        ("seed", json!(1e20)),
    ];
    for (name, number) in sent {
        let body = chat(json!({"logprobs": true, name: number}));
        let message = post(server.address, CHAT, &body).json()["error"]["message"].to_string();
        assert!(message.contains(&format!("found {number}")), "{name}: {message}");
    }
}

#[test]
fn as_many_stop_texts_and_choices_as_editors_send_are_accepted() {
    let server = Running::with(|_| {});
    let stops: Vec<String> = (0..64).map(|n| format!("\n{n}")).collect();
    for (path, body, limit) in asked() {
        let name = if path == "/v1/messages" { "stop_sequences" } else { "stop" };
        let body = with(body, json!({limit: 1, name: stops}));
        assert_eq!(post(server.address, path, &body).status, 200, "{path}");
    }
    let answer = post(server.address, CHAT, &chat(json!({"n": 128, "max_tokens": 1}))).json();
    assert_eq!(answer["choices"].as_array().map(Vec::len), Some(128));
    let many = json!({"prompt": vec!["a"; 64], "n": 9, "max_tokens": 1});
    let refused = post(server.address, "/v1/completions", &many);
    assert_eq!((refused.status, refused.json()["error"]["param"].clone()), (400, "n".into()));
}

#[test]
fn a_byte_order_mark_is_skipped_and_another_encoding_is_named() {
    let server = Running::with(|_| {});
    let send = |path: &str, body: &[u8]| {
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        raw(server.address, &[head.as_bytes(), body].concat())
    };
    let tokenize = ("/tokenize", json!({"content": "a"}), "add_special");
    for (path, body, limit) in asked().into_iter().chain([tokenize]) {
        let body = if path == "/tokenize" { body } else { with(body, json!({limit: 1})) };
        let marked = format!("\u{feff}{body}");
        assert_eq!(send(path, marked.as_bytes()).status, 200, "{path}");
        for text in [marked, body.to_string()] {
            for order in [u16::to_le_bytes, u16::to_be_bytes] {
                let bytes: Vec<u8> = text.encode_utf16().flat_map(order).collect();
                let answer = send(path, &bytes);
                assert_eq!(answer.status, 400, "{path}");
                assert!(answer.body.contains("expected UTF-8, found UTF-16"), "{path}: {answer:?}");
            }
        }
    }
}

#[test]
fn base_urls_without_v1_with_it_twice_or_with_a_slash_are_answered() {
    let server = Running::with(|_| {});
    for (path, body, limit) in asked() {
        let body = with(body, json!({limit: 1}));
        let short = path.strip_prefix("/v1").expect("a route of an API");
        for other in [short.to_owned(), format!("{path}/"), format!("/{path}"), format!("/v1{path}")] {
            let answer = post(server.address, &other, &body);
            assert_eq!(answer.status, 200, "{other}: {answer:?}");
            let mut wrong = body.clone();
            wrong[limit] = "x".into();
            let error = post(server.address, &other, &wrong).json();
            assert_eq!(error, post(server.address, path, &wrong).json(), "{other}");
        }
    }
    for path in ["/models", "/models/", "//v1/models", "/v1/v1/models"] {
        assert_eq!(get(server.address, path).json(), get(server.address, "/v1/models").json(), "{path}");
    }
    let unknown = get(server.address, "/api/v1/chat/completions");
    assert_eq!((unknown.status, unknown.json()["error"]["code"].clone()), (404, "unknown_route".into()));
    let message = unknown.json()["error"]["message"].to_string();
    assert!(message.contains("expected /v1/chat/completions"), "{message}");
}

#[test]
fn a_body_that_is_no_request_is_refused() {
    let server = Running::with(|_| {});
    let deep = "[".repeat(100_000);
    for body in ["", "{", "[]", "null", "\u{feff}{}", "{\"messages\": NaN}", &deep] {
        for path in [CHAT, "/v1/completions", "/v1/responses", "/v1/messages", "/tokenize", "/detokenize"] {
            let answer = raw(server.address, &request("POST", path, &[], body));
            assert_eq!(answer.status, 400, "{path} {}", &body[..body.len().min(20)]);
            assert!(answer.json()["error"]["message"].is_string());
        }
    }
    let garbage = raw(server.address, b"nonsense\r\n\r\n");
    assert_eq!(garbage.status, 400);
}

#[test]
fn completions_refuse_what_is_no_prompt() {
    let server = Running::with(|_| {});
    let cases = [
        json!({}),
        json!({"prompt": null}),
        json!({"prompt": 5}),
        json!({"prompt": [1.5]}),
        json!({"prompt": [-1]}),
        json!({"prompt": [4294967295u32]}),
        json!({"prompt": ["a", 1]}),
        json!({"prompt": [[1], 2]}),
        json!({"prompt": vec!["a"; 65]}),
        json!({"prompt": []}),
        json!({"prompt": "a", "suffix": "b"}),
        json!({"prompt": "a", "max_tokens": 0}),
        json!({"prompt": "a", "logprobs": 21}),
        json!({"prompt": "a", "echo": 1}),
    ];
    for case in cases {
        let answer = post(server.address, "/v1/completions", &case);
        assert_eq!(answer.status, 400, "{case}: {answer:?}");
        assert!(answer.json()["error"]["param"].is_string(), "{case}: {answer:?}");
    }
}

#[test]
fn a_prompt_beyond_the_context_says_so() {
    let server = Running::with(|_| {});
    let answer = post(server.address, "/v1/completions", &json!({"prompt": "a b ".repeat(2000)}));
    assert_eq!(
        (answer.status, answer.json()["error"]["code"].clone()),
        (400, "context_length_exceeded".into())
    );
}

#[test]
fn fields_without_a_meaning_here_are_accepted_and_named() {
    let server = Running::with(|_| {});
    let sent = json!({
        "user": "u", "store": false, "metadata": {}, "service_tier": "auto", "no_stop_trim": true, "separate_reasoning": true,
        "tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "min_p": 0.10000000149011612,
        "top_k": -1, "seed": -1, "stop": null, "logprobs": false, "top_logprobs": null, "n": 1.0, "frequency_penalty": 0,
    });
    let answer = post(server.address, CHAT, &chat(sent));
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.header("x-ottava-ignored"), Some("no_stop_trim, separate_reasoning"));
}

#[test]
fn routes_and_methods_that_are_not_there_say_so_in_json() {
    let server = Running::with(|_| {});
    let missing = get(server.address, "/v1/nothing");
    assert_eq!((missing.status, missing.json()["error"]["code"].clone()), (404, "unknown_route".into()));
    let method = get(server.address, CHAT);
    assert_eq!(method.status, 405);
    assert!(method.json()["error"]["message"].is_string());
    let embeddings = post(server.address, "/v1/embeddings", &json!({"input": "a"}));
    assert_eq!(embeddings.status, 400);
    assert!(embeddings.json()["error"]["message"].as_str().is_some_and(|text| text.contains("encoder")));
    for path in ["/v1/models/another", "/v1/models/an/other", "/v1/models/%ff"] {
        let missing = get(server.address, path);
        assert_eq!(
            (missing.status, &missing.json()["error"]["code"]),
            (404, &json!("model_not_found")),
            "{path}"
        );
    }
}
