//! The fields of a request's JSON object, taken by name. What is left over is unknown.

use axum::body::Bytes;
use axum::http::StatusCode;
use serde_json::{Map, Value};

use crate::error::{ApiError, shown};
use crate::request::json::{self, JsonError};

/// A JSON object whose fields are taken one by one. A `null` is a field that is not there.
pub(crate) struct Fields {
    map: Map<String, Value>,
    /// Where the object stands in the request: `input[2].`.
    place: String,
}

impl Fields {
    /// The object of a body.
    pub(crate) fn parse(body: &Bytes) -> Result<Fields, ApiError> {
        let refused = |status, message: String| ApiError::new(status, "invalid_request_error", message);
        match json::parse(body) {
            Ok(Value::Object(map)) => Ok(Fields::of(map)),
            Ok(_) => Err(refused(StatusCode::BAD_REQUEST, "the body: expected a JSON object".into())),
            Err(JsonError::Syntax(error)) => {
                Err(refused(StatusCode::BAD_REQUEST, format!("the body is no JSON: {error}")))
            }
            Err(JsonError::Large) => {
                Err(refused(StatusCode::PAYLOAD_TOO_LARGE, "the body has too many values".into()))
            }
        }
    }

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

    /// The object that a field is; its own fields are named behind it.
    pub(crate) fn inner(&mut self, name: &str) -> Result<Option<Fields>, ApiError> {
        let place = self.place(name);
        self.take(name).map(|value| Fields::at(&place, value)).transpose()
    }

    /// A field's name with the names of what it is in.
    pub(crate) fn place(&self, name: &str) -> String {
        format!("{}{name}", self.place)
    }

    /// The error of a field that has to be there.
    pub(crate) fn missing(&self, name: &str, expected: &str) -> ApiError {
        let name = self.place(name);
        ApiError::invalid(name.as_str(), format!("{name}: expected {expected}, found none"))
    }

    /// Puts a field in by the name that another API has for it.
    pub(crate) fn put(&mut self, name: &str, value: impl Into<Value>) {
        self.map.insert(name.to_owned(), value.into());
    }

    /// A field as it is, for an answer that repeats it.
    pub(crate) fn get(&self, name: &str) -> Option<&Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// The names that nobody took.
    pub(crate) fn unknown(self) -> Vec<String> {
        self.map.into_iter().map(|(name, _)| name).collect()
    }

    /// What nobody took.
    pub(crate) fn rest(self) -> Map<String, Value> {
        self.map
    }

    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        self.map.shift_remove(name).filter(|value| !value.is_null())
    }

    pub(crate) fn bool(&mut self, name: &str) -> Result<Option<bool>, ApiError> {
        self.typed(name, "true or false", |value| value.as_bool())
    }

    pub(crate) fn string(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        self.typed(name, "a string", |value| value.as_str().map(str::to_owned))
    }

    /// A string that has to be there.
    pub(crate) fn needed(&mut self, name: &str) -> Result<String, ApiError> {
        self.string(name)?.ok_or_else(|| self.missing(name, "a string"))
    }

    pub(crate) fn object(&mut self, name: &str) -> Result<Option<Map<String, Value>>, ApiError> {
        self.typed(name, "an object", |value| value.as_object().cloned())
    }

    pub(crate) fn list(&mut self, name: &str) -> Result<Option<Vec<Value>>, ApiError> {
        self.typed(name, "a list", |value| value.as_array().cloned())
    }

    /// A list of at least one, which has to be there.
    pub(crate) fn needed_list(&mut self, name: &str) -> Result<Vec<Value>, ApiError> {
        let list = self.list(name)?.filter(|list| !list.is_empty());
        list.ok_or_else(|| self.missing(name, "a list of at least one"))
    }

    /// A finite number.
    pub(crate) fn number(&mut self, name: &str) -> Result<Option<f32>, ApiError> {
        let finite = |value: &Value| value.as_f64().map(|n| n as f32).filter(|n| n.is_finite());
        self.typed(name, "a number", finite)
    }

    /// A whole number from `least` to `most`.
    pub(crate) fn count(&mut self, name: &str, least: u64, most: u64) -> Result<Option<usize>, ApiError> {
        let within = |value: &Value| whole(value).filter(|n| (least..=most).contains(n)).map(|n| n as usize);
        self.typed(name, &format!("a whole number from {least} to {most}"), within)
    }

    /// Any whole number, whatever its sign.
    pub(crate) fn integer(&mut self, name: &str) -> Result<Option<i64>, ApiError> {
        self.typed(name, "a whole number", |value| value.as_i64().or_else(|| whole(value).map(|n| n as i64)))
    }

    /// A string or a list of strings.
    pub(crate) fn strings(&mut self, name: &str) -> Result<Option<Vec<String>>, ApiError> {
        self.typed(name, "a string or a list of strings", |value| match value {
            Value::String(text) => Some(vec![text.clone()]),
            Value::Array(list) => list.iter().map(|text| text.as_str().map(str::to_owned)).collect(),
            _ => None,
        })
    }

    /// Refuses a field that asks for something that there is not. `off` says which values ask for nothing.
    pub(crate) fn refuse(&mut self, name: &str, off: impl Fn(&Value) -> bool) -> Result<(), ApiError> {
        match self.take(name) {
            Some(value) if !off(&value) => {
                let name = self.place(name);
                Err(ApiError::unsupported(name.as_str(), format!("{name}: this server does not have it")))
            }
            _ => Ok(()),
        }
    }

    fn typed<T>(
        &mut self,
        name: &str,
        expected: &str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        read(&value).map(Some).ok_or_else(|| wrong(&self.place(name), expected, &value))
    }
}

/// The error of a value that is not what it should be.
pub(crate) fn wrong(place: &str, expected: &str, found: &Value) -> ApiError {
    let found = shown(found);
    ApiError::invalid(place, format!("{place}: expected {expected}, found {found}"))
}

/// A whole number that is not negative; clients in other languages write 5 as 5.0.
fn whole(value: &Value) -> Option<u64> {
    let of_float = |n: f64| (n >= 0.0 && n.fract() == 0.0 && n <= 2f64.powi(53)).then_some(n as u64);
    value.as_u64().or_else(|| value.as_f64().and_then(of_float))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn fields(value: Value) -> Fields {
        Fields::of(value.as_object().expect("an object").clone())
    }

    #[test]
    fn what_nobody_takes_is_unknown() {
        let mut fields = fields(json!({"a": 1, "b": null, "c": "x"}));
        assert_eq!(fields.count("a", 0, 9).unwrap(), Some(1));
        assert_eq!(fields.string("b").unwrap(), None);
        assert_eq!(fields.unknown(), ["c"]);
    }

    #[test]
    fn a_value_of_another_type_or_range_names_its_field() {
        let cases =
            [json!({"n": "2"}), json!({"n": 0}), json!({"n": 9}), json!({"n": 1.5}), json!({"n": -1})];
        for case in cases {
            let error = fields(case.clone()).count("n", 1, 8).expect_err("refused").to_json();
            assert_eq!(error["error"]["param"], "n", "{case}");
        }
        assert_eq!(fields(json!({"n": 8.0})).count("n", 1, 8).unwrap(), Some(8));
        assert!(fields(json!({"x": 1e300})).number("x").is_err(), "infinite as an f32");
    }

    #[test]
    fn a_body_that_is_no_object_is_refused() {
        for body in ["", "[]", "{\"a\":", "nonsense", "\"text\""] {
            assert!(Fields::parse(&Bytes::from(body)).is_err(), "{body}");
        }
    }
}
