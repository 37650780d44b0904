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
/// A whole number of any sign within bounds, both included.
pub(crate) struct Integer(pub i64, pub i64);
/// A whole number within bounds, both included.
pub(crate) struct Count(pub u64, pub u64);
/// A whole number of at least a bound. Numbers above a `usize` count as the largest one.
pub(crate) struct AtLeast(pub u64);
/// A whole number, or -1 for no limit. Numbers above a `usize` count as the largest one.
pub(crate) struct Limit;
/// A whole number of 64 bits, signed or not, or -1 for a random one.
pub(crate) struct Seed;
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
        format!("a whole number from {} to {}", self.0, self.1)
    }

    fn read(&self, value: Value) -> Result<i64, Value> {
        let number = integer(&value).and_then(|number| i64::try_from(number).ok());
        number.filter(|number| (self.0..=self.1).contains(number)).ok_or(value)
    }

    fn schema(&self) -> Value {
        bounded("integer", &[("minimum", self.0), ("maximum", self.1)])
    }
}

impl Kind for Count {
    type Value = usize;

    fn expected(&self) -> String {
        format!("a whole number from {} to {}", self.0, self.1)
    }

    fn read(&self, value: Value) -> Result<usize, Value> {
        let number = integer(&value).and_then(|number| u64::try_from(number).ok());
        let within = number.filter(|number| (self.0..=self.1).contains(number));
        within.map(|number| number as usize).ok_or(value)
    }

    fn schema(&self) -> Value {
        json!({"type": ["integer", "null"], "minimum": self.0, "maximum": self.1})
    }
}

impl Kind for AtLeast {
    type Value = usize;

    fn expected(&self) -> String {
        format!("a whole number of at least {}", self.0)
    }

    fn read(&self, value: Value) -> Result<usize, Value> {
        let number = integer(&value).filter(|number| *number >= i128::from(self.0));
        number.map(saturated).ok_or(value)
    }

    fn schema(&self) -> Value {
        json!({"type": ["integer", "null"], "minimum": self.0})
    }
}

impl Kind for Limit {
    type Value = Option<usize>;

    fn expected(&self) -> String {
        "a whole number of at least -1".into()
    }

    fn read(&self, value: Value) -> Result<Option<usize>, Value> {
        match integer(&value) {
            Some(-1) => Ok(None),
            Some(number @ 0..) => Ok(Some(saturated(number))),
            _ => Err(value),
        }
    }

    fn schema(&self) -> Value {
        bounded("integer", &[("minimum", -1)])
    }
}

impl Kind for Seed {
    type Value = Option<u64>;

    fn expected(&self) -> String {
        format!("a whole number from {} to {}", i64::MIN, u64::MAX)
    }

    fn read(&self, value: Value) -> Result<Option<u64>, Value> {
        let Some(number) = integer(&value) else { return Err(value) };
        match (u64::try_from(number), i64::try_from(number)) {
            (Ok(seed), _) => Ok(Some(seed)),
            (_, Ok(-1)) => Ok(None),
            (_, Ok(seed)) => Ok(Some(seed as u64)),
            _ => Err(value),
        }
    }

    fn schema(&self) -> Value {
        bounded("integer", &[])
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

/// A whole number; floats beyond an `i128` count as its ends. Clients in other languages write 5 as 5.0.
fn integer(value: &Value) -> Option<i128> {
    let of_float = |number: f64| (number.fract() == 0.0).then_some(number as i128);
    let of_integer = value.as_i64().map(i128::from).or_else(|| value.as_u64().map(i128::from));
    of_integer.or_else(|| value.as_f64().and_then(of_float))
}

/// A number that is not negative; `usize::MAX` for larger ones.
fn saturated(number: i128) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_at_the_ends_keep_their_value_or_are_refused_as_sent() {
        let largest = json!(u64::MAX);
        assert_eq!(Seed.read(largest.clone()), Ok(Some(u64::MAX)));
        assert_eq!(Seed.read(json!(-2)), Ok(Some(u64::MAX - 1)));
        assert_eq!(Seed.read(json!(-1)), Ok(None));
        assert_eq!(Seed.read(json!(5.0)), Ok(Some(5)));
        for wrong in [json!(1e20), json!(-1e20), json!(1.5), json!("1")] {
            assert_eq!(Seed.read(wrong.clone()), Err(wrong));
        }
        for beyond in [largest, json!(1e300)] {
            assert_eq!(Limit.read(beyond.clone()), Ok(Some(usize::MAX)));
            assert_eq!(AtLeast(1).read(beyond.clone()), Ok(usize::MAX));
            assert_eq!(Integer(-127, 127).read(beyond.clone()), Err(beyond));
        }
        assert_eq!((Limit.read(json!(-1)), Limit.read(json!(0))), (Ok(None), Ok(Some(0))));
        assert_eq!(Limit.read(json!(-2)), Err(json!(-2)));
        assert_eq!(AtLeast(1).read(json!(0)), Err(json!(0)));
        assert_eq!(Integer(-127, 127).read(json!(-127.0)), Ok(-127));
    }
}
