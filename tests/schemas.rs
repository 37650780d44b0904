//! Schemas without a model: over all small values, a grammar accepts those that a naive validator accepts.

mod draws;
mod schema_check;
mod tiny;

use std::sync::Arc;

use draws::Draws;
use ottava::checkpoint::{Checkpoint as _, ModelFile};
use ottava::constrain::{Constraint, Constraints, Grammar};
use ottava::sample::{TokenMask, TokenSet};
use ottava::text::{Tokenizer, Vocab};
use ottava::{ErrorKind, TokenId};
use schema_check::is_valid;
use serde_json::{Map, Value, json};

/// Constraints for a vocabulary with a token for each byte.
struct Bytes {
    constraints: Constraints,
    vocab: Arc<Vocab>,
    ids: Vec<TokenId>,
}

impl Bytes {
    fn new() -> Bytes {
        let file = ModelFile::from_bytes("tiny.gguf", tiny::llama().expect("a model")).expect("a file");
        let tokenizer = Arc::new(Tokenizer::from_metadata(file.metadata()).expect("a tokenizer"));
        let vocab = Arc::clone(tokenizer.vocab());
        let id = |byte: u8| vocab.ids().find(|&id| vocab.bytes(id) == Some(&[byte])).expect("a byte");
        let ids = (0..=u8::MAX)
            .map(|byte| if byte < 0xf8 && ![0xc0, 0xc1].contains(&byte) { id(byte) } else { id(b' ') });
        Bytes { ids: ids.collect(), constraints: Constraints::new(tokenizer).expect("a trie"), vocab }
    }

    fn compile(&self, schema: &Value) -> Constraint {
        let compiled = self.constraints.compile(&Grammar::json_schema(schema.clone()));
        compiled.unwrap_or_else(|error| panic!("{schema}: {error}"))
    }

    fn refusal(&self, schema: &Value) -> String {
        let error =
            self.constraints.compile(&Grammar::json_schema(schema.clone())).expect_err(&schema.to_string());
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        error.to_string()
    }

    /// Whether a text is a whole answer.
    fn accepts(&self, constraint: &Constraint, text: &str) -> bool {
        let mut constraint = constraint.clone();
        let answer: Vec<TokenId> = text.bytes().map(|byte| self.ids[usize::from(byte)]).collect();
        if constraint.is_finished(&answer) {
            return true;
        }
        let mut allowed = TokenSet::new(self.vocab.len());
        constraint.allowed(&answer, &mut allowed);
        allowed.check().is_ok() && self.vocab.stop_ids().iter().any(|&id| allowed.contains(id))
    }

    fn accepts_value(&self, constraint: &Constraint, value: &Value) -> bool {
        self.accepts(constraint, &value.to_string())
    }
}

/// Small values: scalars, arrays of up to three, and objects with some of the properties a, b, c and x.
fn small_values() -> Vec<Value> {
    let mut values: Vec<Value> = (-3..12).map(Value::from).collect();
    values.extend([json!(null), json!(true), json!(false), json!(0.5), json!(2.5), json!(-1.5), json!(1000)]);
    values.extend(["", "a", "b", "ab", "abc", "b\n", "é", "\"\\"].map(Value::from));
    let items = [json!(1), json!("a"), json!(null), json!(true)];
    let mut arrays = vec![Vec::new()];
    for at in 0..3 {
        let longer = arrays.iter().filter(|array| array.len() == at).flat_map(|array| {
            items.iter().map(|item| array.iter().cloned().chain([item.clone()]).collect::<Vec<Value>>())
        });
        let longer: Vec<Vec<Value>> = longer.collect();
        arrays.extend(longer);
    }
    values.extend(arrays.into_iter().map(Value::Array));
    let mut objects = vec![Map::new()];
    for name in ["a", "b", "c", "x"] {
        let with = |value: Value| {
            objects
                .iter()
                .map(move |object| {
                    let mut object = object.clone();
                    object.insert(name.into(), value.clone());
                    object
                })
                .collect::<Vec<_>>()
        };
        let more = [with(json!(1)), with(json!("b"))].concat();
        objects.extend(more);
    }
    values.extend(objects.into_iter().map(Value::Object));
    values.extend([
        json!({"a": {"a": 1}}),
        json!({"a": {"b": 1}}),
        json!({"a": {"a": 1, "b": 2}}),
        json!([[1], [1]]),
    ]);
    values
}

/// Schemas with exact grammars: all values that satisfy one are accepted, in compact form and with the
/// properties in the order of the schema.
fn exact_schemas() -> Vec<Value> {
    let abc = |more: Value| {
        let mut schema = json!({"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "additionalProperties": true});
        schema.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        schema
    };
    let closed = |more: Value| {
        let mut schema = abc(more);
        schema["additionalProperties"] = false.into();
        schema
    };
    let mut schemas = vec![
        json!({}),
        json!({"type": ["integer", "string", "null"]}),
        json!({"enum": [1, "a", "b\n", null, [1, "a"], {"a": 1}, 2.5, "\"\\"]}),
        json!({"not": {"type": ["string", "array"]}}),
        json!({"not": {"const": "a"}}),
        json!({"type": "string", "not": {"enum": ["a", "abc", ""]}}),
        json!({"type": "string", "not": {"const": "é"}, "maxLength": 2}),
        json!({"type": "integer", "not": {"enum": [0, 5, -1]}}),
        json!({"type": "number", "not": {"enum": [0, 2]}, "minimum": -2, "maximum": 4}),
        json!({"type": ["null", "boolean", "integer"], "not": {"enum": [null, true]}}),
        json!({"enum": ["a", "b", 1, 2], "not": {"const": "b"}}),
        json!({"type": "integer", "not": {"minimum": 3}}),
        json!({"type": "string", "not": {"minLength": 2}}),
        json!({"type": "array", "items": {"type": ["integer", "string"]}, "not": {"minItems": 2}}),
        json!({"not": {"anyOf": [{"type": "array"}, {"type": "object"}, {"const": 3}]}}),
        json!({"not": {"not": {"type": "string"}}}),
        json!({"anyOf": [{"type": "string"}, {"type": "integer"}], "not": {"enum": ["a", 1]}}),
        json!({"type": "array", "items": {"enum": [1, "a", null]}, "uniqueItems": true}),
        json!({"type": "array", "items": {"enum": [1, "a", null, true]}, "uniqueItems": true, "minItems": 1, "maxItems": 2}),
        json!({"type": ["array", "null"], "items": {"type": "boolean"}, "uniqueItems": true}),
        json!({"type": "array", "items": {"$ref": "#/$defs/item"}, "uniqueItems": true, "$defs": {"item": {"anyOf": [{"const": 1}, {"enum": ["a", 1.0]}]}}}),
        json!({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": false, "uniqueItems": true}),
        json!({"type": "array", "items": {}, "uniqueItems": true, "maxItems": 1}),
        json!({"type": "object", "propertyNames": {"enum": ["a", "c"]}}),
        json!({"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": {"type": "integer"}, "minProperties": 1}),
        json!({"type": "integer", "minimum": -2, "exclusiveMaximum": 7}),
        json!({"if": {"type": "string"}, "then": {"maxLength": 1}, "else": {"type": ["integer", "null"]}}),
    ];
    for more in [
        json!({"minProperties": 1}),
        json!({"minProperties": 1, "required": ["b"]}),
        json!({"minProperties": 1, "maxProperties": 1}),
        json!({"maxProperties": 2}),
        json!({"minProperties": 2, "maxProperties": 3, "required": ["b"]}),
        json!({"not": {"required": ["a"]}}),
        json!({"not": {"required": ["a", "b"]}}),
        json!({"not": {"anyOf": [{"required": ["a"]}, {"required": ["c"]}]}}),
        json!({"not": {"properties": {"a": {"type": "string"}}, "required": ["a"]}}),
        json!({"dependentRequired": {"a": ["b", "c"]}}),
        json!({"dependentRequired": {"a": ["b"], "b": ["a"], "c": []}}),
        json!({"dependencies": {"c": ["a"], "a": {"properties": {"b": {"type": "integer"}}}}}),
        json!({"dependentSchemas": {"b": {"required": ["c"], "properties": {"a": false}}}}),
        json!({"if": {"properties": {"a": {"const": 1}}, "required": ["a"]}, "then": {"required": ["b"]}, "else": {"required": ["c"]}}),
        json!({"if": {"properties": {"a": {"const": 1}}}, "then": {"properties": {"b": {"type": "string"}}}}),
        json!({"oneOf": [{"required": ["a"]}, {"required": ["b"]}, {"required": ["c"]}]}),
        json!({"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}),
        json!({"oneOf": [{"required": ["a"]}, {"not": {"required": ["a"]}}]}),
    ] {
        schemas.extend([abc(more.clone()), closed(more)]);
    }
    schemas.extend([
        closed(json!({"minProperties": 2})),
        closed(json!({"maxProperties": 0})),
        json!({"properties": {"a": {"const": 1}, "b": {}, "c": {}}, "additionalProperties": true, "minProperties": 1}),
        json!({"properties": {"a": {}, "b": {}, "c": {}}, "additionalProperties": true, "dependentRequired": {"a": ["b"]}, "not": {"const": null}}),
    ]);
    schemas
}

#[test]
fn a_grammar_accepts_what_satisfies_its_schema_and_nothing_else() {
    let (bytes, values) = (Bytes::new(), small_values());
    for schema in exact_schemas() {
        let constraint = bytes.compile(&schema);
        let mut accepted = 0;
        for value in &values {
            let valid = is_valid(&schema, &schema, value);
            assert_eq!(bytes.accepts_value(&constraint, value), valid, "{schema}: {value}");
            accepted += usize::from(valid);
        }
        assert!(accepted > 0 && (accepted < values.len() || schema == json!({})), "{schema}: {accepted}");
    }
}

/// A schema of random keywords.
fn random_schema(draws: &mut Draws, depth: usize) -> Value {
    let mut schema = Map::new();
    let scalars = [json!(1), json!("a"), json!(null), json!(2.5), json!([]), json!({}), json!(true)];
    for _ in 0..=draws.below(3) {
        let name = ["a", "b", "c"][draws.below(3)];
        let names = json!([name]);
        let kind = ["object", "array", "string", "integer", "null"][draws.below(5)];
        let mut inner = || if depth == 0 { scalar_schema(draws) } else { random_schema(draws, depth - 1) };
        let (first, second) = (inner(), inner());
        let count = draws.below(4);
        let (keyword, value) = match draws.below(22) {
            0 => ("type", json!([kind, "object"])),
            1 => ("properties", json!({"a": first, "b": second})),
            2 => ("properties", json!({"b": first, "c": {}})),
            3 => ("required", names),
            4 => ("additionalProperties", first),
            5 => ("minProperties", count.into()),
            6 => ("maxProperties", count.into()),
            7 => ("not", first),
            8 => ("not", json!({"required": names})),
            9 => ("allOf", json!([first, second])),
            10 | 11 => ("anyOf", json!([first, second])),
            12 => ("oneOf", json!([first, second])),
            13 => ("dependentRequired", json!({"a": names, "b": ["c"]})),
            14 => ("dependentSchemas", json!({"c": first})),
            15 => ("if", first),
            16 => ("then", first),
            17 => ("else", first),
            18 => {
                ("enum", [draws.below(7), draws.below(7)].map(|at| scalars[at].clone()).into_iter().collect())
            }
            19 => ("items", first),
            20 => ("uniqueItems", true.into()),
            _ => ("maxItems", count.into()),
        };
        schema.insert(keyword.into(), value);
    }
    schema.into()
}

fn scalar_schema(draws: &mut Draws) -> Value {
    let schemas = [
        json!({"type": "integer"}),
        json!({"const": "b"}),
        json!({"enum": [1, "a"]}),
        json!({"type": ["string", "null"]}),
        json!(true),
        json!({"required": ["a"]}),
        json!({"properties": {"a": {"const": 1}}}),
        json!({"type": "boolean"}),
    ];
    schemas[draws.below(schemas.len())].clone()
}

/// Random keywords together: an accepted value satisfies the schema, and a refusal is one line.
#[test]
fn no_combination_of_keywords_lets_a_wrong_value_through() {
    let (bytes, values, mut draws) = (Bytes::new(), small_values(), Draws(0x2545_f491_4f6c_dd1d));
    let (mut compiled, mut accepted) = (0, 0);
    for _ in 0..400 {
        let schema = random_schema(&mut draws, 1);
        let Ok(constraint) = bytes.constraints.compile(&Grammar::json_schema(schema.clone())) else {
            let refusal = bytes.refusal(&schema);
            assert!(!refusal.contains('\n') && refusal.len() < 300, "{refusal}");
            continue;
        };
        compiled += 1;
        for value in values.iter().filter(|value| bytes.accepts_value(&constraint, value)) {
            assert!(is_valid(&schema, &schema, value), "{schema}: {value}");
            accepted += 1;
        }
    }
    assert!(
        compiled > 100 && accepted > 2_000,
        "{compiled} schemas compiled, {accepted} values were accepted"
    );
}

#[test]
fn an_object_has_the_properties_of_its_schema_alone_unless_it_allows_others() {
    let bytes = Bytes::new();
    let pair = json!({"type": "object", "properties": {"a": {}, "b": {}}, "required": ["a"]});
    let defs = json!({"base": {"type": "object", "properties": {"a": {"properties": {"a": {}}}}, "required": ["a"]}, "pair": pair});
    let with = |mut schema: Value| {
        schema["$defs"] = defs.clone();
        schema
    };
    // The schema, values that its grammar accepts, and values that it does not.
    let cases = [
        (pair.clone(), json!([{"a": 1, "b": 2}, {"a": 1}]), json!([{"a": 1, "x": 2}, {"b": 1}])),
        (json!({"type": "object"}), json!([{}, {"x": 1}]), json!([1])),
        (json!({"type": "object", "properties": {}}), json!([{}]), json!([{"x": 1}])),
        (json!({"type": "object", "required": ["a"]}), json!([{"a": 1}, {"a": 1, "x": 1}]), json!([{}])),
        (
            json!({"properties": {"b": {}}, "required": ["a"]}),
            json!([{"b": 1, "a": 1}, 5]),
            json!([{"a": 1, "x": 1}]),
        ),
        (
            json!({"properties": {"b": {}}, "additionalProperties": {"const": 1}}),
            json!([{"b": 2, "x": 1}]),
            json!([{"b": 2, "x": 2}]),
        ),
        (
            json!({"type": "object", "properties": {"b": {}}, "required": ["b"], "minProperties": 2}),
            json!([{"b": 1, "x": 1}]),
            json!([{"b": 1}]),
        ),
        (
            json!({"type": "object", "properties": {"b": {}}, "patternProperties": {"^x": {"const": 1}}}),
            json!([{"b": 1, "x1": 1}]),
            json!([{"x": 2}, {"y": 1}]),
        ),
        (json!({"type": "array", "items": pair}), json!([[], [{"a": 1}]]), json!([[{"a": 1, "x": 1}]])),
        (with(json!({"$ref": "#/$defs/pair"})), json!([{"a": 1}]), json!([{"a": 1, "x": 1}])),
        (
            with(json!({"allOf": [{"$ref": "#/$defs/base"}, {"properties": {"b": {}}}]})),
            json!([{"a": {"a": 1}, "b": 1}, {"a": {}}]),
            json!([{"a": {"a": 1}, "x": 1}, {"a": {"x": 1}}]),
        ),
        (
            with(
                json!({"allOf": [{"$ref": "#/$defs/base"}], "type": "object", "properties": {"a": {"properties": {"b": {}}}}}),
            ),
            json!([{"a": {"a": 1, "b": 1}}]),
            json!([{"a": {"b": 1}, "x": 1}]),
        ),
        (
            with(json!({"anyOf": [{"$ref": "#/$defs/pair"}, {"properties": {"c": {}}, "type": "object"}]})),
            json!([{"a": 1, "b": 2}, {"c": 1}]),
            json!([{"a": 1, "c": 1}, {"x": 1}]),
        ),
        (
            json!({"type": "object", "properties": {"a": {}}, "unevaluatedProperties": false, "allOf": [{"properties": {"b": {}}}]}),
            json!([{"a": 1, "b": 2}]),
            json!([{"a": 1, "x": 2}]),
        ),
    ];
    for (schema, accepted, others) in cases {
        let constraint = bytes.compile(&schema);
        for (values, expected) in [(accepted, true), (others, false)] {
            for value in values.as_array().unwrap() {
                assert_eq!(bytes.accepts_value(&constraint, value), expected, "{schema}: {value}");
            }
        }
    }
}

/// The branches of a `oneOf` are open when they are compared: a closed branch may overlap with an open one.
#[test]
fn branches_of_a_one_of_are_told_apart_by_what_both_describe() {
    let bytes = Bytes::new();
    let animal = |kind: &str, name: &str| json!({"type": "object", "properties": {"kind": {"const": kind}, (name): {}}, "required": ["kind"]});
    let constraint =
        bytes.compile(&json!({"oneOf": [animal("cat", "lives"), animal("dog", "tricks"), {"type": "null"}]}));
    for (value, expected) in [
        (json!({"kind": "cat", "lives": 9}), true),
        (json!({"kind": "dog"}), true),
        (json!(null), true),
        (json!({"kind": "dog", "lives": 9}), false),
        (json!({"kind": "cow"}), false),
    ] {
        assert_eq!(bytes.accepts_value(&constraint, &value), expected, "{value}");
    }
    let refusal = bytes.refusal(&json!({"oneOf": [
        {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
        {"type": "object", "properties": {"b": {"type": "string"}}},
    ]}));
    assert!(refusal.contains("oneOf"), "{refusal}");
}

#[test]
fn references_have_escapes_anchors_and_ids() {
    let bytes = Bytes::new();
    for (name, definition, reference) in [
        ("x/y", json!({"const": 7}), "#/$defs/x~1y"),
        ("x~y", json!({"const": 7}), "#/$defs/x~0y"),
        ("x y", json!({"const": 7}), "#/$defs/x%20y"),
        ("q", json!({"$anchor": "seven", "const": 7}), "#seven"),
        ("q", json!({"$id": "https://example.com/seven", "const": 7}), "https://example.com/seven"),
    ] {
        let schema = json!({"$defs": {name: definition}, "type": "array", "items": {"$ref": reference}});
        let constraint = bytes.compile(&schema);
        assert!(bytes.accepts(&constraint, "[7,7]") && !bytes.accepts(&constraint, "[8]"), "{reference}");
    }
    let tree = json!({"type": "object", "properties": {"v": {"type": "integer"}, "next": {"$ref": "#"}}, "required": ["v"]});
    let constraint = bytes.compile(&tree);
    assert!(bytes.accepts(&constraint, r#"{"v":1,"next":{"v":2,"next":{"v":3}}}"#));
    assert!(!bytes.accepts(&constraint, r#"{"v":1,"next":{"v":2,"x":1}}"#));
}

#[test]
fn integers_are_exact_up_to_the_limits_of_64_bits() {
    let bytes = Bytes::new();
    let range =
        |low: Value, high: Value| bytes.compile(&json!({"type": "integer", "minimum": low, "maximum": high}));
    let all = range(i64::MIN.into(), i64::MAX.into());
    for (text, expected) in [
        ("9223372036854775807", true),
        ("9223372036854775808", false),
        ("-9223372036854774784", true),
        ("-9223372036854775809", false),
        ("0", true),
        ("10000000000000000000", false),
    ] {
        assert_eq!(bytes.accepts(&all, text), expected, "{text}");
    }
    let large = range(json!(9_007_199_254_740_992_u64), json!(9_007_199_254_740_994_u64));
    for (text, expected) in [
        ("9007199254740991", false),
        ("9007199254740992", true),
        ("9007199254740993", true),
        ("9007199254740995", false),
    ] {
        assert_eq!(bytes.accepts(&large, text), expected, "{text}");
    }
    let whole = bytes.compile(&json!({"const": -9_223_372_036_854_774_784_i64}));
    assert!(bytes.accepts(&whole, "-9223372036854774784") && !bytes.accepts(&whole, "9223372036854774784"));
}

#[test]
fn white_space_between_tokens_has_at_most_eight_characters() {
    let bytes = Bytes::new();
    for schema in
        [json!({"type": "object"}), json!({"type": "object", "properties": {"a": {"type": "null"}}})]
    {
        let constraint = bytes.compile(&schema);
        for (spaces, expected) in [(0, true), (8, true), (9, false)] {
            let space = " ".repeat(spaces);
            assert_eq!(
                bytes.accepts(&constraint, &format!("{{{space}\"a\":{space}null}}")),
                expected,
                "{spaces}"
            );
        }
    }
}

/// Schemas whose rewritten form would grow without a limit.
#[test]
fn what_would_grow_without_end_is_refused_or_bounded() {
    let bytes = Bytes::new();
    let level = |at: usize| json!({"anyOf": vec![json!({"$ref": format!("#/$defs/d{at}")}); 100]});
    let lists: Map<String, Value> = (0..9).map(|at| (format!("d{at}"), level(at + 1))).collect();
    let numbers: Vec<usize> = (0..2_000).collect();
    let nots = vec![json!({"not": {"$ref": "#/$defs/numbers"}}); 2_000];
    let ids: Vec<Value> = (0..3_000).map(|at| json!({"$id": format!("{at}")})).collect();
    for schema in [
        json!({"type": "array", "items": {"$ref": "#/$defs/d0"}, "uniqueItems": true, "$defs": lists}),
        json!({"allOf": nots, "$defs": {"numbers": {"enum": numbers}}}),
        json!({"$id": format!("https://example.com/{}/", "x".repeat(4_000)), "prefixItems": ids}),
        json!({"prefixItems": ids}),
    ] {
        let refusal = bytes.refusal(&schema);
        assert!(refusal.len() < 300, "{refusal}");
    }
}

#[test]
fn what_cannot_be_exact_is_refused_by_its_keyword() {
    let bytes = Bytes::new();
    let properties: Map<String, Value> = (0..300).map(|at| (format!("p{at}"), json!({}))).collect();
    for (keyword, schema) in [
        ("const", json!({"const": "a\u{0}b"})),
        ("enum", json!({"enum": ["a", "\u{7f}"]})),
        ("pattern", json!({"type": "string", "pattern": "a\\x00b"})),
        ("const", json!({"const": i64::MIN})),
        ("enum", json!({"enum": [1_u64 << 63]})),
        ("maximum", json!({"type": "integer", "maximum": 9_007_199_254_740_993_u64})),
        ("minimum", json!({"type": "integer", "minimum": u64::MAX})),
        ("multipleOf", json!({"multipleOf": 1e-12})),
        ("not", json!({"not": {"pattern": "a"}})),
        ("if", json!({"if": {"contains": {}}, "then": false})),
        ("uniqueItems", json!({"type": "array", "items": {"type": "string"}, "uniqueItems": true})),
        ("minProperties", json!({"properties": properties, "minProperties": 1})),
        ("maxProperties", json!({"properties": properties, "maxProperties": 9})),
        ("minProperties", json!({"type": "object", "minProperties": 2})),
        (
            "dependentRequired",
            json!({"dependentRequired": (0..9).map(|at| (format!("p{at}"), json!(["a"]))).collect::<Map<_, _>>()}),
        ),
        ("propertyNames", json!({"properties": {"a": {}}, "propertyNames": {"enum": ["a"]}})),
        ("contains", json!({"contains": {"const": 1}})),
        ("unevaluatedItems", json!({"unevaluatedItems": false})),
        ("oneOf", json!({"oneOf": (0..300).map(|at| json!({"minimum": at})).collect::<Vec<_>>()})),
        ("minLength", json!({"type": "string", "minLength": -1})),
        ("$ref", json!({"$ref": "#/$defs/none"})),
        ("$ref", json!({"$ref": "https://example.com/schema.json"})),
    ] {
        let refusal = bytes.refusal(&schema);
        assert!(refusal.contains(keyword), "{keyword}: {refusal}");
        assert!(refusal.len() < 300 && !refusal.contains('\n'), "{refusal}");
    }
}
