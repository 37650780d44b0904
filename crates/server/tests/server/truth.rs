//! Streams without text before the first token, counters of all answers, and fingerprints.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

use super::Running;
use super::client::{get, post, request, with};
use super::ends::eventually;

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";

/// A streamed request of each API.
fn streamed(path: &str) -> Value {
    let text = "a b c";
    let messages = json!([{"role": "user", "content": text}]);
    let own = match path {
        COMPLETIONS => json!({"prompt": text, "max_tokens": 8}),
        RESPONSES => json!({"input": text, "max_output_tokens": 8}),
        _ => json!({"messages": messages, "max_tokens": 8}),
    };
    with(json!({"stream": true, "seed": 7, "temperature": 1.5}), own)
}

/// The text of an event, if it has the field of its API's texts.
fn text_of<'e>(path: &str, event: &'e Value) -> Option<&'e Value> {
    match path {
        CHAT => event.pointer("/choices/0/delta/content"),
        COMPLETIONS => event.pointer("/choices/0/text"),
        RESPONSES => event.get("delta"),
        _ => event.pointer("/delta/text"),
    }
}

/// Load testers take the first text of a stream for the first token.
#[test]
fn no_stream_has_a_text_before_its_first_token() {
    let server = Running::with(|_| {});
    for path in [CHAT, COMPLETIONS, RESPONSES, MESSAGES] {
        let mut bodies = vec![streamed(path)];
        match path {
            CHAT => bodies.push(with(streamed(path), json!({"n": 3, "logprobs": true}))),
            COMPLETIONS => bodies.push(with(streamed(path), json!({"n": 3}))),
            _ => {}
        }
        for body in bodies {
            let (events, _) = post(server.address, path, &body).events();
            let first = events.iter().find_map(|event| text_of(path, event)).expect("a text");
            assert!(first.as_str().is_some_and(|text| !text.is_empty()), "{path} {first} {events:?}");
        }
    }
    let (events, _) = post(server.address, CHAT, &streamed(CHAT)).events();
    assert_eq!(events[0]["choices"][0]["delta"], json!({"role": "assistant"}));
}

#[test]
fn a_chat_that_is_late_has_no_chunk_before_its_error() {
    let server = Running::with(|config| config.request_timeout = Some(Duration::ZERO));
    let (events, _) = post(server.address, CHAT, &streamed(CHAT)).events();
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!(events[0]["error"]["code"], "timeout");
}

/// The value of a counter.
fn counted(server: &Running, name: &str) -> u64 {
    counted_with(server, name, "")
}

/// The value of a counter with a label.
fn counted_with(server: &Running, name: &str, label: &str) -> u64 {
    let metrics = get(server.address, "/metrics").body;
    let line = metrics.lines().find(|line| line.starts_with(name) && line.contains(label));
    let value = line.and_then(|line| line.rsplit(' ').next());
    value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{name} in {metrics}"))
}

const PROMPT: &str = "vllm:prompt_tokens_total";
const GENERATED: &str = "vllm:generation_tokens_total";
const CACHED: &str = "vllm:prompt_tokens_cached_total";

/// Begins a stream and ends its connection after the first token.
fn abandon(server: &Running) {
    let body = json!({"prompt": "a b c", "max_tokens": 400, "ignore_eos": true, "stream": true}).to_string();
    let mut stream = TcpStream::connect(server.address).expect("connects");
    stream.write_all(&request("POST", COMPLETIONS, &[], &body)).expect("sent");
    let mut lines = BufReader::new(stream).lines().map(|line| line.expect("a line"));
    lines.find(|line| line.starts_with("data: ")).expect("a chunk");
}

#[test]
fn tokens_are_counted_however_their_answer_ends() {
    let server = Running::with(|_| {});
    let mut expected = [0; 3];
    let long = "a b c d ".repeat(20);
    for body in [
        json!({"prompt": "a b c", "max_tokens": 5}),
        json!({"prompt": long, "max_tokens": 9, "n": 2}),
        json!({"prompt": long, "max_tokens": 1}),
    ] {
        let n = body["n"].as_u64().unwrap_or(1);
        let usage = post(server.address, COMPLETIONS, &body).json()["usage"].clone();
        let count = |path: &str| usage.pointer(path).and_then(Value::as_u64).expect("a count");
        expected[0] += n * count("/prompt_tokens");
        expected[1] += count("/completion_tokens");
        expected[2] += count("/prompt_tokens_details/cached_tokens");
    }
    assert_eq!([PROMPT, GENERATED].map(|name| counted(&server, name)), expected[..2]);
    assert!(counted(&server, CACHED) >= expected[2], "the second choice finds its prompt, too");
    let prompt = post(server.address, "/tokenize", &json!({"prompt": "a b c"})).json()["count"].as_u64();
    for _ in 0..3 {
        abandon(&server);
    }
    eventually("all have ended", || server.engine.stats().running + server.engine.stats().waiting == 0);
    assert_eq!(counted(&server, PROMPT), expected[0] + 3 * prompt.expect("a count"));
    let generated = counted(&server, GENERATED) - expected[1];
    assert!(generated >= 3, "{generated} tokens of three answers");
    assert_eq!(server.engine.stats().answer_tokens, expected[1] + generated);
    let aborted = counted_with(&server, "vllm:request_success_total", "\"abort\"");
    assert_eq!((aborted, server.engine.stats().cancelled), (3, 3));
}

#[test]
fn a_fingerprint_is_in_every_chunk_and_stays() {
    let (first, second) = (Running::with(|_| {}), Running::with(|_| {}));
    let whole = post(first.address, CHAT, &with(streamed(CHAT), json!({"stream": false}))).json();
    let fingerprint = whole["system_fingerprint"].as_str().expect("a fingerprint").to_owned();
    assert!(fingerprint.starts_with("fp_") && fingerprint.len() == 13, "{fingerprint}");
    for server in [&first, &second] {
        for path in [CHAT, COMPLETIONS] {
            let (events, _) = post(server.address, path, &streamed(path)).events();
            assert!(
                events.iter().all(|event| event["system_fingerprint"] == fingerprint.as_str()),
                "{events:?}"
            );
        }
    }
    let other = Running::with_template("{{ messages[0].content }}", &["<more>"]);
    let other =
        post(other.address, COMPLETIONS, &with(streamed(COMPLETIONS), json!({"stream": false}))).json();
    assert_ne!(other["system_fingerprint"], fingerprint.as_str(), "another file");
}

#[test]
fn the_first_chunk_has_the_usage_of_the_prompt() {
    let server = Running::with(|_| {});
    let options = json!({"stream_options": {"include_usage": true, "continuous_usage_stats": true}});
    let answer = post(server.address, CHAT, &with(streamed(CHAT), options));
    let (events, _) = answer.events();
    let tokens: Vec<_> = events.iter().map(|event| event["usage"]["prompt_tokens"].as_u64()).collect();
    assert!(tokens[0] > Some(0) && tokens.iter().all(|found| *found == tokens[0]), "{tokens:?}");
}
