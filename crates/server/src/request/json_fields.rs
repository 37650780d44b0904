//! Fields of a JSON object, taken by name. Errors name a field with its place in the request.

use serde_json::{Map, Value};

use crate::error::{ApiError, wrong};
use crate::request::kinds::{Flag, Kind, List, Object, Text, Texts};

/// A JSON object whose fields are taken one by one. A `null` is an absent field.
pub(crate) struct Fields {
    map: Map<String, Value>,
    /// Prefix of field names in errors: the object's path, such as `input[2].`.
    place: String,
}

impl Fields {
    /// The object of a request's body.
    pub(crate) fn of(map: Map<String, Value>) -> Fields {
        Fields { map, place: String::new() }
    }

    /// The object at a place of the request.
    pub(crate) fn at(place: &str, value: Value) -> Result<Fields, ApiError> {
        match value {
            Value::Object(map) => Ok(Fields { map, place: format!("{place}.") }),
            other => Err(wrong(place, "an object", &other)),
        }
    }

    /// Path of a field in the request.
    pub(crate) fn place(&self, name: &str) -> String {
        format!("{}{name}", self.place)
    }

    /// The error of a required field that is absent.
    pub(crate) fn missing(&self, name: &str, expected: &str) -> ApiError {
        let name = self.place(name);
        ApiError::invalid(name.as_str(), format!("{name}: expected {expected}, found none"))
    }

    /// A field's value, not taken.
    pub(crate) fn get(&self, name: &str) -> Option<&Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// The fields that are left, nulls included.
    pub(crate) fn rest(self) -> Map<String, Value> {
        self.map
    }

    /// Adds a field without a value.
    pub(crate) fn put(&mut self, name: String) {
        self.map.insert(name, Value::Null);
    }

    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        self.map.shift_remove(name).filter(|value| !value.is_null())
    }

    /// Takes a field of a kind.
    pub(crate) fn read<K: Kind>(&mut self, name: &str, kind: &K) -> Result<Option<K::Value>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        kind.read(value).map(Some).map_err(|found| kind.error(&self.place(name), &found))
    }

    pub(crate) fn bool(&mut self, name: &str) -> Result<Option<bool>, ApiError> {
        self.read(name, &Flag)
    }

    pub(crate) fn string(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        self.read(name, &Text)
    }

    /// A required string.
    pub(crate) fn needed(&mut self, name: &str) -> Result<String, ApiError> {
        self.string(name)?.ok_or_else(|| self.missing(name, "a string"))
    }

    pub(crate) fn object(&mut self, name: &str) -> Result<Option<Map<String, Value>>, ApiError> {
        self.read(name, &Object)
    }

    pub(crate) fn list(&mut self, name: &str) -> Result<Option<Vec<Value>>, ApiError> {
        self.read(name, &List)
    }

    pub(crate) fn strings(&mut self, name: &str) -> Result<Option<Vec<String>>, ApiError> {
        self.read(name, &Texts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::kinds::{Count, Number};
    use serde_json::json;

    fn fields(value: Value) -> Fields {
        Fields::of(value.as_object().expect("an object").clone())
    }

    #[test]
    fn a_value_of_another_type_or_range_names_its_field() {
        let count = Count(1, 8);
        let cases =
            [json!({"n": "2"}), json!({"n": 0}), json!({"n": 9}), json!({"n": 1.5}), json!({"n": -1})];
        for case in cases {
            let error = fields(case.clone()).read("n", &count).expect_err("refused").to_json();
            assert_eq!(error["error"]["param"], "n", "{case}");
        }
        assert_eq!(fields(json!({"n": 8.0})).read("n", &count).unwrap(), Some(8));
        assert!(fields(json!({"x": 1e300})).read("x", &Number(&[])).is_err(), "infinite as an f32");
    }
}
