//! Constants of `const` and `enum`: those that a grammar cannot write exactly are refused.

use std::collections::HashSet;

use serde_json::{Map, Number, Value};

use super::numbers::rounded;
use super::references::{Base, References};
use super::types::{Types, is_integer};
use super::vacuous::has_only;
use crate::constrain::error::quotation;
use crate::constrain::regex::is_writable;

/// Maximum number of integers in a range that counts as a set of constants.
const RANGE_MAX: i64 = 64;
/// Maximum depth of references to a list of values.
pub(super) const DEPTH_MAX: usize = 8;

/// A constant as llguidance writes it exactly.
///
/// # Errors
/// A text with a character that an answer cannot contain, or a number that would be rounded.
pub(super) fn exact(keyword: &str, value: &Value) -> Result<Value, String> {
    Ok(match value {
        Value::String(text) => match text.chars().find(|&c| !is_writable(c)) {
            Some(c) => {
                let (point, text) = (u32::from(c), quotation(text));
                return Err(format!("{keyword}: the character U+{point:04X} is not supported in {text}"));
            }
            None => value.clone(),
        },
        Value::Number(number) if rounded(number) || is_beyond(number) => {
            return Err(format!("{keyword}: expected whole numbers up to 9007199254740992, found {number}"));
        }
        Value::Array(list) => list.iter().map(|value| exact(keyword, value)).collect::<Result<_, _>>()?,
        Value::Object(map) => {
            let fields = map.iter().map(|(name, value)| Ok((name.clone(), exact(keyword, value)?)));
            Value::Object(fields.collect::<Result<_, String>>()?)
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    })
}

/// Whether llguidance writes an integer with the digits of a `f64`, or negates it beyond `i64`.
fn is_beyond(number: &Number) -> bool {
    !number.is_f64() && number.as_i64().is_none_or(|whole| whole == i64::MIN)
}

/// Text that equal values have in common: 1 equals 1.0, and fields have no order.
pub(super) fn identity(value: &Value) -> String {
    match value {
        Value::Number(number) if !rounded(number) => {
            // Zero has one sign.
            format!("{}", number.as_f64().unwrap_or_default() + 0.0)
        }
        Value::Array(list) => format!("[{}]", list.iter().map(identity).collect::<Vec<_>>().join(",")),
        Value::Object(map) => {
            let field = |(name, value): (&String, &Value)| format!("{name:?}:{}", identity(value));
            let mut fields: Vec<String> = map.iter().map(field).collect();
            fields.sort();
            format!("{{{}}}", fields.join(","))
        }
        other => other.to_string(),
    }
}

/// Distinct values, in the order of their first occurrence.
pub(super) fn distinct(values: impl IntoIterator<Item = Value>) -> Vec<Value> {
    let mut seen = HashSet::new();
    values.into_iter().filter(|value| seen.insert(identity(value))).collect()
}

/// The values of a schema that lists them, itself or through references and `anyOf`; `None` for any other.
pub(super) fn values(
    schema: &Value,
    base: Base,
    references: &References,
    depth: usize,
) -> Option<Vec<Value>> {
    let (schema, depth) = (schema.as_object()?, depth.checked_sub(1)?);
    if !references.visit(1 + schema.get("enum").and_then(Value::as_array).map_or(0, Vec::len)) {
        return None;
    }
    match (schema.get("$ref"), schema.get("anyOf")) {
        (Some(Value::String(reference)), None) if has_only(schema, &["$ref"]) => {
            let (target, base) = references.resolve(reference, base).ok()?;
            values(target, base, references, depth)
        }
        (None, Some(Value::Array(branches))) if has_only(schema, &["anyOf"]) => {
            let all = branches.iter().map(|branch| values(branch, base, references, depth));
            Some(distinct(all.collect::<Option<Vec<_>>>()?.into_iter().flatten()))
        }
        _ => listed(schema),
    }
}

/// The values of a schema that only lists them; `None` for any other.
pub(super) fn listed(schema: &Map<String, Value>) -> Option<Vec<Value>> {
    const KEYWORDS: [&str; 5] = ["const", "enum", "maximum", "minimum", "type"];
    if !has_only(schema, &KEYWORDS) {
        return None;
    }
    let has_bounds = schema.keys().any(|key| key.ends_with("imum"));
    let types = Types::of(schema);
    let of_type = |value: &Value| {
        let is_whole = || value.as_f64().is_some_and(|number| number.fract() == 0.0);
        Types::of_value(value).is_within(types) && (!value.is_number() || !is_integer(schema) || is_whole())
    };
    match (schema.get("const"), schema.get("enum").and_then(Value::as_array)) {
        (Some(_), Some(_)) => None,
        (Some(value), None) if !has_bounds => {
            Some([value].into_iter().filter(|value| of_type(value)).cloned().collect())
        }
        (None, Some(values)) if !has_bounds => {
            Some(distinct(values.iter().filter(|value| of_type(value)).cloned()))
        }
        (None, None) => match schema.get("type")?.as_str()? {
            "null" => Some(vec![Value::Null]),
            "boolean" => Some(vec![true.into(), false.into()]),
            "integer" => {
                let bound = |keyword: &str| schema.get(keyword).and_then(Value::as_i64);
                let (low, high) = (bound("minimum")?, bound("maximum")?);
                (high.checked_sub(low)? < RANGE_MAX).then(|| (low..=high).map(Value::from).collect())
            }
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn constants_are_exact_or_refused() {
        for value in [
            json!("a\n\t\u{8}\u{c}\r\"\\é"),
            json!([1, 0.5, {"a\u{0}": null}]),
            json!(9_007_199_254_740_992_u64),
        ] {
            assert_eq!(exact("enum", &value), Ok(value));
        }
        for value in [
            json!("a\u{0}b"),
            json!("\u{7f}"),
            json!({"a": ["\u{1b}"]}),
            json!(i64::MAX),
            json!([1_u64 << 63]),
            json!(i64::MIN),
        ] {
            assert!(exact("enum", &value).unwrap_err().starts_with("enum: "), "{value}");
        }
    }

    #[test]
    fn equal_values_are_one() {
        let values = [
            json!(1),
            json!(1.0),
            json!("1"),
            json!({"a": 1, "b": 0}),
            json!({"b": -0.0, "a": 1.0}),
            json!([1]),
            json!(null),
        ];
        assert_eq!(distinct(values).len(), 5);
    }

    #[test]
    fn a_schema_of_few_values_lists_them() {
        let values = |schema: Value| listed(schema.as_object().unwrap());
        assert_eq!(
            values(json!({"enum": ["a", 1, "a", 1.0, 2.5], "type": ["string", "integer"]})),
            Some(vec!["a".into(), 1.into()])
        );
        assert_eq!(
            values(json!({"type": "integer", "minimum": -1, "maximum": 1})),
            Some(vec![(-1).into(), 0.into(), 1.into()])
        );
        assert_eq!(values(json!({"type": "boolean"})), Some(vec![true.into(), false.into()]));
        for schema in [
            json!({}),
            json!({"type": "integer"}),
            json!({"enum": [1], "minimum": 0}),
            json!({"enum": ["a"], "maxLength": 3}),
            json!({"type": "integer", "minimum": i64::MIN, "maximum": i64::MAX}),
        ] {
            assert_eq!(values(schema.clone()), None, "{schema}");
        }
    }
}
