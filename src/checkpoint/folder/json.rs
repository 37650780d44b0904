//! Typed access to JSON objects. Errors name the document and the full key.

use std::path::Path;

use serde_json::{Map, Value};

use crate::checkpoint::WeightsError;

/// An object within a document.
#[derive(Clone)]
pub(crate) struct Object<'j> {
    file: &'j Path,
    /// Path prefix of the object's keys, with a trailing dot.
    at: String,
    map: &'j Map<String, Value>,
}

type Read<T> = Result<Option<T>, WeightsError>;

impl<'j> Object<'j> {
    /// The root object of a document.
    pub fn of(file: &'j Path, document: &'j Value) -> Result<Object<'j>, WeightsError> {
        let map = document.as_object().ok_or_else(|| WeightsError::Document {
            file: file.to_owned(),
            reason: format!("expected an object, found {}", kind(document)),
        })?;
        Ok(Object { file, at: String::new(), map })
    }

    /// Full path of a key: `rope_scaling.factor`.
    pub fn name(&self, key: &str) -> String {
        format!("{}{key}", self.at)
    }

    /// An error about the value of a key.
    pub fn refuse(&self, key: &str, expected: impl Into<String>, found: impl ToString) -> WeightsError {
        let (file, key) = (self.file.to_owned(), self.name(key));
        WeightsError::Setting { file, key, expected: expected.into(), found: found.to_string() }
    }

    /// Entries without null values.
    pub fn entries(&self) -> impl Iterator<Item = (&'j str, &'j Value)> {
        self.map.iter().filter(|(_, value)| !value.is_null()).map(|(key, value)| (key.as_str(), value))
    }

    /// The value of a key; `None` for null.
    pub fn get(&self, key: &str) -> Option<&'j Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// Whether the key is present with the value null.
    pub fn is_null(&self, key: &str) -> bool {
        self.map.get(key).is_some_and(Value::is_null)
    }

    /// A nested object.
    pub fn object(&self, key: &str) -> Read<Object<'j>> {
        let map = self.read(key, "an object", |value| value.as_object())?;
        Ok(map.map(|map| Object { file: self.file, at: format!("{}{key}.", self.at), map }))
    }

    /// A non-negative integer.
    pub fn whole(&self, key: &str) -> Read<u64> {
        self.read(key, "a whole number from 0", |value| {
            let float = || value.as_f64().filter(|v| v.fract() == 0.0 && (0.0..9e15).contains(v));
            value.as_u64().or_else(|| float().map(|v| v as u64))
        })
    }

    /// A number.
    pub fn number(&self, key: &str) -> Read<f64> {
        self.read(key, "a number", Value::as_f64)
    }

    /// A string.
    pub fn text(&self, key: &str) -> Read<&'j str> {
        self.read(key, "a string", |value| value.as_str())
    }

    /// A boolean.
    pub fn flag(&self, key: &str) -> Read<bool> {
        self.read(key, "true or false", Value::as_bool)
    }

    /// A list.
    pub fn list(&self, key: &str) -> Read<&'j [Value]> {
        self.read(key, "a list", |value| value.as_array().map(Vec::as_slice))
    }

    /// The objects of a list; empty if the key is absent.
    pub fn objects(&self, key: &str) -> Result<Vec<Object<'j>>, WeightsError> {
        let items = self.list(key)?.unwrap_or_default().iter().enumerate();
        let object = |(index, item): (usize, &'j Value)| {
            let map = item.as_object().ok_or_else(|| self.refuse(key, "objects", shown_value(item)))?;
            Ok(Object { file: self.file, at: format!("{}{key}[{index}].", self.at), map })
        };
        items.map(object).collect()
    }

    fn read<T>(&self, key: &str, expected: &str, convert: impl FnOnce(&'j Value) -> Option<T>) -> Read<T> {
        let Some(value) = self.get(key) else { return Ok(None) };
        convert(value).map(Some).ok_or_else(|| self.refuse(key, expected, shown_value(value)))
    }
}

/// A value formatted for an error message.
pub(crate) fn shown_value(value: &Value) -> String {
    match value {
        Value::Array(items) => format!("a list of {}", items.len()),
        Value::Object(_) => "an object".to_owned(),
        Value::String(text) => format!("{text:?}"),
        scalar => scalar.to_string(),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
