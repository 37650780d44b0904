//! Least lengths, stop tokens, stops in the text, and token ids.

use serde_json::{Value, json};

use super::Running;
use super::client::{post, with};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

fn body(path: &str, more: Value) -> Value {
    let own = match path {
        CHAT => json!({"messages": [{"role": "user", "content": "a b c"}]}),
        _ => json!({"prompt": "a b c"}),
    };
    with(with(own, json!({"max_tokens": 24, "temperature": 0})), more)
}

fn choice(server: &Running, path: &str, more: Value) -> Value {
    let answer = post(server.address, path, &body(path, more));
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()["choices"][0].clone()
}

fn text_of(choice: &Value) -> &str {
    let text = choice.pointer("/message/content").unwrap_or(&choice["text"]);
    text.as_str().expect("a text")
}

fn ids_of(choice: &Value) -> Vec<u64> {
    choice["token_ids"].as_array().expect("ids").iter().map(|id| id.as_u64().expect("an id")).collect()
}

#[test]
fn token_ids_of_prompt_and_answer_come_whole_and_streamed() {
    let server = Running::with(|_| {});
    for path in [CHAT, COMPLETIONS] {
        let whole = post(server.address, path, &body(path, json!({"return_token_ids": true, "n": 2}))).json();
        let prompt = match path {
            CHAT => whole["prompt_token_ids"].clone(),
            _ => whole["choices"][1]["prompt_token_ids"].clone(),
        };
        let tokenized = post(server.address, "/tokenize", &body(path, json!({}))).json()["tokens"].clone();
        assert_eq!(prompt, tokenized, "{whole}");
        let ids = ids_of(&whole["choices"][0]);
        let spelled = post(server.address, "/detokenize", &json!({"tokens": ids})).json()["content"].clone();
        assert!(spelled.as_str().is_some_and(|text| text.contains(text_of(&whole["choices"][0]).trim())));
        let streamed = json!({"return_token_ids": true, "n": 2, "stream": true});
        let (events, _) = post(server.address, path, &body(path, streamed)).events();
        for index in 0..2 {
            let own: Vec<&Value> =
                events.iter().filter(|event| event["choices"][0]["index"].as_u64() == Some(index)).collect();
            let first = match path {
                CHAT => &own[0]["prompt_token_ids"],
                _ => &own[0]["choices"][0]["prompt_token_ids"],
            };
            assert_eq!(*first, prompt, "{own:?}");
            let lists = own.iter().filter_map(|event| event["choices"][0]["token_ids"].as_array());
            let joined: Vec<u64> = lists.flatten().filter_map(Value::as_u64).collect();
            assert_eq!(joined, ids_of(&whole["choices"][index as usize]), "{path}");
        }
        let without = post(server.address, path, &body(path, json!({}))).body;
        assert!(!without.contains("token_ids"), "{without}");
    }
}

#[test]
fn a_stop_token_ends_the_answer_and_is_its_reason() {
    let server = Running::with(|_| {});
    for path in [CHAT, COMPLETIONS] {
        let free = choice(&server, path, json!({"return_token_ids": true, "ignore_eos": true}));
        let ids = ids_of(&free);
        let first = (3..ids.len()).find(|&at| !ids[..at].contains(&ids[at])).expect("a new token");
        let asked = json!({
            "return_token_ids": true, "ignore_eos": true, "stop_token_ids": [ids[first]], "logprobs": null,
        });
        let stopped = choice(&server, path, asked.clone());
        assert_eq!(
            (&stopped["finish_reason"], &stopped["stop_reason"]),
            (&json!("stop"), &json!(ids[first]))
        );
        assert_eq!(ids_of(&stopped), ids[..=first], "the stop token is the last");
        assert!(text_of(&free).starts_with(text_of(&stopped)));
        let included =
            choice(&server, path, with(asked.clone(), json!({"include_stop_str_in_output": true})));
        assert!(text_of(&included).starts_with(text_of(&stopped)));
        assert!(text_of(&included).len() > text_of(&stopped).len(), "{included} {stopped}");
        // A least length forbids the token before it.
        let least = first + 4;
        let long = choice(&server, path, with(asked, json!({"min_tokens": least})));
        let ids_long = ids_of(&long);
        assert!(ids_long.len() >= least && !ids_long[..least].contains(&ids[first]), "{ids_long:?}");
        assert_eq!(ids_long[..first], ids[..first]);
    }
}

#[test]
fn a_stop_text_may_be_included_and_waits_for_the_least_length() {
    let server = Running::with(|_| {});
    for path in [CHAT, COMPLETIONS] {
        let free = choice(&server, path, json!({"ignore_eos": true}));
        let text = text_of(&free);
        let middle: String = text.chars().skip(text.chars().count() / 2).take(2).collect();
        let stop = json!({"stop": [middle], "ignore_eos": true});
        let before = text.split(middle.as_str()).next().expect("a part");
        let stopped = choice(&server, path, stop.clone());
        assert_eq!(text_of(&stopped), before);
        let included = choice(&server, path, with(stop.clone(), json!({"include_stop_str_in_output": true})));
        assert_eq!(text_of(&included), format!("{before}{middle}"));
        assert_eq!(included["stop_reason"], middle.as_str());
        let long = choice(&server, path, with(stop, json!({"min_tokens": 24})));
        assert_eq!((text_of(&long), &long["finish_reason"]), (text, &json!("length")));
    }
}

#[test]
fn lengths_and_stop_tokens_out_of_range_are_refused() {
    let server = Running::with(|_| {});
    for (more, field) in [
        (json!({"min_tokens": 25}), "min_tokens"),
        (json!({"min_tokens": -1}), "min_tokens"),
        (json!({"min_tokens": "1"}), "min_tokens"),
        (json!({"stop_token_ids": [99999999]}), "stop_token_ids"),
        (json!({"stop_token_ids": [-1]}), "stop_token_ids"),
        (json!({"stop_token_ids": 5}), "stop_token_ids"),
        (json!({"stop_token_ids": vec![1; 257]}), "stop_token_ids"),
        (json!({"include_stop_str_in_output": 1}), "include_stop_str_in_output"),
        (json!({"return_token_ids": "yes"}), "return_token_ids"),
    ] {
        for path in [CHAT, COMPLETIONS] {
            let answer = post(server.address, path, &body(path, more.clone()));
            let param = answer.json()["error"]["param"].clone();
            assert_eq!((answer.status, param), (400, json!(field)), "{path} {more}");
        }
    }
    // In the other APIs, token ids have no place.
    let answer = post(server.address, "/v1/responses", &json!({"input": "a", "return_token_ids": true}));
    assert_eq!((answer.status, answer.json()["error"]["param"].clone()), (400, json!("return_token_ids")));
}
