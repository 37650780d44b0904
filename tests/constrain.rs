//! Grammars without a model: answers drawn at random from what a constraint allows satisfy it, forced tokens are the
//! only ones, and what is hostile ends in an error of one line.

mod draws;
mod tiny;

use std::sync::Arc;
use std::time::{Duration, Instant};

use draws::Draws;
use ottava::checkpoint::{Checkpoint as _, ModelFile};
use ottava::constrain::{Constraint, ConstraintError, Constraints, Grammar};
use ottava::sample::{TokenMask, TokenSet};
use ottava::text::{Tokenizer, Vocab};
use ottava::{ErrorKind, TokenId};
use serde_json::{Map, Value, json};

/// Most tokens of a drawn answer.
const TOKENS_MAX: usize = 400;

struct Setting {
    constraints: Constraints,
    vocab: Arc<Vocab>,
}

impl Setting {
    fn of(file: Vec<u8>) -> Setting {
        let file = ModelFile::from_bytes("tiny.gguf", file).expect("a model");
        let tokenizer = Arc::new(Tokenizer::from_metadata(file.metadata()).expect("a tokenizer"));
        let vocab = Arc::clone(tokenizer.vocab());
        Setting { constraints: Constraints::new(tokenizer).expect("a trie"), vocab }
    }

    fn byte_level() -> Setting {
        Setting::of(tiny::llama().expect("a model"))
    }

    fn sentence_piece() -> Setting {
        Setting::of(tiny::gemma3().expect("a model"))
    }

    fn compile(&self, grammar: &Grammar) -> Constraint {
        self.constraints.compile(grammar).unwrap_or_else(|error| panic!("{grammar:?}: {error}"))
    }

    fn refused(&self, grammar: &Grammar) -> ConstraintError {
        self.constraints.compile(grammar).expect_err(&format!("{grammar:?}"))
    }

    fn allowed(&self, constraint: &mut Constraint, answer: &[TokenId]) -> TokenSet {
        let mut allowed = TokenSet::new(self.vocab.len());
        constraint.allowed(answer, &mut allowed);
        allowed
    }

    fn ends(&self, allowed: &TokenSet) -> bool {
        self.vocab.stop_ids().iter().any(|&id| allowed.contains(id))
    }

    fn spelled(&self, answer: &[TokenId]) -> Vec<u8> {
        answer.iter().flat_map(|&id| self.vocab.bytes(id).expect("a token")).copied().collect()
    }

    /// An answer drawn from what is allowed; `None` if it does not end. It ends as soon as it may where `short`.
    fn draw(&self, constraint: &mut Constraint, draws: &mut Draws, short: bool) -> Option<Vec<TokenId>> {
        let mut answer = Vec::new();
        while answer.len() < TOKENS_MAX {
            if constraint.is_finished(&answer) {
                return Some(answer);
            }
            let forced = constraint.forced(&answer).to_vec();
            let allowed = self.allowed(constraint, &answer);
            assert_eq!(allowed.check(), Ok(()), "{:?}", String::from_utf8_lossy(&self.spelled(&answer)));
            if let Some(first) = forced.first() {
                assert_eq!((allowed.len(), allowed.contains(*first)), (1, true), "no choice is no choice");
                // A part of a run leaves the rest of it.
                let part = 1 + draws.below(forced.len());
                answer.extend(&forced[..part]);
                assert!(constraint.forced(&answer).starts_with(&forced[part..]));
                continue;
            }
            let tokens: Vec<TokenId> = self.vocab.ids().filter(|&id| allowed.contains(id)).collect();
            let chosen = tokens[draws.below(tokens.len())];
            if self.vocab.stop_ids().contains(&chosen) || (short && self.ends(&allowed)) {
                return Some(answer);
            }
            answer.push(chosen);
        }
        None
    }

    /// Draws answers, and has those that end checked.
    fn draws(&self, grammar: &Grammar, check: impl Fn(&str) -> bool) {
        let mut constraint = self.compile(grammar);
        let mut draws = Draws(0x2545_f491_4f6c_dd1d);
        let mut ended = 0;
        for round in 0..40 {
            // A clone begins anew; the same one goes back to where an answer is.
            let mut other = constraint.clone();
            let mask = if round % 2 == 0 { &mut constraint } else { &mut other };
            let Some(answer) = self.draw(mask, &mut draws, round % 4 < 2) else { continue };
            let text = String::from_utf8(self.spelled(&answer)).expect("UTF-8");
            assert!(check(&text), "{grammar:?} allowed {text:?}");
            assert!(!answer.iter().any(|&id| self.vocab.is_control(id)), "{text:?}");
            ended += 1;
        }
        assert!(ended >= 10, "{grammar:?}: {ended} of 40 answers ended");
    }
}

fn person() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 8},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "mood": {"enum": ["good", "bad"]},
            "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{1,3}$"}, "maxItems": 2},
        },
        "required": ["name", "age", "mood", "tags"],
        "additionalProperties": false,
    })
}

/// The schema above, by hand.
fn is_person(text: &str) -> bool {
    let Ok(Value::Object(found)) = serde_json::from_str(text) else { return false };
    let short = |tag: &Value| tag.as_str().is_some_and(|tag| (1..=3).contains(&tag.len()));
    found.len() == 4
        && found["name"].as_str().is_some_and(|name| name.chars().count() <= 8)
        && found["age"].as_u64().is_some_and(|age| age <= 150)
        && (found["mood"] == "good" || found["mood"] == "bad")
        && found["tags"].as_array().is_some_and(|tags| tags.len() <= 2 && tags.iter().all(short))
}

fn is_sum(text: &str) -> bool {
    text.split('+').all(|number| !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit()))
}

#[test]
fn what_is_drawn_from_a_grammar_satisfies_it() {
    for setting in [Setting::byte_level(), Setting::sentence_piece()] {
        setting.draws(&Grammar::json_schema(person()), is_person);
        setting.draws(&Grammar::json_schema(person()).whitespace(" ?"), |text| {
            is_person(text) && !text.contains("  ") && !text.contains('\n')
        });
        setting.draws(&Grammar::json_object(), |text| match serde_json::from_str::<Value>(text) {
            Ok(value) => value.is_object(),
            // JSON has numbers that a reader may not have.
            Err(error) => error.to_string().contains("number out of range"),
        });
        setting.draws(&Grammar::regex("^[0-9]{2}(a|é)+$"), |text| {
            text.len() > 2
                && text[2..].chars().all(|c| c == 'a' || c == 'é')
                && text[..2].parse::<u8>().is_ok()
        });
        let choices = ["good", "goodness", "a \"b\\\u{7f}\n", "é", ""];
        setting.draws(&Grammar::choice(choices), |text| choices.contains(&text));
        setting.draws(&Grammar::lark("start: N (\"+\" N)*\nN: /[0-9]+/ // digits"), is_sum);
        setting.draws(&Grammar::lark("start: \"a ::= b\""), |text| text == "a ::= b");
        setting
            .draws(&Grammar::lark("start: \"<\" body \">\"\nbody: %json {\"type\": \"boolean\"}"), |text| {
                text.trim_matches(['<', '>', ' ', '\n', '\t', '\r']).parse::<bool>().is_ok()
            });
    }
}

#[test]
fn an_answer_may_end_where_the_grammar_may_and_must_where_it_must() {
    let setting = Setting::byte_level();
    let ids = |text: &str| -> Vec<TokenId> {
        text.bytes()
            .map(|byte| {
                setting.vocab.ids().find(|&id| setting.vocab.bytes(id) == Some(&[byte])).expect("a byte")
            })
            .collect()
    };
    let mut may = setting.compile(&Grammar::regex("ab*"));
    for (answer, ends) in [("", false), ("a", true), ("abb", true)] {
        let allowed = setting.allowed(&mut may, &ids(answer));
        assert_eq!((setting.ends(&allowed), may.is_finished(&ids(answer))), (ends, false), "{answer:?}");
        assert!(setting.vocab.stop_ids().iter().all(|&id| allowed.contains(id) == ends), "all ends alike");
    }
    let must = setting.compile(&Grammar::choice(["ab"]));
    assert_eq!((must.is_finished(&ids("a")), must.is_finished(&ids("ab"))), (false, true));
    // An answer of nothing.
    let mut none = setting.compile(&Grammar::choice([""]));
    let allowed = setting.allowed(&mut none, &[]);
    assert!(
        none.is_finished(&[]) || allowed.len() == setting.vocab.stop_ids().len() && setting.ends(&allowed)
    );
    // What the grammar does not allow fails the request.
    let failed = setting.allowed(&mut may, &ids("ac")).check().expect_err("no b");
    assert_eq!((failed.kind(), failed.field()), (ErrorKind::Invalid, Some("mask")));
}

#[test]
fn a_control_token_comes_only_where_the_grammar_names_it() {
    let setting =
        Setting::of(tiny::llama_with(512, |vocabulary| vocabulary.mark("<|im_start|>", 3)).expect("a model"));
    let control = setting.vocab.find("<|im_start|>").expect("a token");
    assert!(setting.vocab.is_control(control) && !setting.vocab.stop_ids().contains(&control));
    // Its name as a text is text.
    let spelled = setting.compile(&Grammar::regex("[<>|_a-z]+"));
    assert!(!setting.allowed(&mut spelled.clone(), &[]).contains(control));
    for grammar in ["start: <|im_start|> \"a\"".to_owned(), format!("start: <[{control}]> \"a\"")] {
        let mut named = setting.compile(&Grammar::lark(grammar));
        let allowed = setting.allowed(&mut named, &[]);
        assert_eq!((allowed.len(), allowed.contains(control)), (1, true));
        let behind = setting.allowed(&mut named, &[control]);
        assert_eq!((behind.len(), behind.contains(control)), (1, false));
    }
}

#[test]
fn refusals_say_what_is_wrong_in_one_line() {
    let setting = Setting::byte_level();
    let schema = Grammar::json_schema;
    let cases = [
        (schema(json!({"$ref": "#"})), "json_schema: no answer satisfies it"),
        (schema(json!({"$ref": "https://example.com/x"})), "json_schema: a $ref is not found"),
        (schema(json!({"$ref": "#/$defs/x"})), "json_schema: a $ref is not found"),
        (schema(json!({"type": "string", "format": "iri"})), "json_schema: the format iri is not supported"),
        (
            schema(json!({"allOf": [{"type": "string"}, {"type": "null"}]})),
            "json_schema: no value satisfies the schema",
        ),
        (
            schema(json!({"type": "array", "contains": {"const": 1}})),
            "json_schema: these keywords are not supported: [\"contains\"]",
        ),
        (
            schema(json!({"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 3}]})),
            "json_schema: the branches of a oneOf",
        ),
        (schema(json!({"type": 3})), "json_schema: type: expected a string or array of strings"),
        (schema(json!({"type": "strin"})), "json_schema: there is no type strin"),
        (
            schema(json!({"type": "string", "pattern": "(?=a)"})),
            "json_schema: a pattern is no regular expression",
        ),
        (
            schema(json!({"x-guidance": {"lenient": true}})),
            "json_schema: the keyword x-guidance is not supported",
        ),
        (schema(json!(5)), "json_schema: expected an object or true"),
        (Grammar::regex("((("), "regex: a pattern is no regular expression"),
        (Grammar::regex("(a)\\1"), "regex: a pattern is no regular expression"),
        (Grammar::regex("a\\"), "regex: it ends with a lone \\"),
        (Grammar::choice(Vec::<String>::new()), "choice: expected at least 1 text, found none"),
        (Grammar::lark("a: \"b\""), "grammar: it has no rule with the name start"),
        (Grammar::lark("start: \"a\nb"), "grammar: it is no grammar in Lark's syntax (line 1, column"),
        (
            Grammar::lark("start: foo"),
            "grammar: it uses \"foo\", which it does not define (line 1, column 8)",
        ),
        (Grammar::lark("start: <|nope|>"), "grammar: the vocabulary has no control token \"<|nope|>\""),
        (Grammar::lark("start: <[300000]>"), "grammar: it names a token that the vocabulary has not"),
        (Grammar::lark("start: %json {\"type\": \"strin\"}"), "grammar: there is no type strin"),
        (Grammar::lark("start: %json {\"type\":"), "grammar: what follows %json is no JSON"),
        (Grammar::lark("start: start"), "grammar: no answer satisfies it"),
        (Grammar::lark("root ::= \"a\""), "grammar: expected a grammar in Lark's syntax, found one in GBNF"),
    ];
    for (grammar, expected) in cases {
        let error = setting.refused(&grammar);
        let text = error.to_string();
        assert!(text.starts_with(expected), "{text}");
        assert!(text.chars().count() <= 300 && !text.contains('\n'), "{text}");
        assert_eq!((error.kind(), error.field()), (ErrorKind::Invalid, expected.split(':').next()));
    }
}

/// What is large or deep is refused or compiled, and ends nothing else. The time is far above what it takes.
#[test]
fn bombs_end_soon() {
    let setting = Setting::byte_level();
    let nested =
        |depth| (0..depth).fold(json!({"type": "null"}), |items, _| json!({"type": "array", "items": items}));
    let values: Vec<String> = (0..20_000).map(|number| format!("value-{number}")).collect();
    let object =
        |number| json!({"type": "object", "properties": {format!("key{number}"): {"type": "string"}}});
    let lark = |body: String| Grammar::lark(format!("start: {body}"));
    let chain: String = (0..2_000).map(|rule| format!("r{rule}: \"a\" r{}\n", rule + 1)).collect();
    let references: serde_json::Map<String, Value> = (0..5_000)
        .map(|at| (format!("d{at}"), json!({"allOf": [{"$ref": format!("#/$defs/d{}", at + 1)}]})))
        .collect();
    let bombs = [
        Grammar::regex("((a{1,1000}){1,1000}){1,1000}"),
        Grammar::regex("(a|b?)".repeat(2_500)),
        Grammar::regex("(a|b?)".repeat(20_000)),
        Grammar::regex(format!("{}a{}", "(".repeat(8_000), ")".repeat(8_000))),
        Grammar::json_schema(json!({"type": "string", "pattern": "(a|b?)".repeat(20_000)})),
        Grammar::json_schema(json!({"enum": values})),
        Grammar::json_schema(json!({"anyOf": (0..2_000).map(object).collect::<Vec<_>>()})),
        Grammar::json_schema(nested(60)),
        Grammar::json_schema(nested(500)),
        Grammar::json_schema(json!({"$ref": "#/$defs/d0", "$defs": references})),
        Grammar::json_schema(json!({"type": "string", "description": "x".repeat(1 << 20)})),
        lark(format!("{}\"a\"{}", "(".repeat(100_000), ")".repeat(100_000))),
        lark("\"a\"? ".repeat(5_000)),
        lark(format!("T\nT: {}", "\"a\"? ".repeat(5_000))),
        lark(format!("T\nT: {}\"a\"", "\"a\" | ".repeat(4_000))),
        lark(format!("r0\n{chain}r2000: \"b\"")),
        lark("\"a\" start".into()),
        lark(format!("%json {}", json!({"type": "string", "pattern": "(a|b?)".repeat(20_000)}))),
        lark("a\na: a a | \"x\" | \"\"".into()),
    ];
    for grammar in bombs {
        let (started, shown) = (Instant::now(), format!("{grammar:.60?}"));
        match setting.constraints.compile(&grammar) {
            Ok(mut mask) => {
                let forced = mask.forced(&[]).to_vec();
                setting.allowed(&mut mask, &forced);
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::Invalid, "{error}"),
        }
        let took = started.elapsed();
        assert!(took < Duration::from_secs(30), "{took:?}: {shown:.80}");
    }
}

/// What hides the depth of a grammar from a check would end the process in the parser.
#[test]
fn depth_is_seen_behind_whatever_stands_before_it() {
    let setting = Setting::byte_level();
    let deep = format!("{}\"x\"", "a{".repeat(10_000));
    // A text, a regular expression of two lines, a control token, and comments of both kinds.
    for before in ["\"%json\"", "/b\n\"/", "/b%json\n\"/", "<\">", "\"b\" # \"\n | ", "\"b\" // /\n | "] {
        let error = setting.refused(&Grammar::lark(format!("start: {before} {deep}"))).to_string();
        assert!(error.contains("levels in each other"), "{before:?}: {error}");
    }
    // What only looks deep is taken, and a schema does not count as the grammar's text.
    let texts = "{".repeat(500);
    let flat = format!("start: \"{texts}\" // {texts}\n | /[{{}}]\n+/ # {texts}\n | \"%json {{\"");
    setting.compile(&Grammar::lark(flat));
    let schema = json!({"type": "null", "description": "{".repeat(40_000)});
    setting.compile(&Grammar::lark(format!("start: %json {schema}")));
    let error = setting.refused(&Grammar::lark(format!("start: \"%json {}\"", "b".repeat(40_000))));
    assert!(error.to_string().contains("expected at most 32768 bytes"), "{error}");
}

#[test]
fn clones_and_equal_grammars_are_apart() {
    let setting = Setting::byte_level();
    let grammar = Grammar::choice(["a", "bc", "def"]);
    let (mut first, second) = (setting.compile(&grammar), setting.compile(&grammar));
    // One goes on while the other stays at the beginning.
    let mut draws = Draws(7);
    let answer = setting.draw(&mut first, &mut draws, true).expect("it ends");
    assert!(first.is_finished(&answer) && !second.is_finished(&[]));
    assert_eq!(setting.allowed(&mut second.clone(), &[]), setting.allowed(&mut first, &[]));
}

#[test]
fn many_properties_may_be_left_out() {
    let setting = Setting::byte_level();
    let names: Vec<String> = (0..1000).map(|number| format!("p{number}")).collect();
    let properties: Map<String, Value> =
        names.iter().map(|name| (name.clone(), json!({"type": "null"}))).collect();
    let schema = json!({"type": "object", "properties": properties, "additionalProperties": false});
    setting.draws(&Grammar::json_schema(schema).whitespace(""), |text| {
        let answer: Map<String, Value> = serde_json::from_str(text).expect("an object");
        answer.iter().all(|(name, value)| names.contains(name) && value.is_null())
    });
}

#[test]
fn a_one_of_is_looked_into_behind_references() {
    let setting = Setting::byte_level();
    let defs = json!({"whole": {"type": "integer"}, "number": {"type": "number"}});
    let one_of = |branches: Value| Grammar::json_schema(json!({"$defs": defs, "oneOf": branches}));
    let reference = |name: &str| json!({"$ref": format!("#/$defs/{name}")});
    setting.draws(&one_of(json!([reference("whole"), {"type": "null"}])), |text| {
        text == "null" || text.parse::<i64>().is_ok()
    });
    setting.draws(&one_of(json!([{"const": 1}, {"const": 2, "title": "two"}])), |text| {
        ["1", "2"].contains(&text)
    });
    for overlapping in [
        json!([reference("whole"), reference("number")]),
        json!([reference("whole"), {"minimum": 3}]),
        json!([{"const": 1}, {"const": 1}]),
    ] {
        let error = setting.refused(&one_of(overlapping)).to_string();
        assert!(error.contains("may overlap"), "{error}");
    }
}

#[test]
fn a_name_is_not_spelled_in_another_way() {
    let setting = Setting::byte_level();
    let schema = json!({
        "type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"], "additionalProperties": true,
    });
    let mut constraint = setting.compile(&Grammar::json_schema(schema));
    let allows = |constraint: &mut Constraint, text: &str| {
        let mut answer = Vec::new();
        text.bytes().all(|byte| {
            let id =
                setting.vocab.ids().find(|&id| setting.vocab.bytes(id) == Some(&[byte][..])).expect("a byte");
            let allowed = setting.allowed(constraint, &answer).contains(id);
            answer.push(id);
            allowed
        })
    };
    assert!(allows(&mut constraint, r#"{"age":1,"ag":"x\n"}"#));
    assert!(!allows(&mut constraint, r#"{"age":1,"age":"x"}"#));
    assert!(!allows(&mut constraint, r#"{"age":1,"\u0061ge":"x"}"#));
}

#[test]
fn a_format_that_json_schema_does_not_define_is_an_annotation() {
    let setting = Setting::byte_level();
    let plain = setting.compile(&Grammar::json_schema(json!({"type": "string"})));
    let annotated = Grammar::json_schema(json!({"type": "string", "format": "password"}));
    assert_eq!(
        setting.allowed(&mut setting.compile(&annotated), &[]),
        setting.allowed(&mut plain.clone(), &[]),
    );
}

/// A grammar that says the same in ever more ways.
#[test]
fn what_takes_too_much_work_on_the_way_fails_there() {
    let setting = Setting::byte_level();
    let x = setting.vocab.ids().find(|&id| setting.vocab.bytes(id) == Some(b"x")).expect("a byte");
    let mut mask = setting.compile(&Grammar::lark("start: a+\na: b+\nb: c+\nc: (\"x\" | \"xx\" | a)+"));
    let mut answer = vec![x];
    while setting.allowed(&mut mask, &answer).check().is_ok() {
        answer.push(x);
        assert!(answer.len() < 1_000);
    }
    let error = setting.allowed(&mut mask, &answer).check().expect_err("it stays so");
    assert_eq!((error.kind(), error.field(), answer.len() > 50), (ErrorKind::Invalid, Some("mask"), true));
    assert!(!mask.is_finished(&answer) && mask.forced(&answer).is_empty());
}
