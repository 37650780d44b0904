//! Agents' conversations: items and blocks of other services, documents, overflows.

use serde_json::{Value, json};

use super::Running;
use super::client::{Answer, post, with};

pub(super) const CHAT: &str = "/v1/chat/completions";
pub(super) const RESPONSES: &str = "/v1/responses";
pub(super) const MESSAGES: &str = "/v1/messages";

pub(super) fn user() -> Value {
    json!({"role": "user", "content": "a b"})
}

pub(super) fn sent(server: &Running, path: &str, body: Value) -> Answer {
    let answer = post(server.address, path, &body);
    assert_eq!(answer.status, 200, "{path}: {answer:?}");
    answer
}

/// Tokens of a Responses input between two user's turns.
fn input_tokens(server: &Running, items: &[Value]) -> u64 {
    let input: Vec<Value> = std::iter::once(user()).chain(items.iter().cloned()).chain([user()]).collect();
    let counted = sent(server, "/v1/responses/input_tokens", json!({"input": input})).json();
    counted["input_tokens"].as_u64().expect("a count")
}

#[test]
fn what_the_client_ran_is_a_call_with_its_result() {
    let server = Running::with_tools();
    let function = |name: &str, arguments: Value, output: &str| {
        [
            json!({"type": "function_call", "call_id": "c1", "name": name, "arguments": arguments.to_string()}),
            json!({"type": "function_call_output", "call_id": "c1", "output": output}),
        ]
    };
    let call = |kind: &str, more: Value| with(json!({"type": kind, "call_id": "c1"}), more);
    let operation = json!({"type": "delete_file", "path": "a"});
    let shell = json!({"commands": ["ls", "cd"]});
    let output = json!([
        {"stdout": "one", "stderr": "two", "outcome": {"type": "exit", "exit_code": 1}},
        {"stdout": "", "stderr": "", "outcome": {"type": "timeout"}},
    ]);
    let cases = [
        (
            call("custom_tool_call", json!({"name": "patch", "input": "*** \"x\""})),
            call("custom_tool_call_output", json!({"output": [{"type": "input_text", "text": "done"}]})),
            function("patch", json!({"input": "*** \"x\""}), "done"),
        ),
        (
            call("function_call", json!({"namespace": "mcp__a", "name": "f", "arguments": "{}"})),
            call("function_call_output", json!({"output": "done"})),
            function("mcp__a__f", json!({}), "done"),
        ),
        (
            call("function_call", json!({"name": "f"})),
            call("function_call_output", json!({"output": 5})),
            function("f", json!({}), "5"),
        ),
        (
            call("custom_tool_call", json!({"name": "patch", "input": {"a": 1}})),
            call("custom_tool_call_output", json!({"output": null})),
            function("patch", json!({"input": "{\"a\":1}"}), ""),
        ),
        (
            call("local_shell_call", json!({"action": {"type": "exec", "command": ["ls"], "env": {}}})),
            json!({"type": "local_shell_call_output", "id": "c1", "output": "a.txt"}),
            function("local_shell", json!({"command": ["ls"], "env": {}}), "a.txt"),
        ),
        (
            call("shell_call", json!({"action": shell})),
            call("shell_call_output", json!({"output": output})),
            function("shell", shell.clone(), "one\ntwo\nexit code: 1\ntimed out"),
        ),
        (
            call("apply_patch_call", json!({"operation": operation, "status": "completed"})),
            call("apply_patch_call_output", json!({"status": "completed"})),
            function("apply_patch", operation.clone(), "completed"),
        ),
        (
            call("tool_search_call", json!({"execution": "client", "arguments": {"query": "files"}})),
            call("tool_search_output", json!({"execution": "client", "tools": []})),
            function("tool_search", json!({"query": "files"}), "Found tools: "),
        ),
    ];
    let nothing = input_tokens(&server, &[]);
    for (call, output, same) in cases {
        let found = input_tokens(&server, &[call.clone(), output]);
        assert_eq!(found, input_tokens(&server, &same), "{call}");
        assert!(found > nothing + 6, "{call}");
    }
}

#[test]
fn items_and_tools_of_other_services_are_skipped_and_named() {
    let server = Running::with_tools();
    let call = |kind: &str| json!({"type": kind, "id": "x", "call_id": "c", "status": "completed"});
    let kinds = [
        "web_search_call",
        "computer_call",
        "computer_call_output",
        "compaction",
        "ghost_snapshot",
        "mcp_call",
        "tool_search_call",
        "tool_search_output",
        "a kind\r\nnobody: knows",
    ];
    let items: Vec<Value> = kinds.iter().map(|kind| call(kind)).collect();
    assert_eq!(input_tokens(&server, &items), input_tokens(&server, &[]));
    let input: Vec<Value> = [user()].into_iter().chain(items).collect();
    let tools = json!([{"type": "web_search"}, {"type": "shell", "environment": {"type": "container_auto"}}]);
    let body = json!({"input": input, "tools": tools, "max_output_tokens": 1, "odd": 1});
    let answer = sent(&server, RESPONSES, body);
    let ignored = "odd, input.compaction, input.computer_call, input.computer_call_output, input.ghost_snapshot, \
                   input.mcp_call, input.tool_search_call, input.unknown, input.web_search_call, tools.shell, tools.web_search";
    assert_eq!(answer.header("x-ottava-ignored"), Some(ignored));
    let said = json!({"type": "agent_message", "role": "assistant", "content": [{"type": "output_text", "text": "b"}]});
    let same = json!({"role": "assistant", "content": "b"});
    assert_eq!(input_tokens(&server, &[said]), input_tokens(&server, &[same]), "one with a text is its text");

    let block =
        |kind: &str| json!({"type": kind, "id": "s", "name": "web_search", "input": {}, "content": []});
    let blocks = json!([
        block("server_tool_use"), block("web_search_tool_result"), block("mcp_tool_use"), {"type": "text", "text": "b"},
    ]);
    let messages = json!([user(), {"role": "assistant", "content": blocks}, user()]);
    let answer = sent(&server, MESSAGES, json!({"messages": messages, "max_tokens": 1}));
    let ignored = "messages.mcp_tool_use, messages.server_tool_use, messages.web_search_tool_result";
    assert_eq!(answer.header("x-ottava-ignored"), Some(ignored));
}

#[test]
fn an_overflow_has_the_words_and_fields_that_agents_look_for() {
    let server = Running::with(|_| {});
    let long = "a b ".repeat(2000);
    let message = json!([{"role": "user", "content": long}]);
    let cases = [
        (CHAT, json!({"messages": message}), "messages"),
        ("/v1/chat/completions/input_tokens", json!({"messages": message}), "messages"),
        ("/v1/completions", json!({"prompt": long}), "prompt"),
        (RESPONSES, json!({"input": long}), "input"),
        ("/v1/responses/input_tokens", json!({"input": long}), "input"),
    ];
    let context = server.engine.info().context_max;
    for (path, body, field) in cases {
        for stream in [false, true] {
            let answer = post(server.address, path, &with(body.clone(), json!({"stream": stream})));
            let error = &answer.json()["error"];
            let found = (answer.status, &error["code"], &error["param"], &error["n_ctx"]);
            assert_eq!(
                found,
                (400, &"context_length_exceeded".into(), &field.into(), &context.into()),
                "{path}"
            );
            let (words, field) =
                (error["message"].as_str().expect("words"), format!("length of the {field}."));
            let begin = format!("This model's maximum context length is {context} tokens.");
            assert!(words.starts_with(&begin) && words.ends_with(&field), "{words}");
            assert!(
                error["n_prompt_tokens"].as_u64().is_some_and(|tokens| tokens > context as u64),
                "{error}"
            );
        }
    }
    for path in [MESSAGES, "/v1/messages/count_tokens"] {
        let error =
            post(server.address, path, &json!({"messages": message, "max_tokens": 5})).json()["error"]
                .clone();
        let tokens = error["n_prompt_tokens"].as_u64().expect("a count");
        let words = format!("prompt is too long: {tokens} tokens > {context} maximum");
        assert_eq!((&error["type"], &error["message"]), (&"invalid_request_error".into(), &words.into()));
        assert_eq!(error["n_ctx"], context);
    }
    // A prompt of the whole context has no room for an answer.
    let ids = vec![5; context];
    let error = post(server.address, "/v1/completions", &json!({"prompt": ids})).json()["error"].clone();
    assert_eq!((&error["n_prompt_tokens"], &error["n_ctx"]), (&context.into(), &context.into()));
}

#[test]
fn documents_and_search_results_are_text() {
    let server = Running::with_tools();
    let text = |text: &str| json!({"type": "text", "text": text});
    let source = json!({"type": "text", "media_type": "text/plain", "data": "Otters swim."});
    let document =
        json!({"type": "document", "title": "Notes", "source": source, "citations": {"enabled": true}});
    let found = json!({"type": "search_result", "source": "s", "title": "T", "content": [text("b")]});
    let count = |messages: Value| {
        let counted = sent(&server, "/v1/messages/count_tokens", json!({"messages": messages}));
        assert_eq!(counted.header("x-ottava-ignored"), None);
        counted.json()["input_tokens"].clone()
    };
    let asked = |blocks: Value| json!([{"role": "user", "content": blocks}]);
    assert_eq!(
        count(asked(json!([document, text("Why?")]))),
        count(asked(json!([text("Notes\nOtters swim."), text("Why?")])))
    );
    let result = |blocks: Value| {
        let used = json!({"type": "tool_use", "id": "t", "name": "f", "input": {}});
        let result = json!({"type": "tool_result", "tool_use_id": "t", "content": blocks});
        json!([user(), {"role": "assistant", "content": [used]}, {"role": "user", "content": [result]}])
    };
    assert_eq!(count(result(json!([document, found]))), count(result(json!("Notes\nOtters swim.\nT\ns\nb"))));
}

#[test]
fn an_image_in_a_result_is_noted_and_one_of_the_user_refused() {
    let server = Running::with_tools();
    let image =
        json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "x"}});
    let used = json!({"type": "tool_use", "id": "t", "name": "f", "input": {}});
    let result = json!({"type": "tool_result", "tool_use_id": "t", "content": [image]});
    let messages =
        json!([user(), {"role": "assistant", "content": [used]}, {"role": "user", "content": [result]}]);
    let answer = sent(&server, MESSAGES, json!({"messages": messages, "max_tokens": 1}));
    assert_eq!(answer.header("x-ottava-ignored"), Some("messages.image"));
    let refused = json!({"messages": [{"role": "user", "content": [image]}], "max_tokens": 1});
    assert_eq!(post(server.address, MESSAGES, &refused).status, 400);

    let output = json!([{"type": "input_image", "image_url": "data:"}]);
    let input = json!([
        user(),
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": output},
    ]);
    let answer = sent(&server, RESPONSES, json!({"input": input, "max_output_tokens": 1}));
    assert_eq!(answer.header("x-ottava-ignored"), Some("input.input_image"));

    let call = json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let part = json!({"type": "image_url", "image_url": {"url": "data:"}});
    let messages = json!([
        user(),
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": [part, {"type": "text", "text": "b"}]},
    ]);
    let answer = sent(&server, CHAT, json!({"messages": messages, "max_tokens": 1}));
    assert_eq!(answer.header("x-ottava-ignored"), Some("messages.image_url"));
}

#[test]
fn a_call_without_a_name_does_not_end_a_conversation() {
    let server = Running::with_tools();
    let call = json!({"id": "c", "type": "function", "function": {"name": "", "arguments": "{}"}});
    let messages = json!([
        user(),
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "b"},
        user(),
    ]);
    sent(&server, CHAT, json!({"messages": messages, "max_tokens": 1}));
}
