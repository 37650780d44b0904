//! Splitting and searching of strings: `strip`, `split`, `partition`, `find` and others.

use super::arguments::Bound;
use super::letters::is_space;
use super::origin::{Marks, Text};
use super::types::{invalid, type_name};
use minijinja::Error;
use minijinja::value::{Tuple, Value};

/// `strip`, `lstrip`, `rstrip`.
pub(super) fn stripped<'t>(text: &'t str, method: &str, chars: Option<&str>) -> &'t str {
    let strip = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
    match method {
        "lstrip" => text.trim_start_matches(strip),
        "rstrip" => text.trim_end_matches(strip),
        _ => text.trim_matches(strip),
    }
}

pub(super) fn split_by<'t>(
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

/// Words separated by white space; after `most` splits the rest stays whole.
pub(super) fn split_words(text: &str, most: usize, from_right: bool) -> Vec<&str> {
    let (mut words, mut rest) = (Vec::new(), text);
    loop {
        rest = stripped(rest, if from_right { "rstrip" } else { "lstrip" }, None);
        let cut = if from_right {
            rest.char_indices().rfind(|&(_, c)| is_space(c))
        } else {
            rest.char_indices().find(|&(_, c)| is_space(c))
        };
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

/// Lines of a text, with or without line ends.
pub(super) fn lines(text: &str, keep_ends: bool) -> Vec<&str> {
    let ends = |c: char| {
        matches!(
            c,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
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

pub(super) fn partition(marks: Marks, text: &Text, method: &str, separator: &str) -> Value {
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

/// The part between the character indices in arguments `at` and `at + 1`, and its start.
pub(super) fn part_of<'t, const N: usize>(
    text: &'t str,
    bound: &Bound<N>,
    at: usize,
) -> Result<Option<(usize, &'t str)>, Error> {
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

pub(super) fn has_affix(marks: Marks, text: &str, affix: &Value, at_start: bool) -> Result<bool, Error> {
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
        let plain =
            plain.ok_or_else(|| invalid(format!("expected a string, found {}", type_name(&affix))))?;
        if has(&plain) {
            return Ok(true);
        }
    }
    Ok(false)
}

pub(super) fn search<const N: usize>(
    text: &str,
    method: &str,
    bound: &Bound<N>,
    wanted: &str,
) -> Result<Value, Error> {
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
