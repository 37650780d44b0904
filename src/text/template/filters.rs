//! Jinja's filters that make or take strings, and those that differ from the engine's.
//!
//! The engine's own remain where they only move values: `map`, `select`, `sort`, `groupby` and the like.

use super::arguments::{bind, plain, split};
use super::bounds::Budget;
use super::json;
use super::operators::{arithmetic, as_integer, invalid, is_dict, items, type_name};
use super::origin::Text;
use super::repr::{self, display};
use super::strings;
use super::formatting;
use minijinja::value::{Rest, Tuple, Value, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, State};

type Outcome = Result<Value, Error>;

/// Filters of the engine that Jinja does not have, or that no chat template uses.
const REMOVED: [&str; 5] = ["bool", "chain", "lines", "split", "zip"];

pub(super) fn install(env: &mut Environment<'_>) {
    for name in REMOVED {
        env.remove_filter(name);
    }
    let all: [(&'static str, fn(&mut State<'_, '_>, &[Value]) -> Outcome); 38] = [
        ("batch", batch),
        ("capitalize", |state, args| cased(state, args, "capitalize")),
        ("center", center),
        ("count", length),
        ("d", default),
        ("default", default),
        ("dictsort", dict_sort),
        ("e", escape),
        ("escape", escape),
        ("first", |state, args| Ok(list_of(state, args, "first")?.into_iter().next().unwrap_or_default())),
        ("float", float),
        ("forceescape", escape),
        ("format", format),
        ("indent", indent),
        ("int", int),
        ("items", pairs),
        ("join", join),
        ("last", |state, args| Ok(list_of(state, args, "last")?.into_iter().next_back().unwrap_or_default())),
        ("length", length),
        ("list", |state, args| list_of(state, args, "list").map(Value::from)),
        ("lower", |state, args| cased(state, args, "lower")),
        ("pprint", |state, args| {
            let bound = bind("pprint", args, ["value"])?;
            repr::repr(Budget::of(state)?, bound.required(0)?).map(Value::from)
        }),
        ("replace", replace),
        ("reverse", reverse),
        ("safe", safe),
        ("slice", slice),
        ("string", string),
        ("striptags", strip_tags),
        ("sum", sum),
        ("title", title),
        ("tojson", json::to_json),
        ("trim", trim),
        ("truncate", truncate),
        ("upper", |state, args| cased(state, args, "upper")),
        ("wordcount", word_count),
        ("abs", abs),
        ("round", round),
        ("filesizeformat", file_size),
    ];
    for (name, filter) in all {
        env.add_filter(name, move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| filter(state, &plain(&args)));
    }
}

/// The first argument, printed.
fn receiver(state: &mut State<'_, '_>, args: &[Value]) -> Result<Text, Error> {
    let value = args.first().cloned().unwrap_or_default();
    display(Budget::of(state)?, &value)
}

fn cased(state: &mut State<'_, '_>, args: &[Value], method: &str) -> Outcome {
    bind(method, args, ["value"])?;
    let text = receiver(state, args)?;
    Ok(Budget::of(state)?.marks.value(strings::cased(&text, method)))
}

/// Jinja's `title`: words begin after white space, hyphens and opening brackets.
fn title(state: &mut State<'_, '_>, args: &[Value]) -> Outcome {
    bind("title", args, ["value"])?;
    let text = receiver(state, args)?;
    let (mut out, mut start) = (String::new(), true);
    for c in text.as_str().chars() {
        if start {
            out.extend(c.to_uppercase());
        } else {
            out.extend(c.to_lowercase());
        }
        start = strings::is_space(c) || matches!(c, '-' | '(' | '{' | '[' | '<');
    }
    Ok(Budget::of(state)?.marks.value(Text::like(&text, out)))
}

fn center(state: &mut State<'_, '_>, args: &[Value]) -> Outcome {
    let width = bind("center", args, ["value", "width"])?.integer(1)?.unwrap_or(80);
    let text = receiver(state, args)?;
    strings::justify(Budget::of(state)?, &text, "center", width, &Text::template(" "))
}

fn length(state: &mut State<'_, '_>, args: &[Value]) -> Outcome {
    let bound = bind("length", args, ["value"])?;
    let value = bound.required(0)?;
    let budget = Budget::of(state)?;
    if let Some(text) = budget.marks.plain(value) {
        return Ok(Value::from(text.chars().count()));
    }
    match value.kind() {
        ValueKind::Undefined => Ok(Value::from(0)),
        ValueKind::Seq | ValueKind::Map | ValueKind::Iterable if value.len().is_some() => Ok(Value::from(value.len())),
        _ => Err(invalid(format!("length of {}: expected a string, a list or a dictionary", type_name(value)))),
    }
}

fn default(_state: &mut State<'_, '_>, args: &[Value]) -> Outcome {
    let bound = bind("default", args, ["value", "default_value", "boolean"])?;
    let value = bound.required(0)?;
    if value.is_undefined() || (bound.is_true(2) && !value.is_true()) {
        return Ok(bound.value(1).cloned().unwrap_or_else(|| Value::from_safe_string(String::new())));
    }
    Ok(value.clone())
}

fn escape(state: &mut State<'_, '_>, args: &[Value]) -> Outcome {
    bind("escape", args, ["value"])?;
    let escaped = receiver(state, args)?.escaped();
    let budget = Budget::of(state)?;
    budget.spend_bytes(escaped.cost())?;
    Ok(budget.marks.value(escaped))
}

/// Python's `Markup`. It does not make what a user wrote the template's.
fn safe(state: &mut State<'_, '_>, args: &[Value]) -> Outcome {
    bind("safe", args, ["value"])?;
    let text = receiver(state, args)?;
    Ok(Budget::of(state)?.marks.value(text.into_markup()))
}

fn format(state: &mut State<'_, '_>, args: &[Value]) -> Outcome {
    let pattern = receiver(state, args)?;
    let (positional, named) = split(args.get(1..).unwrap_or_default())?;
    formatting::percent(Budget::of(state)?, &pattern, &positional, Some(&named))
}

/// Jinja's `indent(width=4, first=false, blank=false)`; the width may be a string.
fn indent(state: &mut State<'_, '_>, args: &[Value]) -> Outcome {
    let bound = bind("indent", args, ["value", "width", "first", "blank"])?;
    let text = receiver(state, args)?;
    let budget = Budget::of(state)?;
    let pad = match bound.some(1) {
        None => Text::template("    "),
        Some(width) => match as_integer(width) {
            Some(width) => {
                let width = usize::try_from(width.max(0)).unwrap_or(usize::MAX);
                budget.spend_bytes(width)?;
                Text::template(" ".repeat(width))
            }
            None => bound.required_text(budget.marks, 1)?,
        },
    };
    let lines: Vec<&str> = text.as_str().split('\n').collect();
    budget.spend_bytes(text.cost().saturating_add(lines.len().saturating_mul(pad.cost() + 1)))?;
    let mut out = Text::default();
    for (index, line) in lines.iter().enumerate() {
        let wanted = if index == 0 { bound.is_true(2) } else { bound.is_true(3) || !line.is_empty() };
        out.push(&Text::template(if index == 0 { "" } else { "\n" }));
        if wanted {
            out.push(&pad);
        }
        out.push(&text.part(line));
    }
    Ok(budget.marks.value(out))
}

fn join(state: &mut State<'_, '_>, args: &[Value]) -> Outcome {
    let bound = bind("join", args, ["value", "d", "attribute"])?;
    let joiner = match bound.some(1) {
        Some(joiner) => display(Budget::of(state)?, joiner)?,
        None => Text::default(),
    };
    let mut all = items(state, bound.required(0)?)?;
    if let Some(attribute) = bound.some(2) {
        for item in &mut all {
            *item = path(item, attribute)?;
        }
    }
    strings::join(Budget::of(state)?, &joiner, &all)
}

/// What `attribute='a.b'` means.
fn path(value: &Value, attribute: &Value) -> Outcome {
    let Some(names) = attribute.as_str() else { return value.get_item(attribute) };
    names.split('.').try_fold(value.clone(), |value, name| match name.parse::<usize>() {
        Ok(index) => value.get_item_by_index(index),
        Err(_) => value.get_attr(name),
    })
}

fn replace(state: &mut State<'_, '_>, args: &[Value]) -> Outcome {
    let bound = bind("replace", args, ["value", "old", "new", "count"])?;
    let text = receiver(state, args)?;
    let budget = Budget::of(state)?;
    let (from, to) = (display(budget, bound.required(1)?)?, display(budget, bound.required(2)?)?);
    let count = bound.integer(3)?.and_then(|count| usize::try_from(count).ok());
    strings::replace(budget, &text, (&from, &to), count)
}

fn string(state: &mut State<'_, '_>, args: &[Value]) -> Outcome {
    bind("string", args, ["value"])?;
    let text = receiver(state, args)?;
    Ok(Budget::of(state)?.marks.value(text))
}

fn trim(state: &mut State<'_, '_>, args: &[Value]) -> Outcome {
    let bound = bind("trim", args, ["value", "chars"])?;
    let text = receiver(state, args)?;
    let marks = Budget::of(state)?.marks;
    let chars = bound.text(marks, 1)?;
    Ok(marks.value(text.part(strings::stripped(text.as_str(), "strip", chars.as_ref().map(Text::as_str)))))
}

/// Without comments and tags, white space made single spaces.
fn strip_tags(state: &mut State<'_, '_>, args: &[Value]) -> Outcome {
    bind("striptags", args, ["value"])?;
    let text = receiver(state, args)?;
    let (mut kept, mut rest) = (String::new(), text.as_str());
    while let Some((before, tag)) = rest.split_once('<') {
        let (tag, end) = tag.strip_prefix("!--").map_or((tag, ">"), |comment| (comment, "-->"));
        let Some((_, after)) = tag.split_once(end) else { break };
        kept.push_str(before);
        rest = after;
    }
    kept.push_str(rest);
    let words: Vec<&str> = kept.split(strings::is_space).filter(|word| !word.is_empty()).collect();
    Ok(Budget::of(state)?.marks.value(Text::like(&text, words.join(" "))))
}

/// Jinja's `truncate(length=255, killwords=false, end='...', leeway=5)`.
fn truncate(state: &mut State<'_, '_>, args: &[Value]) -> Outcome {
    let bound = bind("truncate", args, ["value", "length", "killwords", "end", "leeway"])?;
    let text = receiver(state, args)?;
    let marks = Budget::of(state)?.marks;
    let size = |value: Option<i128>, default| value.map_or(default, |value| usize::try_from(value).unwrap_or(0));
    let (length, leeway) = (size(bound.integer(1)?, 255), size(bound.integer(4)?, 5));
    let end = bound.text(marks, 3)?.unwrap_or_else(|| Text::template("..."));
    if text.as_str().chars().count() <= length.saturating_add(leeway) {
        return Ok(marks.value(text));
    }
    let kept = length.checked_sub(end.as_str().chars().count());
    let kept = kept.ok_or_else(|| invalid("truncate() expected a length of at least the end's"))?;
    let cut = text.as_str().char_indices().nth(kept).map_or(text.as_str().len(), |(at, _)| at);
    let head = text.as_str().get(..cut).unwrap_or_default();
    let head = if bound.is_true(2) { head } else { head.rsplit_once(' ').map_or(head, |(words, _)| words) };
    let mut out = text.part(head);
    out.push(&end);
    Ok(marks.value(out))
}

fn word_count(state: &mut State<'_, '_>, args: &[Value]) -> Outcome {
    bind("wordcount", args, ["value"])?;
    let text = receiver(state, args)?;
    let word = |c: char| c.is_alphanumeric() || c == '_';
    Ok(Value::from(text.as_str().split(|c| !word(c)).filter(|word| !word.is_empty()).count()))
}

fn list_of(state: &mut State<'_, '_>, args: &[Value], name: &str) -> Result<Vec<Value>, Error> {
    items(state, bind(name, args, ["value"])?.required(0)?)
}

fn reverse(state: &mut State<'_, '_>, args: &[Value]) -> Outcome {
    let bound = bind("reverse", args, ["value"])?;
    let value = bound.required(0)?;
    let marks = Budget::of(state)?.marks;
    if let Some(text) = marks.text(value) {
        let mut out = Text::default();
        text.chars().collect::<Vec<_>>().iter().rev().for_each(|c| out.push(c));
        return Ok(marks.value(out));
    }
    let mut all = items(state, value)?;
    all.reverse();
    Ok(generator(all))
}

/// Items that can be gone through, but are no list.
fn generator(items: Vec<Value>) -> Value {
    Value::make_object_iterable(items, |items| Box::new(items.iter().cloned()))
}

fn batch(state: &mut State<'_, '_>, args: &[Value]) -> Outcome {
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

fn slice(state: &mut State<'_, '_>, args: &[Value]) -> Outcome {
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

fn sum(state: &mut State<'_, '_>, args: &[Value]) -> Outcome {
    let bound = bind("sum", args, ["value", "attribute", "start"])?;
    let start = bound.value(2).cloned().unwrap_or_else(|| Value::from(0));
    let all = items(state, bound.required(0)?)?;
    all.into_iter().try_fold(start, |sum, item| {
        let item = bound.some(1).map_or_else(|| Ok(item.clone()), |attribute| path(&item, attribute))?;
        arithmetic("+", (&sum, &item), i128::checked_add, |a, b| a + b)
    })
}

/// Jinja's `dictsort(case_sensitive=false, by='key', reverse=false)`.
fn dict_sort(state: &mut State<'_, '_>, args: &[Value]) -> Outcome {
    let bound = bind("dictsort", args, ["value", "case_sensitive", "by", "reverse"])?;
    let value = bound.required(0)?;
    if !is_dict(value) {
        return Err(invalid(format!("dictsort() expected a dictionary, found {}", type_name(value))));
    }
    let marks = Budget::of(state)?.marks;
    let at = match bound.text(marks, 2)?.as_ref().map(Text::as_str) {
        None | Some("key") => 0,
        Some("value") => 1,
        Some(other) => return Err(invalid(format!("dictsort() expected by='key' or 'value', found `{other}`"))),
    };
    let mut pairs = Vec::new();
    for key in items(state, value)? {
        let item = value.get_item(&key)?;
        let sort_by = if at == 0 { &key } else { &item };
        let folded = marks.plain(sort_by).filter(|_| !bound.is_true(1)).map(|text| Value::from(text.to_lowercase()));
        pairs.push((folded.unwrap_or_else(|| sort_by.clone()), Value::from(Tuple::from([key, item]))));
    }
    for pair in pairs.windows(2) {
        if let [(first, _), (second, _)] = pair {
            super::operators::compare(Budget::of(state)?, "<", first, second)?;
        }
    }
    pairs.sort_by(|(first, _), (second, _)| {
        let order = first.cmp(second);
        if bound.is_true(3) { order.reverse() } else { order }
    });
    Ok(pairs.into_iter().map(|(_, pair)| pair).collect())
}

fn pairs(state: &mut State<'_, '_>, args: &[Value]) -> Outcome {
    let bound = bind("items", args, ["value"])?;
    let value = bound.required(0)?;
    if !value.is_undefined() && !is_dict(value) {
        return Err(invalid(format!("items: expected a dictionary, found {}", type_name(value))));
    }
    let pair = |key: Value| Ok(Value::from(Tuple::from([key.clone(), value.get_item(&key)?])));
    let all = if value.is_undefined() { Vec::new() } else { items(state, value)? };
    Ok(generator(all.into_iter().map(pair).collect::<Result<_, Error>>()?))
}

/// The integer that Python's `int` reads in a text.
fn parse_int(text: &str, base: u32) -> Option<i128> {
    let text = strings::stripped(text, "strip", None);
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let prefix = match base {
        2 => ["0b", "0B"],
        8 => ["0o", "0O"],
        16 => ["0x", "0X"],
        _ => ["", ""],
    };
    let digits = prefix.iter().find_map(|prefix| digits.strip_prefix(prefix)).unwrap_or(digits);
    let spaced = digits.starts_with('_') || digits.ends_with('_') || digits.contains("__");
    if spaced || digits.starts_with(['+', '-']) {
        return None;
    }
    i128::from_str_radix(&digits.replace('_', ""), base).ok().map(|value| sign * value)
}

/// The number that Python's `float` reads in a text.
fn parse_float(text: &str) -> Option<f64> {
    let text = strings::stripped(text, "strip", None).replace('_', "");
    text.parse().ok()
}

/// Jinja's `int(default=0, base=10)`.
fn int(state: &mut State<'_, '_>, args: &[Value]) -> Outcome {
    let bound = bind("int", args, ["value", "default", "base"])?;
    let value = bound.required(0)?;
    let marks = Budget::of(state)?.marks;
    let default = || bound.value(1).cloned().unwrap_or_else(|| Value::from(0));
    let whole = |float: f64| {
        let fits = float.is_finite() && float.abs() < 1e38;
        fits.then(|| Value::from(float.trunc() as i128))
    };
    let base = bound.integer(2)?.and_then(|base| u32::try_from(base).ok()).filter(|base| (2..=36).contains(base));
    let base = base.or(bound.some(2).is_none().then_some(10)).ok_or_else(|| invalid("int() expected a base from 2 to 36"))?;
    let found = match marks.plain(value) {
        Some(text) => match parse_int(&text, base) {
            Some(integer) => Some(Value::from(integer)),
            None => parse_float(&text).and_then(whole),
        },
        None => match as_integer(value) {
            Some(integer) => Some(Value::from(integer)),
            None if value.is_number() => f64::try_from(value.clone()).ok().and_then(whole),
            None if value.is_undefined() => return Err(minijinja::ErrorKind::UndefinedError.into()),
            None => None,
        },
    };
    Ok(found.unwrap_or_else(default))
}

/// Jinja's `float(default=0.0)`.
fn float(state: &mut State<'_, '_>, args: &[Value]) -> Outcome {
    let bound = bind("float", args, ["value", "default"])?;
    let value = bound.required(0)?;
    let found = match Budget::of(state)?.marks.plain(value) {
        Some(text) => parse_float(&text),
        None if value.is_undefined() => return Err(minijinja::ErrorKind::UndefinedError.into()),
        None => as_integer(value).map(|integer| integer as f64).or_else(|| f64::try_from(value.clone()).ok()),
    };
    Ok(found.map_or_else(|| bound.value(1).cloned().unwrap_or_else(|| Value::from(0.0)), Value::from))
}

fn abs(_state: &mut State<'_, '_>, args: &[Value]) -> Outcome {
    let bound = bind("abs", args, ["value"])?;
    let value = bound.required(0)?;
    let negative = as_integer(value).map_or_else(|| f64::try_from(value.clone()).is_ok_and(|value| value < 0.0), |value| value < 0);
    let sign = Value::from(if negative { -1 } else { 1 });
    arithmetic("abs", (value, &sign), i128::checked_mul, |a, b| a * b)
}

/// Jinja's `round(precision=0, method='common')`, which gives a float.
fn round(state: &mut State<'_, '_>, args: &[Value]) -> Outcome {
    let bound = bind("round", args, ["value", "precision", "method"])?;
    let value = bound.required(0)?;
    let marks = Budget::of(state)?.marks;
    let precision = bound.integer(1)?.unwrap_or(0).clamp(-400, 400) as i32;
    let number = as_integer(value).map(|integer| integer as f64).or_else(|| f64::try_from(value.clone()).ok());
    let number = number.ok_or_else(|| invalid(format!("round() expected a number, found {}", type_name(value))))?;
    let scale = 10f64.powi(precision);
    let method = bound.text(marks, 2)?;
    Ok(match method.as_ref().map(Text::as_str) {
        Some("ceil") => Value::from((number * scale).ceil() / scale),
        Some("floor") => Value::from((number * scale).floor() / scale),
        None | Some("common") => match as_integer(value) {
            Some(integer) => Value::from(rounded_integer(integer, precision)),
            None => Value::from(rounded(number, precision)),
        },
        Some(other) => return Err(invalid(format!("round() expected common, ceil or floor, found `{other}`"))),
    })
}

/// To a multiple of a power of ten where the precision is negative, halves to even.
fn rounded_integer(integer: i128, precision: i32) -> i128 {
    let Some(scale) = 10i128.checked_pow(precision.min(0).unsigned_abs()) else { return 0 };
    let (quotient, rest) = (integer.div_euclid(scale), integer.rem_euclid(scale));
    let up = rest * 2 > scale || (rest * 2 == scale && quotient % 2 != 0);
    (quotient + i128::from(up)).saturating_mul(scale)
}

/// To the nearest, by the exact value of the binary number, halves to even: as Python's `round`.
fn rounded(number: f64, precision: i32) -> f64 {
    match usize::try_from(precision) {
        Ok(digits) => format!("{number:.digits$}").parse().unwrap_or(number),
        Err(_) => {
            let scale = 10f64.powi(-precision);
            (number / scale).round_ties_even() * scale
        }
    }
}

/// Jinja's `filesizeformat(binary=false)`.
fn file_size(state: &mut State<'_, '_>, args: &[Value]) -> Outcome {
    let bound = bind("filesizeformat", args, ["value", "binary"])?;
    let bytes = float(state, args.get(..1).unwrap_or_default())?;
    let bytes = f64::try_from(bytes).unwrap_or(0.0);
    let (base, units) = if bound.is_true(1) {
        (1024.0, ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"])
    } else {
        (1000.0, ["kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"])
    };
    let text = if bytes == 1.0 {
        "1 Byte".to_owned()
    } else if bytes < base {
        format!("{} Bytes", bytes.trunc())
    } else {
        let power = units.iter().enumerate().find(|(index, _)| bytes < f64::powi(base, *index as i32 + 2));
        let (index, unit) = power.map_or((units.len() - 1, "YB"), |(index, unit)| (index, *unit));
        format!("{:.1} {unit}", bytes / f64::powi(base, index as i32 + 1))
    };
    Ok(Value::from_safe_string(text))
}
