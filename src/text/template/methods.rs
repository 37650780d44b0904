//! Python's methods of strings, lists and dictionaries.
//!
//! As in Jinja, `value.name` is a method if the type has one with that name, otherwise an item.

use super::arguments::bind;
use super::bounds::Budget;
use super::items::items;
use super::strings;
use super::types::{invalid, is_dict};
use minijinja::value::{Object, ObjectRepr, Tuple, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};
use std::fmt;
use std::sync::Arc;

/// Methods of dictionaries.
const DICT: [&str; 5] = ["copy", "get", "items", "keys", "values"];
/// Methods of lists and tuples.
const LIST: [&str; 3] = ["copy", "count", "index"];
/// Methods that mutate a list or dictionary, which the sandbox of `transformers` rejects.
const CHANGING: [&str; 13] = [
    "append",
    "clear",
    "extend",
    "insert",
    "pop",
    "popitem",
    "remove",
    "reverse",
    "setdefault",
    "sort",
    "update",
    "add",
    "discard",
];

/// Whether any type has a method with this name: `program.rs` resolves these names by [`attribute`].
pub(super) fn is_method(name: &str) -> bool {
    DICT.contains(&name) || LIST.contains(&name) || CHANGING.contains(&name) || strings::is_method(name)
}

fn has_method(value: &Value, name: &str) -> bool {
    match value.kind() {
        ValueKind::String => strings::is_method(name),
        ValueKind::Seq => LIST.contains(&name),
        ValueKind::Map => is_dict(value) && DICT.contains(&name),
        _ => false,
    }
}

/// `value.name`.
pub(super) fn attribute(value: &Value, name: &str) -> Result<Value, Error> {
    let changes = CHANGING.contains(&name) && (value.kind() == ValueKind::Seq || is_dict(value));
    if value.is_none() || changes {
        return Ok(Value::UNDEFINED);
    }
    if has_method(value, name) {
        return Ok(Value::from_object(Method { value: value.clone(), name: name.to_owned() }));
    }
    value.get_attr(name)
}

/// A bound method.
struct Method {
    value: Value,
    name: String,
}

impl fmt::Debug for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<built-in method {} of {} object>", self.name, super::types::type_name(&self.value))
    }
}

impl Object for Method {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        call(state, &self.value, &self.name, args)
    }
}

/// Calls a method.
pub(super) fn call(
    state: &mut State<'_, '_>,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::String => strings::call(state, value, name, args),
        ValueKind::Map if is_dict(value) => dict(state, value, name, args),
        ValueKind::Seq => list(state, value, name, args),
        ValueKind::Undefined => Err(Error::from(ErrorKind::UndefinedError)),
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

fn changing(name: &str) -> Error {
    invalid(format!("the sandbox does not allow `{name}`, which changes its object"))
}

fn dict(state: &mut State<'_, '_>, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let budget = Budget::of(state)?;
    match name {
        "get" => {
            let bound = bind(name, args, ["key", "default"])?;
            let key = bound.required(0)?;
            let key = budget.marks.plain(key).map_or_else(|| key.clone(), Value::from);
            let found = value.as_object().and_then(|object| object.get_value(&key));
            Ok(found.or_else(|| bound.value(1).cloned()).unwrap_or_else(|| Value::from(())))
        }
        "keys" | "values" | "items" | "copy" => {
            bind(name, args, [])?;
            let mut pairs = Vec::new();
            for key in value.try_iter()?.checked() {
                let key = key?;
                budget.spend_visits(1)?;
                let item = value.get_item(&key)?;
                pairs.push((key, item));
            }
            Ok(match name {
                "keys" => pairs.into_iter().map(|(key, _)| key).collect(),
                "values" => pairs.into_iter().map(|(_, item)| item).collect(),
                "copy" => Value::from_pairs(pairs),
                _ => pairs.into_iter().map(|(key, item)| Value::from(Tuple::from([key, item]))).collect(),
            })
        }
        name if CHANGING.contains(&name) => Err(changing(name)),
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

fn list(state: &mut State<'_, '_>, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    match name {
        "count" | "index" => {
            let bound = bind(name, args, ["value", "start", "stop"])?;
            let wanted = bound.required(0)?;
            let items = items(state, value)?;
            let budget = Budget::of(state)?;
            let same = |item: &&Value| super::compare::equal(budget, item, wanted);
            if name == "count" {
                return Ok(Value::from(items.iter().filter(same).count()));
            }
            let found = items.iter().position(|item| super::compare::equal(budget, item, wanted));
            found.map(Value::from).ok_or_else(|| invalid("the value is not in the list"))
        }
        "copy" => {
            bind(name, args, [])?;
            Ok(Value::from(items(state, value)?))
        }
        name if CHANGING.contains(&name) => Err(changing(name)),
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}
