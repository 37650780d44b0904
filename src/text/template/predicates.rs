//! Jinja's tests (`is …`) that differ from the engine's.

use super::arguments::{bind, plain};
use super::bounds::Budget;
use super::compare::compare;
use super::letters;
use super::types::{as_integer, invalid, type_name};
use minijinja::value::{Rest, Value, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, State};

pub(super) fn install(env: &mut Environment<'_>) {
    env.add_test("iterable", |value: &Value| is_iterable(value));
    env.add_test("sequence", |value: &Value| {
        matches!(value.kind(), ValueKind::Undefined | ValueKind::String | ValueKind::Seq)
            || (value.kind() == ValueKind::Map && super::types::is_dict(value))
    });
    env.add_test("mapping", |value: &Value| value.kind() == ValueKind::Map && super::types::is_dict(value));
    env.add_test("number", |value: &Value| matches!(value.kind(), ValueKind::Number | ValueKind::Bool));
    env.add_test("integer", |value: &Value| value.kind() == ValueKind::Number && value.is_integer());
    env.add_test("float", |value: &Value| value.kind() == ValueKind::Number && !value.is_integer());
    env.add_test("callable", is_callable);
    env.add_test("sameas", |value: &Value, other: &Value| value.kind() == other.kind() && value == other);
    env.add_test("lower", |state: &mut State<'_, '_>, value: &Value| case(state, value, "islower"));
    env.add_test("upper", |state: &mut State<'_, '_>, value: &Value| case(state, value, "isupper"));
    for (name, divisor, rest) in [("even", Some(2), 0), ("odd", Some(2), 1), ("divisibleby", None, 0)] {
        env.add_test(name, move |args: Rest<ValueOrKwargs>| divides(name, &plain(&args), divisor, rest));
    }
    for unknown in ["int", "startingwith", "endingwith", "safe"] {
        env.remove_test(unknown);
    }
    for (names, operator) in [
        (["==", "eq", "equalto"], "=="),
        (["!=", "ne", "ne"], "!="),
        (["<", "lt", "lessthan"], "<"),
        (["<=", "le", "le"], "<="),
        ([">", "gt", "greaterthan"], ">"),
        ([">=", "ge", "ge"], ">="),
        (["in", "in", "in"], "in"),
    ] {
        for name in names {
            env.add_test(name, move |state: &mut State<'_, '_>, left: &Value, right: &Value| {
                compare(Budget::of(state)?, operator, left, right)
            });
        }
    }
}

fn is_iterable(value: &Value) -> bool {
    matches!(
        value.kind(),
        ValueKind::Undefined | ValueKind::String | ValueKind::Seq | ValueKind::Iterable | ValueKind::Map
    )
}

fn is_callable(value: &Value) -> bool {
    let name = value.as_object().map_or("", |object| object.type_name());
    ["Macro", "Method", "BoxedFunction", "Cycler", "Joiner"].iter().any(|end| name.contains(end))
}

fn case(state: &mut State<'_, '_>, value: &Value, method: &str) -> Result<bool, Error> {
    let budget = Budget::of(state)?;
    Ok(letters::holds(super::repr::display(budget, value)?.as_str(), method))
}

fn divides(name: &str, args: &[Value], divisor: Option<i128>, rest: i128) -> Result<bool, Error> {
    let bound = bind(name, args, ["value", "num"])?;
    let integer = |value: &Value| {
        let whole = || {
            f64::try_from(value.clone()).ok().filter(|float| float.fract() == 0.0).map(|float| float as i128)
        };
        as_integer(value).or_else(whole)
    };
    let value = bound.required(0)?;
    let divisor = match divisor {
        Some(divisor) => divisor,
        None => integer(bound.required(1)?).unwrap_or(0),
    };
    let found = match (integer(value), value.kind()) {
        (Some(found), _) => found,
        (None, ValueKind::Number) => return Ok(false),
        _ => return Err(invalid(format!("`is {name}` expected a number, found {}", type_name(value)))),
    };
    let left = found.checked_rem_euclid(divisor).ok_or_else(|| invalid("division by zero"))?;
    Ok(left == rest)
}
