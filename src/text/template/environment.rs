//! What templates find around them: Python's methods, `tojson`, `raise_exception`, `strftime_now`.
//!
//! Filters and methods that can make much out of little are replaced by ones that ask the budget first
//! (`bounds.rs`), or are left out where no chat template uses them.

use super::bounds::{self, Budget};
use super::strftime;
use minijinja::value::{Kwargs, Value, ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, Output, State};
use std::fmt::Write;
use std::time::SystemTime;

/// Deepest nesting that `tojson` writes.
const JSON_DEPTH_MAX: usize = 64;

/// The environment for one rendering.
pub(super) fn new(now: Option<SystemTime>) -> Environment<'static> {
    let mut env = Environment::new();
    bounds::install(&mut env);
    env.set_formatter(|out: &mut Output<'_>, state: &mut State<'_, '_>, value: &Value| {
        out.write_str(&Budget::of(state)?.display(value)?).map_err(Error::from)
    });
    env.set_unknown_method_callback(method);
    for unused in ["slice", "batch", "pprint", "sum", "format"] {
        env.remove_filter(unused);
    }
    env.remove_global("debug");
    env.add_filter("replace", replace);
    env.add_filter("join", join);
    env.add_filter("indent", indent);
    env.add_filter("string", |state: &mut State<'_, '_>, value: Value| Budget::of(state)?.display(&value));
    env.add_filter("tojson", to_json);
    env.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    env.add_function("strftime_now", move |format: &str| {
        strftime::format(now.unwrap_or_else(SystemTime::now), format)
    });
    env
}

/// Python's methods of strings, lists and dictionaries.
fn method(state: &mut State<'_, '_>, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    match (value.kind(), name) {
        (ValueKind::String, "replace") => {
            let (from, to, count): (&str, &str, Option<i64>) = from_args(args)?;
            let count = count.and_then(|count| usize::try_from(count).ok());
            replace_counted(state, value.as_str().unwrap_or_default(), (from, to), count)
        }
        (ValueKind::String, "join") => {
            let (items,): (Value,) = from_args(args)?;
            join(state, items, value.as_str().map(str::to_owned), Kwargs::from_iter::<[(&str, Value); 0]>([]))
        }
        (ValueKind::String, "format") => Err(Error::from(ErrorKind::UnknownMethod)),
        _ => minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args),
    }
}

fn replace(state: &mut State<'_, '_>, value: Value, from: &str, to: &str) -> Result<Value, Error> {
    let text = Budget::of(state)?.display(&value)?;
    replace_counted(state, &text, (from, to), None)
}

fn replace_counted(
    state: &mut State<'_, '_>,
    text: &str,
    (from, to): (&str, &str),
    count: Option<usize>,
) -> Result<Value, Error> {
    let found = text.matches(from).take(count.unwrap_or(usize::MAX)).count();
    Budget::of(state)?.spend_bytes(text.len().saturating_add(found.saturating_mul(to.len())))?;
    Ok(Value::from(text.replacen(from, to, found)))
}

fn join(
    state: &mut State<'_, '_>,
    items: Value,
    joiner: Option<String>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let attribute: Option<String> = kwargs.get("attribute")?;
    let joiner = joiner.unwrap_or_default();
    let mut joined = String::new();
    for (index, item) in items.try_iter()?.checked().enumerate() {
        let item = match &attribute {
            Some(attribute) => item?.get_attr(attribute)?,
            None => item?,
        };
        let budget = Budget::of(state)?;
        if index > 0 {
            budget.spend_bytes(joiner.len())?;
            joined.push_str(&joiner);
        }
        joined.push_str(&budget.display(&item)?);
    }
    kwargs.assert_all_used()?;
    Ok(Value::from(joined))
}

/// Jinja's `indent(width=4, first=false, blank=false)`.
fn indent(
    state: &mut State<'_, '_>,
    text: String,
    width: Option<usize>,
    first: Option<bool>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let width = width.or(kwargs.get("width")?).unwrap_or(4);
    let first = first.or(kwargs.get("first")?).unwrap_or(false);
    let blank = kwargs.get::<Option<bool>>("blank")?.unwrap_or(false);
    kwargs.assert_all_used()?;
    let lines = text.split('\n').count();
    Budget::of(state)?.spend_bytes(text.len().saturating_add(lines.saturating_mul(width)))?;
    let pad = " ".repeat(width);
    let mut out = String::new();
    for (index, line) in text.split('\n').enumerate() {
        let wanted = if index == 0 { first } else { blank || !line.is_empty() };
        out.push_str(if index == 0 { "" } else { "\n" });
        out.push_str(if wanted { &pad } else { "" });
        out.push_str(line);
    }
    Ok(Value::from(out))
}

/// JSON as Python's `json.dumps` writes it for templates: nothing escaped for HTML, `", "` and `": "`
/// between things unless `indent` or `separators` say otherwise.
fn to_json(
    state: &mut State<'_, '_>,
    value: Value,
    indent: Option<Value>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let indent = indent.or(kwargs.get("indent")?).filter(|indent| !indent.is_none());
    let separators: Option<Vec<String>> = kwargs.get("separators")?;
    let ascii: Option<bool> = kwargs.get("ensure_ascii")?;
    let _sorted: Option<bool> = kwargs.get("sort_keys")?;
    kwargs.assert_all_used()?;
    let indent = indent.map(|indent| match indent.as_usize() {
        Some(width) => " ".repeat(width.min(16)),
        None => indent.as_str().unwrap_or("  ").chars().take(16).collect(),
    });
    let default = if indent.is_some() { [",", ": "] } else { [", ", ": "] };
    let [item, key] = match separators.as_deref() {
        Some([item, key]) => [item.clone(), key.clone()],
        _ => default.map(str::to_owned),
    };
    let mut json = Json { out: String::new(), indent, item, key, ascii: ascii.unwrap_or(false) };
    json.value(Budget::of(state)?, &value, 0)?;
    Ok(Value::from_safe_string(json.out))
}

struct Json {
    out: String,
    /// What a level is indented by; without it everything stands on one line.
    indent: Option<String>,
    item: String,
    key: String,
    ascii: bool,
}

impl Json {
    fn value(&mut self, budget: &mut Budget, value: &Value, depth: usize) -> Result<(), Error> {
        let before = self.out.len();
        if depth > JSON_DEPTH_MAX {
            return Err(bounds::limit(format!("tojson deeper than {JSON_DEPTH_MAX} levels")));
        }
        match value.kind() {
            ValueKind::None | ValueKind::Undefined => self.out.push_str("null"),
            ValueKind::String => self.string(&budget.display(value)?),
            ValueKind::Seq | ValueKind::Iterable => {
                let items = value.try_iter()?.checked();
                self.group(budget, depth, ('[', ']'), items.map(|item| item.map(|item| (None, item))))?;
            }
            ValueKind::Map => {
                let entry = |key: Result<Value, Error>| {
                    let key = key?;
                    value.get_item(&key).map(|item| (Some(key), item))
                };
                self.group(budget, depth, ('{', '}'), value.try_iter()?.checked().map(entry))?;
            }
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => {
                let _ = write!(self.out, "{value}");
            }
            kind => {
                let message = format!("tojson: {kind} cannot be written as JSON");
                return Err(Error::new(ErrorKind::BadSerialization, message));
            }
        }
        budget.spend_visits(1)?;
        budget.spend_bytes(self.out.len() - before)
    }

    fn group(
        &mut self,
        budget: &mut Budget,
        depth: usize,
        (open, close): (char, char),
        items: impl Iterator<Item = Result<(Option<Value>, Value), Error>>,
    ) -> Result<(), Error> {
        self.out.push(open);
        let mut empty = true;
        for item in items {
            let (key, item) = item?;
            if !empty {
                self.out.push_str(&self.item);
            }
            empty = false;
            self.line(depth + 1);
            if let Some(key) = key {
                self.string(&budget.display(&key)?);
                self.out.push_str(&self.key);
            }
            self.value(budget, &item, depth + 1)?;
        }
        if !empty {
            self.line(depth);
        }
        self.out.push(close);
        Ok(())
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            self.out.push_str(&indent.repeat(depth));
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if c < ' ' || (self.ascii && !c.is_ascii()) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(self.out, "\\u{unit:04x}");
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}
