//! Typing of plain-text argument values by the tool's parameter schema.

use serde_json::Value as Json;

use super::step::Step;
use super::value::{Value, escape_into};
use crate::chat::schema::types;

/// Converts plain text to JSON: a value of one of the parameter's types if it parses as one, otherwise a
/// string.
pub(super) fn convert(parameters: &Json, key: &str, plain: &str) -> String {
    let types = types(parameters, &parameters["properties"][key]);
    let fits = |json: &String| types.is_empty() || types.contains(&type_of(json));
    let text = || {
        let mut text = String::from("\"");
        escape_into(plain, &mut text);
        text.push('"');
        text
    };
    read(plain).filter(fits).unwrap_or_else(text)
}

/// The text as one JSON value, if it parses.
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
