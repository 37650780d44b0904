//! `uniqueItems` of arrays with few values: every sequence of different values is a constant.

use serde_json::{Map, Value};

use super::types::Types;

/// Maximum number of sequences.
const SEQUENCES_MAX: usize = 600;

/// Arrays without equal items.
#[derive(Debug, PartialEq)]
pub(super) enum Unique {
    /// All that the other keywords allow.
    All,
    /// These arrays.
    Of(Vec<Value>),
}

/// Arrays without equal items under a schema, given the values of its items if they are few.
///
/// # Errors
/// Too many values.
pub(super) fn unique(schema: &Map<String, Value>, values: Option<&[Value]>) -> Result<Unique, String> {
    let bound =
        |keyword: &str| schema.get(keyword).and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok());
    let (least, most) = (bound("minItems").unwrap_or(0), bound("maxItems"));
    if most.is_some_and(|most| most < 2) || is_tuple_of_types(schema) {
        return Ok(Unique::All);
    }
    let alone =
        ["prefixItems", "additionalItems", "contains"].iter().all(|keyword| !schema.contains_key(*keyword));
    let sequences = values.filter(|_| alone).and_then(|values| sequences(values, least, most));
    let sequences = sequences.ok_or_else(|| {
        format!(
            "uniqueItems: expected items from a list, with at most {SEQUENCES_MAX} arrays of different ones"
        )
    });
    sequences.map(Unique::Of)
}

/// Whether a schema has a type of its own for each item.
fn is_tuple_of_types(schema: &Map<String, Value>) -> bool {
    let Some(Value::Array(items)) = schema.get("prefixItems") else { return false };
    let types: Vec<Types> = items.iter().map(|item| item.as_object().map_or(Types::ALL, Types::of)).collect();
    let differ = types
        .iter()
        .enumerate()
        .all(|(at, one)| types.iter().skip(at + 1).all(|other| one.is_disjoint(*other)));
    let is_short =
        || schema.get("maxItems").and_then(Value::as_u64).is_some_and(|most| most <= types.len() as u64);
    differ && (schema.get("items") == Some(&Value::Bool(false)) || is_short())
}

/// Sequences of different values, as arrays.
fn sequences(values: &[Value], least: usize, most: Option<usize>) -> Option<Vec<Value>> {
    let most = most.unwrap_or(values.len()).min(values.len());
    let (mut total, mut of_length) = (0, 1_usize);
    for length in 0..=most {
        total += if length < least { 0 } else { of_length };
        of_length = of_length.saturating_mul(values.len() - length);
        // The next length is made from all of this one, even if `least` leaves them out.
        if total > SEQUENCES_MAX || (length < most && of_length > SEQUENCES_MAX) {
            return None;
        }
    }
    let (mut all, mut longest) = (Vec::new(), vec![Vec::<&Value>::new()]);
    for length in 0..=most {
        if length >= least {
            all.extend(
                longest.iter().map(|sequence| Value::Array(sequence.iter().copied().cloned().collect())),
            );
        }
        longest = longest.iter().flat_map(|sequence| extended(sequence, values)).collect();
    }
    Some(all)
}

/// A sequence with each of the values that it does not have.
fn extended<'v>(sequence: &[&'v Value], values: &'v [Value]) -> Vec<Vec<&'v Value>> {
    let others = values.iter().filter(|value| !sequence.iter().any(|used| std::ptr::eq(*used, *value)));
    others.map(|value| sequence.iter().copied().chain([value]).collect()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn sequences_are_all_of_different_values() {
        let made = |schema: Value, values: Option<&[Value]>| unique(schema.as_object().unwrap(), values);
        let values = [json!("a"), json!(1)];
        let arrays = |arrays: Value| Ok(Unique::Of(arrays.as_array().unwrap().clone()));
        assert_eq!(made(json!({}), Some(&values)), arrays(json!([[], ["a"], [1], ["a", 1], [1, "a"]])));
        assert_eq!(made(json!({"minItems": 2}), Some(&values)), arrays(json!([["a", 1], [1, "a"]])));
        assert_eq!(made(json!({"minItems": 3}), Some(&values)), arrays(json!([])));
        let many: Vec<Value> = (0..24).map(Value::from).collect();
        assert_eq!(made(json!({"maxItems": 1}), None), Ok(Unique::All));
        assert!(
            matches!(made(json!({"maxItems": 2}), Some(&many)), Ok(Unique::Of(arrays)) if arrays.len() == 1 + 24 + 24 * 23)
        );
        let tuple = json!([{"type": "string"}, {"type": ["integer", "null"]}]);
        assert_eq!(made(json!({"prefixItems": tuple, "items": false}), None), Ok(Unique::All));
        for (schema, values) in [
            (json!({}), Some(&many[..])),
            (json!({}), None),
            (json!({"prefixItems": tuple}), None),
            (json!({"prefixItems": [{"type": "number"}, {"type": "integer"}], "items": false}), None),
        ] {
            assert!(made(schema, values).unwrap_err().starts_with("uniqueItems: "));
        }
    }
}
