//! `/v1/messages`: order of events, refused requests and their errors, token counts.

use serde_json::{Value, json};

use super::client::{Answer, post, raw, request, with};
use super::ends::slow_answer;
use super::{Running, follows, schema};

const MESSAGES: &str = "/v1/messages";
const COUNT: &str = "/v1/messages/count_tokens";

fn body(more: Value) -> Value {
    let messages = json!([{"role": "user", "content": "a b c"}]);
    with(json!({"messages": messages, "max_tokens": 12, "temperature": 1.5, "seed": 7}), more)
}

fn send(server: &Running, more: Value) -> Answer {
    post(server.address, MESSAGES, &body(more))
}

#[test]
fn a_stream_has_its_events_in_order_and_a_whole_message_is_its_fold() {
    let server = Running::with(|_| {});
    let answer = send(&server, json!({"stream": true}));
    assert!(answer.header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream")));
    assert!(!answer.body.contains("[DONE]"));
    let events = answer.named_events();
    let mut kinds: Vec<&str> = events.iter().filter_map(|event| event["type"].as_str()).collect();
    kinds.dedup();
    let expected = [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ];
    assert_eq!(kinds, expected);
    let joined: String = events.iter().filter_map(|event| event["delta"]["text"].as_str()).collect();
    let whole = send(&server, json!({})).json();
    assert_eq!(whole["content"], json!([{"type": "text", "text": joined}]));
    let last = &events[events.len() - 2];
    assert_eq!(whole["stop_reason"], "max_tokens");
    for name in ["stop_reason", "stop_sequence"] {
        assert_eq!(whole[name], last["delta"][name]);
    }
    let usage = |usage: &Value| {
        let input =
            ["input_tokens", "cache_read_input_tokens"].map(|name| usage[name].as_u64().expect("a count"));
        (input[0] + input[1], usage["output_tokens"].as_u64())
    };
    assert_eq!(usage(&whole["usage"]), usage(&last["usage"]));
    assert_eq!(usage(&events[0]["message"]["usage"]), (usage(&whole["usage"]).0, Some(0)));
    for name in ["type", "role", "model"] {
        assert_eq!(whole[name], events[0]["message"][name]);
    }
}

#[test]
fn a_stop_sequence_ends_the_message_and_is_named() {
    let server = Running::with(|_| {});
    let text = send(&server, json!({})).json()["content"][0]["text"].as_str().expect("text").to_owned();
    let stop: String = text.chars().skip(text.chars().count() / 2).take(2).collect();
    let whole = send(&server, json!({"stop_sequences": [stop]})).json();
    assert_eq!(whole["content"][0]["text"], text.split(&stop).next().expect("a part"));
    assert_eq!((&whole["stop_reason"], &whole["stop_sequence"]), (&"stop_sequence".into(), &stop.into()));
}

#[test]
fn what_agents_send_is_taken() {
    let server = Running::with_tools();
    let mark = json!({"type": "ephemeral"});
    let more = json!({
        "system": [{"type": "text", "text": "x", "cache_control": mark}, {"type": "text", "text": "y"}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": mark}]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "t", "name": "f", "input": {"x": 1}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "two"}], "is_error": false},
                {"type": "text", "text": "b"},
            ]},
        ],
        "tools": [
            {"name": "f", "description": "d", "input_schema": {"type": "object"}, "cache_control": mark},
            {"type": "web_search_20250305", "name": "web_search"},
        ],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": true}, "metadata": {"user_id": "u"},
        "thinking": {"type": "enabled", "budget_tokens": 1024}, "top_k": 40, "top_p": 0.9, "context_management": {},
    });
    let answer = send(&server, more);
    assert_eq!(answer.status, 200, "{answer:?}");
    let ignored = "context_management, messages.redacted_thinking, tools.web_search_20250305";
    assert_eq!(answer.header("x-ottava-ignored"), Some(ignored));
}

#[test]
fn a_call_is_a_block_and_can_be_answered() {
    let server = Running::with_tools();
    let more = json!({
        "tools": [{"name": "f", "input_schema": schema()}], "max_tokens": 200,
        "tool_choice": {"type": "any", "disable_parallel_tool_use": true},
    });
    let whole = send(&server, more.clone()).json();
    let block = &whole["content"][0];
    assert_eq!(
        (&block["type"], &block["name"], &whole["stop_reason"]),
        (&"tool_use".into(), &"f".into(), &"tool_use".into())
    );
    assert!(follows(&block["input"]), "{block}");
    let events = send(&server, with(more.clone(), json!({"stream": true}))).named_events();
    let joined: String = events.iter().filter_map(|event| event["delta"]["partial_json"].as_str()).collect();
    assert_eq!(serde_json::from_str::<Value>(&joined).expect("JSON"), block["input"]);
    let result = json!({"type": "tool_result", "tool_use_id": block["id"], "content": "two"});
    let messages = json!([
        {"role": "user", "content": "a b c"},
        {"role": "assistant", "content": whole["content"]},
        {"role": "user", "content": [result]},
    ]);
    let next = json!({"messages": messages, "tool_choice": {"type": "tool", "name": "f"}});
    assert_eq!(send(&server, with(more, next)).json()["content"][0]["name"], "f");
}

#[test]
fn a_message_follows_its_format() {
    let server = Running::with(|_| {});
    let format = json!({"type": "json_schema", "schema": schema()});
    for form in [json!({"output_config": {"format": format}}), json!({"output_format": format})] {
        let counted = post(server.address, COUNT, &body(form.clone()));
        let ignored = counted.header("x-ottava-ignored").unwrap_or_default();
        assert!(counted.status == 200 && !ignored.contains("format"), "{counted:?}");
        let whole = send(&server, with(form, json!({"max_tokens": 200}))).json();
        let found: Value =
            serde_json::from_str(whole["content"][0]["text"].as_str().expect("text")).expect("JSON");
        assert!(follows(&found), "{found}");
    }
}

#[test]
fn what_is_wrong_is_named_in_this_apis_form() {
    let server = Running::with(|_| {});
    let block = |role: &str, block: Value| json!({"messages": [{"role": role, "content": [block]}, {"role": "user", "content": "a"}]});
    let used = json!({"type": "tool_use", "id": "t", "name": "f", "input": {}});
    let image = json!({"type": "image", "source": {"type": "url", "url": "http://x"}});
    let cases = [
        (json!({"messages": null}), "messages"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": [5]}), "messages[0]"),
        (json!({"messages": [{"role": "tool", "content": "x"}]}), "messages[0].role"),
        (json!({"messages": [{"role": "user"}]}), "messages[0].content"),
        (json!({"messages": [{"role": "user", "content": 5}]}), "messages[0].content"),
        (json!({"messages": [{"role": "assistant", "content": [used]}]}), "messages"),
        (block("user", image), "messages[0].content[0].type"),
        (block("user", json!({"type": "text"})), "messages[0].content[0].text"),
        (block("user", json!({"type": "tool_result"})), "messages[0].content[0].tool_use_id"),
        (
            block("assistant", json!({"type": "tool_use", "id": "t", "name": "f"})),
            "messages[0].content[0].input",
        ),
        (json!({"system": 5}), "system"),
        (json!({"system": [{"type": "image"}]}), "system[0].type"),
        (json!({"max_tokens": null}), "max_tokens"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"max_tokens": -1}), "max_tokens"),
        (json!({"temperature": "hot"}), "temperature"),
        (json!({"top_k": -2}), "top_k"),
        (json!({"stop_sequences": 5}), "stop_sequences"),
        (json!({"stop_sequences": ["x".repeat(257)]}), "stop_sequences"),
        (json!({"n": 2}), "n"),
        (json!({"container": "c"}), "container"),
        (json!({"mcp_servers": [{}]}), "mcp_servers"),
        (json!({"thinking": {"type": "deep"}}), "thinking.type"),
        (json!({"tools": [{"input_schema": {}}]}), "tools[0].name"),
        (json!({"tools": [{"name": "f", "input_schema": 5}]}), "tools[0].input_schema"),
        (json!({"tool_choice": {"type": "any"}}), "tool_choice"),
        (json!({"tool_choice": {"type": "tool"}}), "tool_choice.name"),
        (json!({"tool_choice": {"type": "some"}}), "tool_choice.type"),
        (json!({"output_config": {"format": {"type": "nonsense"}}}), "output_config.format"),
        (json!({"output_config": {"format": {}}, "output_format": {}}), "output_format"),
        (json!({"output_format": "json"}), "output_format"),
    ];
    for (case, field) in cases {
        let answer = send(&server, case.clone());
        assert_eq!(answer.status, 400, "{case}: {answer:?}");
        let found = answer.json();
        assert_eq!(
            (&found["type"], &found["error"]["type"]),
            (&"error".into(), &"invalid_request_error".into())
        );
        assert!(
            found["error"]["message"].as_str().is_some_and(|text| text.contains(field)),
            "{case}: {found}"
        );
    }
    assert_eq!(send(&server, json!({})).status, 200, "the next good request succeeds");
}

#[test]
fn every_error_has_this_apis_form() {
    let server = Running::with(|config| {
        config.keys = vec!["right".into()];
        config.body_max = 200;
    });
    let key = ("x-api-key", "right");
    let sent = |path: &str, headers: &[(&str, &str)], body: &Value| {
        let answer = raw(server.address, &request("POST", path, headers, &body.to_string()));
        (answer.status, answer.json()["error"]["type"].as_str().unwrap_or_default().to_owned())
    };
    let kind = |status: u16, kind: &str| (status, kind.to_owned());
    assert_eq!(sent(MESSAGES, &[], &body(json!({}))), kind(401, "authentication_error"));
    assert_eq!(sent(MESSAGES, &[key, ("host", "evil")], &body(json!({}))), kind(403, "permission_error"));
    assert_eq!(sent(MESSAGES, &[key], &body(json!({"model": "other"}))), kind(404, "not_found_error"));
    assert_eq!(sent("/v1/messages/batches", &[key], &json!({})), kind(404, "not_found_error"));
    assert_eq!(
        sent(MESSAGES, &[key], &body(json!({"system": "x".repeat(200)}))),
        kind(413, "request_too_large")
    );
    let answer = raw(server.address, &request("GET", MESSAGES, &[key], ""));
    assert_eq!(
        (answer.status, answer.json()["error"]["type"].clone()),
        (405, "invalid_request_error".into())
    );
    assert_eq!(answer.header("allow"), Some("POST"));
    assert_eq!(answer.header("request-id"), answer.header("x-request-id"));
}

#[test]
fn requests_beyond_the_queue_are_told_to_come_back() {
    let scheduling = ottava::EngineConfig { queue_max: 1, ..ottava::EngineConfig::default() };
    let server = Running::of(scheduling, |_| {});
    let holding = slow_answer(&server, 400);
    let answer = send(&server, json!({}));
    assert_eq!((answer.status, answer.header("retry-after")), (429, Some("1")), "{answer:?}");
    assert_eq!(answer.json()["error"]["type"], "rate_limit_error");
    drop(holding);
}

#[test]
fn a_stream_that_fails_ends_with_an_error() {
    let server = Running::with(|config| config.request_timeout = Some(std::time::Duration::ZERO));
    let events = send(&server, json!({"stream": true})).named_events();
    let last = events.last().expect("events");
    assert_eq!((&last["type"], &last["error"]["type"]), (&"error".into(), &"timeout_error".into()));
}

#[test]
fn the_tokens_counted_are_those_of_the_answer() {
    let server = Running::with_tools();
    let tools = json!([{"name": "f", "input_schema": {"type": "object"}}]);
    let messages = json!([
        {"role": "user", "content": "a b"},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": ""},
            {"type": "tool_use", "id": "t", "name": "f", "input": {"x": 1}},
        ]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "two"}]},
    ]);
    let mut counts = Vec::new();
    for more in [
        json!({}),
        json!({"system": "x"}),
        json!({"tools": tools}),
        json!({"messages": messages}),
        json!({"messages": messages, "tools": tools}),
        json!({"messages": messages, "tools": tools, "thinking": {"type": "enabled", "budget_tokens": 1024}}),
    ] {
        let counted = post(server.address, COUNT, &body(more.clone())).json()["input_tokens"].as_u64();
        let usage = send(&server, more.clone()).json()["usage"].clone();
        let read =
            ["input_tokens", "cache_read_input_tokens"].map(|name| usage[name].as_u64().expect("a count"));
        assert_eq!(counted, Some(read[0] + read[1]), "{more}");
        counts.push(counted);
    }
    let off = json!({"messages": messages, "tools": tools, "thinking": {"type": "disabled"}});
    let off = post(server.address, COUNT, &body(off)).json()["input_tokens"].as_u64();
    assert_eq!(off, counts[4], "without a word about it the model does not think");
    counts.dedup();
    assert_eq!(counts.len(), 6, "each part has tokens: {counts:?}");
}

#[test]
fn quiet_streams_are_kept_alive_by_pings() {
    let scheduling = ottava::EngineConfig { sequences_max: 1, ..ottava::EngineConfig::default() };
    let server = Running::of(scheduling, |config| config.keep_alive = std::time::Duration::from_millis(1));
    let holding = slow_answer(&server, 10);
    let answer = send(&server, json!({"stream": true}));
    assert!(answer.body.contains("event: ping\ndata: {\"type\":\"ping\"}\n\n"), "{answer:?}");
    drop(holding);
}
