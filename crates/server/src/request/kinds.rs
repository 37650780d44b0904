//! Kinds of request fields: how a value is read, the error of a wrong one, and its JSON schema.

use serde_json::{Map, Value, json};

use crate::error::{ApiError, wrong};

/// A kind of value. A `null` is an absent field, so every schema allows it.
pub(crate) trait Kind: Send + Sync {
    /// The value once it is read.
    type Value;

    /// The expectation in an error's text.
    fn expected(&self) -> String;

    /// Reads a value.
    ///
    /// # Errors
    /// The value itself if it has another type or is out of range.
    fn read(&self, value: Value) -> Result<Self::Value, Value>;

    /// JSON schema of the value.
    fn schema(&self) -> Value;

    /// The error of a value that cannot be read.
    fn error(&self, place: &str, found: &Value) -> ApiError {
        wrong(place, &self.expected(), found)
    }
}

/// `true` or `false`.
pub(crate) struct Flag;
/// A string.
pub(crate) struct Text;
/// A finite number. The bounds are keywords of its schema; the engine checks them.
pub(crate) struct Number(pub &'static [(&'static str, i64)]);
/// A whole number of any sign. The bounds are keywords of its schema; the reader of the field checks them.
pub(crate) struct Integer(pub &'static [(&'static str, i64)]);
/// A whole number within bounds, both included.
pub(crate) struct Count(pub u64, pub u64);
/// A JSON object.
pub(crate) struct Object;
/// A JSON array.
pub(crate) struct List;
/// A string or an array of strings.
pub(crate) struct Texts;
/// Any value; the reader of the field checks it.
pub(crate) struct Raw;
/// A field that clients and routers send and that changes no answer here.
pub(crate) struct NoEffect;
/// A field without an implementation. Only its no-op values are accepted, given as JSON texts.
pub(crate) struct NoOp(pub &'static [&'static str]);

impl Kind for Flag {
    type Value = bool;

    fn expected(&self) -> String {
        "true or false".into()
    }

    fn read(&self, value: Value) -> Result<bool, Value> {
        value.as_bool().ok_or(value)
    }

    fn schema(&self) -> Value {
        json!({"type": ["boolean", "null"]})
    }
}

impl Kind for Text {
    type Value = String;

    fn expected(&self) -> String {
        "a string".into()
    }

    fn read(&self, value: Value) -> Result<String, Value> {
        match value {
            Value::String(text) => Ok(text),
            other => Err(other),
        }
    }

    fn schema(&self) -> Value {
        json!({"type": ["string", "null"]})
    }
}

impl Kind for Number {
    type Value = f32;

    fn expected(&self) -> String {
        "a number".into()
    }

    fn read(&self, value: Value) -> Result<f32, Value> {
        value.as_f64().map(|number| number as f32).filter(|number| number.is_finite()).ok_or(value)
    }

    fn schema(&self) -> Value {
        bounded("number", self.0)
    }
}

impl Kind for Integer {
    type Value = i64;

    fn expected(&self) -> String {
        "a whole number".into()
    }

    fn read(&self, value: Value) -> Result<i64, Value> {
        value.as_i64().or_else(|| whole(&value).map(|number| number as i64)).ok_or(value)
    }

    fn schema(&self) -> Value {
        bounded("integer", self.0)
    }
}

impl Kind for Count {
    type Value = usize;

    fn expected(&self) -> String {
        format!("a whole number from {} to {}", self.0, self.1)
    }

    fn read(&self, value: Value) -> Result<usize, Value> {
        let within = whole(&value).filter(|number| (self.0..=self.1).contains(number));
        within.map(|number| number as usize).ok_or(value)
    }

    fn schema(&self) -> Value {
        json!({"type": ["integer", "null"], "minimum": self.0, "maximum": self.1})
    }
}

impl Kind for Object {
    type Value = Map<String, Value>;

    fn expected(&self) -> String {
        "an object".into()
    }

    fn read(&self, value: Value) -> Result<Map<String, Value>, Value> {
        match value {
            Value::Object(map) => Ok(map),
            other => Err(other),
        }
    }

    fn schema(&self) -> Value {
        json!({"type": ["object", "null"]})
    }
}

impl Kind for List {
    type Value = Vec<Value>;

    fn expected(&self) -> String {
        "a list".into()
    }

    fn read(&self, value: Value) -> Result<Vec<Value>, Value> {
        match value {
            Value::Array(list) => Ok(list),
            other => Err(other),
        }
    }

    fn schema(&self) -> Value {
        json!({"type": ["array", "null"]})
    }
}

impl Kind for Texts {
    type Value = Vec<String>;

    fn expected(&self) -> String {
        "a string or a list of strings".into()
    }

    fn read(&self, value: Value) -> Result<Vec<String>, Value> {
        let texts = match &value {
            Value::String(text) => Some(vec![text.clone()]),
            Value::Array(list) => list.iter().map(|text| text.as_str().map(str::to_owned)).collect(),
            _ => None,
        };
        texts.ok_or(value)
    }

    fn schema(&self) -> Value {
        json!({"oneOf": [{"type": ["string", "null"]}, {"type": "array", "items": {"type": "string"}}]})
    }
}

impl Kind for Raw {
    type Value = Value;

    fn expected(&self) -> String {
        "a value".into()
    }

    fn read(&self, value: Value) -> Result<Value, Value> {
        Ok(value)
    }

    fn schema(&self) -> Value {
        json!({})
    }
}

impl Kind for NoEffect {
    type Value = ();

    fn expected(&self) -> String {
        "a value".into()
    }

    fn read(&self, _: Value) -> Result<(), Value> {
        Ok(())
    }

    fn schema(&self) -> Value {
        json!({"description": "accepted, without effect"})
    }
}

impl Kind for NoOp {
    type Value = ();

    fn expected(&self) -> String {
        "its no-op value".into()
    }

    fn read(&self, value: Value) -> Result<(), Value> {
        if self.0.contains(&value.to_string().as_str()) { Ok(()) } else { Err(value) }
    }

    fn schema(&self) -> Value {
        let values = self.0.iter().filter_map(|text| serde_json::from_str::<Value>(text).ok());
        // 1 and 1.0 are one value in a schema.
        let values: Vec<Value> = values.filter(|value| !value.is_f64()).chain([Value::Null]).collect();
        json!({"enum": values, "description": "not supported: only values without effect are accepted"})
    }

    fn error(&self, place: &str, _: &Value) -> ApiError {
        ApiError::unsupported(place, format!("{place}: this server does not have it"))
    }
}

fn bounded(kind: &str, bounds: &[(&'static str, i64)]) -> Value {
    let mut schema = json!({"type": [kind, "null"]});
    for (keyword, bound) in bounds {
        schema[*keyword] = (*bound).into();
    }
    schema
}

/// A non-negative whole number. Clients in other languages write 5 as 5.0.
fn whole(value: &Value) -> Option<u64> {
    let of_float = |n: f64| (n >= 0.0 && n.fract() == 0.0 && n <= 2f64.powi(53)).then_some(n as u64);
    value.as_u64().or_else(|| value.as_f64().and_then(of_float))
}
