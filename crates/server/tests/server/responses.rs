//! `/v1/responses`: order of events, ids, refused fields, token counts.

use serde_json::{Value, json};

use super::client::{Answer, post, with};
use super::{Running, follows, schema};

const RESPONSES: &str = "/v1/responses";
const COUNT: &str = "/v1/responses/input_tokens";

fn body(more: Value) -> Value {
    let base = json!({"input": "a b c", "max_output_tokens": 12, "temperature": 1.5, "seed": 7});
    with(base, more)
}

fn respond(server: &Running, more: Value) -> Answer {
    post(server.address, RESPONSES, &body(more))
}

#[test]
fn a_stream_has_its_events_in_order_and_a_whole_response_is_its_last() {
    let server = Running::with(|_| {});
    let answer = respond(&server, json!({"stream": true}));
    assert!(answer.header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream")));
    assert!(!answer.body.contains("[DONE]"));
    let events = answer.named_events();
    let mut kinds: Vec<&str> = events.iter().filter_map(|event| event["type"].as_str()).collect();
    kinds.dedup();
    let expected = [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ];
    assert_eq!(kinds, expected);
    for (at, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], at as u64);
    }
    let last = &events.last().expect("events")["response"];
    let (item, id) = (&last["output"][0], &last["output"][0]["id"]);
    for event in &events[2..events.len() - 1] {
        assert_eq!(event.get("item_id").unwrap_or(&event["item"]["id"]), id, "{event}");
    }
    let joined: String = events
        .iter()
        .filter(|event| event["type"] == "response.output_text.delta")
        .filter_map(|event| event["delta"].as_str())
        .collect();
    assert_eq!(item["content"][0]["text"], joined.as_str());

    let whole = respond(&server, json!({})).json();
    assert_eq!(whole["output"][0]["content"][0]["text"], joined.as_str());
    for name in ["status", "incomplete_details", "model", "temperature", "object", "store"] {
        assert_eq!(whole[name], last[name], "{name}");
    }
    let counted =
        |usage: &Value| ["input_tokens", "output_tokens", "total_tokens"].map(|name| usage[name].as_u64());
    assert_eq!(counted(&whole["usage"]), counted(&last["usage"]));
    assert_eq!(whole["usage"]["output_tokens"], 12);
    assert_eq!((&whole["status"], &whole["temperature"]), (&"incomplete".into(), &1.5.into()));
    assert_ne!(whole["id"], last["id"]);
}

#[test]
fn a_response_that_stops_is_completed_and_says_what_chat_says() {
    let server = Running::with(|_| {});
    let messages = json!([{"role": "system", "content": "x"}, {"role": "user", "content": "a b c"}]);
    let chat = json!({"messages": messages, "max_tokens": 12, "temperature": 1.5, "seed": 7});
    let text = post(server.address, "/v1/chat/completions", &chat).json()["choices"][0]["message"]["content"]
        .as_str()
        .expect("text")
        .to_owned();
    let input = json!([{"role": "user", "content": [{"type": "input_text", "text": "a b c"}]}]);
    let more = json!({"instructions": "x", "input": input});
    let whole = respond(&server, more.clone()).json();
    assert_eq!(whole["output"][0]["content"][0]["text"], text.as_str());
    let stop: String = text.chars().skip(text.chars().count() / 2).take(2).collect();
    let stopped = respond(&server, with(more, json!({"stop": stop}))).json();
    assert_eq!((&stopped["status"], &stopped["incomplete_details"]), (&"completed".into(), &Value::Null));
    assert_eq!(stopped["output"][0]["content"][0]["text"], text.split(&stop).next().expect("a part"));
    assert_eq!(stopped["output"][0]["status"], "completed");
}

#[test]
fn what_agents_send_is_taken() {
    let server = Running::with_tools();
    let tool = |kind: &str| json!({"type": kind, "name": "f", "description": "d", "strict": false, "parameters": {}});
    let more = json!({
        "store": true, "include": ["reasoning.encrypted_content"], "prompt_cache_key": "k", "metadata": {"a": "b"},
        "reasoning": {"effort": "low", "summary": "auto"}, "text": {"verbosity": "low", "format": {"type": "text"}},
        "tools": [tool("function"), {"type": "web_search"}, {"type": "custom", "name": "apply_patch"}],
        "tool_choice": "auto", "parallel_tool_calls": false, "truncation": "auto", "client_metadata": {},
        "stream_options": {"include_obfuscation": false}, "background": false, "previous_response_id": null,
    });
    let answer = respond(&server, more);
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.header("x-ottava-ignored"), Some("client_metadata, tools.web_search"));
    let whole = answer.json();
    let custom = json!({"type": "custom", "name": "apply_patch"});
    assert_eq!(whole["tools"], json!([tool("function"), custom]), "of the tools what may be called");
    assert_eq!((&whole["parallel_tool_calls"], &whole["store"]), (&false.into(), &false.into()));
    let allowed =
        json!({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]});
    assert_eq!(respond(&server, json!({"tools": [tool("function")], "tool_choice": allowed})).status, 200);
}

#[test]
fn a_call_has_its_events_and_can_be_answered() {
    let server = Running::with_tools();
    let more = json!({
        "tools": [{"type": "function", "name": "f", "parameters": schema()}], "max_output_tokens": 200,
        "tool_choice": "required", "parallel_tool_calls": false, "stream": true,
    });
    let events = respond(&server, more.clone()).named_events();
    let last = events.last().expect("events");
    assert_eq!(last["type"], "response.completed", "{last}");
    let call = &last["response"]["output"][0];
    assert_eq!(
        (&call["type"], &call["name"], &call["status"]),
        (&"function_call".into(), &"f".into(), &"completed".into())
    );
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().expect("text")).expect("JSON");
    assert!(follows(&arguments), "{arguments}");
    let deltas = events.iter().filter(|event| event["type"] == "response.function_call_arguments.delta");
    assert!(deltas.clone().all(|event| event["item_id"] == call["id"]));
    let joined: String = deltas.filter_map(|event| event["delta"].as_str()).collect();
    assert_eq!(call["arguments"], joined.as_str());

    let whole = respond(&server, with(more.clone(), json!({"stream": false}))).json();
    assert_eq!(whole["output"][0]["arguments"], call["arguments"]);
    let result = json!({"type": "function_call_output", "call_id": call["call_id"], "output": "two"});
    let input = json!([{"role": "user", "content": "a b c"}, whole["output"][0], result]);
    let named = json!({"type": "function", "name": "f"});
    let next = json!({"input": input, "stream": false, "tool_choice": named});
    assert_eq!(respond(&server, with(more, next)).json()["output"][0]["name"], "f");
}

#[test]
fn an_answer_follows_its_format() {
    let server = Running::with(|_| {});
    let format = json!({"type": "json_schema", "name": "n", "schema": schema(), "strict": true});
    let whole = respond(&server, json!({"text": {"format": format}, "max_output_tokens": 200})).json();
    let text = whole["output"][0]["content"][0]["text"].as_str().expect("text");
    let found: Value = serde_json::from_str(text).expect("JSON");
    assert!(follows(&found), "{text}");
    let wrong = json!({"type": "json_schema", "name": "n", "schema": {"type": "nonsense"}});
    let answer = respond(&server, json!({"text": {"format": wrong}}));
    assert_eq!((answer.status, answer.json()["error"]["param"].clone()), (400, "text.format".into()));
}

#[test]
fn what_is_wrong_is_named() {
    let server = Running::with(|_| {});
    let item = |item: Value| json!({"input": [item]});
    let image = json!({"role": "user", "content": [{"type": "input_image", "image_url": "x"}]});
    let cases = [
        (json!({"input": null}), "input"),
        (json!({"input": []}), "input"),
        (json!({"input": 5}), "input"),
        (item(json!(5)), "input[0]"),
        (item(json!({"role": "wizard", "content": "x"})), "input[0].role"),
        (item(json!({"role": "user"})), "input[0].content"),
        (item(json!({"role": "user", "content": 5})), "input[0].content"),
        (item(image), "input[0].content[0].type"),
        (item(json!({"role": "user", "content": [{"type": "input_text"}]})), "input[0].content[0].text"),
        (item(json!({"type": "function_call_output", "output": "x"})), "input[0].call_id"),
        (item(json!({"type": "item_reference", "id": "x"})), "input[0].type"),
        (json!({"instructions": 5}), "instructions"),
        (json!({"previous_response_id": "resp_1"}), "previous_response_id"),
        (json!({"conversation": "conv_1"}), "conversation"),
        (json!({"prompt": {"id": "p"}}), "prompt"),
        (json!({"background": true}), "background"),
        (json!({"truncation": "middle"}), "truncation"),
        (json!({"include": ["message.output_text.logprobs"]}), "include"),
        (json!({"top_logprobs": 2}), "top_logprobs"),
        (json!({"n": 2}), "n"),
        (json!({"max_output_tokens": 0}), "max_output_tokens"),
        (json!({"temperature": -1}), "temperature"),
        (json!({"tools": [{"type": "function"}]}), "tools[0].name"),
        (json!({"tool_choice": "required"}), "tool_choice"),
        (json!({"tool_choice": "always"}), "tool_choice"),
        (json!({"tool_choice": {"type": "function", "name": "f"}}), "tool_choice"),
        (json!({"tool_choice": {"type": "web_search"}}), "tool_choice.type"),
        (json!({"reasoning": {"effort": 5}}), "reasoning.effort"),
        (json!({"reasoning": 5}), "reasoning"),
        (json!({"text": {"format": {"type": "nonsense"}}}), "text.format"),
        (json!({"model": "another"}), "model"),
    ];
    for (case, param) in cases {
        let answer = respond(&server, case.clone());
        assert!((400..500).contains(&answer.status), "{case}: {answer:?}");
        let error = &answer.json()["error"];
        assert!(error["param"].as_str().is_some_and(|found| found.starts_with(param)), "{case}: {error}");
        assert!(error["message"].as_str().is_some_and(|text| !text.is_empty()), "{case}: {error}");
    }
    assert_eq!(respond(&server, json!({})).status, 200, "the next good request succeeds");
}

#[test]
fn the_tokens_counted_are_those_of_the_answer() {
    let server = Running::with_tools();
    let tools =
        json!([{"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}]);
    let call = json!({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{\"x\": 1}"});
    let result = json!({"type": "function_call_output", "call_id": "c", "output": "two"});
    let user = json!({"type": "message", "role": "user", "content": "a b"});
    let thought =
        json!({"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "hm"}]});
    let mut counts = Vec::new();
    for more in [
        json!({}),
        json!({"instructions": "x"}),
        json!({"tools": tools}),
        json!({"input": [user, thought, call, result]}),
        json!({"input": [user, thought, call, result], "tools": tools, "reasoning": {"effort": "low"}}),
    ] {
        let counted = post(server.address, COUNT, &body(more.clone())).json();
        let whole = respond(&server, more.clone()).json();
        assert_eq!(counted["object"], "response.input_tokens");
        assert_eq!(counted["input_tokens"], whole["usage"]["input_tokens"], "{more}");
        counts.push(counted["input_tokens"].as_u64().expect("a count"));
    }
    counts.dedup();
    assert_eq!(counts.len(), 5, "each part has tokens: {counts:?}");
}

#[test]
fn a_stream_that_fails_says_so_in_its_last_event() {
    let server = Running::with(|config| config.request_timeout = Some(std::time::Duration::ZERO));
    let events = respond(&server, json!({"stream": true})).named_events();
    let last = events.last().expect("events");
    assert_eq!(
        (&last["type"], &last["sequence_number"]),
        (&"response.failed".into(), &(events.len() - 1).into())
    );
    assert_eq!(last["response"]["status"], "failed");
    assert!(last["response"]["error"]["message"].is_string());
    assert_eq!(respond(&server, json!({})).status, 408);
}

#[test]
fn a_chat_is_counted_and_rendered_as_it_is_answered() {
    let server = Running::with(|_| {});
    let chat = json!({"messages": [{"role": "user", "content": "a b c"}], "max_tokens": 1});
    let path = "/v1/chat/completions";
    let usage = post(server.address, path, &chat).json()["usage"]["prompt_tokens"].clone();
    assert_eq!(post(server.address, &format!("{path}/input_tokens"), &chat).json()["input_tokens"], usage);
    let more = json!({"stream": true, "cache_salt": "s", "priority": 2});
    let rendered = post(server.address, &format!("{path}/render"), &with(chat.clone(), more)).json();
    assert_eq!(rendered["token_ids"], post(server.address, "/tokenize", &chat).json()["tokens"]);
    assert_eq!(
        [&rendered["stream"], &rendered["cache_salt"], &rendered["priority"], &rendered["features"]],
        [&json!(true), &json!("s"), &json!(2), &Value::Null]
    );
    assert!(rendered["request_id"].is_string() && rendered["sampling_params"].is_object());
}
