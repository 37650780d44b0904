//! Whether no value satisfies two branches of a `oneOf`. Objects may have properties that a branch does not
//! describe: a discriminator separates two branches only if both describe it.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::constants::{DEPTH_MAX, identity, values};
use super::references::{Base, References};
use super::types::Types;
use super::vacuous::has_only;

/// The values of a property or of a branch: their types, and themselves if they are listed.
struct Values {
    types: Types,
    listed: Option<HashSet<String>>,
}

/// A branch of a `oneOf`.
struct Branch<'x> {
    values: Values,
    required: HashSet<&'x str>,
    properties: HashMap<&'x str, Values>,
}

/// Whether the branches exclude each other.
pub(super) fn are_disjoint(branches: &[Value], base: Base, references: &References) -> bool {
    let branches: Vec<Branch> = branches.iter().map(|branch| Branch::of(branch, base, references)).collect();
    let mut pairs = branches
        .iter()
        .enumerate()
        .flat_map(|(at, one)| branches.iter().skip(at + 1).map(move |other| (one, other)));
    pairs.all(|(one, other)| one.is_disjoint(other))
}

impl Values {
    fn of(schema: &Value, base: Base, references: &References) -> Values {
        let listed = values(schema, base, references, DEPTH_MAX);
        let types = match (&listed, schema) {
            (Some(values), _) => values.iter().map(Types::of_value).fold(Types::NONE, Types::or),
            (None, Value::Object(schema)) => Types::of(schema),
            (None, _) => Types::ALL,
        };
        Values { types, listed: listed.map(|values| values.iter().map(identity).collect()) }
    }

    fn is_disjoint(&self, other: &Values) -> bool {
        let differ = |(one, other): (&HashSet<String>, &HashSet<String>)| one.is_disjoint(other);
        self.types.is_disjoint(other.types)
            || self.listed.as_ref().zip(other.listed.as_ref()).is_some_and(differ)
    }
}

impl<'x> Branch<'x> {
    fn of(schema: &'x Value, base: Base, references: &References<'x>) -> Branch<'x> {
        let (schema, base) = target(schema, base, references);
        let field = |keyword: &str| schema.get(keyword);
        let required =
            field("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
        let properties = field("properties").and_then(Value::as_object).into_iter().flatten();
        let properties =
            properties.map(|(name, schema)| (name.as_str(), Values::of(schema, base, references)));
        Branch {
            values: Values::of(schema, base, references),
            required: required.collect(),
            properties: properties.collect(),
        }
    }

    fn is_disjoint(&self, other: &Branch) -> bool {
        let names = self.required.iter().chain(&other.required);
        let mut both = names.filter_map(|name| self.properties.get(name).zip(other.properties.get(name)));
        let are_objects = self.values.types == Types::OBJECT || other.values.types == Types::OBJECT;
        self.values.is_disjoint(&other.values)
            || are_objects && both.any(|(one, other)| one.is_disjoint(other))
    }
}

/// The schema that a schema without other keywords refers to.
fn target<'x>(schema: &'x Value, base: Base, references: &References<'x>) -> (&'x Value, Base) {
    let (mut schema, mut base) = (schema, base);
    for _ in 0..DEPTH_MAX {
        let only =
            |schema: &'x Map<String, Value>| schema.get("$ref").filter(|_| has_only(schema, &["$ref"]));
        let Some(reference) = schema.as_object().and_then(only).and_then(Value::as_str) else { break };
        let Ok(target) = references.resolve(reference, base) else { break };
        (schema, base) = target;
    }
    (schema, base)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::references::ROOT;
    use super::*;

    #[test]
    fn branches_are_disjoint_by_type_constant_or_discriminator() {
        let document = json!({"$defs": {"cat": {"type": "object", "properties": {"kind": {"const": "cat"}}, "required": ["kind"]}}});
        let references = References::of(&document).unwrap();
        let disjoint = |branches: Value| are_disjoint(branches.as_array().unwrap(), ROOT, &references);
        let cat = json!({"$ref": "#/$defs/cat", "title": "Cat"});
        let object = |kind: Value, required: Value| json!({"type": "object", "properties": {"kind": kind}, "required": required});
        for branches in [
            json!([{"type": "string"}, {"type": ["null", "integer"]}, {"const": true}]),
            json!([{"enum": [1, "a"]}, {"enum": [2, "b"]}]),
            json!([cat, object(json!({"enum": ["dog", 1]}), json!([]))]),
            json!([cat, object(json!({"type": "integer"}), json!(["kind"])), {"type": "null"}]),
            json!([cat, {"properties": {"kind": {"const": "dog"}}}]),
        ] {
            assert!(disjoint(branches.clone()), "{branches}");
        }
        for branches in [
            json!([{"type": "number"}, {"type": "integer"}]),
            json!([{"enum": [1]}, {"enum": [1.0]}]),
            json!([cat, {"type": "object", "properties": {"other": {}}, "required": ["other"]}]),
            json!([cat, object(json!({"pattern": "dog"}), json!(["kind"]))]),
            json!([object(json!({"const": 1}), json!([])), object(json!({"const": 2}), json!([]))]),
            json!([{"properties": {"kind": {"const": 1}}, "required": ["kind"]}, {"properties": {"kind": {"const": 2}}}]),
        ] {
            assert!(!disjoint(branches.clone()), "{branches}");
        }
    }
}
