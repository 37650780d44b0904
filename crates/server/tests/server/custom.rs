//! Calls of custom tools, of namespaces and of tools without a schema; stop texts in calls.

use serde_json::{Value, json};

use super::Running;
use super::agents::{CHAT, MESSAGES, RESPONSES, sent, user};
use super::client::{post, with};

/// The call of an answer, whole and joined from its stream, with the same text.
fn custom_call(server: &Running, path: &str, body: &Value) -> Value {
    let whole = sent(server, path, body.clone()).json();
    let stream = sent(server, path, with(body.clone(), json!({"stream": true})));
    if path == CHAT {
        let choice = &whole["choices"][0];
        assert_eq!(
            (&choice["finish_reason"], &choice["message"]["content"]),
            (&json!("tool_calls"), &Value::Null)
        );
        let (events, _) = stream.events();
        let mut deltas = events.iter().filter_map(|event| event["choices"][0]["delta"]["tool_calls"].get(0));
        let first = deltas.next().expect("a call").clone();
        assert_eq!((&first["type"], &first["custom"]["input"]), (&json!("custom"), &json!("")));
        let joined: String = deltas.map(|delta| delta["custom"]["input"].as_str().expect("a text")).collect();
        let call = choice["message"]["tool_calls"][0].clone();
        assert_eq!(call["custom"], json!({"name": first["custom"]["name"], "input": joined}));
        return call;
    }
    let events = stream.named_events();
    let deltas = events.iter().filter(|event| event["type"] == "response.custom_tool_call_input.delta");
    let joined: String = deltas.map(|event| event["delta"].as_str().expect("a text")).collect();
    let done = events.iter().find(|event| event["type"] == "response.custom_tool_call_input.done");
    assert_eq!(done.map(|event| &event["input"]), Some(&json!(joined)));
    let call = whole["output"][0].clone();
    assert_eq!((&call["type"], &call["input"]), (&json!("custom_tool_call"), &json!(joined)));
    call
}

#[test]
fn a_custom_tool_is_called_with_a_text() {
    let server = Running::with_tools();
    let format = json!({"type": "grammar", "syntax": "regex", "definition": "[ab]{3}\\n\"c\""});
    let tool = json!({"type": "custom", "name": "patch", "description": "Patches.", "format": format});
    let count = |tools: Value| {
        sent(&server, "/v1/responses/input_tokens", json!({"input": "a", "tools": tools})).json()
    };
    assert!(count(json!([tool]))["input_tokens"].as_u64() > count(json!([]))["input_tokens"].as_u64());

    let base = json!({
        "tools": [tool], "tool_choice": {"type": "custom", "name": "patch"}, "temperature": 1, "seed": 3,
        "parallel_tool_calls": false, "max_output_tokens": 400,
    });
    let call = custom_call(&server, RESPONSES, &with(base.clone(), json!({"input": [user()]})));
    let input = call["input"].as_str().expect("a text");
    assert!(input.len() == 7 && input.ends_with("\n\"c\""), "{call}");
    let output = json!({"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "done"});
    let next = with(base, json!({"input": [user(), call, output, user()]}));
    assert_eq!(custom_call(&server, RESPONSES, &next)["name"], "patch");

    let grammar = json!({"type": "grammar", "grammar": {"syntax": "regex", "definition": "[ab]{3}"}});
    let custom = json!({"name": "patch", "format": grammar});
    let base = json!({
        "tools": [{"type": "custom", "custom": custom}], "temperature": 1, "seed": 3, "max_tokens": 400,
        "tool_choice": {"type": "custom", "custom": {"name": "patch"}}, "parallel_tool_calls": false,
    });
    let call = custom_call(&server, CHAT, &with(base.clone(), json!({"messages": [user()]})));
    assert_eq!(call["custom"]["input"].as_str().map(str::len), Some(3), "{call}");
    let result = json!({"role": "tool", "tool_call_id": call["id"], "content": "done"});
    let history = json!([user(), {"role": "assistant", "content": null, "tool_calls": [call]}, result]);
    let allowed = json!({"mode": "required", "tools": [{"type": "custom", "custom": {"name": "patch"}}]});
    let next =
        json!({"messages": history, "tool_choice": {"type": "allowed_tools", "allowed_tools": allowed}});
    assert_eq!(custom_call(&server, CHAT, &with(base, next))["custom"]["name"], "patch");
}

#[test]
fn tools_of_a_namespace_and_found_ones_are_called_by_their_names() {
    let server = Running::with_tools();
    let function = |name: &str| json!({"type": "function", "name": name, "parameters": super::schema()});
    let namespace =
        json!({"type": "namespace", "name": "files", "description": "d", "tools": [function("read")]});
    let base = json!({"parallel_tool_calls": false, "max_output_tokens": 400, "temperature": 1, "seed": 3});
    let ask = |more: Value| sent(&server, RESPONSES, with(base.clone(), more)).json();
    let own = json!({"type": "function", "namespace": "files", "name": "read"});
    let allowed = json!({"type": "allowed_tools", "mode": "required", "tools": [{"type": "namespace", "name": "files"}]});
    for choice in [own, allowed] {
        let tools = json!([function("read"), namespace]);
        let whole = ask(json!({"input": [user()], "tools": tools, "tool_choice": choice}));
        let call = &whole["output"][0];
        let found = (&call["type"], &call["namespace"], &call["name"]);
        assert_eq!(found, (&"function_call".into(), &"files".into(), &"read".into()), "{whole}");
        assert_eq!(whole["tools"], tools);
    }
    let found =
        json!({"type": "tool_search_output", "call_id": "t", "execution": "server", "tools": [namespace]});
    let added = json!({"type": "additional_tools", "role": "developer", "tools": [namespace]});
    for item in [found, added] {
        let whole = ask(json!({"input": [user(), item, user()], "tool_choice": "required"}));
        assert_eq!(whole["output"][0]["namespace"], "files", "a tool that was found can be called: {whole}");
    }

    let listed = json!({"type": "function", "name": "f", "parameters": {"type": "object"}});
    let added = json!({"type": "additional_tools", "tools": [{"type": "custom", "name": "f"}]});
    let both = json!({"input": [user(), added, user()], "tools": [listed], "tool_choice": "required"});
    assert_eq!(ask(both)["output"][0]["type"], "function_call", "the listed tool of that name");

    let search = json!({"type": "tool_search", "execution": "client", "description": "d"});
    let whole = ask(json!({"input": [user()], "tools": [search], "tool_choice": "required"}));
    assert_eq!(whole["output"][0]["type"], "tool_search_call", "{whole}");
    let shell = json!({"input": [user()], "tools": [{"type": "local_shell"}], "tool_choice": {"type": "local_shell"}});
    assert_eq!(ask(shell)["output"][0]["action"]["type"], "exec");
    let twice = json!({"input": "a", "tools": [function("files__read"), namespace]});
    assert_eq!(post(server.address, RESPONSES, &twice).status, 400, "one name, two tools");
    let bash = json!({
        "messages": [user()], "tools": [{"type": "bash_20250124", "name": "bash"}], "max_tokens": 400,
        "tool_choice": {"type": "any"},
    });
    assert_eq!(sent(&server, MESSAGES, bash).json()["content"][0]["name"], "bash");
}

#[test]
fn a_stop_text_in_a_call_does_not_end_it() {
    let server = Running::with_tools();
    let schema = json!({
        "type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"], "additionalProperties": false,
    });
    let whole = |text: &Value| {
        let arguments: Value = serde_json::from_str(text.as_str().expect("a text")).expect("JSON");
        assert!(arguments["city"].is_string(), "{arguments}");
    };
    for stop in ["city", "\"", "{", "tool_call", "me", "lo"] {
        let function = json!({"name": "weather", "parameters": schema});
        let body = json!({
            "messages": [user()], "tools": [{"type": "function", "function": function}], "tool_choice": "required",
            "parallel_tool_calls": false, "stop": [stop], "max_tokens": 400, "temperature": 1, "seed": 3,
        });
        let choice = sent(&server, CHAT, body.clone()).json()["choices"][0].clone();
        assert_eq!(choice["finish_reason"], "tool_calls", "{stop}: {choice}");
        whole(&choice["message"]["tool_calls"][0]["function"]["arguments"]);
        let (events, _) = sent(&server, CHAT, with(body, json!({"stream": true}))).events();
        let deltas = events.iter().filter_map(|event| {
            event["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"].as_str()
        });
        whole(&deltas.collect::<String>().into());

        let body = json!({
            "input": "a", "tools": [{"type": "function", "name": "weather", "parameters": schema}], "stop": [stop],
            "tool_choice": "required", "parallel_tool_calls": false, "max_output_tokens": 400,
        });
        whole(&sent(&server, RESPONSES, body).json()["output"][0]["arguments"]);
        let body = json!({
            "messages": [user()], "tools": [{"name": "weather", "input_schema": schema}], "stop_sequences": [stop],
            "tool_choice": {"type": "any", "disable_parallel_tool_use": true}, "max_tokens": 400,
        });
        let answer = sent(&server, MESSAGES, body).json();
        assert_eq!(answer["stop_reason"], "tool_use", "{answer}");
        assert!(answer["content"][0]["input"]["city"].is_string(), "{answer}");
    }
}

#[test]
fn a_stop_text_still_ends_the_text_beside_tools() {
    let server = Running::with_tools();
    let body = json!({
        "messages": [user()], "max_tokens": 24, "temperature": 1.5, "seed": 7,
        "tools": [{"type": "function", "function": {"name": "f"}}],
    });
    let text = sent(&server, CHAT, body.clone()).json()["choices"][0]["message"]["content"].clone();
    let text = text.as_str().expect("a text").to_owned();
    let stop: String = text.chars().skip(text.chars().count() / 2).take(2).collect();
    let choice = sent(&server, CHAT, with(body, json!({"stop": stop}))).json()["choices"][0].clone();
    let before = text.split(&stop).next().expect("a part").trim_end().to_owned();
    assert_eq!((&choice["message"]["content"], &choice["stop_reason"]), (&before.into(), &stop.into()));
}
