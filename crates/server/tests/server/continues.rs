//! Answers that continue an assistant's text.

use serde_json::{Value, json};

use super::Running;
use super::client::{post, with};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const MESSAGES: &str = "/v1/messages";

/// A template that opens the reasoning of an answer.
const THINKING: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n\
                        {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}";

fn turns(last: &str) -> Value {
    json!([{"role": "user", "content": "a b c"}, {"role": "assistant", "content": last}])
}

/// Token ids of a conversation, or of a raw prompt.
fn tokens(server: &Running, body: &Value) -> Vec<u64> {
    let answer = post(server.address, "/tokenize", body);
    assert_eq!(answer.status, 200, "{answer:?}");
    let ids = answer.json()["tokens"].clone();
    ids.as_array().expect("a list").iter().map(|id| id.as_u64().expect("an id")).collect()
}

#[test]
fn an_answer_continues_the_last_message_in_each_api() {
    let server = Running::with(|_| {});
    let greedy = json!({"temperature": 0, "max_tokens": 12});
    let body =
        json!({"messages": turns("d e"), "continue_final_message": true, "add_generation_prompt": false});
    let prompt = tokens(&server, &body);
    let closed = tokens(&server, &json!({"messages": turns("d e"), "add_generation_prompt": false}));
    assert!(closed.starts_with(&prompt) && closed.len() > prompt.len(), "{closed:?} {prompt:?}");
    let expected = post(server.address, COMPLETIONS, &with(json!({"prompt": prompt}), greedy.clone())).json();
    let text = expected["choices"][0]["text"].clone();
    assert_ne!(text, "");
    for more in [json!({"add_generation_prompt": false}), json!({})] {
        let body = with(json!({"messages": turns("d e"), "continue_final_message": true}), greedy.clone());
        let found = post(server.address, CHAT, &with(body, more)).json();
        assert_eq!(found["choices"][0]["message"]["content"], text, "{found}");
        assert_eq!(found["usage"]["prompt_tokens"], prompt.len());
    }
    let body = with(json!({"messages": turns("d e")}), greedy.clone());
    let found = post(server.address, MESSAGES, &body).json();
    assert_eq!(found["content"][0]["text"], text, "{found}");
    let usage = &found["usage"];
    let counted = |name: &str| usage[name].as_u64().expect("a count");
    assert_eq!(counted("input_tokens") + counted("cache_read_input_tokens"), prompt.len() as u64);
    let count = post(server.address, "/v1/messages/count_tokens", &json!({"messages": turns("d e")})).json();
    assert_eq!(count["input_tokens"], prompt.len());
    let body = json!({
        "input": turns("d e"), "continue_final_message": true, "temperature": 0, "max_output_tokens": 12,
    });
    let found = post(server.address, "/v1/responses", &body).json();
    assert_eq!(found["output"][0]["content"][0]["text"], text, "{found}");
    // Without the field, a last turn of the assistant's is complete: another one follows.
    let found = post(server.address, CHAT, &with(json!({"messages": turns("d e")}), greedy)).json();
    assert!(found["usage"]["prompt_tokens"].as_u64().is_some_and(|count| count > prompt.len() as u64));
}

#[test]
fn a_text_to_continue_has_reasoning_as_far_as_it_says() {
    let server = Running::with_template(THINKING, &[]);
    let message = |last: &str| {
        let body = json!({"messages": turns(last), "continue_final_message": true, "max_tokens": 4});
        post(server.address, CHAT, &body).json()["choices"][0]["message"].clone()
    };
    let thinks = message("<think>d");
    assert!(thinks["reasoning_content"].is_string() && thinks["content"] == "", "{thinks}");
    for last in ["d", "<think>d</think>e"] {
        let says = message(last);
        assert!(says.get("reasoning_content").is_none() && says["content"] != "", "{last}: {says}");
    }
}

#[test]
fn what_cannot_be_continued_is_refused() {
    let server = Running::with_tools();
    let user = json!([{"role": "user", "content": "a"}]);
    let call = json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let called = json!([user[0], {"role": "assistant", "content": "b", "tool_calls": [call]}]);
    for (messages, prompt) in [(&user, json!(null)), (&called, json!(false)), (&turns("d"), json!(true))] {
        let body =
            json!({"messages": messages, "continue_final_message": true, "add_generation_prompt": prompt});
        for path in [CHAT, "/v1/chat/completions/input_tokens", "/tokenize"] {
            let answer = post(server.address, path, &body);
            let param = answer.json()["error"]["param"].clone();
            assert_eq!((answer.status, &param), (400, &json!("continue_final_message")), "{path} {body}");
        }
    }
    let used = json!([user[0], {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}]}]);
    let answer = post(server.address, MESSAGES, &json!({"messages": used, "max_tokens": 4}));
    assert_eq!(answer.status, 400, "{answer:?}");
    let body = json!({"prompt": "a", "continue_final_message": true});
    let answer = post(server.address, COMPLETIONS, &body);
    assert_eq!(
        (answer.status, answer.json()["error"]["param"].clone()),
        (400, json!("continue_final_message"))
    );
}
