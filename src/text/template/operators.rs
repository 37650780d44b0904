//! Python's operators on template values, charged to the budget.
//!
//! `program.rs` replaces the engine's instructions by calls of these functions: those that create larger
//! values, and those that differ from Python.

use super::bounds::Budget;
use super::compare::{compare, contains};
use super::formatting;
use super::items::{iterate, slice};
use super::methods;
use super::origin::Text;
use super::repr::display;
use super::types::{as_integer, invalid, is_sequence, type_name, undefined};
use minijinja::value::{Tuple, Value};
use minijinja::{Environment, Error, State};

/// Functions called by the rewritten program. The names are not identifiers, so templates cannot call them.
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

/// Arithmetic as in Python: booleans count as 0 and 1, and one float makes the result a float.
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

/// `value[key]`; without such an item, the attribute with that name, as in Jinja.
fn item(state: &mut State<'_, '_>, value: Value, key: Value) -> Result<Value, Error> {
    let marks = Budget::of(state)?.marks;
    if let Some(error) = undefined(&value) {
        return Err(error);
    }
    if value.is_none() {
        return Ok(Value::UNDEFINED);
    }
    if let (Some(text), Some(index)) = (marks.text(&value), as_integer(&key)) {
        let count = text.as_str().chars().count() as i128;
        let index = if index < 0 { index + count } else { index };
        let found = usize::try_from(index).ok().and_then(|index| text.as_str().char_indices().nth(index));
        return Ok(found.map_or(Value::UNDEFINED, |(at, c)| marks.value(text.slice(at..at + c.len_utf8()))));
    }
    let mut found = value.get_item(&key)?;
    let key = if marks.stand_in(&key) { marks.plain(&key).map_or(key, Value::from) } else { key };
    if found.is_undefined() {
        found = value.get_item(&key)?;
    }
    match key.as_str() {
        Some(name) if found.is_undefined() => methods::attribute(&value, name),
        _ => Ok(found),
    }
}
