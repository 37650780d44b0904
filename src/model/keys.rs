//! [`Keys`]: typed access to the hyperparameters of a file. Numbers may have any width; a per-layer array
//! with equal elements counts as one value. `hyper` interprets the keys, and `known` lists them.

use crate::checkpoint::{Array, Checkpoint, Value};

use super::family::Family;
use super::{ModelError, key_error};

/// Metadata keys with the architecture's prefix.
#[derive(Clone, Copy)]
pub(super) struct Keys<'f> {
    pub file: &'f dyn Checkpoint,
    pub family: &'static Family,
}

/// Architecture of the file.
pub(super) fn family_name(file: &dyn Checkpoint) -> Result<&str, ModelError> {
    let name = file.metadata().str("general.architecture")?;
    name.ok_or_else(|| key_error("general.architecture", "an architecture", "no such key"))
}

impl<'f> Keys<'f> {
    /// Full key, as spelled in the file.
    pub fn name(self, key: &str) -> String {
        self.file.metadata().name_of(&self.full(key)).to_owned()
    }

    /// Full key, by the GGUF convention.
    fn full(self, key: &str) -> String {
        format!("{}.{key}", self.family.name)
    }

    /// Error for an invalid value of `key`.
    pub fn refuse(self, key: &str, expected: &str, found: impl ToString) -> ModelError {
        key_error(&self.name(key), expected, &found.to_string())
    }

    /// Raw value in the file.
    pub fn raw(self, key: &str) -> Option<&'f Value> {
        self.file.metadata().get(&self.full(key))
    }

    /// The value; for a per-layer array, the value that all layers share.
    fn one(self, key: &str) -> Result<Option<Value>, ModelError> {
        let Some(value) = self.raw(key) else { return Ok(None) };
        let Value::Array(array) = value else { return Ok(Some(value.clone())) };
        let layers = self.raw("block_count").and_then(whole);
        if layers != Some(array.len() as u64) {
            let expected = format!("one value, or as many as block_count {}", layers.unwrap_or(0));
            return Err(self.refuse(key, &expected, format!("{} values", array.len())));
        }
        let same = equal_element(array).map(Some);
        same.ok_or_else(|| self.refuse(key, "the same value for all layers", "values that differ"))
    }

    /// Non-negative integer of any type.
    pub fn whole(self, key: &str) -> Result<Option<u64>, ModelError> {
        let Some(value) = self.one(key)? else { return Ok(None) };
        let number = whole(&value).map(Some);
        number.ok_or_else(|| self.refuse(key, "a whole number from 0", shown_value(&value)))
    }

    /// A count from 1 to `u32::MAX`.
    pub fn count(self, key: &str, default: Option<usize>) -> Result<usize, ModelError> {
        match self.whole(key)? {
            Some(0) => Err(self.refuse(key, "at least 1", 0)),
            Some(count) => {
                let fits = u32::try_from(count).map(|count| count as usize);
                fits.map_err(|_| self.refuse(key, &format!("at most {}", u32::MAX), count))
            }
            None => default.ok_or_else(|| self.refuse(key, "a count", "no such key")),
        }
    }

    /// Like [`Keys::count`], with 0 for the default.
    pub fn count_or(self, key: &str, default: usize) -> Result<usize, ModelError> {
        match self.whole(key)? {
            None | Some(0) => Ok(default),
            Some(_) => self.count(key, None),
        }
    }

    /// A number of any type.
    pub fn float(self, key: &str) -> Result<Option<f64>, ModelError> {
        let Some(value) = self.one(key)? else { return Ok(None) };
        let number = number(&value).map(Some);
        number.ok_or_else(|| self.refuse(key, "a number", shown_value(&value)))
    }

    /// A number above zero that f32 can hold.
    pub fn positive(self, key: &str, default: f64) -> Result<f64, ModelError> {
        let value = self.float(key)?.unwrap_or(default);
        let fits = value > 0.0 && (value as f32).is_finite() && value as f32 > 0.0;
        fits.then_some(value).ok_or_else(|| self.refuse(key, "a positive number", value))
    }

    /// Like [`Keys::positive`], with 0 for the default.
    pub fn positive_or(self, key: &str, default: f64) -> Result<f64, ModelError> {
        match self.float(key)? {
            None | Some(0.0) => Ok(default),
            Some(_) => self.positive(key, default),
        }
    }

    /// A string.
    pub fn text(self, key: &str) -> Result<Option<&'f str>, ModelError> {
        match self.raw(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.refuse(key, "a string", shown_value(other))),
        }
    }
}

/// Text of a value in messages.
pub(super) fn shown_value(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Bool(flag) => flag.to_string(),
        Value::Array(array) => format!("{} of {} values", array.type_name(), array.len()),
        other => number(other).map_or_else(|| other.type_name().to_owned(), |number| number.to_string()),
    }
}

/// Non-negative integer.
pub(super) fn whole(value: &Value) -> Option<u64> {
    match *value {
        Value::U8(v) => Some(v.into()),
        Value::U16(v) => Some(v.into()),
        Value::U32(v) => Some(v.into()),
        Value::U64(v) => Some(v),
        Value::I8(v) => v.try_into().ok(),
        Value::I16(v) => v.try_into().ok(),
        Value::I32(v) => v.try_into().ok(),
        Value::I64(v) => v.try_into().ok(),
        _ => None,
    }
}

/// A number of any type.
pub(super) fn number(value: &Value) -> Option<f64> {
    match *value {
        Value::I8(v) => Some(v.into()),
        Value::I16(v) => Some(v.into()),
        Value::I32(v) => Some(v.into()),
        Value::I64(v) => Some(v as f64),
        Value::F32(v) => Some(v.into()),
        Value::F64(v) => Some(v),
        ref other => whole(other).map(|v| v as f64),
    }
}

/// The element that all elements equal; `None` for an empty array.
pub(super) fn equal_element(array: &Array) -> Option<Value> {
    fn of<T: PartialEq + Copy + Into<Value>>(values: &[T]) -> Option<Value> {
        let (&first, rest) = values.split_first()?;
        rest.iter().all(|&other| other == first).then(|| first.into())
    }
    match array {
        Array::U8(v) => of(v),
        Array::I8(v) => of(v),
        Array::U16(v) => of(v),
        Array::I16(v) => of(v),
        Array::U32(v) => of(v),
        Array::I32(v) => of(v),
        Array::F32(v) => of(v),
        Array::Bool(v) => of(v),
        Array::U64(v) => of(v),
        Array::I64(v) => of(v),
        Array::F64(v) => of(v),
        Array::String(_) | Array::Nested(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_from_every_type_that_holds_them() {
        let five = [
            Value::U8(5),
            Value::I8(5),
            Value::U16(5),
            Value::I16(5),
            Value::U32(5),
            Value::I32(5),
            Value::U64(5),
            Value::I64(5),
        ];
        for value in &five {
            assert_eq!((whole(value), number(value)), (Some(5), Some(5.0)), "{value:?}");
        }
        for value in [Value::I8(-5), Value::I16(-5), Value::I32(-5), Value::I64(-5)] {
            assert_eq!((whole(&value), number(&value)), (None, Some(-5.0)), "{value:?}");
        }
        assert_eq!((whole(&Value::F32(0.5)), number(&Value::F32(0.5))), (None, Some(0.5)));
        assert_eq!((whole(&Value::F64(0.5)), number(&Value::F64(0.5))), (None, Some(0.5)));
        assert_eq!((whole(&Value::Bool(true)), number(&Value::Bool(true))), (None, None));
    }

    #[test]
    fn equal_elements_of_every_type_are_one_value() {
        let equal = [
            (Array::U8(vec![5, 5]), Value::U8(5)),
            (Array::I8(vec![5, 5]), Value::I8(5)),
            (Array::U16(vec![5, 5]), Value::U16(5)),
            (Array::I16(vec![5, 5]), Value::I16(5)),
            (Array::U32(vec![5, 5]), Value::U32(5)),
            (Array::I32(vec![5, 5]), Value::I32(5)),
            (Array::U64(vec![5, 5]), Value::U64(5)),
            (Array::I64(vec![5, 5]), Value::I64(5)),
            (Array::F32(vec![0.5, 0.5]), Value::F32(0.5)),
            (Array::F64(vec![0.5, 0.5]), Value::F64(0.5)),
            (Array::Bool(vec![true, true]), Value::Bool(true)),
        ];
        for (array, value) in equal {
            assert_eq!(equal_element(&array), Some(value));
        }
        assert_eq!(equal_element(&Array::U8(vec![5, 6])), None);
        assert_eq!(equal_element(&Array::U8(Vec::new())), None);
        assert_eq!(equal_element(&Array::Nested(vec![Array::U8(vec![5])])), None);
    }
}
