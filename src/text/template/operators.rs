//! Python's operators on the values of a template, each paying its budget for what it makes.
//!
//! `program.rs` puts calls of these functions where the engine's own instructions stood: those that make
//! larger values, and those that differ from Python's.

use super::bounds::Budget;
use super::formatting;
use super::items::{item, iterate, slice};
use super::methods;
use super::origin::Text;
use super::repr::display;
use minijinja::value::{Tuple, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State};
use std::cmp::Ordering;

/// The functions that the rewritten program calls; no template can spell these names.
pub(super) const ADD: &str = "a + b";
pub(super) const MULTIPLY: &str = "a * b";
pub(super) const REMAINDER: &str = "a % b";
pub(super) const CONCAT: &str = "a ~ b";
pub(super) const CONTAINS: &str = "a in b";
pub(super) const COMPARE: &str = "a <=> b";
pub(super) const ITEM: &str = "a[b]";
pub(super) const ATTRIBUTE: &str = "a.b";
pub(super) const SLICE: &str = "a[b:c:d]";
pub(super) const ITERATE: &str = "for a in b";

pub(super) fn install(env: &mut Environment<'_>) {
    env.add_function(ADD, add);
    env.add_function(MULTIPLY, multiply);
    env.add_function(REMAINDER, remainder);
    env.add_function(CONCAT, concat);
    env.add_function(CONTAINS, |state: &mut State<'_, '_>, item: Value, all: Value| {
        contains(Budget::of(state)?, &item, &all)
    });
    env.add_function(COMPARE, |state: &mut State<'_, '_>, left: Value, right: Value, operator: &str| {
        compare(Budget::of(state)?, operator, &left, &right)
    });
    env.add_function(ITEM, item);
    env.add_function(ATTRIBUTE, |value: Value, name: &str| methods::attribute(&value, name));
    env.add_function(SLICE, slice);
    env.add_function(ITERATE, |state: &mut State<'_, '_>, value: Value| iterate(state, &value));
}

pub(super) fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

/// What Python calls a value's type.
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

/// Whether a value is a dictionary, rather than an object with names in it (`loop`, a namespace, a macro).
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

pub(super) fn add(state: &mut State<'_, '_>, left: Value, right: Value) -> Result<Value, Error> {
    let budget = Budget::of(state)?;
    if let (Some(mut first), Some(second)) = (budget.marks.text(&left), budget.marks.text(&right)) {
        let markup = first.is_markup() || second.is_markup();
        let second = if markup { second.escaped() } else { second };
        first = if markup { first.escaped() } else { first };
        budget.spend_bytes(first.cost() + second.cost())?;
        first.push(&second);
        return Ok(budget.marks.value(first));
    }
    if is_sequence(&left) && is_sequence(&right) && left.is_tuple() == right.is_tuple() {
        let items: Vec<Value> =
            left.try_iter()?.checked().chain(right.try_iter()?.checked()).collect::<Result<_, _>>()?;
        let sum = if left.is_tuple() { Value::from(Tuple::from(items)) } else { Value::from(items) };
        budget.measure(&sum)?;
        return Ok(sum);
    }
    arithmetic("+", (&left, &right), i128::checked_add, |a, b| a + b)
}

fn multiply(state: &mut State<'_, '_>, left: Value, right: Value) -> Result<Value, Error> {
    let budget = Budget::of(state)?;
    let (value, times) = if as_integer(&right).is_some() && as_integer(&left).is_none() {
        (&left, &right)
    } else {
        (&right, &left)
    };
    let times = as_integer(times).map(|times| usize::try_from(times.max(0)).unwrap_or(usize::MAX));
    match (budget.marks.text(value), times) {
        (Some(text), Some(times)) => {
            budget.spend_bytes(text.cost().saturating_mul(times))?;
            let mut product = Text::default();
            (0..times).for_each(|_| product.push(&text));
            Ok(budget.marks.value(product))
        }
        (None, Some(times)) if is_sequence(value) => {
            let items: Vec<Value> = value.try_iter()?.checked().collect::<Result<_, _>>()?;
            budget.spend_visits(items.len().saturating_mul(times))?;
            let all: Vec<Value> = std::iter::repeat_n(&items, times).flatten().cloned().collect();
            Ok(if value.is_tuple() { Value::from(Tuple::from(all)) } else { Value::from(all) })
        }
        _ => arithmetic("*", (&left, &right), i128::checked_mul, |a, b| a * b),
    }
}

fn remainder(state: &mut State<'_, '_>, left: Value, right: Value) -> Result<Value, Error> {
    let budget = Budget::of(state)?;
    if let Some(pattern) = budget.marks.text(&left) {
        let many: Vec<Value> = if right.is_tuple() {
            right.try_iter()?.checked().collect::<Result<_, _>>()?
        } else {
            vec![right]
        };
        return formatting::percent(budget, &pattern, &many, None);
    }
    if f64::try_from(right.clone()).is_ok_and(|divisor| divisor == 0.0) && f64::try_from(left.clone()).is_ok()
    {
        return Err(invalid("modulo by zero"));
    }
    let whole = |a: i128, b: i128| {
        let rest = a.checked_rem(b)?;
        Some(if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest })
    };
    arithmetic("%", (&left, &right), whole, |a, b| {
        let rest = a % b;
        if rest == 0.0 {
            0f64.copysign(b)
        } else if (rest < 0.0) == (b < 0.0) {
            rest
        } else {
            rest + b
        }
    })
}

fn concat(state: &mut State<'_, '_>, left: Value, right: Value) -> Result<Value, Error> {
    let budget = Budget::of(state)?;
    let (mut text, second) = (display(budget, &left)?, display(budget, &right)?);
    text.push(&second);
    budget.spend_bytes(text.cost())?;
    Ok(budget.marks.value(text))
}

/// The integer that a value is; booleans are 0 and 1.
pub(super) fn as_integer(value: &Value) -> Option<i128> {
    match value.kind() {
        ValueKind::Bool => Some(i128::from(value.is_true())),
        ValueKind::Number if value.is_integer() => i128::try_from(value.clone()).ok(),
        _ => None,
    }
}

/// Numbers as in Python: booleans count as 0 and 1, and one float makes the result a float.
pub(super) fn arithmetic(
    operator: &str,
    (left, right): (&Value, &Value),
    integers: impl Fn(i128, i128) -> Option<i128>,
    floats: impl Fn(f64, f64) -> f64,
) -> Result<Value, Error> {
    if let (Some(first), Some(second)) = (as_integer(left), as_integer(right)) {
        let result = integers(first, second);
        let result =
            result.ok_or_else(|| invalid(format!("`{operator}`: the result has more than 127 bits")))?;
        return Ok(i64::try_from(result).map_or_else(|_| Value::from(result), Value::from));
    }
    let float = |value: &Value| value.is_number().then(|| f64::try_from(value.clone()).ok()).flatten();
    let number = |value: &Value| float(value).or_else(|| as_integer(value).map(|integer| integer as f64));
    match (number(left), number(right)) {
        (Some(first), Some(second)) => Ok(Value::from(floats(first, second))),
        _ => {
            let (left, right) = (type_name(left), type_name(right));
            Err(invalid(format!(
                "`{operator}` expected numbers, strings or lists of a kind, found {left} and {right}"
            )))
        }
    }
}

/// `item in all`.
pub(super) fn contains(budget: &mut Budget, item: &Value, all: &Value) -> Result<bool, Error> {
    if let Some(text) = budget.marks.plain(all) {
        let part = budget.marks.plain(item);
        let part = part.ok_or_else(|| {
            invalid(format!("`in` of a string expected a string on the left, found {}", type_name(item)))
        })?;
        return Ok(text.contains(&part));
    }
    match all.kind() {
        ValueKind::Undefined => Ok(false),
        ValueKind::Map => Ok(all.as_object().is_some_and(|object| object.get_value(item).is_some())),
        ValueKind::Seq | ValueKind::Iterable => {
            for other in all.try_iter()?.checked() {
                budget.spend_visits(1)?;
                if equal(budget, item, &other?) {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        _ => {
            Err(invalid(format!("`in` expected a string, a list or a dictionary, found {}", type_name(all))))
        }
    }
}

/// `left == right`.
pub(super) fn equal(budget: &Budget, left: &Value, right: &Value) -> bool {
    let marks = budget.marks;
    if marks.stand_in(left) || marks.stand_in(right) {
        return marks.plain(left) == marks.plain(right);
    }
    left == right
}

/// `left OPERATOR right`.
pub(super) fn compare(
    budget: &mut Budget,
    operator: &str,
    left: &Value,
    right: &Value,
) -> Result<bool, Error> {
    match operator {
        "==" => return Ok(equal(budget, left, right)),
        "!=" => return Ok(!equal(budget, left, right)),
        "in" => return contains(budget, left, right),
        "not in" => return contains(budget, left, right).map(|found| !found),
        _ => {}
    }
    let number = |value: &Value| matches!(value.kind(), ValueKind::Number | ValueKind::Bool);
    let order = match (budget.marks.plain(left), budget.marks.plain(right)) {
        (Some(first), Some(second)) => first.cmp(&second),
        _ if number(left) && number(right) => left.cmp(right),
        _ if left.kind() == ValueKind::Seq && right.kind() == ValueKind::Seq => left.cmp(right),
        _ => {
            let (left, right) = (type_name(left), type_name(right));
            return Err(invalid(format!("`{operator}` is not supported between {left} and {right}")));
        }
    };
    Ok(match operator {
        "<" => order == Ordering::Less,
        "<=" => order != Ordering::Greater,
        ">" => order == Ordering::Greater,
        _ => order != Ordering::Less,
    })
}
