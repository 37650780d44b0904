//! Python's methods of strings. What they give keeps the origin of the parts it is made of.

use super::arguments::{Bound, bind, split};
use super::bounds::Budget;
use super::formatting;
use super::operators::{invalid, items, type_name};
use super::origin::{Marks, Text};
use super::repr::{self, display};
use minijinja::value::{Tuple, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};
use regex::Regex;

/// Every method.
pub(super) const NAMES: [&str; 46] = [
    "capitalize", "casefold", "center", "count", "encode", "endswith", "expandtabs", "find", "format", "format_map",
    "index", "isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "isidentifier", "islower", "isnumeric",
    "isprintable", "isspace", "istitle", "isupper", "join", "ljust", "lower", "lstrip", "partition", "removeprefix",
    "removesuffix", "replace", "rfind", "rindex", "rjust", "rpartition", "rsplit", "rstrip", "split", "splitlines",
    "startswith", "strip", "swapcase", "title", "translate",
    "upper", "zfill",
];

/// Calls a method of a string.
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
            let pairs = mapping.try_iter()?.filter_map(|key| Some((key.as_str()?.to_owned(), mapping.get_item(&key).ok()?)));
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
            let parts = split_by(text.as_str(), separator.as_ref().map(Text::as_str), most, name == "rsplit")?;
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
            justify(budget, &text, name, bound.integer(0)?.unwrap_or(0), &fill)
        }
        "zfill" => {
            let width = bind(name, args, ["width"])?.integer(0)?.unwrap_or(0);
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

/// The methods that make nothing larger than the string.
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
        _ if name.starts_with("is") && NAMES.contains(&name) => {
            bind(name, args, [])?;
            Value::from(holds(string, name))
        }
        _ => return Err(Error::from(ErrorKind::UnknownMethod)),
    })
}

/// The items with the joiner between them; what is no string is printed.
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

/// Replaces the first `count` occurrences, or all.
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
    let (mut out, mut start) = (Text::default(), 0);
    for at in found {
        out.push(&text.slice(start..at));
        out.push(to);
        start = at + from.as_str().len();
    }
    out.push(&text.slice(start..string.len()));
    Ok(budget.marks.value(out))
}

/// Python's white space: Unicode's, and the separators of ASCII.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}')
}

/// `strip`, `lstrip`, `rstrip`.
pub(super) fn stripped<'t>(text: &'t str, method: &str, chars: Option<&str>) -> &'t str {
    let strip = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
    match method {
        "lstrip" => text.trim_start_matches(strip),
        "rstrip" => text.trim_end_matches(strip),
        _ => text.trim_matches(strip),
    }
}

fn split_by<'t>(
    text: &'t str,
    separator: Option<&str>,
    most: usize,
    from_right: bool,
) -> Result<Vec<&'t str>, Error> {
    let pieces = most.saturating_add(1);
    let mut parts: Vec<&str> = match separator {
        Some("") => return Err(invalid("split() expected a separator, found an empty string")),
        Some(separator) if from_right => text.rsplitn(pieces, separator).collect(),
        Some(separator) => text.splitn(pieces, separator).collect(),
        None => return Ok(split_words(text, most, from_right)),
    };
    if from_right {
        parts.reverse();
    }
    Ok(parts)
}

/// Words between white space; the rest after `most` cuts stays whole.
fn split_words(text: &str, most: usize, from_right: bool) -> Vec<&str> {
    let (mut words, mut rest) = (Vec::new(), text);
    loop {
        rest = stripped(rest, if from_right { "rstrip" } else { "lstrip" }, None);
        let cut = if from_right { rest.char_indices().rfind(|&(_, c)| is_space(c)) } else { rest.char_indices().find(|&(_, c)| is_space(c)) };
        match cut {
            _ if rest.is_empty() => break,
            Some((at, c)) if words.len() < most => {
                let (before, after) = (rest.get(..at), rest.get(at + c.len_utf8()..));
                let (word, left) = if from_right { (after, before) } else { (before, after) };
                words.push(word.unwrap_or_default());
                rest = left.unwrap_or_default();
            }
            _ => {
                words.push(rest);
                break;
            }
        }
    }
    if from_right {
        words.reverse();
    }
    words
}

/// The lines of a text, with or without what ends them.
pub(super) fn lines(text: &str, keep_ends: bool) -> Vec<&str> {
    let ends = |c: char| {
        matches!(c, '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}')
    };
    let (mut lines, mut rest) = (Vec::new(), text);
    while let Some(at) = rest.find(ends) {
        let end = rest.get(at..).unwrap_or_default();
        let length = if end.starts_with("\r\n") { 2 } else { end.chars().next().map_or(1, char::len_utf8) };
        let (line, after) = rest.split_at_checked(at + length).unwrap_or((rest, ""));
        lines.push(if keep_ends { line } else { line.get(..at).unwrap_or_default() });
        rest = after;
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    lines
}

fn partition(marks: Marks, text: &Text, method: &str, separator: &str) -> Value {
    let string = text.as_str();
    let from_right = method == "rpartition";
    let found = if from_right { string.rfind(separator) } else { string.find(separator) };
    let (start, end) = match found {
        Some(at) => (at, at + separator.len()),
        None if from_right => (0, 0),
        None => (string.len(), string.len()),
    };
    let part = |range| marks.value(text.slice(range));
    Value::from(Tuple::from(vec![part(0..start), part(start..end), part(end..string.len())]))
}

/// The part of a string between the character indices at `at` and after it, and where it begins.
fn part_of<'t, const N: usize>(text: &'t str, bound: &Bound<N>, at: usize) -> Result<Option<(usize, &'t str)>, Error> {
    if bound.some(at).is_none() && bound.some(at + 1).is_none() {
        return Ok(Some((0, text)));
    }
    let count = text.chars().count() as i128;
    let place = |index: Option<i128>, default: i128| match index {
        None => default,
        Some(index) if index < 0 => index.saturating_add(count).max(0),
        Some(index) => index,
    };
    let (start, end) = (place(bound.integer(at)?, 0), place(bound.integer(at + 1)?, count).min(count));
    if start > end {
        return Ok(None);
    }
    let byte = |index: i128| {
        let index = usize::try_from(index).unwrap_or(usize::MAX);
        text.char_indices().nth(index).map_or(text.len(), |(at, _)| at)
    };
    Ok(text.get(byte(start)..byte(end)).map(|part| (start as usize, part)))
}

fn has_affix(marks: Marks, text: &str, affix: &Value, at_start: bool) -> Result<bool, Error> {
    let has = |affix: &str| if at_start { text.starts_with(affix) } else { text.ends_with(affix) };
    if let Some(affix) = marks.plain(affix) {
        return Ok(has(&affix));
    }
    if !affix.is_tuple() {
        return Err(invalid(format!("expected a string or a tuple of strings, found {}", type_name(affix))));
    }
    for affix in affix.try_iter()?.checked() {
        let affix = affix?;
        let plain = marks.plain(&affix);
        let plain = plain.ok_or_else(|| invalid(format!("expected a string, found {}", type_name(&affix))))?;
        if has(&plain) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn search<const N: usize>(text: &str, method: &str, bound: &Bound<N>, wanted: &str) -> Result<Value, Error> {
    let part = part_of(text, bound, 1)?;
    if method == "count" {
        return Ok(Value::from(part.map_or(0, |(_, part)| part.matches(wanted).count())));
    }
    let found = part.and_then(|(start, part)| {
        let at = if method.starts_with('r') { part.rfind(wanted) } else { part.find(wanted) }?;
        Some(start + part.get(..at)?.chars().count())
    });
    match found {
        Some(at) => Ok(Value::from(at)),
        None if method.ends_with("find") => Ok(Value::from(-1)),
        None => Err(invalid("the string is not in the text")),
    }
}

fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    let first: String = chars.next().into_iter().flat_map(char::to_uppercase).collect();
    first + &chars.as_str().to_lowercase()
}

fn is_cased(c: char) -> bool {
    c.is_lowercase() || c.is_uppercase()
}

/// Every letter after something that is none is a capital.
fn titled(text: &str) -> String {
    let (mut out, mut within) = (String::with_capacity(text.len()), false);
    for c in text.chars() {
        if within {
            out.extend(c.to_lowercase());
        } else {
            out.extend(c.to_uppercase());
        }
        within = is_cased(c);
    }
    out
}

/// The text in another case. Where a method looks at more than one character, a text of two origins
/// becomes a user's.
pub(super) fn cased(text: &Text, method: &str) -> Text {
    let swapped = |part: &str| {
        let swap = |c: char| -> String {
            if c.is_uppercase() { c.to_lowercase().collect() } else { c.to_uppercase().collect() }
        };
        part.chars().map(swap).collect()
    };
    match method {
        "upper" => text.map(str::to_uppercase),
        "lower" | "casefold" => text.map(str::to_lowercase),
        "swapcase" => text.map(swapped),
        "title" => Text::like(text, titled(text.as_str())),
        _ => Text::like(text, capitalized(text.as_str())),
    }
}

/// Whether the string is of the kind that a method `is…` names.
pub(super) fn holds(text: &str, method: &str) -> bool {
    let class = |class: &str| Regex::new(&format!("^{class}$")).is_ok_and(|class| class.is_match(text));
    let cased = || text.chars().any(is_cased);
    match method {
        "isascii" => text.is_ascii(),
        "isprintable" => text.chars().all(repr::is_printable),
        "isspace" => !text.is_empty() && text.chars().all(is_space),
        "islower" => cased() && !text.chars().any(char::is_uppercase),
        "isupper" => cased() && !text.chars().any(char::is_lowercase),
        "istitle" => cased() && titled(text) == text,
        "isidentifier" => class(r"[_\p{XID_Start}]\p{XID_Continue}*"),
        "isalpha" => class(r"\p{L}+"),
        "isalnum" => class(r"[\p{L}\p{N}]+"),
        "isdecimal" => class(r"\p{Nd}+"),
        "isdigit" => class("[\\p{Nd}\u{b2}\u{b3}\u{b9}\u{2070}\u{2074}-\u{2079}\u{2080}-\u{2089}\u{2460}-\u{2468}]+"),
        _ => class(r"\p{N}+"),
    }
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
    // CPython puts the odd one to the left where the width is odd.
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
