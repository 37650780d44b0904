//! Values that a format writes as plain text get their types from the tool's schema.

use serde_json::Value as Json;

use super::step::Step;
use super::value::{Value, escape_into};

/// Most schemas that stand within each other before a value's type.
const DEPTH_MAX: usize = 8;

/// What a parameter may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A text, whatever it looks like.
    Text,
    /// Also something else.
    Any,
}

/// The kind of a parameter.
pub(super) fn kind(parameters: &Json, key: &str) -> Kind {
    let types = types(parameters, &parameters["properties"][key], DEPTH_MAX);
    if !types.is_empty() && types.iter().all(|name| *name == "string") { Kind::Text } else { Kind::Any }
}

/// A plain text as JSON: a value of the parameter's types where it can be one, else a text.
pub(super) fn convert(parameters: &Json, key: &str, plain: &str) -> String {
    let types = types(parameters, &parameters["properties"][key], DEPTH_MAX);
    let fits = |json: &String| types.is_empty() || types.contains(&type_of(json));
    let text = || {
        let mut text = String::from("\"");
        escape_into(plain, &mut text);
        text.push('"');
        text
    };
    read(plain).filter(fits).unwrap_or_else(text)
}

/// The text as a value, if it is one.
fn read(plain: &str) -> Option<String> {
    let (mut value, mut json) = (Value::new(""), String::new());
    let mut characters = plain.trim().chars().chain(['\n']);
    loop {
        match value.push(characters.next()?, &mut json) {
            Step::More => {}
            Step::Done | Step::Before(_) => break,
            Step::Wrong(_) => return None,
        }
    }
    characters.all(char::is_whitespace).then_some(json)
}

fn type_of(json: &str) -> &'static str {
    match json.as_bytes().first() {
        Some(b'{') => "object",
        Some(b'[') => "array",
        Some(b'"') => "string",
        Some(b't' | b'f') => "boolean",
        Some(b'n') => "null",
        _ if json.contains(['.', 'e', 'E']) => "number",
        _ => "integer",
    }
}

/// The types that a schema allows; none where it does not say.
fn types<'s>(root: &'s Json, schema: &'s Json, depth: usize) -> Vec<&'s str> {
    if depth == 0 {
        return Vec::new();
    }
    if let Some(path) = schema["$ref"].as_str().and_then(|path| path.strip_prefix('#')) {
        return root.pointer(path).map_or_else(Vec::new, |schema| types(root, schema, depth - 1));
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
        let of_one = types(root, variant, depth - 1);
        if of_one.is_empty() {
            return Vec::new();
        }
        found.extend(of_one);
    }
    found
}
