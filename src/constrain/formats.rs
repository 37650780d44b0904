//! Formats of a schema's texts that say nothing which a text could break.

use std::ops::Range;

use serde_json::{Map, Value};

/// The formats that JSON Schema itself defines (draft 2020-12, validation, section 7.3). Any other is an annotation:
/// `password` and `binary` of OpenAPI, `path` of pydantic.
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

/// Keywords whose value is a schema or a list of schemas, and those whose value has schemas by name. What is in no
/// other keyword is a schema: a constant may look like one.
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

/// Takes formats out of a grammar's schemas, which stand at these places.
pub(super) fn drop_in_lark(text: &str, schemas: &[Range<usize>]) -> String {
    let (mut kept, mut end) = (String::with_capacity(text.len()), 0);
    for place in schemas {
        let schema = text.get(place.clone()).and_then(|schema| serde_json::from_str(schema).ok());
        if let Some(Value::Object(mut schema)) = schema
            && drop_annotations(&mut schema)
        {
            kept.push_str(text.get(end..place.start).unwrap_or_default());
            kept.push_str(&format!(" {}", Value::Object(schema)));
            end = place.end;
        }
    }
    kept + text.get(end..).unwrap_or_default()
}

/// Takes formats out of a schema that JSON Schema does not define, wherever the schema has others in it. Returns whether
/// there were any.
pub(super) fn drop_annotations(schema: &mut Map<String, Value>) -> bool {
    let mut dropped = false;
    let mut open = vec![schema];
    while let Some(schema) = open.pop() {
        if schema.get("format").and_then(Value::as_str).is_some_and(|format| !DEFINED.contains(&format)) {
            schema.shift_remove("format");
            dropped = true;
        }
        for (keyword, value) in schema {
            let (keyword, by_name) = (keyword.as_str(), BY_NAME.contains(&keyword.as_str()));
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
    dropped
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
        let dropped = |schema: Value| {
            let mut schema = schema.as_object().cloned().unwrap();
            drop_annotations(&mut schema);
            Value::Object(schema)
        };
        assert_eq!(dropped(schema(&unknown)), schema(&plain));
        assert_eq!(dropped(schema(&known)), schema(&known));
        let values = json!({"const": unknown, "enum": [unknown], "default": unknown, "properties": {"a": 5}});
        assert_eq!(dropped(values.clone()), values);
    }

    #[test]
    fn schemas_in_a_grammar_are_found_and_all_else_stays() {
        let text = r#"start: "%json {}" a b
a: %json {"type": "string", "format": "path"} | %json {"const": {"format": "path"}}
b: %json {"format": "uuid", "items": {"format": "int32"}} "x""#;
        let schemas = crate::constrain::bounds::lark(text).unwrap();
        let expected = r#"start: "%json {}" a b
a: %json {"type":"string"} | %json {"const": {"format": "path"}}
b: %json {"format":"uuid","items":{}} "x""#;
        assert_eq!(drop_in_lark(text, &schemas), expected);
    }
}
