//! Comparison operators: `==`, `<`, `in` and others.

use super::bounds::Budget;
use super::types::{invalid, type_name};
use minijinja::Error;
use minijinja::value::{Value, ValueKind};
use std::cmp::Ordering;

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
