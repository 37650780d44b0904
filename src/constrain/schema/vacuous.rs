//! Keywords of JSON Schema, and those that constrain no value.

use serde_json::{Map, Value, json};

/// Formats that JSON Schema defines (draft 2020-12, validation, section 7.3). Any other is an annotation,
/// such as `password` and `binary` of OpenAPI or `path` of pydantic.
const FORMATS: [&str; 19] = [
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

/// Keywords that constrain values. Any other is an annotation or unknown, and has no effect.
pub(super) const KEYWORDS: [&str; 43] = [
    "$dynamicRef",
    "$recursiveRef",
    "$ref",
    "additionalItems",
    "additionalProperties",
    "allOf",
    "anyOf",
    "const",
    "contains",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "else",
    "enum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "if",
    "items",
    "maxContains",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minContains",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "not",
    "oneOf",
    "pattern",
    "patternProperties",
    "prefixItems",
    "properties",
    "propertyNames",
    "required",
    "then",
    "type",
    "unevaluatedItems",
    "unevaluatedProperties",
    "uniqueItems",
];

/// Whether a schema has none but these of the keywords that constrain values.
pub(super) fn has_only(schema: &Map<String, Value>, keywords: &[&str]) -> bool {
    schema.keys().all(|key| keywords.contains(&key.as_str()) || !KEYWORDS.contains(&key.as_str()))
}

/// Whether a keyword has no effect: every value satisfies it, or it applies to none.
pub(super) fn is_vacuous(schema: &Map<String, Value>, keyword: &str, value: &Value) -> bool {
    let is_empty = || value.as_object().is_some_and(Map::is_empty);
    match keyword {
        "format" => value.as_str().is_some_and(|format| !FORMATS.contains(&format)),
        "uniqueItems" | "not" => value == false,
        "unevaluatedProperties" | "unevaluatedItems" => value == true || is_empty(),
        // Property names are always strings.
        "propertyNames" => value == true || is_empty() || *value == json!({"type": "string"}),
        "dependentRequired" | "dependentSchemas" | "dependencies" => is_empty(),
        "if" => !schema.contains_key("then") && !schema.contains_key("else"),
        "then" | "else" => !schema.contains_key("if"),
        "minContains" | "maxContains" => !schema.contains_key("contains"),
        _ => false,
    }
}
