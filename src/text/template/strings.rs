//! Python's string methods. Results keep the origin of their parts.

use super::arguments::{bind, split};
use super::bounds::Budget;
use super::cuts::{has_affix, lines, part_of, partition, search, split_by, stripped};
use super::formatting;
use super::items::items;
use super::letters::{cased, holds};
use super::origin::{Marks, Text};
use super::repr::display;
use super::types::{invalid, type_name};
use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

/// All methods.
const NAMES: &str = "\
    capitalize casefold center count encode endswith expandtabs find format format_map index \
    isalnum isalpha isascii isdecimal isdigit isidentifier islower isnumeric isprintable \
    isspace istitle isupper join ljust lower lstrip partition removeprefix removesuffix \
    replace rfind rindex rjust rpartition rsplit rstrip split splitlines startswith strip \
    swapcase title translate upper zfill";

/// Whether strings have this method.
pub(super) fn is_method(name: &str) -> bool {
    NAMES.split(' ').any(|method| method == name)
}

/// Calls a string method.
pub(super) fn call(
    state: &mut State<'_, '_>,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let budget = Budget::of(state)?;
    let marks = budget.marks;
    let text = marks.text(value).unwrap_or_default();
    budget.spend_bytes(text.cost())?;
    match name {
        "join" => {
            let bound = bind(name, args, ["iterable"])?;
            let items = items(state, bound.required(0)?)?;
            if let Some(other) = items.iter().find(|item| item.kind() != ValueKind::String) {
                return Err(invalid(format!("join() expected strings, found {}", type_name(other))));
            }
            join(Budget::of(state)?, &text, &items)
        }
        "format" => {
            let (positional, named) = split(args)?;
            formatting::braces(budget, &text, &positional, &named)
        }
        "format_map" => {
            let bound = bind(name, args, ["mapping"])?;
            let mapping = bound.required(0)?;
            let pairs = mapping
                .try_iter()?
                .filter_map(|key| Some((key.as_str()?.to_owned(), mapping.get_item(&key).ok()?)));
            formatting::braces(budget, &text, &[], &pairs.collect())
        }
        "replace" => {
            let bound = bind(name, args, ["old", "new", "count"])?;
            let (from, to) = (bound.required_text(marks, 0)?, bound.required_text(marks, 1)?);
            let count = bound.integer(2)?.and_then(|count| usize::try_from(count).ok());
            replace(budget, &text, (&from, &to), count)
        }
        "split" | "rsplit" => {
            let bound = bind(name, args, ["sep", "maxsplit"])?;
            let most = bound.integer(1)?.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX);
            let separator = bound.text(marks, 0)?;
            let parts =
                split_by(text.as_str(), separator.as_ref().map(Text::as_str), most, name == "rsplit")?;
            budget.spend_visits(parts.len())?;
            Ok(parts.into_iter().map(|part| marks.value(text.part(part))).collect())
        }
        "splitlines" => {
            let keep = bind(name, args, ["keepends"])?.is_true(0);
            let lines = lines(text.as_str(), keep);
            budget.spend_visits(lines.len())?;
            Ok(lines.into_iter().map(|line| marks.value(text.part(line))).collect())
        }
        "center" | "ljust" | "rjust" => {
            let bound = bind(name, args, ["width", "fillchar"])?;
            let fill = bound.text(marks, 1)?.unwrap_or_else(|| Text::template(" "));
            justify(budget, &text, name, bound.required_integer(0)?, &fill)
        }
        "zfill" => {
            let width = bind(name, args, ["width"])?.required_integer(0)?;
            let signed = usize::from(text.as_str().starts_with(['+', '-']));
            let mut filled = text.slice(0..signed);
            let digits = text.slice(signed..text.as_str().len());
            let padded = justify(budget, &digits, "rjust", width - signed as i128, &Text::template("0"))?;
            filled.push(&marks.text(&padded).unwrap_or_default());
            Ok(marks.value(filled))
        }
        "expandtabs" => {
            let size = bind(name, args, ["tabsize"])?.integer(0)?.unwrap_or(8);
            expand_tabs(budget, &text, usize::try_from(size).unwrap_or(0))
        }
        _ => simple(marks, &text, name, args),
    }
}

/// Methods that create nothing larger than the string.
fn simple(marks: Marks, text: &Text, name: &str, args: &[Value]) -> Result<Value, Error> {
    let string = text.as_str();
    Ok(match name {
        "strip" | "lstrip" | "rstrip" => {
            let chars = bind(name, args, ["chars"])?.text(marks, 0)?;
            marks.value(text.part(stripped(string, name, chars.as_ref().map(Text::as_str))))
        }
        "removeprefix" | "removesuffix" => {
            let affix = bind(name, args, ["affix"])?.required_text(marks, 0)?;
            let cut = if name == "removeprefix" {
                string.strip_prefix(affix.as_str())
            } else {
                string.strip_suffix(affix.as_str())
            };
            marks.value(text.part(cut.unwrap_or(string)))
        }
        "partition" | "rpartition" => {
            let separator = bind(name, args, ["sep"])?.required_text(marks, 0)?;
            partition(marks, text, name, separator.as_str())
        }
        "startswith" | "endswith" => {
            let bound = bind(name, args, ["affix", "start", "end"])?;
            let within = part_of(string, &bound, 1)?.map_or("", |(_, part)| part);
            Value::from(has_affix(marks, within, bound.required(0)?, name == "startswith")?)
        }
        "find" | "rfind" | "index" | "rindex" | "count" => {
            let bound = bind(name, args, ["sub", "start", "end"])?;
            search(string, name, &bound, bound.required_text(marks, 0)?.as_str())?
        }
        "upper" | "lower" | "casefold" | "capitalize" | "title" | "swapcase" => {
            bind(name, args, [])?;
            marks.value(cased(text, name))
        }
        "encode" | "translate" => return Err(invalid(format!("{name}() is not supported in templates"))),
        _ if name.starts_with("is") && is_method(name) => {
            bind(name, args, [])?;
            Value::from(holds(string, name))
        }
        _ => return Err(Error::from(ErrorKind::UnknownMethod)),
    })
}

/// Joins items with a separator. Items other than strings are printed.
pub(super) fn join(budget: &mut Budget, joiner: &Text, items: &[Value]) -> Result<Value, Error> {
    let mut joined = Text::default();
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            budget.spend_bytes(joiner.cost())?;
            joined.push(joiner);
        }
        joined.push(&display(budget, item)?);
    }
    budget.spend_bytes(joined.cost())?;
    Ok(budget.marks.value(joined))
}

/// Replaces the first `count` occurrences, or all. A replacement of user text counts as a user's.
pub(super) fn replace(
    budget: &mut Budget,
    text: &Text,
    (from, to): (&Text, &Text),
    count: Option<usize>,
) -> Result<Value, Error> {
    let string = text.as_str();
    let found: Vec<usize> =
        string.match_indices(from.as_str()).take(count.unwrap_or(usize::MAX)).map(|(at, _)| at).collect();
    budget.spend_visits(found.len())?;
    budget.spend_bytes(text.cost().saturating_add(found.len().saturating_mul(to.cost())))?;
    let provoked = Text::user(to.as_str());
    let (mut out, mut start) = (Text::default(), 0);
    for at in found {
        out.push(&text.slice(start..at));
        let end = at + from.as_str().len();
        let replaced = if from.as_str().is_empty() { text } else { &text.slice(at..end) };
        out.push(if replaced.is_template() { to } else { &provoked });
        start = end;
    }
    out.push(&text.slice(start..string.len()));
    Ok(budget.marks.value(out))
}

/// `center`, `ljust` and `rjust`.
pub(super) fn justify(
    budget: &mut Budget,
    text: &Text,
    method: &str,
    width: i128,
    fill: &Text,
) -> Result<Value, Error> {
    if fill.as_str().chars().count() != 1 {
        return Err(invalid(format!("{method}() expected one character to fill with")));
    }
    let count = text.as_str().chars().count();
    let missing = usize::try_from(width.max(0)).unwrap_or(usize::MAX).saturating_sub(count);
    budget.spend_bytes(missing.saturating_mul(fill.cost()).saturating_add(text.cost()))?;
    // CPython puts the odd fill character to the left if the width is odd.
    let left = match method {
        "ljust" => 0,
        "rjust" => missing,
        _ => missing / 2 + (missing & (missing + count) & 1),
    };
    let mut out = Text::default();
    (0..left).for_each(|_| out.push(fill));
    out.push(text);
    (left..missing).for_each(|_| out.push(fill));
    Ok(budget.marks.value(out))
}

fn expand_tabs(budget: &mut Budget, text: &Text, size: usize) -> Result<Value, Error> {
    let tabs = text.as_str().matches('\t').count();
    budget.spend_bytes(text.cost().saturating_add(tabs.saturating_mul(size)))?;
    let (mut out, mut column) = (Text::default(), 0);
    for c in text.chars() {
        match c.as_str() {
            "\t" => {
                let spaces = if size == 0 { 0 } else { size - column % size };
                out.push(&Text::template(" ".repeat(spaces)));
                column += spaces;
            }
            other => {
                column = if matches!(other, "\n" | "\r") { 0 } else { column + 1 };
                out.push(&c);
            }
        }
    }
    Ok(budget.marks.value(out))
}
