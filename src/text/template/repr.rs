//! Printing of values as in Python: `str` and `repr` of numbers, strings, lists and dictionaries.

use super::bounds::{self, Budget};
use super::origin::Text;
use minijinja::Error;
use minijinja::value::{Value, ValueKind};
use std::fmt::Write;

/// Maximum nesting.
const DEPTH_MAX: usize = 64;

/// `str(value)`, charged to the budget; empty for undefined. The text of a list or dictionary counts as a
/// user's.
pub(super) fn display(budget: &mut Budget, value: &Value) -> Result<Text, Error> {
    let text = match budget.marks.text(value) {
        Some(text) => text,
        None if value.is_undefined() => Text::default(),
        None => match scalar(value) {
            Some(scalar) => Text::template(scalar),
            None => return Ok(Text::user(repr(budget, value)?)),
        },
    };
    budget.spend_bytes(text.cost())?;
    Ok(text)
}

/// `repr(value)`, charged to the budget.
pub(super) fn repr(budget: &mut Budget, value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    write(budget, &mut out, value, 0)?;
    budget.spend_bytes(out.len())?;
    Ok(budget.marks.cleaned(out))
}

/// Text of numbers, booleans and `None`, equal for `str` and `repr`.
pub(super) fn scalar(value: &Value) -> Option<String> {
    match value.kind() {
        ValueKind::Number if !value.is_integer() => f64::try_from(value.clone()).ok().map(float),
        ValueKind::Number | ValueKind::Bool | ValueKind::None => Some(value.to_string()),
        _ => None,
    }
}

/// Shortest digits that parse to the same number, with an exponent below 1e-4 and from 1e16 on.
pub(super) fn float(value: f64) -> String {
    if value.is_nan() {
        return "nan".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let shortest = format!("{value:e}");
    let (mantissa, exponent) = shortest.split_once('e').unwrap_or((&shortest, "0"));
    match exponent.parse::<i32>() {
        Ok(power) if value != 0.0 && !(-4..16).contains(&power) => {
            let sign = if power < 0 { '-' } else { '+' };
            format!("{mantissa}e{sign}{:02}", power.unsigned_abs())
        }
        _ => {
            let plain = value.to_string();
            if plain.contains('.') { plain } else { plain + ".0" }
        }
    }
}

fn write(budget: &mut Budget, out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
    if depth > DEPTH_MAX {
        return Err(bounds::limit(format!("lists nested deeper than {DEPTH_MAX} levels")));
    }
    budget.spend_visits(1)?;
    match value.kind() {
        ValueKind::String => string(out, &budget.marks.plain(value).unwrap_or_default()),
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::Seq => {
            let group = value.as_object().is_some_and(|object| object.type_name().ends_with("::GroupTuple"));
            let (open, close) = if value.is_tuple() || group { ("(", ")") } else { ("[", "]") };
            out.push_str(open);
            for (index, item) in value.try_iter()?.checked().enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                write(budget, out, &item?, depth + 1)?;
            }
            out.push_str(if value.is_tuple() && value.len() == Some(1) { "," } else { "" });
            out.push_str(close);
        }
        ValueKind::Iterable => {
            out.push('[');
            for (index, item) in value.try_iter()?.checked().enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                write(budget, out, &item?, depth + 1)?;
            }
            out.push(']');
        }
        ValueKind::Map if super::types::is_dict(value) => {
            out.push('{');
            for (index, key) in value.try_iter()?.checked().enumerate() {
                let key = key?;
                out.push_str(if index > 0 { ", " } else { "" });
                write(budget, out, &key, depth + 1)?;
                out.push_str(": ");
                write(budget, out, &value.get_item(&key)?, depth + 1)?;
            }
            out.push('}');
        }
        _ => match scalar(value) {
            Some(scalar) => out.push_str(&scalar),
            None => {
                let _ = write!(out, "{value}");
            }
        },
    }
    budget.fits(out.len())
}

/// String with Python's quotes and escapes.
pub(super) fn string(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let plain = |c: char| matches!(c, ' '..='~') && !matches!(c, '\\' | '\'' | '"');
        let end = rest.find(|c| !plain(c)).unwrap_or(rest.len());
        if let Some((run, after)) = rest.split_at_checked(end)
            && !run.is_empty()
        {
            out.push_str(run);
            rest = after;
            continue;
        }
        rest = rest.get(c.len_utf8()..).unwrap_or_default();
        let _ = match c {
            '\\' => write!(out, "\\\\"),
            '\n' => write!(out, "\\n"),
            '\r' => write!(out, "\\r"),
            '\t' => write!(out, "\\t"),
            c if c == quote => write!(out, "\\{c}"),
            c if is_printable(c) => write!(out, "{c}"),
            c if (c as u32) < 0x100 => write!(out, "\\x{:02x}", c as u32),
            c if (c as u32) < 0x1_0000 => write!(out, "\\u{:04x}", c as u32),
            c => write!(out, "\\U{:08x}", c as u32),
        };
    }
    out.push(quote);
}

/// A `repr` with all non-ASCII characters escaped.
pub(super) fn ascii(repr: &str) -> String {
    let mut out = String::with_capacity(repr.len());
    for c in repr.chars() {
        let _ = match c as u32 {
            0..0x80 => write!(out, "{c}"),
            code @ 0x80..0x100 => write!(out, "\\x{code:02x}"),
            code @ 0x100..0x1_0000 => write!(out, "\\u{code:04x}"),
            code => write!(out, "\\U{code:08x}"),
        };
    }
    out
}

/// Python's `str.isprintable`, except for characters not assigned in Unicode yet.
pub(super) fn is_printable(c: char) -> bool {
    let hidden = matches!(c as u32,
        0xa0 | 0xad | 0x600..=0x605 | 0x61c | 0x6dd | 0x70f | 0x890..=0x891 | 0x8e2 | 0x1680 | 0x180e
        | 0x2000..=0x200f | 0x2028..=0x202f | 0x205f..=0x206f | 0x3000 | 0xe000..=0xf8ff | 0xfdd0..=0xfdef
        | 0xfeff | 0xfff9..=0xfffb | 0xe_0000..=0xe_00ff | 0xf_0000..);
    !c.is_control() && !hidden && (c as u32) & 0xfffe != 0xfffe
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected values were printed by Python 3.11.
    #[test]
    fn numbers_and_strings_print_as_in_python() {
        for (value, printed) in [
            (0.1, "0.1"),
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e-5, "1.5e-05"),
            (0.0001, "0.0001"),
            (1.7976931348623157e308, "1.7976931348623157e+308"),
            (f64::INFINITY, "inf"),
        ] {
            assert_eq!(float(value), printed);
        }
        for (text, printed) in [
            ("a", "'a'"),
            ("it's", "\"it's\""),
            ("'\"", "'\\'\"'"),
            ("\u{0}\u{7f}\u{a0}é\u{200b}🙂\n\\", "'\\x00\\x7f\\xa0é\\u200b🙂\\n\\\\'"),
        ] {
            let mut out = String::new();
            string(&mut out, text);
            assert_eq!(out, printed);
        }
    }
}
