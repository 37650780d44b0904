//! Tools: required calls, whole and streamed, in every API; rendered calls, and refused ones.

use ottava::chat::{ChatPart, Tool, ToolChoice, Tools};
use ottava::{Request, text::Message};
use serde_json::{Value, json};

use super::Running;
use super::client::{get, post, with};

const CHAT: &str = "/v1/chat/completions";
/// Calls between tags of plain text.
const HERMES: &str = "{% if tools %}{{ tools | tojson }}<tool_call></tool_call>{% endif %}\
                      {% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n\
                      {% endfor %}<|im_start|>assistant\n";
/// Calls between control tokens.
const MISTRAL: &str = "{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}{% endif %}\
                       {% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}\
                       {% for call in message.tool_calls or [] %}[TOOL_CALLS]{{ call.function.name }}[ARGS]{% endfor %}\
                       <|im_end|>\n{% endfor %}<|im_start|>assistant\n";
/// No marks: a call is an object at the beginning of the answer.
const PLAIN: &str = "{{ tools | tojson }}{% for message in messages %}{{ message.content }}{% endfor %}";
/// A prompt that opens the reasoning.
const THINKING: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n\
                        {% endfor %}<|im_start|>assistant\n<think>\n";

/// A template without tools.
const BARE: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n\
                    {% endfor %}<|im_start|>assistant\n";
/// A template without tools, system texts and consecutive turns of one role.
const STRICT: &str = "{% for message in messages %}\
                      {% if (message.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('turns') }}{% endif %}\
                      <|im_start|>{{ message.role }}\n{{ message.content | trim }}<|im_end|>\n{% endfor %}\
                      <|im_start|>assistant\n";
/// A template without tools that drops system texts.
const DROPS: &str = "{% for message in messages %}{% if message.role != 'system' %}<|im_start|>{{ message.role }}\n\
                     {{ message.content }}<|im_end|>\n{% endif %}{% endfor %}<|im_start|>assistant\n";

fn servers() -> [Running; 4] {
    [
        Running::with_template(BARE, &[]),
        Running::with_template(HERMES, &[]),
        Running::with_template(MISTRAL, &["[TOOL_CALLS]", "[ARGS]"]),
        Running::with_template(PLAIN, &[]),
    ]
}

fn schema() -> Value {
    json!({
        "type": "object", "required": ["city", "days"], "additionalProperties": false,
        "properties": {"city": {"enum": ["Oslo", "\u{1f327} \"x\""]}, "days": {"type": "integer", "minimum": 0, "maximum": 9}},
    })
}

fn nothing() -> Value {
    json!({"type": "object", "properties": {}, "additionalProperties": false})
}

fn tools() -> Value {
    let tool = |name: &str, parameters: Value| json!({"type": "function", "function": {"name": name, "parameters": parameters}});
    json!([tool("get_weather", schema()), tool("ping", nothing())])
}

fn asked(more: Value) -> Value {
    let mut body = json!({
        "messages": [{"role": "user", "content": "a b c"}], "tools": tools(), "temperature": 1,
        "seed": 3, "max_tokens": 900, "parallel_tool_calls": false,
    });
    let Value::Object(more) = more else { panic!("an object") };
    more.into_iter().for_each(|(name, value)| body[name] = value);
    body
}

/// Checks a call's arguments against its tool.
fn check(name: &str, arguments: &str) {
    let found: Value = serde_json::from_str(arguments).expect("JSON");
    match name {
        "ping" => assert_eq!(found, json!({})),
        "get_weather" => {
            let fields = found.as_object().expect("an object");
            assert_eq!(fields.len(), 2, "{found}");
            assert!(
                schema()["properties"]["city"]["enum"].as_array().expect("texts").contains(&found["city"])
            );
            assert!(found["days"].as_u64().is_some_and(|days| days < 10), "{found}");
        }
        _ => panic!("{name} is no tool"),
    }
}

#[test]
fn a_required_call_is_the_same_whole_and_streamed() {
    for server in servers() {
        for seed in 1..4 {
            let body = asked(json!({"tool_choice": "required", "seed": seed}));
            let answer = post(server.address, CHAT, &body);
            assert_eq!(answer.status, 200, "{answer:?}");
            let choice = &answer.json()["choices"][0];
            let message = &choice["message"];
            assert_eq!(
                (&choice["finish_reason"], &message["content"]),
                (&json!("tool_calls"), &Value::Null),
                "{choice}"
            );
            let calls = message["tool_calls"].as_array().expect("calls");
            let call = &calls[0];
            assert_eq!((calls.len(), &call["type"]), (1, &json!("function")));
            assert!(call["id"].as_str().is_some_and(|id| !id.is_empty()) && call.get("index").is_none());
            let text = |value: &Value| value.as_str().expect("a text").to_owned();
            let (name, arguments) = (text(&call["function"]["name"]), text(&call["function"]["arguments"]));
            check(&name, &arguments);

            let streamed = post(
                server.address,
                CHAT,
                &asked(json!({"tool_choice": "required", "seed": seed, "stream": true})),
            );
            let (events, done) = streamed.events();
            assert!(done);
            let deltas: Vec<&Value> = events.iter().map(|event| &event["choices"][0]["delta"]).collect();
            let mut calls = deltas.iter().filter_map(|delta| delta["tool_calls"].get(0));
            let first = calls.next().expect("a call");
            assert_eq!((&first["index"], &first["type"]), (&json!(0), &json!("function")));
            assert_eq!(first["function"], json!({"name": name, "arguments": ""}));
            let mut joined = String::new();
            for call in calls {
                assert_eq!(
                    call.as_object().expect("a call").keys().collect::<Vec<_>>(),
                    ["index", "function"]
                );
                assert_eq!(call["function"].as_object().expect("a function").len(), 1);
                joined += call["function"]["arguments"].as_str().expect("a fragment");
            }
            assert_eq!(joined, arguments);
            let finish = events.iter().find_map(|event| event["choices"][0]["finish_reason"].as_str());
            assert_eq!(finish, Some("tool_calls"));
        }
        let metrics = get(server.address, "/metrics");
        let metrics = metrics.body;
        let counted =
            |name: &str| metrics.lines().find(|line| line.starts_with(name)).map(|line| line.ends_with(" 6"));
        assert_eq!(counted("ottava:tool_calls_total"), Some(true), "{metrics}");
    }
}

#[test]
fn a_named_tool_is_the_one_that_is_called() {
    for server in servers() {
        for name in ["ping", "get_weather"] {
            let choice = json!({"type": "function", "function": {"name": name}});
            let answer = post(server.address, CHAT, &asked(json!({"tool_choice": choice}))).json();
            let function = &answer["choices"][0]["message"]["tool_calls"][0]["function"];
            assert_eq!(function["name"], name, "{answer}");
            check(name, function["arguments"].as_str().expect("arguments"));
        }
    }
}

#[test]
fn where_no_tool_may_be_called_the_answer_is_text() {
    let server = Running::with_template(HERMES, &[]);
    let answer = post(server.address, CHAT, &asked(json!({"tool_choice": "none", "max_tokens": 8}))).json();
    let choice = &answer["choices"][0];
    assert!(
        choice["message"]["content"].is_string() && choice["message"].get("tool_calls").is_none(),
        "{choice}"
    );
}

#[test]
fn a_format_of_the_text_leaves_calls_where_they_may_be() {
    let server = Running::with_template(HERMES, &[]);
    let format =
        json!({"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["left", "right"]}}});
    let mut found = [0, 0];
    for seed in 0..12 {
        let answer =
            post(server.address, CHAT, &asked(json!({"response_format": format, "seed": seed}))).json();
        let choice = &answer["choices"][0];
        match choice["message"]["content"].as_str() {
            Some(text) => {
                assert!(["\"left\"", "\"right\""].contains(&text), "{choice}");
                found[0] += 1;
            }
            None => {
                let function = &choice["message"]["tool_calls"][0]["function"];
                check(
                    function["name"].as_str().expect("a name"),
                    function["arguments"].as_str().expect("arguments"),
                );
                found[1] += 1;
            }
        }
    }
    assert!(found[0] > 0 && found[1] > 0, "{found:?}: twelve seeds take both ways");
    let body = asked(json!({"response_format": format, "tool_choice": "required"}));
    let answer = post(server.address, CHAT, &body).json();
    assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls", "{answer}");
}

#[test]
fn other_apis_have_the_same_calls() {
    let server = Running::with_template(HERMES, &[]);
    let body = json!({
        "messages": [{"role": "user", "content": "a"}], "max_tokens": 900,
        "tools": [{"name": "get_weather", "input_schema": schema()}],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": true},
    });
    let answer = post(server.address, "/v1/messages", &body).json();
    let block = &answer["content"][0];
    assert_eq!(
        (&block["type"], &answer["stop_reason"]),
        (&json!("tool_use"), &json!("tool_use")),
        "{answer}"
    );
    check("get_weather", &block["input"].to_string());
    let body = json!({
        "input": "a", "tools": [{"type": "function", "name": "get_weather", "parameters": schema()}],
        "tool_choice": "required", "parallel_tool_calls": false,
    });
    let answer = post(server.address, "/v1/responses", &body).json();
    let item = &answer["output"][0];
    assert_eq!((&item["type"], &item["name"]), (&json!("function_call"), &json!("get_weather")), "{answer}");
    check("get_weather", item["arguments"].as_str().expect("arguments"));
}

#[test]
fn the_library_gives_the_same_parts() {
    let server = Running::with_template(MISTRAL, &["[TOOL_CALLS]", "[ARGS]"]);
    let tools = Tools::new(vec![Tool::new("get_weather", schema())]).choice(ToolChoice::Required).single();
    let request = Request::chat([Message::new("user", "a")]).tools(tools).max_tokens(900);
    let text = server.engine.submit(request.clone()).expect("submitted").text().expect("a text").text;
    assert!(text.starts_with("[TOOL_CALLS]get_weather[ARGS]{"), "the same with its markers: {text}");
    let mut answer = server.engine.answer(request).expect("submitted");
    let parts: Vec<ChatPart> = answer.by_ref().collect::<Result<_, _>>().expect("parts");
    let ChatPart::CallStart { name, .. } = &parts[0] else { panic!("{parts:?}") };
    let text = |part: &ChatPart| match part {
        ChatPart::CallArguments { text, .. } => text.clone(),
        _ => String::new(),
    };
    check(name, &parts.iter().map(text).collect::<String>());
    assert!(answer.done().is_some_and(|done| done.usage.completion_tokens > 0));
    assert_eq!((answer.parser().calls(), answer.parser().malformed()), (1, 0));
}

#[test]
fn reasoning_that_the_prompt_begins_is_no_content() {
    let server = Running::with_template(THINKING, &[]);
    let mut body = asked(json!({"max_tokens": 12}));
    body.as_object_mut().expect("an object").remove("tools");
    let answer = post(server.address, CHAT, &body).json();
    let message = &answer["choices"][0]["message"];
    assert_eq!(message["content"], "", "{message}");
    assert!(message["reasoning_content"].as_str().is_some_and(|text| !text.is_empty()), "{message}");
    let thoughts = |server: &Running, path, body| {
        let usage = post(server.address, path, body).json()["usage"].clone();
        assert!(usage["completion_tokens"].is_u64(), "{usage}");
        usage.pointer("/completion_tokens_details/reasoning_tokens").and_then(Value::as_u64)
    };
    body["n"] = 2.into();
    assert!(thoughts(&server, CHAT, &body).is_some_and(|tokens| (2..=24).contains(&tokens)));
    assert_eq!(thoughts(&Running::with_tools(), CHAT, &body), Some(0));
    let plain = json!({"prompt": "a", "max_tokens": 2});
    assert_eq!(thoughts(&server, "/v1/completions", &plain), None, "what is not read is not known");
}

#[test]
fn arguments_are_an_object_however_a_client_writes_them() {
    let server = Running::with_tools();
    let prompt = |arguments: Value, content: Value| {
        let call =
            json!({"id": "c1", "type": "function", "function": {"name": "ping", "arguments": arguments}});
        let messages = json!([
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": content, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "pong"},
        ]);
        let answer = post(server.address, "/tokenize", &json!({"messages": messages, "tools": tools()}));
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()["tokens"].clone()
    };
    assert_eq!(prompt(json!("{\"a\": [1]}"), Value::Null), prompt(json!({"a": [1]}), json!("")));
    assert_eq!(prompt(json!(""), json!("")), prompt(json!({}), json!("")));
    assert_ne!(prompt(json!("not JSON"), json!("")), prompt(json!({}), json!("")));
    // A template that concatenates arguments needs them as text.
    let texts = "{{ tools | tojson }}{% for message in messages %}{{ message.role }}{{ message.content }}\
                 {% for call in message.tool_calls or [] %}{{ 'args ' + call.function.arguments }}{% endfor %}{% endfor %}";
    let server = Running::with_template(texts, &[]);
    let call = json!({"id": "c", "type": "function", "function": {"name": "ping", "arguments": "{\"a\":1}"}});
    let messages = json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "tool_calls": [call]}]);
    let answer = post(server.address, "/tokenize", &json!({"messages": messages, "tools": tools()}));
    assert_eq!(answer.status, 200, "{answer:?}");
}

#[test]
fn what_is_wrong_with_tools_is_named() {
    let server = Running::with_tools();
    let function = |function: Value| json!([{"type": "function", "function": function}]);
    let call =
        |call: Value| json!([{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [call]}]);
    let cases = [
        (json!({"tools": 5}), "tools"),
        (json!({"tools": [{"type": "web_search"}]}), "tools[0].type"),
        (json!({"tools": function(json!({"name": "a b"}))}), "tools[0].function.name"),
        (json!({"tools": function(json!({"name": "a", "parameters": 1}))}), "tools[0].function.parameters"),
        (json!({"tool_choice": "always"}), "tool_choice"),
        (json!({"tool_choice": 5}), "tool_choice"),
        (json!({"tool_choice": {"type": "function"}}), "tool_choice"),
        (json!({"tool_choice": {"type": "function", "function": {"name": "rm"}}}), "tool_choice"),
        (json!({"tools": [], "tool_choice": "required"}), "tool_choice"),
        (json!({"parallel_tool_calls": "no"}), "parallel_tool_calls"),
        (json!({"functions": [{"name": "f"}]}), "functions"),
        (json!({"function_call": {"name": "f"}}), "function_call"),
        (
            json!({"messages": call(json!({"id": "c", "function": {}}))}),
            "messages[1].tool_calls[0].function.name",
        ),
        (json!({"messages": call(json!(5))}), "messages[1].tool_calls[0].function.name"),
    ];
    for (more, field) in cases {
        let answer = post(server.address, CHAT, &asked(more.clone()));
        assert_eq!(answer.status, 400, "{more}: {answer:?}");
        assert_eq!(answer.json()["error"]["param"], field, "{more}");
    }
    // Calls of this template have a form that the tools' description does not have.
    let other = Running::with_template("{{ messages[0].content }}[TOOL_CALLS]", &[]);
    let answer = post(other.address, CHAT, &asked(json!({})));
    assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!("tools")));
    // A template without messages in its prompt loses the tools.
    let lost = Running::with_template("{{ messages | length }}", &[]);
    let answer = post(lost.address, CHAT, &asked(json!({})));
    assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!("tools")));
    assert_eq!(post(lost.address, CHAT, &asked(json!({"tool_choice": "none"}))).status, 200);
}

/// The text of a prompt.
fn prompt(server: &Running, body: &Value) -> String {
    let answer = post(server.address, "/tokenize", body);
    assert_eq!(answer.status, 200, "{answer:?}");
    let ids = json!({"tokens": answer.json()["tokens"]});
    post(server.address, "/detokenize", &ids).json()["content"].as_str().expect("a text").to_owned()
}

#[test]
fn a_template_without_tools_has_them_and_their_calls_as_text() {
    let call =
        json!({"id": "c", "type": "function", "function": {"name": "ping", "arguments": "{\"n\": 1}"}});
    let history = json!([
        {"role": "user", "content": "a"}, {"role": "assistant", "content": null, "tool_calls": [call, call]},
        {"role": "tool", "tool_call_id": "c", "content": "pong"},
        {"role": "tool", "tool_call_id": "c", "content": "ping"},
    ]);
    let written = "<tool_call>\n{\"name\": \"ping\", \"arguments\": {\"n\":1}}\n</tool_call>\n<tool_call>";
    let results = "<tool_response>\npong\n</tool_response>\n<tool_response>\nping\n</tool_response>";
    for (template, begins) in [
        (BARE, "<|im_start|>system\nYou can call tools."),
        (STRICT, "<|im_start|>user\nYou can call tools."),
        (DROPS, "<|im_start|>user\nYou can call tools."),
    ] {
        let server = Running::with_template(template, &[]);
        let with_tools = prompt(&server, &json!({"messages": history, "tools": tools()}));
        assert!(
            with_tools.contains(begins) && with_tools.contains("\"name\":\"get_weather\""),
            "{with_tools}"
        );
        let without = prompt(&server, &json!({"messages": history}));
        assert!(!without.contains("get_weather"), "{without}");
        for prompt in [with_tools, without] {
            assert!(prompt.contains(written) && prompt.contains(results), "{prompt}");
        }
        let none = json!({"messages": history, "tools": tools(), "tool_choice": "none"});
        assert!(!prompt(&server, &none).contains("get_weather"));
    }
}

#[test]
fn calls_are_enforced_where_tools_are_text() {
    for template in [BARE, STRICT, DROPS] {
        let server = Running::with_template(template, &[]);
        let choice = json!({"tool_choice": "required", "parallel_tool_calls": true, "max_tokens": 400});
        let (events, _) = post(server.address, CHAT, &asked(with(choice, json!({"stream": true})))).events();
        let deltas = events.iter().map(|event| &event["choices"][0]["delta"]);
        let first = deltas.filter_map(|delta| delta["tool_calls"].get(0)).next().expect("a call");
        assert!(first["function"]["name"].is_string(), "{first}");
        let body = json!({
            "messages": [{"role": "user", "content": "a"}], "max_tokens": 400,
            "tools": [{"name": "ping", "input_schema": nothing()}],
            "tool_choice": {"type": "tool", "name": "ping"},
        });
        let answer = post(server.address, "/v1/messages", &body).json();
        assert_eq!(answer["content"][0]["input"], json!({}), "{answer}");
        let body = json!({
            "input": "a", "tools": [{"type": "function", "name": "ping", "parameters": nothing()}],
            "tool_choice": "required", "parallel_tool_calls": false, "max_output_tokens": 400,
        });
        let answer = post(server.address, "/v1/responses", &body).json();
        assert_eq!(answer["output"][0]["arguments"], "{}", "{answer}");
    }
}
