//! Rewrites a JSON schema for llguidance: drops vacuous keywords (unknown `format`s, `uniqueItems: false`, …)
//! and turns a `oneOf` of constants into an `enum`.

use serde_json::{Map, Number, Value};

/// Formats that JSON Schema defines (draft 2020-12, validation, section 7.3). Any other is an annotation,
/// such as `password` and `binary` of OpenAPI or `path` of pydantic.
const DEFINED: [&str; 19] = [
    "date",
    "date-time",
    "duration",
    "email",
    "hostname",
    "idn-email",
    "idn-hostname",
    "ipv4",
    "ipv6",
    "iri",
    "iri-reference",
    "json-pointer",
    "regex",
    "relative-json-pointer",
    "time",
    "uri",
    "uri-reference",
    "uri-template",
    "uuid",
];

/// Keywords with a schema or a list of schemas as their value, and keywords with named schemas. Other
/// keywords contain no schemas, although a constant may look like one.
const SCHEMAS: [&str; 15] = [
    "additionalItems",
    "additionalProperties",
    "allOf",
    "anyOf",
    "contains",
    "else",
    "if",
    "items",
    "not",
    "oneOf",
    "prefixItems",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
];
const BY_NAME: [&str; 5] = ["$defs", "definitions", "dependentSchemas", "patternProperties", "properties"];
/// Keywords with numbers that constrain the answer.
const NUMBERS: [&str; 7] =
    ["const", "enum", "exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf"];

/// Whether a keyword has no effect: every value satisfies it, or it applies to none.
fn asks_for_nothing(schema: &Map<String, Value>, keyword: &str, value: &Value) -> bool {
    let is_empty = || value.as_object().is_some_and(Map::is_empty);
    match keyword {
        "format" => value.as_str().is_some_and(|format| !DEFINED.contains(&format)),
        "uniqueItems" | "not" | "$recursiveAnchor" => value == false,
        "unevaluatedProperties" | "unevaluatedItems" => value == true || is_empty(),
        // Property names are always strings.
        "propertyNames" => value == true || is_empty() || *value == serde_json::json!({"type": "string"}),
        "dependentRequired" | "dependentSchemas" | "dependencies" => is_empty(),
        "if" => !schema.contains_key("then") && !schema.contains_key("else"),
        "then" | "else" => !schema.contains_key("if"),
        "minContains" | "maxContains" => !schema.contains_key("contains"),
        _ => false,
    }
}

/// Drops vacuous keywords from a schema and its subschemas.
///
/// # Errors
/// A number that llguidance would round.
pub(super) fn normalise(schema: &mut Map<String, Value>) -> Result<(), String> {
    let mut open = vec![schema];
    while let Some(schema) = open.pop() {
        let empty = |(keyword, value): (&String, &Value)| {
            asks_for_nothing(schema, keyword, value).then(|| keyword.clone())
        };
        for keyword in schema.iter().filter_map(empty).collect::<Vec<_>>() {
            schema.shift_remove(&keyword);
        }
        open_one_of(schema);
        for (keyword, value) in schema {
            let keyword = keyword.as_str();
            if let Some(number) = NUMBERS.contains(&keyword).then(|| rounded(value)).flatten() {
                return Err(format!(
                    "{keyword}: expected whole numbers up to 9007199254740992, found {number}"
                ));
            }
            let by_name = BY_NAME.contains(&keyword);
            if !by_name && !SCHEMAS.contains(&keyword) {
                continue;
            }
            match value {
                Value::Object(map) => match by_name {
                    true => open.extend(map.values_mut().filter_map(Value::as_object_mut)),
                    false => open.push(map),
                },
                Value::Array(list) => open.extend(list.iter_mut().filter_map(Value::as_object_mut)),
                _ => {}
            }
        }
    }
    Ok(())
}

/// Turns a `oneOf` of distinct constants into an `enum`. Any other `oneOf` gets the keyword `discriminator`,
/// unknown to llguidance: with it, references are resolved when branches are checked for overlap.
fn open_one_of(schema: &mut Map<String, Value>) {
    let Some(Value::Array(branches)) = schema.get("oneOf") else { return };
    let constant = |branch: &Value| {
        let says_no_more = |key: &String| key == "const" || ["title", "description"].contains(&key.as_str());
        let branch = branch.as_object().filter(|branch| branch.keys().all(says_no_more))?;
        branch.get("const").cloned()
    };
    let constants: Option<Vec<Value>> = branches.iter().map(constant).collect();
    let differ = |all: &Vec<Value>| all.iter().enumerate().all(|(at, value)| !all[..at].contains(value));
    match constants.filter(differ).filter(|_| !schema.contains_key("enum")) {
        Some(constants) => {
            schema.shift_remove("oneOf");
            schema.insert("enum".into(), constants.into());
        }
        None => _ = schema.entry("discriminator").or_insert_with(|| Map::new().into()),
    }
}

/// First integer within a value that f64 cannot represent.
fn rounded(value: &Value) -> Option<&Number> {
    match value {
        Value::Number(number) => {
            let held = |whole: i128| whole as f64 as i128 == whole;
            let whole = number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from));
            whole.is_some_and(|whole| !held(whole)).then_some(number)
        }
        Value::Array(list) => list.iter().find_map(rounded),
        Value::Object(map) => map.values().find_map(rounded),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Normalised copy of a schema.
    fn made(schema: &Value) -> Value {
        let mut schema = schema.as_object().cloned().unwrap();
        normalise(&mut schema).unwrap();
        Value::Object(schema)
    }

    #[test]
    fn only_what_json_schema_defines_is_left_and_values_are_as_they_were() {
        let unknown = json!({"type": "string", "format": "password"});
        let known = json!({"type": "string", "format": "idn-email"});
        let plain = json!({"type": "string"});
        let schema = |inner: &Value| {
            json!({
                "properties": {"format": inner, "const": inner},
                "items": [inner],
                "prefixItems": [{"contains": inner}],
                "allOf": [{"if": true, "then": inner, "else": inner}],
                "anyOf": [{"additionalProperties": inner}, true],
                "$defs": {"a": {"not": {"patternProperties": {"b": inner}}}},
            })
        };
        assert_eq!(made(&schema(&unknown)), schema(&plain));
        assert_eq!(made(&schema(&known)), schema(&known));
        let values = json!({"const": unknown, "enum": [unknown], "default": unknown, "properties": {"a": 5}});
        assert_eq!(made(&values), values);
    }

    #[test]
    fn keywords_that_ask_for_nothing_are_dropped_and_others_are_not() {
        let nothing = json!({
            "type": "object", "uniqueItems": false, "not": false, "unevaluatedProperties": true,
            "unevaluatedItems": {}, "propertyNames": {"type": "string"}, "dependentRequired": {}, "dependencies": {},
            "dependentSchemas": {}, "if": {"const": 1}, "minContains": 0,
        });
        assert_eq!(made(&nothing), json!({"type": "object"}));
        assert_eq!(made(&json!({"then": {"const": 1}})), json!({}));
        for schema in [
            json!({"uniqueItems": true}),
            json!({"not": true}),
            json!({"unevaluatedProperties": false}),
            json!({"propertyNames": {"maxLength": 3}}),
            json!({"dependentRequired": {"a": ["b"]}}),
            json!({"if": true, "then": {"const": 1}}),
            json!({"contains": {"const": 1}, "minContains": 0}),
        ] {
            assert_eq!(made(&schema), schema);
        }
    }

    #[test]
    fn one_of_constants_is_an_enum_and_others_stand_beside_what_is_unknown() {
        let named = json!({"oneOf": [{"const": 1, "title": "one"}, {"const": "b", "description": "bee"}]});
        assert_eq!(made(&named), json!({"enum": [1, "b"]}));
        for branches in [
            json!([{"const": 1}, {"const": 1}]),
            json!([{"const": 1}, {"const": 2, "minimum": 3}]),
            json!([{"$ref": "#/$defs/a"}, {"type": "null"}]),
        ] {
            assert_eq!(made(&json!({"oneOf": branches})), json!({"oneOf": branches, "discriminator": {}}));
        }
    }

    #[test]
    fn numbers_that_would_be_rounded_are_refused() {
        let message = |schema: Value| normalise(&mut schema.as_object().cloned().unwrap());
        for schema in [
            json!({"const": 9_007_199_254_740_993_u64}),
            json!({"items": {"enum": ["a", [1_234_567_890_123_456_789_u64]]}}),
            json!({"properties": {"a": {"maximum": i64::MAX}}}),
            json!({"minimum": -9_007_199_254_740_993_i64}),
        ] {
            assert!(message(schema.clone()).unwrap_err().contains("up to 9007199254740992"), "{schema}");
        }
        for schema in [
            json!({"const": 9_007_199_254_740_992_u64, "enum": [0.1, -5, 1e300], "minimum": i64::MIN}),
            json!({"default": i64::MAX, "properties": {"const": {"description": "9007199254740993"}}}),
        ] {
            assert_eq!(message(schema.clone()), Ok(()), "{schema}");
        }
    }
}
