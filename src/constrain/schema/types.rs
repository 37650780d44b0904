//! [`Types`]: the types that a schema allows.

use serde_json::{Map, Value, json};

/// JSON's types. A number that is no integer has no name of its own.
const NAMES: [&str; 6] = ["null", "boolean", "number", "string", "array", "object"];

/// A set of JSON types; `integer` counts as `number`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Types(u8);

impl Types {
    pub(super) const NONE: Types = Types(0);
    pub(super) const ALL: Types = Types(0b11_1111);
    pub(super) const OBJECT: Types = Types(0b10_0000);
    pub(super) const ARRAY: Types = Types(0b01_0000);

    /// Types that the keyword `type` allows; all without it.
    pub(super) fn of(schema: &Map<String, Value>) -> Types {
        let named = |name: &Value| {
            let name = if name == "integer" { "number" } else { name.as_str().unwrap_or_default() };
            NAMES.iter().position(|known| *known == name).map_or(0, |at| 1 << at)
        };
        match schema.get("type") {
            None => Types::ALL,
            Some(Value::Array(names)) => Types(names.iter().map(named).fold(0, |all, one| all | one)),
            Some(name) => Types(named(name)),
        }
    }

    /// Type of a value.
    pub(super) fn of_value(value: &Value) -> Types {
        Types(match value {
            Value::Null => 1,
            Value::Bool(_) => 1 << 1,
            Value::Number(_) => 1 << 2,
            Value::String(_) => 1 << 3,
            Value::Array(_) => Types::ARRAY.0,
            Value::Object(_) => Types::OBJECT.0,
        })
    }

    pub(super) fn has(self, name: &str) -> bool {
        NAMES.iter().zip(0..).any(|(known, at)| *known == name && self.0 >> at & 1 == 1)
    }

    pub(super) fn or(self, other: Types) -> Types {
        Types(self.0 | other.0)
    }

    pub(super) fn without(self, other: Types) -> Types {
        Types(self.0 & !other.0)
    }

    pub(super) fn is_within(self, other: Types) -> bool {
        self.without(other).0 == 0
    }

    pub(super) fn is_disjoint(self, other: Types) -> bool {
        self.0 & other.0 == 0
    }

    /// Schema of these types.
    pub(super) fn schema(self) -> Value {
        let names: Vec<&str> = NAMES.into_iter().filter(|name| self.has(name)).collect();
        if names.is_empty() { false.into() } else { json!({"type": names}) }
    }
}

/// Whether the only numbers that a schema allows are integers.
pub(super) fn is_integer(schema: &Map<String, Value>) -> bool {
    match schema.get("type") {
        Some(Value::Array(names)) => {
            names.iter().any(|name| name == "integer") && !names.iter().any(|name| name == "number")
        }
        Some(name) => name == "integer",
        None => false,
    }
}
