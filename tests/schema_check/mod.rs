//! A validator of JSON Schema that reads as the specification (draft 2020-12), for the keywords of the tests.

use serde_json::{Map, Value};

/// Whether a value satisfies a schema of the document `root`.
pub fn is_valid(root: &Value, schema: &Value, value: &Value) -> bool {
    let Value::Object(schema) = schema else { return schema == true };
    let valid = |schema: &Value, value: &Value| is_valid(root, schema, value);
    schema.iter().all(|(keyword, wanted)| match keyword.as_str() {
        "$ref" => {
            let pointer =
                wanted.as_str().and_then(|reference| reference.strip_prefix('#')).expect("a pointer");
            valid(root.pointer(pointer).expect("a target"), value)
        }
        "allOf" => list(wanted).iter().all(|schema| valid(schema, value)),
        "anyOf" => list(wanted).iter().any(|schema| valid(schema, value)),
        "oneOf" => list(wanted).iter().filter(|schema| valid(schema, value)).count() == 1,
        "not" => !valid(wanted, value),
        "if" => {
            let branch = if valid(wanted, value) { "then" } else { "else" };
            schema.get(branch).is_none_or(|schema| valid(schema, value))
        }
        "then" | "else" | "$defs" => true,
        "type" => match wanted {
            Value::Array(kinds) => kinds.iter().any(|kind| is_of_type(kind, value)),
            kind => is_of_type(kind, value),
        },
        "const" => equal(wanted, value),
        "enum" => list(wanted).iter().any(|wanted| equal(wanted, value)),
        _ => match value {
            Value::Object(object) => is_valid_object(root, schema, (keyword, wanted), object),
            Value::Array(items) => is_valid_array(root, schema, (keyword, wanted), items),
            Value::String(text) => is_valid_text(keyword, wanted, text),
            Value::Number(number) => is_valid_number(keyword, wanted, number.as_f64().expect("a number")),
            Value::Null | Value::Bool(_) => true,
        },
    })
}

fn is_valid_object(
    root: &Value,
    schema: &Map<String, Value>,
    (keyword, wanted): (&str, &Value),
    object: &Map<String, Value>,
) -> bool {
    let has = |name: &Value| object.contains_key(name.as_str().expect("a name"));
    let property = |name: &str| schema.get("properties").and_then(|properties| properties.get(name));
    let valid = |schema: &Value, value: &Value| is_valid(root, schema, value);
    match keyword {
        "properties" => {
            object.iter().all(|(name, value)| property(name).is_none_or(|schema| valid(schema, value)))
        }
        "additionalProperties" => {
            object.iter().all(|(name, value)| property(name).is_some() || valid(wanted, value))
        }
        "propertyNames" => object.keys().all(|name| valid(wanted, &name.as_str().into())),
        "required" => list(wanted).iter().all(has),
        "minProperties" => object.len() as u64 >= wanted.as_u64().expect("a count"),
        "maxProperties" => object.len() as u64 <= wanted.as_u64().expect("a count"),
        "dependentRequired" | "dependentSchemas" | "dependencies" => {
            let needed =
                wanted.as_object().expect("an object").iter().filter(|(name, _)| object.contains_key(*name));
            needed.into_iter().all(|(_, needed)| match needed {
                Value::Array(names) => names.iter().all(has),
                schema => valid(schema, &object.clone().into()),
            })
        }
        _ => is_of_others(keyword, 0),
    }
}

fn is_valid_array(
    root: &Value,
    schema: &Map<String, Value>,
    (keyword, wanted): (&str, &Value),
    items: &[Value],
) -> bool {
    let valid = |schema: &Value, value: &Value| is_valid(root, schema, value);
    match keyword {
        "prefixItems" => list(wanted).iter().zip(items).all(|(schema, item)| valid(schema, item)),
        "items" => {
            let before = schema.get("prefixItems").map_or(0, |prefix| list(prefix).len());
            items.iter().skip(before).all(|item| valid(wanted, item))
        }
        "minItems" => items.len() as u64 >= wanted.as_u64().expect("a count"),
        "maxItems" => items.len() as u64 <= wanted.as_u64().expect("a count"),
        "uniqueItems" => {
            let repeats = |(at, item): (usize, &Value)| items[..at].iter().any(|other| equal(other, item));
            *wanted == false || !items.iter().enumerate().any(repeats)
        }
        _ => is_of_others(keyword, 1),
    }
}

fn is_valid_text(keyword: &str, wanted: &Value, text: &str) -> bool {
    let length = text.chars().count() as u64;
    match keyword {
        "minLength" => length >= wanted.as_u64().expect("a length"),
        "maxLength" => length <= wanted.as_u64().expect("a length"),
        _ => is_of_others(keyword, 2),
    }
}

fn is_valid_number(keyword: &str, wanted: &Value, number: f64) -> bool {
    let wanted = wanted.as_f64();
    match keyword {
        "minimum" => number >= wanted.expect("a bound"),
        "maximum" => number <= wanted.expect("a bound"),
        "exclusiveMinimum" => number > wanted.expect("a bound"),
        "exclusiveMaximum" => number < wanted.expect("a bound"),
        "multipleOf" => number % wanted.expect("a step") == 0.0,
        _ => is_of_others(keyword, 3),
    }
}

/// Whether a keyword is for values of other types. Any other keyword has no implementation here.
fn is_of_others(keyword: &str, own: usize) -> bool {
    let keywords: [&[&str]; 4] = [
        &[
            "properties",
            "additionalProperties",
            "propertyNames",
            "required",
            "minProperties",
            "maxProperties",
            "dependentRequired",
            "dependentSchemas",
            "dependencies",
        ],
        &["prefixItems", "items", "minItems", "maxItems", "uniqueItems"],
        &["minLength", "maxLength"],
        &["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"],
    ];
    let known = keywords.iter().enumerate().any(|(at, keywords)| at != own && keywords.contains(&keyword));
    assert!(known, "the validator has no {keyword}");
    true
}

fn is_of_type(kind: &Value, value: &Value) -> bool {
    match kind.as_str().expect("a type") {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "number" => value.is_number(),
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("there is no type {other}"),
    }
}

/// Equality of values: numbers by their value, objects in any order.
fn equal(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => one.as_f64() == other.as_f64(),
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| equal(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            let same =
                |(name, value): (&String, &Value)| other.get(name).is_some_and(|other| equal(value, other));
            one.len() == other.len() && one.iter().all(same)
        }
        _ => one == other,
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}
