//! Answers, streamed and whole: log-probabilities, several choices, echoes.

use serde_json::{Value, json};

use super::Running;
use super::client::{get, post, with};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

fn chat(more: Value) -> Value {
    let body = json!({
        "messages": [{"role": "user", "content": "a b c"}], "max_tokens": 12, "seed": 7, "temperature": 1.5,
    });
    with(body, more)
}

/// The texts of a stream's choices, joined.
fn joined(events: &[Value], place: &str, n: usize) -> Vec<String> {
    let mut texts = vec![String::new(); n];
    for event in events {
        for choice in event["choices"].as_array().expect("choices") {
            let index = choice["index"].as_u64().expect("an index") as usize;
            texts[index] += choice.pointer(place).and_then(Value::as_str).unwrap_or_default();
        }
    }
    texts
}

#[test]
fn a_whole_answer_is_its_stream_joined() {
    let server = Running::with(|_| {});
    for n in [1, 3] {
        let whole = post(server.address, CHAT, &chat(json!({"n": n}))).json();
        let body = chat(json!({"n": n, "stream": true, "stream_options": {"include_usage": true}}));
        let answer = post(server.address, CHAT, &body);
        assert!(answer.header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream")));
        let (events, done) = answer.events();
        assert!(done, "the stream ends with [DONE]");
        let texts = joined(&events, "/delta/content", n);
        for (index, text) in texts.iter().enumerate() {
            assert_eq!(whole["choices"][index]["message"]["content"], text.as_str());
            assert_eq!(whole["choices"][index]["message"]["role"], "assistant");
        }
        for index in 0..n {
            let own = |event: &&Value| event["choices"][0]["index"].as_u64() == Some(index as u64);
            let first = events.iter().find(own).expect("a chunk");
            assert_eq!(first["choices"][0]["delta"], json!({"role": "assistant"}));
        }
        let finishes = events.iter().flat_map(|event| event["choices"].as_array().expect("choices").clone());
        assert_eq!(finishes.filter(|choice| choice["finish_reason"].is_string()).count(), n);
        let last = events.last().expect("events");
        assert_eq!(last["choices"], json!([]));
        let usage = |value: &Value| {
            [&value["prompt_tokens"], &value["completion_tokens"], &value["total_tokens"]].map(Value::as_u64)
        };
        assert_eq!(usage(&last["usage"]), usage(&whole["usage"]));
        assert_eq!(last["usage"]["total_tokens"].as_u64(), usage(&whole["usage"])[2]);
    }
}

#[test]
fn equal_seeds_give_equal_answers_and_none_gives_others() {
    let server = Running::with(|_| {});
    let text = |more: Value| {
        post(server.address, CHAT, &chat(more)).json()["choices"][0]["message"]["content"]
            .as_str()
            .expect("text")
            .to_owned()
    };
    assert_eq!(text(json!({})), text(json!({})));
    // Seeds differ in any of their 64 bits, and -1 alone is random.
    let seeds = [json!(u64::MAX), json!(u64::MAX - 1), json!(1_u64 << 63), json!(i64::MAX)];
    let ends: Vec<String> = seeds.iter().map(|seed| text(json!({"seed": seed}))).collect();
    assert_eq!(ends, seeds.map(|seed| text(json!({"seed": seed}))));
    let different: std::collections::HashSet<&String> = ends.iter().collect();
    assert!(different.len() > 1, "{ends:?}");
    let random: std::collections::HashSet<String> = (0..8).map(|_| text(json!({"seed": null}))).collect();
    assert!(random.len() > 1, "eight random seeds gave one answer: {random:?}");
    let choices = post(server.address, CHAT, &chat(json!({"n": 2}))).json();
    assert_eq!(
        choices["choices"][0]["message"]["content"],
        text(json!({})).as_str(),
        "the first choice is the single one"
    );
}

#[test]
fn log_probabilities_come_with_each_token() {
    let server = Running::with(|_| {});
    let body = chat(json!({"logprobs": true, "top_logprobs": 3}));
    let whole = post(server.address, CHAT, &body).json();
    let tokens = whole["choices"][0]["logprobs"]["content"].as_array().expect("tokens").clone();
    assert_eq!(tokens.len() as u64, whole["usage"]["completion_tokens"].as_u64().expect("a count"));
    for token in &tokens {
        let top = token["top_logprobs"].as_array().expect("the best");
        assert_eq!(top.len(), 3);
        let logprob = |value: &Value| value["logprob"].as_f64().expect("a number");
        assert!(logprob(&top[0]) <= 0.0 && logprob(&top[0]) >= logprob(&top[1]));
        assert!(logprob(token) <= logprob(&top[0]) + 1e-9);
        assert!(token["bytes"].is_array());
    }
    let mut streamed = body;
    streamed["stream"] = true.into();
    let (events, _) = post(server.address, CHAT, &streamed).events();
    let parts =
        events.iter().filter_map(|event| event["choices"][0]["logprobs"]["content"].as_array().cloned());
    assert_eq!(parts.flatten().collect::<Vec<_>>(), tokens);
}

#[test]
fn a_stop_string_ends_the_answer_and_is_named() {
    let server = Running::with(|_| {});
    let free = post(server.address, CHAT, &chat(json!({}))).json();
    let text = free["choices"][0]["message"]["content"].as_str().expect("text").to_owned();
    let middle: String = text.chars().skip(text.chars().count() / 2).take(2).collect();
    let stopped = post(server.address, CHAT, &chat(json!({"stop": [middle]}))).json();
    let choice = &stopped["choices"][0];
    let expected = text.split(middle.as_str()).next().expect("a part");
    assert_eq!(choice["message"]["content"], expected);
    assert_eq!((&choice["finish_reason"], &choice["stop_reason"]), (&"stop".into(), &middle.as_str().into()));
}

#[test]
fn completions_take_prompts_of_all_kinds() {
    let server = Running::with(|_| {});
    let ids = post(server.address, "/tokenize", &json!({"prompt": "a b"})).json()["tokens"].clone();
    let complete = |prompt: Value, n: usize| {
        let body = json!({"prompt": prompt, "n": n, "seed": 3, "max_tokens": 5});
        let answer = post(server.address, COMPLETIONS, &body);
        assert_eq!(answer.status, 200, "{answer:?}");
        let choices = answer.json()["choices"].as_array().expect("choices").clone();
        choices.iter().map(|choice| choice["text"].as_str().expect("text").to_owned()).collect::<Vec<_>>()
    };
    let text = complete(json!("a b"), 1);
    assert_eq!(complete(ids.clone(), 1), text, "ids are continued as they are");
    assert_eq!(complete(json!(["a b", "c"]), 1)[0], text[0]);
    assert_eq!(complete(json!([ids, [5, 6]]), 1)[0], text[0]);
    assert_eq!(complete(json!(["a b", "c"]), 2).len(), 4);
}

#[test]
fn an_echo_has_the_prompt_and_its_log_probabilities() {
    let server = Running::with(|_| {});
    let body = json!({"prompt": "a b c", "echo": true, "logprobs": 2, "max_tokens": 3, "temperature": 0});
    let choice = post(server.address, COMPLETIONS, &body).json()["choices"][0].clone();
    let lists = &choice["logprobs"];
    let count = lists["tokens"].as_array().expect("tokens").len();
    for name in ["token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(lists[name].as_array().expect("a list").len(), count, "{name}");
    }
    assert!(
        lists["token_logprobs"][0].is_null() && lists["token_logprobs"][1].as_f64().is_some_and(|n| n <= 0.0)
    );
    // Scored without generation, the prompt has equal log-probabilities.
    let mut alone = body.clone();
    alone["max_tokens"] = 0.into();
    let scored = post(server.address, COMPLETIONS, &alone).json()["choices"][0]["logprobs"].clone();
    let prompt = scored["tokens"].as_array().expect("tokens").len();
    assert_eq!(prompt + 3, count);
    assert_eq!(
        scored["token_logprobs"].as_array().expect("a list")[..],
        lists["token_logprobs"].as_array().expect("a list")[..prompt]
    );
    // A stream without generated tokens has the prompt, too.
    alone["stream"] = true.into();
    let (events, done) = post(server.address, COMPLETIONS, &alone).events();
    assert!(done && events[0]["choices"][0]["logprobs"] == scored, "{events:?}");
    assert_eq!(events[1]["choices"][0]["finish_reason"], "length");
    // Greedy decoding chose the likeliest token of each position.
    for at in prompt..count {
        let best =
            lists["top_logprobs"][at].as_object().expect("the best").values().filter_map(Value::as_f64);
        let best = best.fold(f64::NEG_INFINITY, f64::max);
        assert!((lists["token_logprobs"][at].as_f64().expect("a number") - best).abs() < 1e-6);
    }
}

#[test]
fn two_salts_share_no_page() {
    let server = Running::with(|_| {});
    let long = "a b c d ".repeat(30);
    let cached = |salt: Option<&str>| {
        let body = json!({"prompt": long, "max_tokens": 1, "cache_salt": salt});
        let usage = post(server.address, COMPLETIONS, &body).json()["usage"].clone();
        usage["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a count")
    };
    assert_eq!(cached(Some("one")), 0);
    assert!(cached(Some("one")) > 0);
    assert_eq!(cached(Some("two")), 0);
    assert_eq!(cached(None), 0);
}

#[test]
fn control_tokens_in_a_message_are_text() {
    let server = Running::with(|_| {});
    let count = |content: &str| {
        let body = json!({"messages": [{"role": "user", "content": content}]});
        post(server.address, "/tokenize", &body).json()["count"].as_u64().expect("a count")
    };
    let control =
        server.engine.vocab().eos().and_then(|id| server.engine.vocab().piece(id).map(str::to_owned));
    let control = control.expect("an end of sequence");
    assert!(count(&control) > count("") + 1, "the name of a control token is spelled out");
}

#[test]
fn the_server_says_what_it_serves() {
    let server = Running::with(|config| config.names = vec!["first".into(), "of/the second".into()]);
    let models = get(server.address, "/v1/models").json()["data"].as_array().expect("a list").clone();
    assert_eq!(models.len(), 1, "{models:?}");
    assert_eq!((&models[0]["id"], &models[0]["aliases"]), (&"first".into(), &json!(["of/the second"])));
    for path in ["/v1/models/of/the%20second", "/v1/models/of%2Fthe%20second"] {
        let found = get(server.address, path).json();
        assert_eq!((&found["id"], &found["max_model_len"]), (&"of/the second".into(), &512.into()));
        assert_eq!((&found["root"], &found["aliases"]), (&"first".into(), &json!(["first"])));
    }
    let answer = post(server.address, CHAT, &chat(json!({"model": "of/the second"}))).json();
    assert_eq!(answer["model"], "first");
    assert_eq!(get(server.address, "/ready").json()["status"], "ready");
    let metrics = get(server.address, "/metrics").body;
    for name in
        ["vllm:num_requests_running", "vllm:time_to_first_token_seconds_bucket", "vllm:request_success_total"]
    {
        assert!(metrics.contains(name), "{name} in {metrics}");
    }
    assert!(get(server.address, "/").body.contains("<textarea"));
}

#[test]
fn a_list_of_texts_is_a_text_to_a_template_that_prints_it() {
    let server = Running::with(|_| {});
    let tokens = |content: Value| {
        let body = json!({"messages": [{"role": "system", "content": content}, {"role": "user", "content": content}]});
        post(server.address, "/tokenize", &body).json()["tokens"].clone()
    };
    let part = |text: &str| json!({"type": "text", "text": text});
    assert_eq!(tokens(json!([part("a b")])), tokens("a b".into()));
    assert_eq!(tokens(json!([part("a"), part("b c")])), tokens("a\nb c".into()));
    assert_eq!(tokens(json!([])), tokens("".into()));
}

#[test]
fn tokens_become_text_again() {
    let server = Running::with(|_| {});
    for name in ["prompt", "content"] {
        let mut body = json!({"add_special_tokens": false, "return_token_strs": true});
        body[name] = "a b c".into();
        let found = post(server.address, "/tokenize", &body).json();
        let back = post(server.address, "/detokenize", &json!({"tokens": found["tokens"]})).json();
        assert_eq!(
            (&back["content"], found["count"].as_u64()),
            (&"a b c".into(), found["token_strs"].as_array().map(|l| l.len() as u64))
        );
    }
    // Control tokens are a part of the text; pieces are as llama.cpp has them.
    let text = "a<|im_end|>b";
    let found = post(server.address, "/tokenize", &json!({"content": text, "with_pieces": true})).json();
    let found = found["tokens"].as_array().expect("a list");
    let pieces: String = found.iter().filter_map(|token| token["piece"].as_str()).collect();
    let ids: Vec<_> = found.iter().map(|token| token["id"].clone()).collect();
    let back = post(server.address, "/detokenize", &json!({"tokens": ids})).json();
    assert_eq!((pieces.as_str(), &back["content"]), (text, &text.into()));
    assert!(found.iter().any(|token| token["piece"] == "<|im_end|>"), "{found:?}");
    assert_eq!(post(server.address, "/detokenize", &json!({"tokens": [99999999]})).status, 400);
}
