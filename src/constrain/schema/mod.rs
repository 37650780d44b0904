//! [`Schema`]: a JSON schema within the limits, rewritten for llguidance.

mod arrays;
mod constants;
mod counts;
mod described;
mod disjoint;
mod lower;
mod negate;
mod numbers;
mod objects;
mod references;
mod types;
mod vacuous;

use serde_json::{Map, Value, json};

use super::bounds;

/// White space between JSON tokens. Bounded, so that an answer cannot loop in it.
const WHITESPACE: &str = r"[ \t\n\r]{1,8}";
/// Characters allowed after a backslash in a JSON string.
const ESCAPES: &str = r#"nrbtf\""#;
/// Schema key with options for llguidance. Rejected in answer schemas, because some options disable checks.
const SWITCHES: &str = "x-guidance";

/// A JSON schema within the limits, rewritten for llguidance.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Schema {
    value: Value,
    bytes: usize,
}

impl Schema {
    /// Checks and rewrites a schema; its options for llguidance stay.
    ///
    /// # Errors
    /// A schema beyond the limits, or a keyword that cannot be enforced.
    pub(super) fn new(value: Value) -> Result<Schema, String> {
        let bytes = bounds::json(&value)?;
        let mut lowered = lower::lower(&value)?;
        if let (Value::Object(lowered), Some(switches)) = (&mut lowered, value.get(SWITCHES)) {
            lowered.insert(SWITCHES.into(), switches.clone());
        }
        Ok(Schema { value: lowered, bytes })
    }

    /// The schema of an answer, with our options for llguidance.
    ///
    /// # Errors
    /// As [`Schema::new`], and for a schema without a value or with options of its own.
    pub(super) fn of_answer(schema: &Value, whitespace: Option<&str>) -> Result<Schema, String> {
        let object = match schema {
            Value::Object(object) => object.clone(),
            Value::Bool(true) => Map::new(),
            Value::Bool(false) => return Err("no value satisfies the schema false".into()),
            _ => return Err("expected an object or true".into()),
        };
        if object.contains_key(SWITCHES) {
            return Err(format!("the keyword {SWITCHES} is not supported"));
        }
        Schema::new(switched(object, whitespace))
    }

    /// The schema of a call's arguments, with our options for llguidance in place of its own.
    ///
    /// # Errors
    /// As [`Schema::new`].
    pub(crate) fn of_arguments(schema: Value) -> Result<Schema, String> {
        Schema::new(match schema {
            Value::Object(object) => switched(object, None),
            other => other,
        })
    }

    pub(super) fn value(&self) -> &Value {
        &self.value
    }

    /// Size as JSON text in bytes, before it is rewritten.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

/// A schema with our options for llguidance.
fn switched(mut object: Map<String, Value>, whitespace: Option<&str>) -> Value {
    // With `\u` allowed, a key could be spelled in two ways and occur twice; the second value would escape
    // its schema.
    let switches = json!({
        "whitespace_pattern": whitespace.unwrap_or(WHITESPACE),
        "json_allowed_escapes": ESCAPES,
    });
    object.insert(SWITCHES.into(), switches);
    Value::Object(object)
}
