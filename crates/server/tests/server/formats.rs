//! Answers with a schema, a regular expression, a choice or a grammar. The model is random: only a constraint
//! makes its text valid.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::Running;
use super::client::post;

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

fn body(path: &str, more: &Value) -> Value {
    let mut body = json!({"max_tokens": 200, "seed": 7, "temperature": 1.5});
    match path {
        CHAT => body["messages"] = json!([{"role": "user", "content": "a b c"}]),
        _ => body["prompt"] = "a b c".into(),
    }
    more.as_object().expect("an object").iter().for_each(|(name, value)| body[name] = value.clone());
    body
}

/// Text and finish reason of each choice of a whole answer.
fn texts(answer: &Value) -> Vec<(String, String)> {
    let text = |choice: &Value| {
        let text = choice.pointer("/message/content").unwrap_or(&choice["text"]);
        (
            text.as_str().expect("a text").to_owned(),
            choice["finish_reason"].as_str().expect("an end").to_owned(),
        )
    };
    answer["choices"].as_array().expect("choices").iter().map(text).collect()
}

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {"ok": {"type": "boolean"}, "mood": {"enum": ["good", "bad"]}, "n": {"type": "integer", "minimum": 1, "maximum": 20}},
        "required": ["ok", "mood", "n"],
        "additionalProperties": false,
    })
}

/// Checks the schema above by hand.
fn keeps_to_it(text: &str) -> bool {
    let Ok(Value::Object(found)) = serde_json::from_str(text) else { return false };
    found.len() == 3
        && found["ok"].is_boolean()
        && (found["mood"] == "good" || found["mood"] == "bad")
        && found["n"].as_u64().is_some_and(|n| (1..=20).contains(&n))
}

/// Many optional properties; the format of one is vacuous.
fn wide() -> Value {
    let mut schema = json!({"type": "object", "properties": {}, "additionalProperties": false});
    for number in 0..500 {
        schema["properties"][format!("p{number}")] =
            json!({"type": ["null", "string"], "format": "password", "maxLength": 1});
    }
    schema
}

fn is_wide(text: &str) -> bool {
    let Ok(Value::Object(found)) = serde_json::from_str(text) else { return false };
    found.keys().all(|name| wide()["properties"].get(name).is_some())
}

fn is_sum(text: &str) -> bool {
    text.len() <= 5 && text.split('+').all(|part| part.len() == 1 && part.as_bytes()[0].is_ascii_digit())
}

type Check = fn(&str) -> bool;

/// Every form under each of its names.
fn forms() -> Vec<(Value, Check)> {
    let object = |text: &str| {
        // A number may exceed the range of a JSON reader.
        serde_json::from_str::<Value>(text)
            .map_or_else(|error| error.to_string().contains("out of range"), |value| value.is_object())
    };
    let digits = |text: &str| text.len() == 3 && text.bytes().all(|byte| byte.is_ascii_digit());
    let lark = "start: N (\"+\" N)~0..2\nN: /[0-9]/";
    let choice = |text: &str| ["yes", "no", "yesterday"].contains(&text);
    let compact = |text: &str| keeps_to_it(text) && !text.contains([' ', '\n', '\t', '\r']);
    vec![
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": true, "schema": schema()}}}),
            keeps_to_it,
        ),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": false, "schema": schema()}}}),
            keeps_to_it,
        ),
        (json!({"response_format": {"type": "json_object", "schema": schema()}}), keeps_to_it),
        (json!({"response_format": {"type": "json_object", "schema": wide()}}), is_wide),
        (json!({"response_format": {"type": "json_object"}, "max_tokens": 400}), object),
        (json!({"structured_outputs": {"json": schema()}}), keeps_to_it),
        (json!({"structured_outputs": {"json": schema().to_string()}}), keeps_to_it),
        (json!({"structured_outputs": {"json": schema(), "whitespace_pattern": "", "regex": null}}), compact),
        (json!({"structured_outputs": {"json_object": true}, "max_tokens": 400}), object),
        (json!({"structured_outputs": {"regex": "^[0-9]{3}$", "json_object": false}}), digits),
        (json!({"structured_outputs": {"choice": ["yes", "no", "yesterday"]}}), choice),
        (json!({"structured_outputs": {"grammar": lark}}), is_sum),
        (json!({"guided_json": schema(), "guided_decoding_backend": "auto"}), keeps_to_it),
        (json!({"guided_regex": "[0-9]{3}"}), digits),
        (json!({"guided_choice": ["yes", "no", "yesterday"], "guided_json": null}), choice),
        (json!({"guided_grammar": lark}), is_sum),
        (json!({"nvext": {"guided_json": schema(), "guided_decoding_backend": "auto"}}), keeps_to_it),
        (json!({"nvext": {"guided_regex": "[0-9]{3}", "annotations": [], "guided_choice": null}}), digits),
        (json!({"regex": "[0-9]{3}", "structural_tag": null}), digits),
        (json!({"ebnf": lark, "nvext": {}}), is_sum),
        (json!({"json_schema": schema().to_string()}), keeps_to_it),
        (json!({"response_format": {"type": "regex", "pattern": "[0-9]{3}"}}), digits),
        (json!({"response_format": {"type": "regex", "value": "[0-9]{3}"}}), digits),
        (json!({"response_format": {"type": "grammar", "grammar": lark}}), is_sum),
        (json!({"response_format": {"type": "json", "value": schema()}}), keeps_to_it),
        (
            json!({"response_format": {"type": "json_schema", "value": {"name": "n", "schema": schema()}}}),
            keeps_to_it,
        ),
        (json!({"json_schema": schema(), "grammar": ""}), keeps_to_it),
        (
            json!({"grammar": lark, "json_schema": {}, "structured_outputs": {}, "response_format": {"type": "text"}}),
            is_sum,
        ),
    ]
}

#[test]
fn every_form_by_every_name_is_kept_to_and_a_stream_is_the_same() {
    let server = Running::with(|_| {});
    for path in [CHAT, COMPLETIONS] {
        let mut ended = 0;
        for (form, keeps) in forms() {
            let whole = post(server.address, path, &body(path, &form));
            assert_eq!(whole.status, 200, "{form}: {whole:?}");
            let whole = texts(&whole.json());
            for (text, finish) in &whole {
                if finish == "stop" {
                    assert!(keeps(text), "{path} {form}: {text:?}");
                    ended += 1;
                }
            }
            let mut streamed = body(path, &form);
            streamed["stream"] = true.into();
            let (events, done) = post(server.address, path, &streamed).events();
            let piece = |event: &Value| {
                let choice = &event["choices"][0];
                choice
                    .pointer("/delta/content")
                    .or(choice.get("text"))
                    .and_then(Value::as_str)
                    .map(str::to_owned)
            };
            let joined: String = events.iter().filter_map(piece).collect();
            assert_eq!((joined.as_str(), done), (whole[0].0.as_str(), true), "{form}");
        }
        assert!(ended >= 23, "{path}: {ended} of 28 answers ended within their tokens");
    }
}

#[test]
fn every_choice_keeps_to_it_and_a_stop_string_still_stops() {
    let server = Running::with(|_| {});
    let three = json!({"n": 3, "structured_outputs": {"json": schema(), "whitespace_pattern": " ?"}});
    let answers = texts(&post(server.address, CHAT, &body(CHAT, &three)).json());
    assert_eq!(answers.len(), 3);
    for (text, finish) in answers {
        assert!(finish == "stop" && keeps_to_it(&text), "{text:?}");
    }
    let stopped = json!({"guided_regex": "[0-9]{3}x[0-9]{3}", "stop": ["x"]});
    let answers = texts(&post(server.address, CHAT, &body(CHAT, &stopped)).json());
    let (text, finish) = &answers[0];
    assert!(finish == "stop" && text.len() == 3 && text.parse::<u16>().is_ok(), "{text:?}");
}

#[test]
fn what_makes_no_sense_is_refused_by_its_field() {
    let server = Running::with(|_| {});
    let cases = [
        (json!({"response_format": {"type": "xml"}}), "response_format", "text, json_object or json_schema"),
        (json!({"response_format": {"type": "json_schema"}}), "response_format", "json_schema with a schema"),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "strin"}}}}),
            "response_format",
            "no type strin",
        ),
        (json!({"response_format": "json"}), "response_format", "an object"),
        (json!({"structured_outputs": {"json": "{"}}), "structured_outputs", "a JSON schema"),
        (json!({"structured_outputs": {"regex": "a", "choice": ["a"]}}), "structured_outputs", "one thing"),
        (json!({"structured_outputs": {"structural_tag": {}}}), "structured_outputs", "structural_tag"),
        (
            json!({"structured_outputs": {"regex": "a", "whitespace_pattern": " "}}),
            "structured_outputs",
            "JSON beside it",
        ),
        (json!({"structured_outputs": {"choice": []}}), "structured_outputs", "at least 1"),
        (json!({"guided_regex": "((("}), "guided_regex", "regular expression"),
        (json!({"regex": "((("}), "regex", "regular expression"),
        (json!({"response_format": {"type": "regex"}}), "response_format", "pattern"),
        (json!({"nvext": {"guided_regex": "((("}}), "nvext", "regular expression"),
        (json!({"nvext": {"guided_whatever": 1}}), "nvext", "guided_whatever"),
        (json!({"nvext": {"guided_regex": "a"}, "regex": "a"}), "regex", "nvext beside it"),
        (json!({"ebnf": "root ::= \"a\""}), "ebnf", "GBNF"),
        (json!({"structural_tag": {}}), "structural_tag", "does not have it"),
        (json!({"regex": ".*".repeat(6500)}), "regex", "nodes"),
        (json!({"guided_choice": [1]}), "guided_choice", "strings"),
        (json!({"guided_regex": "a", "grammar": "start: \"a\""}), "grammar", "guided_regex beside it"),
        (json!({"grammar": "root ::= \"a\""}), "grammar", "GBNF"),
        (json!({"grammar": "start: <|nope|>"}), "grammar", "no control token"),
        (json!({"json_schema": {"$ref": "http://example.com/a"}}), "json_schema", "$ref"),
        (json!({"json_schema": {"type": "string", "format": "iri"}}), "json_schema", "iri"),
    ];
    for path in [CHAT, COMPLETIONS] {
        for (case, param, words) in &cases {
            let answer = post(server.address, path, &body(path, case));
            let error = &answer.json()["error"];
            assert_eq!((answer.status, &error["param"]), (400, &Value::from(*param)), "{case}: {answer:?}");
            let message = error["message"].as_str().expect("a message");
            assert!(message.starts_with(param) || *param == "structured_outputs", "{message}");
            assert!(message.contains(words) && !message.contains('\n'), "{case}: {message}");
        }
    }
}

/// Each is refused or answered within seconds, and the server keeps answering.
#[test]
fn hostile_schemas_end_soon_and_harm_nobody() {
    let server = Running::with(|_| {});
    let nested = (0..120).fold(json!({"type": "null"}), |items, _| json!({"type": "array", "items": items}));
    let values: Vec<String> = (0..20_000).map(|number| format!("value-{number}")).collect();
    let object =
        |number| json!({"type": "object", "properties": {format!("key{number}"): {"type": "string"}}});
    let objects: Vec<Value> = (0..2_000).map(object).collect();
    let hostile = [
        (json!({"guided_regex": "((a{1,1000}){1,1000}){1,1000}"}), None),
        (json!({"guided_regex": "(a|b?)".repeat(20_000)}), Some("bytes")),
        (json!({"json_schema": {"enum": values}}), None),
        (json!({"json_schema": {"anyOf": objects}}), None),
        (json!({"json_schema": nested}), None),
        (json!({"json_schema": {"$ref": "#"}}), Some("no answer satisfies it")),
    ];
    for (case, refusal) in hostile {
        let shown = case.to_string().chars().take(60).collect::<String>();
        let started = Instant::now();
        let mut asked = body(CHAT, &case);
        asked["max_tokens"] = 3.into();
        let answer = post(server.address, CHAT, &asked);
        // One second to compile, and one more for a busy machine.
        let took = started.elapsed();
        assert!(took < Duration::from_secs(4), "{shown}: {took:?}");
        match refusal {
            Some(words) => {
                let message = answer.json()["error"]["message"].as_str().expect("an error").to_owned();
                assert!(answer.status == 400 && message.contains(words), "{shown}: {message}");
            }
            None => assert!([200, 400].contains(&answer.status), "{shown}: {answer:?}"),
        }
        let free = post(server.address, CHAT, &body(CHAT, &json!({"max_tokens": 2})));
        assert_eq!(free.status, 200, "behind {shown}");
    }
}

/// A grammar has a second to compile, without the wait for a thread.
#[test]
fn a_wait_for_a_thread_is_no_time_of_the_grammar_s() {
    let server = Running::with(|_| {});
    let address = server.address;
    let text = "a b c ".repeat(1 << 19);
    let tokenize = || assert_eq!(post(address, "/tokenize", &json!({"content": text})).status, 200);
    let started = Instant::now();
    tokenize();
    // Enough requests at once to keep all worker threads busy for more than a second.
    let threads = std::thread::available_parallelism().map_or(1, |cores| cores.get().div_ceil(4));
    let count = threads * (1 + 1500 / started.elapsed().as_millis().max(1) as usize);
    std::thread::scope(|scope| {
        // Twice, because a grammar waits for a thread twice.
        let busy = || (0..count).for_each(|_| drop(scope.spawn(tokenize)));
        let pause = || std::thread::sleep(Duration::from_millis(200));
        busy();
        pause();
        let asked = scope.spawn(|| post(address, CHAT, &body(CHAT, &json!({"guided_regex": "[0-9]{3}"}))));
        pause();
        busy();
        let answer = asked.join().expect("a client");
        assert_eq!(answer.status, 200, "{answer:?}");
    });
}

/// A grammar that exceeds the parser's work limit during the answer, next to a sound one.
#[test]
fn a_constraint_that_fails_on_its_way_fails_its_own_request() {
    let server = Running::with(|_| {});
    let address = server.address;
    let found = post(address, "/tokenize", &json!({"content": "y"})).json();
    let y = found["tokens"].as_array().and_then(|ids| ids.last()).and_then(Value::as_u64).expect("an id");
    let ambiguous = json!({
        "grammar": "start: a+ \"y\"\na: b+\nb: c+\nc: (\"x\" | \"xx\" | a)+",
        "logit_bias": {(y.to_string()): -100}, "max_tokens": 400,
    });
    let failing = std::thread::spawn(move || post(address, CHAT, &body(CHAT, &ambiguous)));
    let sound = post(address, CHAT, &body(CHAT, &json!({"json_schema": schema(), "seed": 3})));
    assert!(texts(&sound.json()).iter().all(|(text, finish)| finish != "stop" || keeps_to_it(text)));
    let failed = failing.join().expect("a client");
    let message = failed.json()["error"]["message"].as_str().expect("an error").to_owned();
    assert!(failed.status == 400 && message.contains("too much work"), "{failed:?}");
    assert_eq!(post(address, CHAT, &body(CHAT, &json!({"max_tokens": 2}))).status, 200);
}
