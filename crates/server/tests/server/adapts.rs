//! Conversations that a template refuses in their original form: ids and arguments of calls, system texts,
//! alternating roles, reasoning turned off, and items of other servers.

use serde_json::{Value, json};

use super::Running;
use super::client::post;

const CHAT: &str = "/v1/chat/completions";
/// A template like Mistral's: ids of nine characters, strictly alternating roles.
const STRICT: &str = "{% set ns = namespace(last='') %}{{ tools | tojson if tools }}{% for m in messages %}\
    {% if m.role == 'user' and ns.last not in ['', 'assistant'] %}{{ raise_exception('roles must alternate') }}{% endif %}\
    {% set ns.last = m.role %}<|im_start|>{{ m.role }} {{ m.content }}\
    {% for call in m.tool_calls or [] %}{% if call.id | length != 9 %}{{ raise_exception('nine characters') }}{% endif %}\
    ({{ call.id }}){% endfor %}\
    {% if m.tool_call_id %}{% if m.tool_call_id | length != 9 %}{{ raise_exception('nine characters') }}{% endif %}\
    ({{ m.tool_call_id }}){% endif %}<|im_end|>\n{% endfor %}<|im_start|>assistant\n";
/// A template like Qwen3's with reasoning turned off.
const NO_THOUGHTS: &str = "{{ tools | tojson if tools }}{% if false %}<tool_call></tool_call>{% endif %}\
    {% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
    <|im_start|>assistant\n{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}";

fn called(id: &str) -> Value {
    let call = json!({"id": id, "type": "function", "function": {"name": "ping", "arguments": "{}"}});
    json!([
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": id, "content": "pong"},
    ])
}

fn text_of(server: &Running, messages: &Value) -> String {
    let answer = post(server.address, "/tokenize", &json!({"messages": messages}));
    assert_eq!(answer.status, 200, "{answer:?}");
    let tokens = json!({"tokens": answer.json()["tokens"]});
    let text = post(server.address, "/detokenize", &tokens).json();
    text["prompt"].as_str().expect("a text").to_owned()
}

#[test]
fn ids_of_other_servers_calls_are_shortened_where_the_template_insists() {
    let server = Running::with_template(STRICT, &[]);
    let text = text_of(&server, &called("call_a7zyrl9aiw3oma7f4cgeuaid"));
    let ids: Vec<&str> = text.split('(').skip(1).filter_map(|rest| rest.split(')').next()).collect();
    assert!(matches!(ids[..], [first, second] if first == second && first.len() == 9), "{text}");
    assert!(text_of(&server, &called("abc123XYZ")).contains("(abc123XYZ)"), "what is short stays");
    let free = STRICT.replace("!= 9", "== 0");
    let server = Running::with_template(&free, &[]);
    assert!(
        text_of(&server, &called("call_long_one")).contains("(call_long_one)"),
        "and so do others elsewhere"
    );
}

#[test]
fn turns_of_a_user_are_joined_where_the_template_insists() {
    let server = Running::with_template(STRICT, &[]);
    let two = json!([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]);
    let result =
        json!({"type": "tool_result", "tool_use_id": "toolu_01A09q90qw90lq917835lq9", "content": "pong"});
    let used = json!({"type": "tool_use", "id": result["tool_use_id"], "name": "ping", "input": {}});
    let behind = json!([
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": [used]},
        {"role": "user", "content": [result, {"type": "text", "text": "go on"}]},
    ]);
    for messages in [&two, &behind] {
        let body = json!({"model": "", "max_tokens": 1, "messages": messages});
        let answer = post(server.address, "/v1/messages", &body);
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    let answer = post(server.address, "/v1/responses", &json!({"input": two, "max_output_tokens": 1}));
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(text_of(&server, &two).contains("user a\n\nb<|im_end|>"));
    let mut chat = called("abc123XYZ");
    chat.as_array_mut().expect("a list").push(json!({"role": "user", "content": "go on"}));
    assert!(text_of(&server, &chat).contains("tool pong\n\ngo on"));
    let free = Running::with_tools();
    assert!(text_of(&free, &two).contains("user\na<|im_end|>"), "elsewhere they stay apart");
}

/// A template that wants one system text at the beginning, the other turns in order, and an object's fields.
const ORDERLY: &str = "{% set ns = namespace(at=0) %}{% for m in messages %}\
    {% if m.role == 'system' %}{% if not loop.first %}{{ raise_exception('system first') }}{% endif %}\
    {% elif m.role != 'tool' and not m.tool_calls %}\
    {% if (m.role == 'user') != (ns.at % 2 == 0) %}{{ raise_exception('in turn') }}{% endif %}\
    {% set ns.at = ns.at + 1 %}{% endif %}({{ m.role }}: {{ m.content }}\
    {% for call in m.tool_calls or [] %}{% for name, value in call.function.arguments | items %} {{ name }}={{ value }}\
    {% endfor %}{% endfor %}){% endfor %}{% if tools %}<tool_call>{{ tools | tojson }}</tool_call>{% endif %}";

fn turns(turns: &[(&str, &str)]) -> Value {
    turns.iter().map(|(role, content)| json!({"role": role, "content": content})).collect()
}

#[test]
fn system_texts_and_turns_come_as_the_template_insists() {
    let server = Running::with_template(ORDERLY, &[]);
    let cases: [(&[(&str, &str)], &str); 5] = [
        (&[("system", "s"), ("developer", "d"), ("user", "a")], "(system: s\n\nd)(user: a)"),
        (
            &[("system", "s"), ("user", "a"), ("assistant", "b"), ("system", "d"), ("user", "c")],
            "(system: s)(user: a)(assistant: b)(user: d\n\nc)",
        ),
        (&[("assistant", "b"), ("user", "a")], "(user: )(assistant: b)(user: a)"),
        (
            &[("user", "a"), ("assistant", "b"), ("assistant", "c"), ("user", "d")],
            "(user: a)(assistant: b\n\nc)(user: d)",
        ),
        (&[("user", "a"), ("user", "b")], "(user: a\n\nb)"),
    ];
    for (messages, expected) in cases {
        assert_eq!(text_of(&server, &turns(messages)), expected);
    }
    let free =
        Running::with_template("{% for m in messages %}({{ m.role }}: {{ m.content }}){% endfor %}", &[]);
    for (messages, _) in cases {
        let expected: String = messages.iter().map(|(role, text)| format!("({role}: {text})")).collect();
        assert_eq!(text_of(&free, &turns(messages)), expected.replace("developer", "system"));
    }
    let without = ORDERLY.replace("not loop.first", "true");
    let server = Running::with_template(&without, &[]);
    let messages = turns(&[("system", "s"), ("user", "a"), ("assistant", "b"), ("user", "c")]);
    assert_eq!(text_of(&server, &messages), "(user: s\n\na)(assistant: b)(user: c)");
    let hopeless = Running::with_template("{{ raise_exception('closed on Sundays') }}", &[]);
    let answer = post(hopeless.address, CHAT, &json!({"messages": turns(&[("user", "a"), ("user", "b")])}));
    assert!(answer.status == 400 && answer.body.contains("closed on Sundays"), "{answer:?}");
}

#[test]
fn broken_arguments_do_not_end_a_conversation() {
    let server = Running::with_template(ORDERLY, &[]);
    for (broken, shown) in [
        (json!("{\"x\": "), "INVALID_JSON={\"x\": "),
        (json!("\"north\""), "INVALID_JSON=\"north\""),
        (json!("{\"a\": 1}{\"b\": 2}"), "INVALID_JSON={\"a\": 1}{\"b\": 2}"),
        (json!([1]), "INVALID_JSON=[1]"),
        (json!("\"{\\\"x\\\": 1}\""), "x=1"),
        (json!(""), "assistant: )"),
    ] {
        let mut messages = called("c1");
        messages[1]["tool_calls"][0]["function"]["arguments"] = broken.clone();
        let text = text_of(&server, &messages);
        assert!(text.contains(shown), "{text}");
        let used = json!({"type": "tool_use", "id": "c1", "name": "ping", "input": broken});
        let result = json!({"type": "tool_result", "tool_use_id": "c1", "content": "pong"});
        let messages = json!([
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": [used]},
            {"role": "user", "content": [result]},
        ]);
        let answer = post(server.address, "/v1/messages", &json!({"messages": messages, "max_tokens": 1}));
        assert_eq!(answer.status, 200, "{answer:?}");
        let input = json!([
            {"role": "user", "content": "a"},
            {"type": "function_call", "call_id": "c1", "name": "ping", "arguments": broken},
            {"type": "function_call_output", "call_id": "c1", "output": "pong"},
        ]);
        let answer = post(server.address, "/v1/responses", &json!({"input": input, "max_output_tokens": 1}));
        assert_eq!(answer.status, 200, "{answer:?}");
    }
}

#[test]
fn a_model_that_is_not_to_think_does_not_where_its_answer_has_a_form() {
    let server = Running::with_template(NO_THOUGHTS, &[]);
    let tool = json!({"type": "function", "function": {"name": "ping", "parameters": {"type": "object", "properties": {}}}});
    let forms = [
        json!({"response_format": {"type": "json_object"}}),
        json!({"tools": [tool], "tool_choice": "required"}),
    ];
    for form in forms {
        let mut body = json!({
            "messages": [{"role": "user", "content": "a b"}], "temperature": 1, "seed": 1, "n": 8, "max_tokens": 40,
            "chat_template_kwargs": {"enable_thinking": false},
        });
        for (name, value) in form.as_object().expect("an object") {
            body[name] = value.clone();
        }
        let answer = post(server.address, CHAT, &body).json();
        for choice in answer["choices"].as_array().expect("choices") {
            let message = &choice["message"];
            assert!(message["reasoning_content"].is_null(), "{message}");
            let begun = message["content"].as_str().is_some_and(|text| text.trim_start().starts_with('{'));
            assert!(begun || message["tool_calls"].is_array(), "{message}");
        }
    }
}

#[test]
fn a_last_turn_without_calls_has_no_tools_where_they_are_text() {
    let server = Running::with(|_| {});
    let tool = json!({"type": "function", "function": {"name": "ping"}});
    let prompt = |choice: &str| {
        let body = json!({
            "messages": [{"role": "user", "content": "a"}], "tools": [tool], "tool_choice": choice, "max_tokens": 1,
        });
        post(server.address, CHAT, &body).json()["usage"]["prompt_tokens"].as_u64().expect("a count")
    };
    let plain = json!({"messages": [{"role": "user", "content": "a"}]});
    let plain = post(server.address, "/tokenize", &plain).json()["count"].as_u64().expect("a count");
    assert!(prompt("none") == plain && prompt("auto") > plain);
}

#[test]
fn only_tools_that_there_are_can_be_allowed() {
    let server = Running::with_tools();
    let tool = |name: &str| json!({"type": "function", "function": {"name": name}});
    for mode in ["auto", "required"] {
        let allowed = json!({"mode": mode, "tools": [tool("ping"), tool("pong")]});
        let body = json!({
            "messages": [{"role": "user", "content": "a"}], "tools": [tool("ping")], "max_tokens": 1,
            "tool_choice": {"type": "allowed_tools", "allowed_tools": allowed},
        });
        let answer = post(server.address, CHAT, &body);
        let param = answer.json()["error"]["param"].clone();
        assert_eq!((answer.status, param), (400, "tool_choice.allowed_tools.tools".into()), "{mode}");
    }
}

#[test]
fn what_other_servers_wrote_and_other_clients_write_is_read() {
    let server = Running::with_tools();
    let user = json!({"role": "user", "content": "a"});
    let tool = |name: &str| json!({"type": "function", "function": {"name": name}});
    let allowed =
        json!({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [tool("ping")]}});
    let refusal = json!({"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]});
    let long = "mcp__a_server_with_a_long_name__a_tool_with_a_name_that_is_longer_than_64_bytes";
    let searched = json!([
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}},
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
        {"type": "text", "text": "Found."},
    ]);
    let call =
        json!({"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}});
    let cases = [
        (CHAT, json!({"messages": [user, refusal, user]})),
        (CHAT, json!({"messages": [user], "logit_bias": [[97, -1], ["98", 0.5], [99, false]]})),
        (CHAT, json!({"messages": [user], "logit_bias": []})),
        (CHAT, json!({"messages": [user], "tools": [tool(long)]})),
        ("/v1/messages", json!({"messages": [user, {"role": "assistant", "content": searched}, user]})),
        ("/v1/responses", json!({"input": [user, call, {"role": "assistant", "content": "b"}, user]})),
    ];
    for (path, mut body) in cases {
        body["max_tokens"] = 1.into();
        let answer = post(server.address, path, &body);
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
    }
    let body = json!({
        "messages": [user], "tools": [tool("ping"), tool("pong")], "tool_choice": allowed, "max_tokens": 400, "n": 4,
    });
    for choice in post(server.address, CHAT, &body).json()["choices"].as_array().expect("choices") {
        for call in choice["message"]["tool_calls"].as_array().into_iter().flatten() {
            assert_eq!(call["function"]["name"], "ping");
        }
    }
    let never = json!({"messages": [user], "logit_bias": [[97, true]]});
    assert_eq!(post(server.address, CHAT, &never).status, 400);
}
