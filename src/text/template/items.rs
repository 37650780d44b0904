//! Items, slices and iteration of values.

use super::bounds::Budget;
use super::origin::Text;
use super::types::{as_integer, invalid, is_sequence, type_name, undefined};
use minijinja::value::{Tuple, Value, ValueKind};
use minijinja::{Error, State};

/// `value[key]` of a required item.
pub(super) fn item_of(value: &Value, key: &Value) -> Result<Value, Error> {
    let item = value.get_item(key)?;
    if item.is_undefined() { Err(invalid(format!("expected an item `{key}`, found none"))) } else { Ok(item) }
}

/// Iterable form of a value: the characters of a string, all items of an iterator.
pub(super) fn iterate(state: &mut State<'_, '_>, value: &Value) -> Result<Value, Error> {
    let budget = Budget::of(state)?;
    if let Some(text) = budget.marks.text(value) {
        budget.spend_visits(text.as_str().len())?;
        return Ok(text.chars().map(|c| budget.marks.value(c)).collect());
    }
    match value.kind() {
        ValueKind::Seq | ValueKind::Map | ValueKind::Undefined => Ok(value.clone()),
        ValueKind::Iterable => {
            let mut items = Vec::new();
            for item in value.try_iter()?.checked() {
                budget.spend_visits(1)?;
                items.push(item?);
            }
            Ok(Value::from(items))
        }
        _ => Err(invalid(format!(
            "expected a list or something else to go through, found {}",
            type_name(value)
        ))),
    }
}

/// `value[start:stop:step]`.
pub(super) fn slice(
    state: &mut State<'_, '_>,
    value: Value,
    start: Value,
    stop: Value,
    step: Value,
) -> Result<Value, Error> {
    let budget = Budget::of(state)?;
    if let Some(error) = undefined(&value) {
        return Err(error);
    }
    let text = budget.marks.text(&value);
    let bound = |bound: &Value| match as_integer(bound) {
        Some(bound) => Ok(Some(bound)),
        None if bound.is_none() => Ok(None),
        None => Err(()),
    };
    let (Ok(start), Ok(stop), Ok(step)) = (bound(&start), bound(&stop), bound(&step)) else {
        return Ok(Value::UNDEFINED);
    };
    // Undefined, as for a missing item.
    if text.is_none() && !is_sequence(&value) {
        return Ok(Value::UNDEFINED);
    }
    let step = step.unwrap_or(1);
    if step == 0 {
        return Err(invalid("a slice's step cannot be 0"));
    }
    if let Some(text) = text {
        budget.spend_bytes(text.cost())?;
        return Ok(budget.marks.value(slice_text(budget, &text, (start, stop, step))?));
    }
    let items: Vec<Value> = value.try_iter()?.checked().collect::<Result<_, _>>()?;
    budget.spend_visits(items.len())?;
    let chosen = indices(items.len(), start, stop, step).filter_map(|index| items.get(index)).cloned();
    let chosen: Vec<Value> = chosen.collect();
    Ok(if value.is_tuple() { Value::from(Tuple::from(chosen)) } else { Value::from(chosen) })
}

fn slice_text(
    budget: &mut Budget,
    text: &Text,
    (start, stop, step): (Option<i128>, Option<i128>, i128),
) -> Result<Text, Error> {
    let string = text.as_str();
    let mut chosen = indices(string.chars().count(), start, stop, step);
    let byte = |index: usize| string.char_indices().nth(index).map_or(string.len(), |(at, _)| at);
    if step == 1 {
        let Some(first) = chosen.next() else { return Ok(Text::default()) };
        return Ok(text.slice(byte(first)..byte(first + 1 + chosen.count())));
    }
    budget.spend_visits(string.len())?;
    let places: Vec<(usize, char)> = string.char_indices().collect();
    let mut out = Text::default();
    for (at, c) in chosen.filter_map(|index| places.get(index)) {
        out.push(&text.slice(*at..at + c.len_utf8()));
    }
    Ok(out)
}

/// Indices of a slice, by the rules of Python's `slice.indices`.
pub(super) fn indices(
    len: usize,
    start: Option<i128>,
    stop: Option<i128>,
    step: i128,
) -> impl Iterator<Item = usize> {
    let len = len as i128;
    let (low, high) = if step > 0 { (0, len) } else { (-1, len - 1) };
    let place = |bound: Option<i128>, default: i128| match bound {
        Some(bound) if bound < 0 => (bound.saturating_add(len)).clamp(low, high),
        Some(bound) => bound.clamp(low, high),
        None => default,
    };
    let (first, last) = if step > 0 { (low, high) } else { (high, low) };
    let (start, stop) = (place(start, first), place(stop, last));
    std::iter::successors(Some(start), move |index| index.checked_add(step))
        .take_while(move |&index| if step > 0 { index < stop } else { index > stop })
        .filter_map(|index| usize::try_from(index).ok())
}

/// All items of a list or iterator, or the characters of a string, charged to the budget.
pub(super) fn items(state: &mut State<'_, '_>, value: &Value) -> Result<Vec<Value>, Error> {
    let list = iterate(state, value)?;
    let items: Vec<Value> = list.try_iter()?.checked().collect::<Result<_, _>>()?;
    Budget::of(state)?.spend_visits(items.len())?;
    Ok(items)
}
