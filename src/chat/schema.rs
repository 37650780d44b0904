//! What the schema of a tool's arguments says of the types of one.

use serde_json::Value as Json;

/// Most schemas that stand within each other before a value's type.
const DEPTH_MAX: usize = 8;

/// What a parameter may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A text, whatever it looks like.
    Text,
    /// Also something else.
    Any,
}

/// The kind of a parameter.
pub(crate) fn kind(parameters: &Json, key: &str) -> Kind {
    let types = types(parameters, &parameters["properties"][key]);
    if !types.is_empty() && types.iter().all(|name| *name == "string") { Kind::Text } else { Kind::Any }
}

/// The types that a schema within another allows; none where it does not say.
pub(crate) fn types<'s>(root: &'s Json, schema: &'s Json) -> Vec<&'s str> {
    types_within(root, schema, DEPTH_MAX)
}

fn types_within<'s>(root: &'s Json, schema: &'s Json, depth: usize) -> Vec<&'s str> {
    if depth == 0 {
        return Vec::new();
    }
    if let Some(path) = schema["$ref"].as_str().and_then(|path| path.strip_prefix('#')) {
        return root.pointer(path).map_or_else(Vec::new, |schema| types_within(root, schema, depth - 1));
    }
    let mut found: Vec<&str> = match &schema["type"] {
        Json::String(name) => vec![name],
        Json::Array(names) => names.iter().filter_map(Json::as_str).collect(),
        _ => Vec::new(),
    };
    if found.contains(&"number") {
        found.push("integer");
    }
    let values = || schema["enum"].as_array().into_iter().flatten().chain(schema.get("const"));
    if found.is_empty() && values().all(Json::is_string) && values().next().is_some() {
        found.push("string");
    }
    if found.is_empty() {
        found = variants(root, schema, depth);
    }
    found
}

/// The types of all variants; none where one of them does not say.
fn variants<'s>(root: &'s Json, schema: &'s Json, depth: usize) -> Vec<&'s str> {
    let variants = ["anyOf", "oneOf", "allOf"].into_iter().filter_map(|name| schema.get(name)?.as_array());
    let mut found = Vec::new();
    for variant in variants.flatten() {
        let of_one = types_within(root, variant, depth - 1);
        if of_one.is_empty() {
            return Vec::new();
        }
        found.extend(of_one);
    }
    found
}
