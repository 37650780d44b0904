//! Prompts without a template: echoes, log-probabilities in lists, more choices than places in the queue.

use std::collections::HashSet;

use ottava::EngineConfig;
use serde_json::{Value, json};

use super::client::{post, with};
use super::ends::{eventually, slow_answer};
use super::{Running, tiny};

const COMPLETIONS: &str = "/v1/completions";
/// The names of the lists of log-probabilities.
const LISTS: [&str; 4] = ["tokens", "token_logprobs", "top_logprobs", "text_offset"];

fn complete(server: &Running, body: &Value) -> Value {
    let answer = post(server.address, COMPLETIONS, body);
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

fn list<'a>(choice: &'a Value, name: &str) -> &'a [Value] {
    choice["logprobs"][name].as_array().expect("a list")
}

/// The lists of a stream's only choice, joined.
fn joined(server: &Running, body: &Value) -> Value {
    let (events, done) =
        post(server.address, COMPLETIONS, &with(body.clone(), json!({"stream": true}))).events();
    assert!(done, "{events:?}");
    let parts = |name: &str| -> Value {
        let lists = events.iter().filter_map(|event| event["choices"][0]["logprobs"][name].as_array());
        lists.flatten().cloned().collect()
    };
    LISTS.into_iter().map(|name| (name.to_owned(), parts(name))).collect::<serde_json::Map<_, _>>().into()
}

/// Checks each offset against the text: the token is there, unless it is part of a character. Returns the
/// number of such parts.
fn check_offsets(choice: &Value, hidden: &[&str]) -> usize {
    let text: Vec<char> = choice["text"].as_str().expect("a text").chars().collect();
    let (mut last, mut parts) = (0, 0);
    for (token, offset) in list(choice, "tokens").iter().zip(list(choice, "text_offset")) {
        let (token, at) = (token.as_str().expect("a text"), offset.as_u64().expect("a number") as usize);
        assert!(last <= at && at <= text.len(), "{last} and then {at} in {choice}");
        last = at;
        if token.starts_with("bytes:\\x") {
            parts += 1;
        } else if !hidden.contains(&token) {
            let found: String = text[at..].iter().take(token.chars().count()).collect();
            assert_eq!(found, token, "at {at} in {choice}");
        }
    }
    parts
}

/// In the form that lm-eval's `local-completions` reads: the last entry is the generated token's.
#[test]
fn the_token_that_ends_the_turn_is_listed() {
    let server = Running::with(|_| {});
    let end = server.engine.vocab().eos().expect("an end of the turn");
    let bias = json!({end.to_string(): 100});
    let body = json!({
        "prompt": "a b c", "max_tokens": 1, "echo": true, "logprobs": 1, "temperature": 0, "logit_bias": bias,
    });
    let alone = with(body.clone(), json!({"max_tokens": 0}));
    let prompt = list(&complete(&server, &alone)["choices"][0], "tokens").to_vec();
    let whole = complete(&server, &body);
    let choice = &whole["choices"][0];
    assert_eq!((&choice["text"], &choice["finish_reason"]), (&"a b c".into(), &"stop".into()));
    assert_eq!(list(choice, "tokens"), [prompt.as_slice(), &["<|im_end|>".into()]].concat());
    let of_last = |name| list(choice, name).last().expect("an entry");
    assert!(of_last("token_logprobs").as_f64().is_some_and(|found| found < 0.0), "{choice}");
    assert_eq!(of_last("top_logprobs")["<|im_end|>"], *of_last("token_logprobs"));
    assert_eq!(*of_last("text_offset"), 5);
    assert_eq!(joined(&server, &body), choice["logprobs"]);
    // Usage does not count it; with `ignore_eos` it is an ordinary token.
    assert_eq!(whole["usage"]["completion_tokens"], 0);
    let ignored = complete(&server, &with(body, json!({"ignore_eos": true})));
    assert_eq!(ignored["usage"]["completion_tokens"], 1);
    assert_eq!(ignored["choices"][0]["finish_reason"], "length");
    assert_eq!(ignored["choices"][0]["logprobs"], choice["logprobs"]);
    let chat = json!({
        "messages": [{"role": "user", "content": "a"}], "logprobs": true, "temperature": 0, "logit_bias": bias,
    });
    let chat = post(server.address, "/v1/chat/completions", &chat).json();
    assert_eq!(chat["choices"][0]["logprobs"], Value::Null, "chat does not list it");
}

#[test]
fn penalties_look_at_the_whole_answer() {
    let server = Running::with(|_| {});
    let repeats = |more: Value| {
        let mut body = json!({
            "prompt": "a", "max_tokens": 90, "ignore_eos": true, "logprobs": 0, "temperature": 0, "presence_penalty": 100,
        });
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        let answer = post(server.address, COMPLETIONS, &body).json();
        let tokens = answer["choices"][0]["logprobs"]["tokens"].as_array().expect("tokens").clone();
        tokens.len() - tokens.iter().map(Value::to_string).collect::<HashSet<_>>().len()
    };
    assert_eq!(repeats(json!({})), 0);
    assert_eq!(repeats(json!({"repeat_last_n": -1})), 0);
    assert!(repeats(json!({"repeat_last_n": 2})) > 0, "the tiny model goes round");
    let wrong = post(server.address, COMPLETIONS, &json!({"prompt": "a", "repeat_last_n": -2}));
    assert_eq!((wrong.status, wrong.json()["error"]["param"].clone()), (400, "repeat_last_n".into()));
}

#[test]
fn an_echo_is_the_prompt_as_it_was_sent() {
    let server = Running::with(|_| {});
    for prompt in ["<|im_start|>user\nHi é😀!<|im_end|>", "the and", "", " a", "\u{fffd}"] {
        let ids = post(server.address, "/tokenize", &json!({"prompt": prompt})).json()["tokens"].clone();
        for given in [json!(prompt), ids].into_iter().filter(|_| !prompt.is_empty()) {
            let body = json!({
                "prompt": given, "max_tokens": 30, "echo": true, "logprobs": 0, "temperature": 1.5, "seed": 4,
                "ignore_eos": true,
            });
            let choice = complete(&server, &body)["choices"][0].clone();
            assert!(choice["text"].as_str().is_some_and(|text| text.starts_with(prompt)), "{choice}");
            let parts = check_offsets(&choice, &["<|endoftext|>", "<|im_start|>", "<|im_end|>"]);
            assert!(parts > 0, "no token is a part of a character: {choice}");
            assert_eq!(joined(&server, &body), choice["logprobs"]);
            let alone = complete(&server, &with(body, json!({"max_tokens": 0})))["choices"][0].clone();
            assert_eq!(alone["text"], prompt);
            check_offsets(&alone, &[]);
        }
    }
    // A prompt may end within a character.
    let half = server.engine.tokenizer().decode_with_control(&[ottava::TokenId(0xa9)]);
    let body = json!({"prompt": [0xa9], "max_tokens": 0, "echo": true, "logprobs": 0});
    assert_eq!(complete(&server, &body)["choices"][0]["text"], half.as_str());
}

/// A SentencePiece tokenizer adds a BOS and a space, and has only byte tokens for some characters.
#[test]
fn what_a_tokenizer_adds_is_not_echoed() {
    let model = tiny::gemma3().expect("a model");
    let server = Running::of_model(model, EngineConfig::default(), |_| {});
    let cases: [(&str, &[&str], &[u64]); 5] = [
        ("the and é", &["<bos>", " the", " and", " ", "bytes:\\xc3", "bytes:\\xa9"], &[0, 0, 3, 7, 8, 8]),
        ("the", &["<bos>", " the"], &[0, 0]),
        (" in", &["<bos>", " ", " ", "in"], &[0, 0, 1, 1]),
        ("<bos>the", &["<bos>", " the"], &[0, 5]),
        ("x<eos>the <unk>", &["<bos>", " ", "x", "<eos>", " the", " ", "<unk>"], &[0, 0, 0, 1, 6, 9, 10]),
    ];
    for (prompt, tokens, offsets) in cases {
        let body = json!({"prompt": prompt, "max_tokens": 4, "echo": true, "logprobs": 1, "temperature": 0});
        let choice = complete(&server, &body)["choices"][0].clone();
        let text = choice["text"].as_str().expect("a text");
        assert!(text.starts_with(prompt), "{choice}");
        assert_eq!(list(&choice, "tokens")[..tokens.len()], *tokens, "{choice}");
        assert_eq!(list(&choice, "text_offset")[..offsets.len()], *offsets, "{choice}");
        let next = list(&choice, "text_offset").get(offsets.len());
        assert!(next.is_none_or(|next| *next == prompt.chars().count()), "{choice}");
    }
}

#[test]
fn the_best_have_the_sampled_token() {
    let server = Running::with(|_| {});
    for best in [0, 1, 20] {
        let body = json!({
            "prompt": "a\u{e9} b", "max_tokens": 30, "echo": true, "logprobs": best, "temperature": 1.5, "seed": 5,
            "ignore_eos": true,
        });
        let choice = complete(&server, &body)["choices"][0].clone();
        let mut outside = 0;
        for at in 1..list(&choice, "tokens").len() {
            let (token, top) = (&list(&choice, "tokens")[at], &list(&choice, "top_logprobs")[at]);
            let (token, top) = (token.as_str().expect("a text"), top.as_object().expect("the best"));
            assert_eq!(top.get(token), Some(&list(&choice, "token_logprobs")[at]), "{token:?} of {top:?}");
            assert!(top.len() == best || top.len() == best + 1, "{best} became {}", top.len());
            assert!(top.keys().all(|token| !token.contains('\u{fffd}')), "{top:?}");
            outside += usize::from(top.len() > best);
        }
        assert!(outside > 0, "each sampled token is among the {best} best");
    }
}

/// The answer of each choice alone.
fn alone(server: &Running, prompts: &[&str], n: usize) -> Vec<Value> {
    let body = |prompt: &str, choice: usize| json!({"prompt": prompt, "max_tokens": 4, "seed": 3 + choice});
    let all = prompts.iter().flat_map(|prompt| (0..n).map(move |choice| body(prompt, choice)));
    all.map(|body| complete(server, &body)["choices"][0]["text"].clone()).collect()
}

#[test]
fn choices_beyond_the_queue_wait_for_their_own() {
    let prompts = ["a b", "c", "the and"];
    for queue_max in [1, 2, 3, 5, 100] {
        let server = Running::of(EngineConfig { queue_max, ..EngineConfig::default() }, |_| {});
        let expected = alone(&server, &prompts, 4);
        let body = json!({"prompt": prompts, "n": 4, "max_tokens": 4, "seed": 3});
        let whole = complete(&server, &body);
        let texts: Vec<_> =
            whole["choices"].as_array().expect("choices").iter().map(|c| c["text"].clone()).collect();
        assert_eq!(texts, expected, "a queue of {queue_max}");
        let (events, done) = post(server.address, COMPLETIONS, &with(body, json!({"stream": true}))).events();
        let finished = events.iter().filter(|event| event["choices"][0]["finish_reason"].is_string());
        assert!(done && finished.count() == 12, "{events:?}");
    }
}

#[test]
fn a_request_may_have_as_many_choices_as_the_limits_say() {
    let server = Running::with(|_| {});
    let prompts = vec!["a"; 64];
    let body = json!({"prompt": prompts, "n": 8, "max_tokens": 1, "ignore_eos": true});
    let whole = complete(&server, &body);
    assert_eq!(whole["choices"].as_array().map(Vec::len), Some(512));
    assert_eq!(whole["usage"]["completion_tokens"], 512);
}

#[test]
fn choices_wait_for_places_that_others_have() {
    let server = Running::of(EngineConfig { queue_max: 2, ..EngineConfig::default() }, |_| {});
    let expected = alone(&server, &["a", "b"], 3);
    let holding = slow_answer(&server, 100);
    // The second place is taken again and again before the request can have it back.
    let body = json!({"prompt": ["a", "b"], "n": 3, "max_tokens": 4, "seed": 3});
    let whole = std::thread::scope(|scope| {
        let before = server.engine.stats().admitted;
        let asked = scope.spawn(|| complete(&server, &body));
        eventually("the request has a place", || server.engine.stats().admitted > before);
        let other = json!({"prompt": "c", "max_tokens": 1});
        while !asked.is_finished() {
            let status = post(server.address, COMPLETIONS, &other).status;
            assert!([200, 429].contains(&status), "{status}");
        }
        asked.join()
    });
    let whole = whole.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    let texts: Vec<_> =
        whole["choices"].as_array().expect("choices").iter().map(|c| c["text"].clone()).collect();
    assert_eq!(texts, expected);
    drop(holding);
}
