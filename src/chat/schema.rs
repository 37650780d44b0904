//! Type inference on the JSON schema of a tool's parameters.

use std::collections::BTreeSet;

use serde_json::Value as Json;

/// Maximum nesting of `$ref`, `anyOf`, `oneOf` and `allOf` on the way to a value's type.
const DEPTH_MAX: usize = 8;
/// Work limit of one inference, in schemas, listed values and bytes of references. References may fan out
/// exponentially: several schemas can refer to the same others.
const LOOKS_MAX: usize = 4096;

/// Whether a parameter takes strings only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Strings only: the text is never parsed as another type.
    Text,
    /// Other types, or an unconstrained schema.
    Any,
}

/// The kind of parameter `key`.
pub(crate) fn kind(parameters: &Json, key: &str) -> Kind {
    let types = types(parameters, &parameters["properties"][key]);
    if !types.is_empty() && types.iter().all(|name| *name == "string") { Kind::Text } else { Kind::Any }
}

/// The JSON types that `schema` allows, with `$ref`s resolved in `root`. Empty if unconstrained or if a
/// limit is reached.
pub(crate) fn types<'s>(root: &'s Json, schema: &'s Json) -> BTreeSet<&'s str> {
    Reader { root, left: LOOKS_MAX }.types(schema, DEPTH_MAX)
}

struct Reader<'s> {
    root: &'s Json,
    /// Remaining work, of [`LOOKS_MAX`].
    left: usize,
}

impl<'s> Reader<'s> {
    fn types(&mut self, schema: &'s Json, depth: usize) -> BTreeSet<&'s str> {
        let reference = schema["$ref"].as_str();
        let values = ["type", "enum"].map(|key| schema[key].as_array().map_or(0, Vec::len));
        let looks = 1 + reference.map_or(0, str::len) + values.iter().sum::<usize>();
        self.left = self.left.saturating_sub(looks);
        if depth == 0 || self.left == 0 {
            return BTreeSet::new();
        }
        if let Some(path) = reference.and_then(|path| path.strip_prefix('#')) {
            let found = self.root.pointer(path);
            return found.map_or_else(BTreeSet::new, |schema| self.types(schema, depth - 1));
        }
        let mut found: BTreeSet<&str> = match &schema["type"] {
            Json::String(name) => BTreeSet::from([name.as_str()]),
            Json::Array(names) => names.iter().filter_map(Json::as_str).collect(),
            _ => BTreeSet::new(),
        };
        if found.contains("number") {
            found.insert("integer");
        }
        let values = || schema["enum"].as_array().into_iter().flatten().chain(schema.get("const"));
        if found.is_empty() && values().all(Json::is_string) && values().next().is_some() {
            found.insert("string");
        }
        if found.is_empty() { self.of_variants(schema, depth) } else { found }
    }

    /// Union of the types of all variants; empty if one variant is unconstrained.
    fn of_variants(&mut self, schema: &'s Json, depth: usize) -> BTreeSet<&'s str> {
        let variants =
            ["anyOf", "oneOf", "allOf"].into_iter().filter_map(|name| schema.get(name)?.as_array());
        let mut found = BTreeSet::new();
        for variant in variants.flatten() {
            let of_one = self.types(variant, depth - 1);
            if of_one.is_empty() {
                return of_one;
            }
            found.extend(of_one);
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn types_are_those_of_all_variants() {
        let root = json!({"$defs": {"line": {"enum": ["a"]}, "count": {"type": "number"}}});
        let schema =
            json!({"anyOf": [{"$ref": "#/$defs/line"}, {"$ref": "#/$defs/count"}, {"type": "null"}]});
        assert_eq!(types(&root, &schema), ["integer", "null", "number", "string"].into());
        assert_eq!(types(&root, &json!({"anyOf": [{"type": "null"}, {}]})), BTreeSet::new());
    }

    /// Without the work limit, the widest schema needs 200^4 lookups.
    #[test]
    fn references_to_references_end_soon() {
        let variants = |name: &str| vec![json!({"$ref": format!("#/$defs/{name}")}); 200];
        let root = json!({"$defs": {
            "a": {"anyOf": variants("b")}, "b": {"anyOf": variants("c")},
            "c": {"anyOf": vec![json!({"type": "string"}); 200]},
            "many": {"enum": vec!["x"; LOOKS_MAX]},
        }});
        let long = format!("#{}", "/x".repeat(LOOKS_MAX));
        let names = vec!["string"; LOOKS_MAX];
        for schema in [
            json!({"anyOf": variants("a")}),
            json!({"$ref": "#/$defs/many"}),
            json!({"$ref": long}),
            json!({"type": names}),
        ] {
            let mut reader = Reader { root: &root, left: LOOKS_MAX };
            assert_eq!((reader.types(&schema, DEPTH_MAX), reader.left), (BTreeSet::new(), 0));
        }
    }
}
