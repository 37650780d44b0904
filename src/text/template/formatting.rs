//! String formatting: printf style (`'%s'|format(x)`, `'%s' % x`) and brace style (`'{}'.format(x)`).
//!
//! The pattern is parsed here, so that each field keeps its origin and its width is checked. The engine's
//! library prints single fields.

use super::bounds;
use super::bounds::Budget;
use super::items::item_of;
use super::origin::Text;
use super::repr;
use super::types::{as_integer, invalid};
use minijinja::Error;
use minijinja::formatting::{FormatStyle, format};
use minijinja::value::{Kwargs, Value};

/// Maximum width of a field, and maximum number of digits.
const WIDTH_MAX: usize = 10_000;

/// Printf pattern: `%[(name)][flags][width][.precision]type`.
pub(super) fn percent(
    budget: &mut Budget,
    pattern: &Text,
    args: &[Value],
    named: Option<&Kwargs>,
) -> Result<Value, Error> {
    let text = pattern.as_str();
    let mut out = Text::default();
    let (mut start, mut used) = (0, 0);
    let mut named_used = false;
    while let Some(found) = text.get(start..).and_then(|rest| rest.find('%')) {
        let at = start + found;
        out.push(&pattern.slice(start..at));
        let (mut name, mut rest) = (None, text.get(at + 1..).unwrap_or_default());
        if let Some((inner, after)) = rest.strip_prefix('(').and_then(|inner| inner.split_once(')')) {
            (name, rest) = (Some(inner), after);
        }
        let mut next = || {
            used += 1;
            args.get(used - 1).cloned().ok_or_else(|| invalid("not enough arguments for the format"))
        };
        let mut spec = String::new();
        let kind = loop {
            let c = rest.chars().next().ok_or_else(|| invalid("a format ends within a field"))?;
            rest = rest.get(c.len_utf8()..).unwrap_or_default();
            match c {
                '*' => {
                    let width = as_integer(&next()?).ok_or_else(|| invalid("`*` expected an integer"))?;
                    spec.push_str(&width.to_string());
                }
                '0'..='9' | '.' | '-' | '+' | ' ' | '#' => spec.push(c),
                'h' | 'l' | 'L' => {}
                kind => break kind,
            }
        };
        start = text.len() - rest.len();
        if kind == '%' {
            out.push(&pattern.slice(at..at + 1));
            continue;
        }
        let value = match name {
            None => next()?,
            Some(name) => {
                named_used = true;
                lookup(args, named, name)?
            }
        };
        out.push(&percent_field(budget, &spec, kind, &value)?);
        budget.spend_bytes(out.cost())?;
    }
    if used < args.len() && !named_used {
        return Err(invalid("more arguments than the format has fields"));
    }
    out.push(&pattern.slice(start..text.len()));
    Ok(budget.marks.value(out))
}

/// Value of `%(name)s`, from a dictionary or from named arguments.
fn lookup(args: &[Value], named: Option<&Kwargs>, name: &str) -> Result<Value, Error> {
    let from_named = named.and_then(|named| named.peek::<Value>(name).ok());
    let from_dict = || args.first().and_then(|dict| dict.get_item(&Value::from(name)).ok());
    let value = from_named.or_else(from_dict).filter(|value| !value.is_undefined());
    value.ok_or_else(|| invalid(format!("the format expected a value for `{name}`")))
}

fn percent_field(budget: &mut Budget, spec: &str, kind: char, value: &Value) -> Result<Text, Error> {
    check_widths(spec)?;
    let (kind, value) = match kind {
        's' => ('s', repr::display(budget, value)?),
        'r' => ('s', Text::user(repr::repr(budget, value)?)),
        'a' => ('s', Text::user(repr::ascii(&repr::repr(budget, value)?))),
        'i' | 'u' => return number(budget, spec, 'd', value),
        other => return number(budget, spec, other, value),
    };
    pad(budget, FormatStyle::Printf, &format!("%{spec}{kind}"), &value)
}

/// A number, which has no origin.
fn number(budget: &mut Budget, spec: &str, kind: char, value: &Value) -> Result<Text, Error> {
    let whole = matches!(kind, 'd' | 'x' | 'X' | 'o' | 'c');
    let value = match (as_integer(value), f64::try_from(value.clone())) {
        (Some(integer), _) => Value::from(integer),
        (None, Ok(float)) if kind == 'd' && float.is_finite() => Value::from(float.trunc() as i128),
        (None, _) if whole && kind != 'c' => return Err(invalid(format!("`%{kind}` expected an integer"))),
        _ => value.clone(),
    };
    let printed = format(FormatStyle::Printf, &format!("%{spec}{kind}"), std::slice::from_ref(&value))?;
    Ok(of_like(budget, &value, printed))
}

fn of_like(budget: &Budget, value: &Value, printed: String) -> Text {
    let printed = budget.marks.cleaned(printed);
    match budget.marks.text(value) {
        Some(text) => Text::like(&text, printed),
        None => Text::template(printed),
    }
}

/// A string padded or truncated. Its parts keep their origin if it is not truncated.
fn pad(budget: &mut Budget, style: FormatStyle, spec: &str, value: &Text) -> Result<Text, Error> {
    let printed = format(style, spec, &[Value::from(value.as_str())])?;
    budget.spend_bytes(printed.len())?;
    Ok(match printed.find(value.as_str()) {
        Some(at) if !value.as_str().is_empty() => {
            let mut out = Text::template(printed.get(..at).unwrap_or_default());
            out.push(value);
            out.push(&Text::template(printed.get(at + value.as_str().len()..).unwrap_or_default()));
            out
        }
        _ => Text::like(value, printed),
    })
}

fn check_widths(spec: &str) -> Result<(), Error> {
    let wide =
        |digits: &str| !digits.is_empty() && digits.parse::<usize>().is_ok_and(|width| width <= WIDTH_MAX);
    let fine = spec.split(|c: char| !c.is_ascii_digit()).all(|digits| digits.is_empty() || wide(digits));
    if fine {
        Ok(())
    } else {
        Err(bounds::limit("a format with a field wider than 10000 characters".to_owned()))
    }
}

/// Python's `str.format`: `{[name][!conversion][:spec]}`.
pub(super) fn braces(
    budget: &mut Budget,
    pattern: &Text,
    args: &[Value],
    named: &Kwargs,
) -> Result<Value, Error> {
    let mut fields = Fields { args, named, next: 0 };
    let text = pattern.as_str();
    let (mut out, mut start) = (Text::default(), 0);
    while let Some(found) = text.get(start..).and_then(|rest| rest.find(['{', '}'])) {
        let at = start + found;
        out.push(&pattern.slice(start..at));
        let rest = text.get(at..).unwrap_or_default();
        if rest.starts_with("{{") || rest.starts_with("}}") {
            out.push(&pattern.slice(at..at + 1));
            start = at + 2;
            continue;
        }
        let field = rest.strip_prefix('{').and_then(closed);
        let field = field.ok_or_else(|| invalid("a format has a single brace"))?;
        start = at + field.len() + 2;
        out.push(&fields.print(budget, field)?);
        budget.spend_bytes(out.cost())?;
    }
    out.push(&pattern.slice(start..text.len()));
    Ok(budget.marks.value(out))
}

/// A number by its spec, including kinds that the library lacks.
fn print_number(spec: &str, value: &Value) -> Result<String, Error> {
    let print =
        |spec: &str| format(FormatStyle::StrFormat, &format!("{{0:{spec}}}"), std::slice::from_ref(value));
    if let (Some(spec), Ok(share)) = (spec.strip_suffix('%'), f64::try_from(value.clone())) {
        return percentage(spec, share);
    }
    if let Some(spec) = spec.strip_suffix('n') {
        return print(&format!("{spec}{}", if as_integer(value).is_some() { 'd' } else { 'g' }));
    }
    match spec.split_once('=') {
        Some((fill, spec)) if fill.chars().count() <= 1 => {
            let signs = spec.trim_start_matches(['+', '-', ' ', '#']);
            let digits = signs.trim_start_matches(|c: char| c.is_ascii_digit());
            let (sign, width) = (spec.strip_suffix(signs), signs.strip_suffix(digits));
            let number = print(&format!("{}{digits}", sign.unwrap_or_default()))?;
            let missing = width.and_then(|width| width.parse::<usize>().ok()).unwrap_or(0);
            let missing = missing.saturating_sub(number.chars().count());
            let fill = fill.chars().next().unwrap_or(' ').to_string().repeat(missing);
            let at = usize::from(number.starts_with(['+', '-', ' ']));
            let (sign, number) = number.split_at_checked(at).unwrap_or(("", &number));
            Ok(format!("{sign}{fill}{number}"))
        }
        _ => print(spec),
    }
}

/// `{:%}`: a percentage; the width includes the sign.
fn percentage(spec: &str, share: f64) -> Result<String, Error> {
    let (spec, width) = match spec.split_once('.') {
        Some((before, digits)) => (format!(".{digits}"), before),
        None => (String::new(), spec),
    };
    let number =
        format(FormatStyle::StrFormat, &format!("{{0:{spec}f}}"), &[Value::from(share * 100.0)])? + "%";
    let align = if width.starts_with(|c: char| c.is_ascii_digit()) { ">" } else { "" };
    format(FormatStyle::StrFormat, &format!("{{0:{align}{width}}}"), &[Value::from(number)])
}

/// Text up to the matching closing brace.
fn closed(text: &str) -> Option<&str> {
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => return text.get(..at),
            '}' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// Arguments of `str.format`.
struct Fields<'a> {
    args: &'a [Value],
    named: &'a Kwargs,
    next: usize,
}

impl Fields<'_> {
    fn print(&mut self, budget: &mut Budget, field: &str) -> Result<Text, Error> {
        let (name, spec) = field.split_once(':').unwrap_or((field, ""));
        let (name, conversion) = name.split_once('!').map_or((name, None), |(name, how)| (name, Some(how)));
        let value = self.value(name)?;
        let spec = self.nested(budget, spec)?;
        check_widths(&spec)?;
        let one = format!("{{0:{spec}}}");
        let value = match conversion {
            None => value,
            Some("s") => {
                let text = repr::display(budget, &value)?;
                budget.marks.value(text)
            }
            Some("r") => Value::from(repr::repr(budget, &value)?),
            Some("a") => Value::from(repr::ascii(&repr::repr(budget, &value)?)),
            Some(other) => return Err(invalid(format!("a format has no conversion `{other}`"))),
        };
        match repr::scalar(&value) {
            Some(_) if !spec.is_empty() && !value.is_none() => {
                let printed = print_number(&spec, &value)?;
                Ok(of_like(budget, &value, printed))
            }
            _ => {
                let text = repr::display(budget, &value)?;
                if spec.is_empty() { Ok(text) } else { pad(budget, FormatStyle::StrFormat, &one, &text) }
            }
        }
    }

    /// The spec with its nested fields replaced.
    fn nested(&mut self, budget: &mut Budget, spec: &str) -> Result<String, Error> {
        let (mut out, mut rest) = (String::new(), spec);
        while let Some((before, after)) = rest.split_once('{') {
            let (name, after) =
                after.split_once('}').ok_or_else(|| invalid("a format has a single brace"))?;
            let value = self.value(name)?;
            out.push_str(before);
            out.push_str(repr::display(budget, &value)?.as_str());
            rest = after;
        }
        out.push_str(rest);
        Ok(out)
    }

    /// Value of a field name: `name`, `0` or empty, followed by `.attribute` and `[item]`.
    fn value(&mut self, path: &str) -> Result<Value, Error> {
        let end = path.find(['.', '[']).unwrap_or(path.len());
        let (first, mut rest) = path.split_at_checked(end).unwrap_or((path, ""));
        let mut value = match first.parse::<usize>() {
            Ok(index) => self.args.get(index).cloned(),
            Err(_) if first.is_empty() => {
                self.next += 1;
                self.args.get(self.next - 1).cloned()
            }
            Err(_) => self.named.peek::<Value>(first).ok(),
        }
        .ok_or_else(|| invalid(format!("a format expected an argument for `{path}`")))?;
        while !rest.is_empty() {
            let key;
            if let Some(after) = rest.strip_prefix('.') {
                let end = after.find(['.', '[']).unwrap_or(after.len());
                let (name, after) = after.split_at_checked(end).unwrap_or((after, ""));
                (key, rest) = (Value::from(name), after);
            } else {
                let inner = rest.strip_prefix('[').and_then(|inner| inner.split_once(']'));
                let (name, after) = inner.ok_or_else(|| invalid("a format has a single bracket"))?;
                (key, rest) = (name.parse::<i64>().map_or_else(|_| Value::from(name), Value::from), after);
            }
            value = item_of(&value, &key)?;
        }
        Ok(value)
    }
}
