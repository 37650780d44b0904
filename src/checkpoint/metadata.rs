//! Metadata: typed key-value pairs of a model file, in file order.
//!
//! The getters are typed: an absent key is `None`, a value of another type is an error. The meaning of the
//! keys is defined by their users.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::{Strings, WeightsError};

/// A metadata value.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "each variant is the type it names")]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(String),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// An array of values of one type.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "each variant is the type it names")]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    String(Strings),
    Nested(Vec<Array>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

impl Value {
    /// Name of the type in error messages: "u32", "array of string".
    pub fn type_name(&self) -> &'static str {
        match self {
            Value::U8(_) => "u8",
            Value::I8(_) => "i8",
            Value::U16(_) => "u16",
            Value::I16(_) => "i16",
            Value::U32(_) => "u32",
            Value::I32(_) => "i32",
            Value::F32(_) => "f32",
            Value::Bool(_) => "bool",
            Value::String(_) => "string",
            Value::Array(array) => array.type_name(),
            Value::U64(_) => "u64",
            Value::I64(_) => "i64",
            Value::F64(_) => "f64",
        }
    }

    fn integer(&self) -> Option<i128> {
        match *self {
            Value::U8(v) => Some(v.into()),
            Value::I8(v) => Some(v.into()),
            Value::U16(v) => Some(v.into()),
            Value::I16(v) => Some(v.into()),
            Value::U32(v) => Some(v.into()),
            Value::I32(v) => Some(v.into()),
            Value::U64(v) => Some(v.into()),
            Value::I64(v) => Some(v.into()),
            _ => None,
        }
    }

    fn describe(&self) -> String {
        match self.integer() {
            Some(integer) => format!("{} {integer}", self.type_name()),
            None => self.type_name().to_owned(),
        }
    }
}

impl Array {
    /// Name of the type in error messages: "array of f32".
    pub fn type_name(&self) -> &'static str {
        match self {
            Array::U8(_) => "array of u8",
            Array::I8(_) => "array of i8",
            Array::U16(_) => "array of u16",
            Array::I16(_) => "array of i16",
            Array::U32(_) => "array of u32",
            Array::I32(_) => "array of i32",
            Array::F32(_) => "array of f32",
            Array::Bool(_) => "array of bool",
            Array::String(_) => "array of string",
            Array::Nested(_) => "array of arrays",
            Array::U64(_) => "array of u64",
            Array::I64(_) => "array of i64",
            Array::F64(_) => "array of f64",
        }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Array::U8(v) => v.len(),
            Array::I8(v) => v.len(),
            Array::U16(v) => v.len(),
            Array::I16(v) => v.len(),
            Array::U32(v) => v.len(),
            Array::I32(v) => v.len(),
            Array::F32(v) => v.len(),
            Array::Bool(v) => v.len(),
            Array::String(v) => v.len(),
            Array::Nested(v) => v.len(),
            Array::U64(v) => v.len(),
            Array::I64(v) => v.len(),
            Array::F64(v) => v.len(),
        }
    }

    /// Whether the array is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements as u32; `None` if they are not integers or one is out of range.
    pub(crate) fn to_u32s(&self) -> Option<Vec<u32>> {
        fn fit<T: Copy + TryInto<u32>>(values: &[T]) -> Option<Vec<u32>> {
            // Collecting into `Option<Vec<_>>` would lose the size hint and reallocate.
            let mut fitting = Vec::with_capacity(values.len());
            for &value in values {
                fitting.push(value.try_into().ok()?);
            }
            Some(fitting)
        }
        match self {
            Array::U8(v) => fit(v),
            Array::I8(v) => fit(v),
            Array::U16(v) => fit(v),
            Array::I16(v) => fit(v),
            Array::U32(v) => fit(v),
            Array::I32(v) => fit(v),
            Array::U64(v) => fit(v),
            Array::I64(v) => fit(v),
            _ => None,
        }
    }
}

macro_rules! value_from {
    ($($from:ty => $scalar:ident),*) => {$(
        impl From<$from> for Value {
            fn from(value: $from) -> Self {
                Value::$scalar(value)
            }
        }
        impl From<Vec<$from>> for Value {
            fn from(values: Vec<$from>) -> Self {
                Value::Array(Array::$scalar(values.into_iter().collect()))
            }
        }
    )*};
}

value_from!(u8 => U8, i8 => I8, u16 => U16, i16 => I16, u32 => U32, i32 => I32, f32 => F32, bool => Bool,
    String => String, u64 => U64, i64 => I64, f64 => F64);

impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Value::String(value.to_owned())
    }
}

/// Key-value pairs of a file, in file order, with unique keys.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata {
    file: PathBuf,
    entries: Vec<(String, Value)>,
    index: HashMap<String, usize>,
    /// Original names of keys that the file has under another name.
    names: HashMap<String, String>,
}

impl Metadata {
    pub(super) fn new(file: &Path) -> Self {
        Metadata { file: file.to_owned(), ..Metadata::default() }
    }

    /// Adds an entry. Fails with the key if it already exists.
    pub(super) fn insert(&mut self, key: String, value: Value) -> Result<(), String> {
        if self.index.contains_key(&key) {
            return Err(key);
        }
        self.index.insert(key.clone(), self.entries.len());
        self.entries.push((key, value));
        Ok(())
    }

    /// Adds or replaces an entry; `name` is its key in the file.
    #[cfg(feature = "safetensors")]
    pub(super) fn insert_named(&mut self, key: String, value: Value, name: String) {
        self.names.insert(key.clone(), name);
        match self.index.get(&key).and_then(|&index| self.entries.get_mut(index)) {
            Some(entry) => entry.1 = value,
            None => {
                self.index.insert(key.clone(), self.entries.len());
                self.entries.push((key, value));
            }
        }
    }

    /// The name of a key in the file, for error messages.
    pub fn name_of<'k>(&'k self, key: &'k str) -> &'k str {
        self.names.get(key).map_or(key, String::as_str)
    }

    /// The source file of the values, for error messages.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All entries, in file order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// The value of `key`, of any type.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.index.get(key).and_then(|&index| self.entries.get(index)).map(|(_, value)| value)
    }

    /// An integer of any width, converted to u32.
    ///
    /// # Errors
    /// [`WeightsError::Type`] if the value is not an integer, or is out of range.
    pub fn u32(&self, key: &str) -> Result<Option<u32>, WeightsError> {
        self.read(key, "an integer that fits u32", |value| value.integer()?.try_into().ok())
    }

    /// An integer of any width, converted to u64.
    ///
    /// # Errors
    /// [`WeightsError::Type`] if the value is not an integer, or is out of range.
    pub fn u64(&self, key: &str) -> Result<Option<u64>, WeightsError> {
        self.read(key, "an integer that fits u64", |value| value.integer()?.try_into().ok())
    }

    /// An f32 or f64 value, narrowed to f32.
    ///
    /// # Errors
    /// [`WeightsError::Type`] if the value is not a float.
    pub fn f32(&self, key: &str) -> Result<Option<f32>, WeightsError> {
        self.read(key, "f32", |value| match *value {
            Value::F32(v) => Some(v),
            Value::F64(v) => Some(v as f32),
            _ => None,
        })
    }

    /// A boolean.
    ///
    /// # Errors
    /// [`WeightsError::Type`] if the value is not a boolean.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, WeightsError> {
        self.read(key, "bool", |value| match *value {
            Value::Bool(v) => Some(v),
            _ => None,
        })
    }

    /// A string.
    ///
    /// # Errors
    /// [`WeightsError::Type`] if the value is not a string.
    pub fn str(&self, key: &str) -> Result<Option<&str>, WeightsError> {
        self.read(key, "string", |value| match value {
            Value::String(v) => Some(v.as_str()),
            _ => None,
        })
    }

    /// An array of strings.
    ///
    /// # Errors
    /// [`WeightsError::Type`] if the value is not an array of strings.
    pub fn strings(&self, key: &str) -> Result<Option<&Strings>, WeightsError> {
        self.read(key, "array of string", |value| match value {
            Value::Array(Array::String(v)) => Some(v),
            _ => None,
        })
    }

    /// An array of integers of any width, converted to u32.
    ///
    /// # Errors
    /// [`WeightsError::Type`] if the value is not an array of integers, or an element is out of range.
    pub fn u32s(&self, key: &str) -> Result<Option<Vec<u32>>, WeightsError> {
        self.read(key, "array of integers that fit u32", |value| match value {
            Value::Array(array) => array.to_u32s(),
            _ => None,
        })
    }

    /// An array of f32 or f64 values, narrowed to f32.
    ///
    /// # Errors
    /// [`WeightsError::Type`] if the value is not an array of floats.
    pub fn f32s(&self, key: &str) -> Result<Option<Vec<f32>>, WeightsError> {
        self.read(key, "array of f32", |value| match value {
            Value::Array(Array::F32(v)) => Some(v.clone()),
            Value::Array(Array::F64(v)) => Some(v.iter().map(|&v| v as f32).collect()),
            _ => None,
        })
    }

    /// An array of booleans.
    ///
    /// # Errors
    /// [`WeightsError::Type`] if the value is not an array of booleans.
    pub fn bools(&self, key: &str) -> Result<Option<&[bool]>, WeightsError> {
        self.read(key, "array of bool", |value| match value {
            Value::Array(Array::Bool(v)) => Some(v.as_slice()),
            _ => None,
        })
    }

    fn read<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        convert: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, WeightsError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        convert(value).map(Some).ok_or_else(|| WeightsError::Type {
            file: self.file.clone(),
            key: self.name_of(key).to_owned(),
            expected,
            found: value.describe(),
        })
    }
}

/// Metadata built in memory, without a file. Of duplicate keys the first is kept.
impl<K: Into<String>, V: Into<Value>> FromIterator<(K, V)> for Metadata {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let mut metadata = Metadata::new(Path::new("(memory)"));
        for (key, value) in entries {
            // An error is a duplicate key, which is dropped as documented.
            let _ = metadata.insert(key.into(), value.into());
        }
        metadata
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Metadata {
        [
            ("small", Value::U8(7)),
            ("negative", Value::I32(-1)),
            ("wide", Value::U64(1 << 32)),
            ("half", Value::F64(0.5)),
            ("name", Value::from("llama")),
            ("merges", Value::from(vec!["a b".to_owned()])),
            ("ids", Value::from(vec![1i32, 2])),
            ("bad ids", Value::from(vec![1i32, -2])),
        ]
        .into_iter()
        .collect()
    }

    #[test]
    fn readers_accept_any_width_that_fits() {
        let metadata = sample();
        assert_eq!(metadata.u32("small").unwrap(), Some(7));
        assert_eq!(metadata.u64("wide").unwrap(), Some(1 << 32));
        assert_eq!(metadata.f32("half").unwrap(), Some(0.5));
        assert_eq!(metadata.u32s("ids").unwrap(), Some(vec![1, 2]));
        assert_eq!(metadata.strings("merges").unwrap(), Some(&["a b"].into_iter().collect()));
        assert_eq!(metadata.str("absent").unwrap(), None);
    }

    #[test]
    fn errors_name_key_expected_and_found() {
        let metadata = sample();
        let message = |error: WeightsError| error.to_string();
        assert_eq!(
            message(metadata.u32("negative").unwrap_err()),
            "(memory): metadata `negative`: expected an integer that fits u32, found i32 -1"
        );
        assert_eq!(
            message(metadata.str("merges").unwrap_err()),
            "(memory): metadata `merges`: expected string, found array of string"
        );
        assert!(metadata.u32("wide").is_err() && metadata.u32s("bad ids").is_err());
        assert!(metadata.f32("small").is_err() && metadata.bool("name").is_err());
    }

    #[test]
    fn the_first_of_two_equal_keys_is_kept_in_order() {
        let metadata: Metadata = [("b", 1u32), ("a", 2), ("b", 3)].into_iter().collect();
        let entries: Vec<_> = metadata.iter().collect();
        assert_eq!(entries, [("b", &Value::U32(1)), ("a", &Value::U32(2))]);
    }
}
