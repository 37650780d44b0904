//! JSON from clients, measured before it is parsed: an object of seven bytes takes five hundred in memory, so
//! a body's length is no bound.

use std::fmt::{self, Formatter};

use serde::de::{DeserializeSeed, Deserializer as _, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Deserializer, Value};

use crate::request::encoding::{other_unicode, unmarked};

/// Most bytes of a text's values in memory. A default-size body full of six-digit numbers takes less.
const BYTES_MAX: usize = 64 << 20;
/// Texts up to this length need no measurement: no value takes 256 times its text.
const SMALL: usize = BYTES_MAX / 256;
/// Bytes of a value, and of an object's field: hash, name, value.
const VALUE: usize = size_of::<Value>();
const FIELD: usize = size_of::<(usize, String)>() + VALUE;
/// Bytes of an object: it allocates its first fields at once, with an index.
const OBJECT: usize = 4 * FIELD + 64;

/// The limit in an error's text.
pub(crate) const MIB_MAX: usize = BYTES_MAX >> 20;

/// Errors of parsing.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum JsonError {
    /// Invalid JSON.
    Syntax(String),
    /// Values above [`BYTES_MAX`].
    Large,
}

/// Parses a text in UTF-8. A byte-order mark is skipped.
pub(crate) fn parse(text: &[u8]) -> Result<Value, JsonError> {
    if let Some(encoding) = other_unicode(text) {
        return Err(JsonError::Syntax(format!("expected UTF-8, found {encoding}")));
    }
    let text = unmarked(text);
    if text.len() > SMALL && bytes(text) > BYTES_MAX {
        return Err(JsonError::Large);
    }
    serde_json::from_slice(text).map_err(|error| JsonError::Syntax(error.to_string()))
}

/// Whether a value takes at most `most` bytes, by the measure of [`parse`].
pub(crate) fn is_within(value: &Value, most: usize) -> bool {
    rest(value, most).is_some()
}

/// The rest of `most` bytes; `None` if the value takes more.
fn rest(value: &Value, most: usize) -> Option<usize> {
    match value {
        Value::String(text) => most.checked_sub(VALUE + text.len()),
        Value::Array(list) => list.iter().try_fold(most.checked_sub(VALUE)?, |most, value| rest(value, most)),
        Value::Object(map) => {
            let most = most.checked_sub(OBJECT)?;
            map.values().try_fold(most, |most, value| rest(value, most.checked_sub(FIELD)?))
        }
        _ => most.checked_sub(VALUE),
    }
}

/// Approximate memory of a text's value. Syntax errors are left to the parser.
fn bytes(text: &[u8]) -> usize {
    let mut bytes = 0;
    let _ = Deserializer::from_slice(text).deserialize_any(Measure(&mut bytes));
    bytes
}

/// Sums the memory of values without building them, and stops above the limit.
struct Measure<'m>(&'m mut usize);

impl Measure<'_> {
    fn add<E: Error>(&mut self, bytes: usize) -> Result<(), E> {
        *self.0 += bytes;
        if *self.0 > BYTES_MAX { Err(E::custom("too large")) } else { Ok(()) }
    }
}

impl<'de> DeserializeSeed<'de> for Measure<'_> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Measure<'_> {
    type Value = ();

    fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E: Error>(mut self) -> Result<(), E> {
        self.add(VALUE)
    }

    fn visit_bool<E: Error>(mut self, _: bool) -> Result<(), E> {
        self.add(VALUE)
    }

    fn visit_u64<E: Error>(mut self, _: u64) -> Result<(), E> {
        self.add(VALUE)
    }

    fn visit_i64<E: Error>(mut self, _: i64) -> Result<(), E> {
        self.add(VALUE)
    }

    fn visit_f64<E: Error>(mut self, _: f64) -> Result<(), E> {
        self.add(VALUE)
    }

    fn visit_str<E: Error>(mut self, text: &str) -> Result<(), E> {
        self.add(VALUE + text.len())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<(), A::Error> {
        self.add(VALUE)?;
        while list.next_element_seed(Measure(self.0))?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        self.add(OBJECT)?;
        while map.next_key_seed(Measure(self.0))?.is_some() {
            self.add::<A::Error>(FIELD)?;
            map.next_value_seed(Measure(self.0))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A list as long as the default body limit.
    fn list(element: &str) -> String {
        let elements = (4 << 20) / (element.len() + 1) - 1;
        format!("[{}{element}]", format!("{element},").repeat(elements - 1))
    }

    #[test]
    fn what_takes_far_more_memory_than_its_text_is_refused() {
        for element in [r#"{"":0}"#, "{}", "[]", "1", r#"{"a":{"b":{"c":1}}}"#] {
            assert_eq!(parse(list(element).as_bytes()), Err(JsonError::Large), "{element}");
        }
        for element in [
            "123456",
            r#""a text of a prompt, as people write them""#,
            r#"{"role":"user","content":"a short message, but a message it is, of some eighty bytes"}"#,
        ] {
            assert!(parse(list(element).as_bytes()).is_ok(), "{element}");
        }
    }

    #[test]
    fn a_value_has_the_measure_of_its_text() {
        for text in [r#"{"a": [1, null, "é"], "b": {"c": {}}}"#, "[[],[]]", "\"text\"", "0"] {
            let (value, bytes) = (parse(text.as_bytes()).expect("JSON"), bytes(text.as_bytes()));
            // The measure of a text counts the names of fields twice.
            assert!(is_within(&value, bytes) && !is_within(&value, bytes / 2), "{text}: {bytes}");
        }
    }

    #[test]
    fn no_value_takes_256_times_its_text() {
        for text in [r#"{"":0}"#, "{}", "[{},{}]", "[[],[]]", r#"{"a":{}}"#, "[0,0]", "0", "\"\""] {
            assert!(bytes(text.as_bytes()) <= 256 * text.len(), "{text}");
        }
    }

    #[test]
    fn values_are_what_they_are_and_errors_say_where() {
        let text = r#"{"a": [1, -2, 0.5, true, null, "é"], "b": {}}"#;
        assert_eq!(parse(text.as_bytes()), Ok(json!({"a": [1, -2, 0.5, true, null, "é"], "b": {}})));
        for wrong in ["", "{", "[1,]", "{\"a\" 1}", "\u{1}", "1 2"] {
            let Err(JsonError::Syntax(message)) = parse(wrong.as_bytes()) else { panic!("{wrong}") };
            assert!(message.contains("line 1"), "{message}");
        }
        let deep = "[".repeat(100_000);
        assert!(matches!(parse(deep.as_bytes()), Err(JsonError::Syntax(_))));
    }
}
