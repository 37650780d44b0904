//! Jinja's filters of lists and dictionaries that differ from the engine's.

use super::arguments::{bind, plain};
use super::bounds::Budget;
use super::compare::compare;
use super::items::{items, iterate};
use super::operators::add;
use super::origin::Text;
use super::types::{invalid, is_dict, type_name};
use minijinja::filters as engine;
use minijinja::value::{Kwargs, Rest, Tuple, Value, ValueOrKwargs};
use minijinja::{Environment, Error, State};
use std::borrow::Cow;

type Outcome = Result<Value, Error>;

/// Wraps the engine's filters that iterate: their input becomes a list by Python's rules.
pub(super) fn install(env: &mut Environment<'_>) {
    env.add_filter("map", |state: &mut State<'_, '_>, value: Value, args: Rest<ValueOrKwargs>| {
        let list = if value.is_true() { iterate(state, &value)? } else { Value::UNDEFINED };
        engine::map(state, list, args)
    });
    type Choose =
        fn(&mut State<'_, '_>, Value, Option<Cow<'_, str>>, Rest<ValueOrKwargs>) -> Result<Vec<Value>, Error>;
    let choosing: [(&'static str, Choose); 2] = [("select", engine::select), ("reject", engine::reject)];
    for (name, choose) in choosing {
        env.add_filter(
            name,
            move |state: &mut State<'_, '_>,
                  value: Value,
                  test: Option<Cow<'_, str>>,
                  args: Rest<ValueOrKwargs>| {
                let list = if value.is_true() { iterate(state, &value)? } else { Value::UNDEFINED };
                choose(state, list, test, args)
            },
        );
    }
    type Order = fn(&State<'_, '_>, Value, Kwargs) -> Outcome;
    let ordering: [(&'static str, Order, [&'static str; 4]); 4] = [
        ("sort", engine::sort, ["value", "reverse", "case_sensitive", "attribute"]),
        ("unique", engine::unique, ["value", "case_sensitive", "attribute", ""]),
        ("min", engine::min, ["value", "case_sensitive", "attribute", ""]),
        ("max", engine::max, ["value", "case_sensitive", "attribute", ""]),
    ];
    for (name, order, parameters) in ordering {
        env.add_filter(name, move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
            let bound = bind(name, &plain(&args), parameters)?;
            let list = iterate(state, bound.required(0)?)?;
            let given = |at: usize| Some((parameters.get(at)?.to_string(), bound.some(at)?.clone()));
            order(state, list, (1..parameters.len()).filter_map(given).collect())
        });
    }
}

/// Value of a dotted path, `attribute='a.b'`.
pub(super) fn path(value: &Value, attribute: &Value) -> Outcome {
    let Some(names) = attribute.as_str() else { return value.get_item(attribute) };
    names.split('.').try_fold(value.clone(), |value, name| match name.parse::<usize>() {
        Ok(index) => value.get_item_by_index(index),
        Err(_) => value.get_attr(name),
    })
}

pub(super) fn list_of(state: &mut State<'_, '_>, args: &[Value], name: &str) -> Result<Vec<Value>, Error> {
    items(state, bind(name, args, ["value"])?.required(0)?)
}

pub(super) fn reverse(state: &mut State<'_, '_>, args: &[Value]) -> Outcome {
    let bound = bind("reverse", args, ["value"])?;
    let value = bound.required(0)?;
    let budget = Budget::of(state)?;
    let marks = budget.marks;
    if let Some(text) = marks.text(value) {
        budget.spend_visits(text.as_str().len())?;
        let mut out = Text::default();
        text.chars().collect::<Vec<_>>().iter().rev().for_each(|c| out.push(c));
        return Ok(marks.value(out));
    }
    let mut all = items(state, value)?;
    all.reverse();
    Ok(generator(all))
}

/// Items as a generator: iterable, but not a list.
pub(super) fn generator(items: Vec<Value>) -> Value {
    Value::make_object_iterable(items, |items| Box::new(items.iter().cloned()))
}

pub(super) fn batch(state: &mut State<'_, '_>, args: &[Value]) -> Outcome {
    let bound = bind("batch", args, ["value", "linecount", "fill_with"])?;
    let all = items(state, bound.required(0)?)?;
    let size = bound.integer(1)?.and_then(|size| usize::try_from(size).ok()).filter(|&size| size > 0);
    let size = size.ok_or_else(|| invalid("batch() expected a positive count"))?;
    let mut rows: Vec<Vec<Value>> = all.chunks(size).map(<[Value]>::to_vec).collect();
    if let (Some(fill), Some(last)) = (bound.some(2), rows.last_mut()) {
        Budget::of(state)?.spend_visits(size)?;
        last.resize(size, fill.clone());
    }
    Ok(generator(rows.into_iter().map(Value::from).collect()))
}

pub(super) fn slice(state: &mut State<'_, '_>, args: &[Value]) -> Outcome {
    let bound = bind("slice", args, ["value", "slices", "fill_with"])?;
    let all = items(state, bound.required(0)?)?;
    let count = bound.integer(1)?.and_then(|count| usize::try_from(count).ok()).filter(|&count| count > 0);
    let count = count.ok_or_else(|| invalid("slice() expected a positive count"))?;
    Budget::of(state)?.spend_visits(count)?;
    let (each, larger) = (all.len() / count, all.len() % count);
    let mut rest = all.as_slice();
    let mut columns = Vec::with_capacity(count);
    for index in 0..count {
        let (column, after) = rest.split_at(each + usize::from(index < larger));
        rest = after;
        let mut column = column.to_vec();
        if let Some(fill) = bound.some(2)
            && index >= larger
            && larger > 0
        {
            column.push(fill.clone());
        }
        columns.push(Value::from(column));
    }
    Ok(generator(columns))
}

pub(super) fn sum(state: &mut State<'_, '_>, args: &[Value]) -> Outcome {
    let bound = bind("sum", args, ["value", "attribute", "start"])?;
    let start = bound.value(2).cloned().unwrap_or_else(|| Value::from(0));
    let all = items(state, bound.required(0)?)?;
    all.into_iter().try_fold(start, |sum, item| {
        let item = bound.some(1).map_or_else(|| Ok(item.clone()), |attribute| path(&item, attribute))?;
        add(state, sum, item)
    })
}

/// Jinja's `dictsort(case_sensitive=false, by='key', reverse=false)`.
pub(super) fn dict_sort(state: &mut State<'_, '_>, args: &[Value]) -> Outcome {
    let bound = bind("dictsort", args, ["value", "case_sensitive", "by", "reverse"])?;
    let value = bound.required(0)?;
    if !is_dict(value) {
        return Err(invalid(format!("dictsort() expected a dictionary, found {}", type_name(value))));
    }
    let marks = Budget::of(state)?.marks;
    let at = match bound.text(marks, 2)?.as_ref().map(Text::as_str) {
        None | Some("key") => 0,
        Some("value") => 1,
        Some(other) => {
            return Err(invalid(format!("dictsort() expected by='key' or 'value', found `{other}`")));
        }
    };
    let mut pairs = Vec::new();
    for key in items(state, value)? {
        let item = value.get_item(&key)?;
        let sort_by = if at == 0 { &key } else { &item };
        let folded =
            marks.plain(sort_by).filter(|_| !bound.is_true(1)).map(|text| Value::from(text.to_lowercase()));
        pairs.push((folded.unwrap_or_else(|| sort_by.clone()), Value::from(Tuple::from([key, item]))));
    }
    for pair in pairs.windows(2) {
        if let [(first, _), (second, _)] = pair {
            compare(Budget::of(state)?, "<", first, second)?;
        }
    }
    pairs.sort_by(|(first, _), (second, _)| {
        let order = first.cmp(second);
        if bound.is_true(3) { order.reverse() } else { order }
    });
    Ok(pairs.into_iter().map(|(_, pair)| pair).collect())
}

pub(super) fn pairs(state: &mut State<'_, '_>, args: &[Value]) -> Outcome {
    let bound = bind("items", args, ["value"])?;
    let value = bound.required(0)?;
    if !value.is_undefined() && !is_dict(value) {
        return Err(invalid(format!("items: expected a dictionary, found {}", type_name(value))));
    }
    let pair = |key: Value| Ok(Value::from(Tuple::from([key.clone(), value.get_item(&key)?])));
    let all = if value.is_undefined() { Vec::new() } else { items(state, value)? };
    Ok(generator(all.into_iter().map(pair).collect::<Result<_, Error>>()?))
}
