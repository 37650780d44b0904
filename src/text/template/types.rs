//! Type names and conversions of template values, as in Python.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

/// Error for an operation that the values do not support.
pub(super) fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

/// Python's name of a value's type.
pub(super) fn type_name(value: &Value) -> &'static str {
    match value.kind() {
        ValueKind::Undefined => "Undefined",
        ValueKind::None => "NoneType",
        ValueKind::Bool => "bool",
        ValueKind::Number if value.is_integer() => "int",
        ValueKind::Number => "float",
        ValueKind::String => "str",
        ValueKind::Bytes => "bytes",
        ValueKind::Seq if value.is_tuple() => "tuple",
        ValueKind::Seq => "list",
        ValueKind::Map if is_dict(value) => "dict",
        ValueKind::Iterable => "generator",
        _ => "object",
    }
}

/// Whether a value is a dictionary rather than an object with attributes (`loop`, a namespace, a macro).
pub(super) fn is_dict(value: &Value) -> bool {
    let object = |value: &Value| {
        value.as_object().is_some_and(|object| {
            let name = object.type_name();
            ["::Namespace", "::Loop", "::Macro", "::FlexibleMacro", "::Module"]
                .iter()
                .any(|end| name.ends_with(end))
        })
    };
    value.kind() == ValueKind::Map && !object(value)
}

pub(super) fn is_sequence(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable)
}

pub(super) fn undefined(value: &Value) -> Option<Error> {
    value.is_undefined().then(|| Error::from(ErrorKind::UndefinedError))
}

/// The value as an integer; booleans are 0 and 1.
pub(super) fn as_integer(value: &Value) -> Option<i128> {
    match value.kind() {
        ValueKind::Bool => Some(i128::from(value.is_true())),
        ValueKind::Number if value.is_integer() => i128::try_from(value.clone()).ok(),
        _ => None,
    }
}
