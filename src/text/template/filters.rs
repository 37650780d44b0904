//! Jinja's filters that create or take strings, and those that differ from the engine's.
//!
//! The engine's own filters remain if they only move values: `map`, `select`, `sort`, `groupby` and others.

use super::arguments::{bind, plain, split};
use super::bounds::Budget;
use super::collections::{batch, dict_sort, list_of, pairs, path, reverse, slice, sum};
use super::cuts::{lines, stripped};
use super::formatting;
use super::items::items;
use super::json;
use super::letters;
use super::numbers::{abs, file_size, float, int, round};
use super::origin::Text;
use super::repr::{self, display};
use super::strings;
use super::types::{as_integer, invalid, type_name};
use minijinja::value::{Rest, Value, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, State};

type Outcome = Result<Value, Error>;
type Filter = fn(&mut State<'_, '_>, &[Value]) -> Outcome;

/// Filters of the engine that Jinja does not have, or that no chat template uses.
const REMOVED: [&str; 5] = ["bool", "chain", "lines", "split", "zip"];

pub(super) fn install(env: &mut Environment<'_>) {
    for name in REMOVED {
        env.remove_filter(name);
    }
    let all: [(&'static str, Filter); 38] = [
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
        env.add_filter(name, move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
            filter(state, &plain(&args))
        });
    }
}

/// The first argument as text.
fn receiver(state: &mut State<'_, '_>, args: &[Value]) -> Result<Text, Error> {
    let value = args.first().cloned().unwrap_or_default();
    display(Budget::of(state)?, &value)
}

fn cased(state: &mut State<'_, '_>, args: &[Value], method: &str) -> Outcome {
    bind(method, args, ["value"])?;
    let text = receiver(state, args)?;
    Ok(Budget::of(state)?.marks.value(letters::cased(&text, method)))
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
        start = letters::is_space(c) || matches!(c, '-' | '(' | '{' | '[' | '<');
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
        ValueKind::Seq | ValueKind::Map | ValueKind::Iterable if value.len().is_some() => {
            Ok(Value::from(value.len()))
        }
        _ => {
            Err(invalid(format!("length of {}: expected a string, a list or a dictionary", type_name(value))))
        }
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

/// Python's `Markup`. User text keeps its origin.
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
    let mut lines = lines(text.as_str(), false);
    if text.as_str().is_empty() || text.as_str().ends_with('\n') {
        lines.push("");
    }
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
    Ok(marks.value(text.part(stripped(text.as_str(), "strip", chars.as_ref().map(Text::as_str)))))
}

/// Removes comments and tags, and collapses white space.
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
    let words: Vec<&str> = kept.split(letters::is_space).filter(|word| !word.is_empty()).collect();
    Ok(Budget::of(state)?.marks.value(Text::like(&text, words.join(" "))))
}

/// Jinja's `truncate(length=255, killwords=false, end='...', leeway=5)`.
fn truncate(state: &mut State<'_, '_>, args: &[Value]) -> Outcome {
    let bound = bind("truncate", args, ["value", "length", "killwords", "end", "leeway"])?;
    let text = receiver(state, args)?;
    let marks = Budget::of(state)?.marks;
    let size =
        |value: Option<i128>, default| value.map_or(default, |value| usize::try_from(value).unwrap_or(0));
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
