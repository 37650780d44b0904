//! Memory estimate of parsed JSON, computed before any value is allocated: two bytes of text can become
//! hundreds.

use std::fmt;
use std::mem::size_of;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

/// An entry of an object: hash, key and value.
const ENTRY_BYTES: usize = size_of::<u64>() + size_of::<String>() + size_of::<Value>();
/// A slot of an object's hash table, and the control bytes that belong to no slot.
const PLACE_BYTES: usize = size_of::<usize>() + 1;
const CONTROL_BYTES: usize = 16;
/// Allocator model: overhead per allocation, granularity, and minimum size.
const ALLOCATED_BESIDE: usize = 8;
const ALLOCATED_STEP: usize = 16;
const ALLOCATED_MIN: usize = 32;

/// Approximate upper bound of the memory of the text's [`Value`], in bytes. The text is parsed without
/// building values.
///
/// # Errors
/// Errors of parsing the text as a [`Value`].
pub(crate) fn bytes_parsed(text: &[u8]) -> serde_json::Result<usize> {
    Ok(size_of::<Value>().saturating_add(serde_json::from_slice::<Cost>(text)?.0))
}

/// Heap bytes of a value, without the inline part, which its container provides.
struct Cost(usize);

impl<'de> Deserialize<'de> for Cost {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Cost, D::Error> {
        deserializer.deserialize_any(CostVisitor)
    }
}

struct CostVisitor;

impl<'de> Visitor<'de> for CostVisitor {
    type Value = Cost;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("any valid JSON value")
    }

    fn visit_unit<E>(self) -> Result<Cost, E> {
        Ok(Cost(0))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Cost, E> {
        Ok(Cost(0))
    }

    fn visit_u64<E>(self, _: u64) -> Result<Cost, E> {
        Ok(Cost(0))
    }

    fn visit_i64<E>(self, _: i64) -> Result<Cost, E> {
        Ok(Cost(0))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Cost, E> {
        Ok(Cost(0))
    }

    fn visit_str<E>(self, text: &str) -> Result<Cost, E> {
        Ok(Cost(allocated(text.len())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Cost, A::Error> {
        let (mut count, mut bytes) = (0_usize, 0_usize);
        while let Some(Cost(item)) = items.next_element()? {
            (count, bytes) = (count + 1, bytes.saturating_add(item));
        }
        Ok(Cost(bytes.saturating_add(list_bytes(count))))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Cost, A::Error> {
        let (mut count, mut bytes) = (0_usize, 0_usize);
        while let Some((Cost(key), Cost(value))) = entries.next_entry()? {
            (count, bytes) = (count + 1, bytes.saturating_add(key).saturating_add(value));
        }
        Ok(Cost(bytes.saturating_add(object_bytes(count))))
    }
}

/// Bytes of an allocation, including the allocator's overhead.
fn allocated(bytes: usize) -> usize {
    match bytes {
        0 => 0,
        _ => bytes.saturating_add(ALLOCATED_BESIDE).next_multiple_of(ALLOCATED_STEP).max(ALLOCATED_MIN),
    }
}

/// Bytes of a list, which starts with capacity 4 and doubles.
fn list_bytes(count: usize) -> usize {
    match count {
        0 => 0,
        _ => allocated(count.next_power_of_two().max(4).saturating_mul(size_of::<Value>())),
    }
}

/// Bytes of an object's entries and of its hash table with a load factor of 7/8.
fn object_bytes(count: usize) -> usize {
    if count == 0 {
        return 0;
    }
    let places = if count < 4 { 4 } else { (count.saturating_mul(8) / 7).next_power_of_two().max(8) };
    let room = if places < 8 { places - 1 } else { places / 8 * 7 };
    let table = places.saturating_mul(PLACE_BYTES).saturating_add(CONTROL_BYTES);
    allocated(room.saturating_mul(ENTRY_BYTES)).saturating_add(allocated(table))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> usize {
        bytes_parsed(text.as_bytes()).unwrap()
    }

    #[test]
    fn small_values_take_hundreds_of_bytes() {
        let own = size_of::<Value>();
        for text in ["0", "-1", "1.5", "true", "null", "[]", "{}", "\"\""] {
            assert_eq!(bytes(text), own, "{text}");
        }
        assert_eq!(bytes("\"ab\""), own + ALLOCATED_MIN);
        assert!(bytes("[0]") >= own * 5);
        assert!(bytes("{\"a\":0}") >= own + 3 * ENTRY_BYTES + ALLOCATED_MIN);
        let many = format!("[{}]", vec!["{\"\":0}"; 1000].join(","));
        assert!((400_000..600_000).contains(&bytes(&many)), "{}", bytes(&many));
    }

    #[test]
    fn long_texts_and_lists_take_about_their_bytes() {
        let text = format!("\"{}\"", "é\\n".repeat(100_000));
        assert!((300_000..310_000).contains(&bytes(&text)), "{}", bytes(&text));
        let list = format!("[{}0]", "0,".repeat(65_535));
        assert!(bytes(&list) <= 66_000 * size_of::<Value>(), "{}", bytes(&list));
    }

    #[test]
    fn what_is_no_json_is_refused_in_the_same_words() {
        let deep = "[".repeat(1000);
        for text in ["", "{", "[1,]", "{\"a\" 1}", "{1:2}", "1e999", "0 1", "\"\\ud800\"", "\"\t\"", &deep] {
            let expected = serde_json::from_str::<Value>(text).unwrap_err().to_string();
            assert_eq!(bytes_parsed(text.as_bytes()).unwrap_err().to_string(), expected, "{text}");
        }
        assert!(bytes_parsed(b"\"\xff\"").is_err());
    }
}
