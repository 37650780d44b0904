//! `tojson` of `transformers`: Python's `json.dumps`, without HTML escapes.

use super::arguments::bind;
use super::bounds::{self, Budget};
use super::repr;
use super::types::{as_integer, invalid, is_dict, type_name};
use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind, State};
use std::fmt::Write;

/// Maximum nesting.
const DEPTH_MAX: usize = 64;
/// Maximum indentation per level.
const INDENT_MAX: usize = 64;

/// `tojson(ensure_ascii=false, indent=none, separators=none, sort_keys=false)`.
pub(super) fn to_json(state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let bound = bind("tojson", args, ["value", "ensure_ascii", "indent", "separators", "sort_keys"])?;
    let budget = Budget::of(state)?;
    let marks = budget.marks;
    let indent = match bound.some(2) {
        None => None,
        Some(indent) => Some(match as_integer(indent) {
            Some(width) => " ".repeat(usize::try_from(width.max(0)).unwrap_or(usize::MAX).min(INDENT_MAX)),
            None => bound.required_text(marks, 2)?.as_str().chars().take(INDENT_MAX).collect(),
        }),
    };
    let default = if indent.is_some() { [",", ": "] } else { [", ", ": "] };
    let [item, key] = match bound.some(3) {
        None => default.map(str::to_owned),
        Some(pair) => {
            let part = |at: usize| {
                marks
                    .plain(&pair.get_item_by_index(at)?)
                    .ok_or_else(|| invalid("tojson() expected two separators"))
            };
            [part(0)?, part(1)?]
        }
    };
    let mut json =
        Json { out: String::new(), indent, item, key, ascii: bound.is_true(1), sorted: bound.is_true(4) };
    json.value(budget, bound.required(0)?, 0)?;
    budget.spend_bytes(json.out.len())?;
    Ok(Value::from(json.out))
}

struct Json {
    out: String,
    /// Indentation per level; `None` for output on one line.
    indent: Option<String>,
    item: String,
    key: String,
    ascii: bool,
    sorted: bool,
}

impl Json {
    fn value(&mut self, budget: &mut Budget, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > DEPTH_MAX {
            return Err(bounds::limit(format!("tojson deeper than {DEPTH_MAX} levels")));
        }
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::String => self.string(&budget.marks.plain(value).unwrap_or_default()),
            ValueKind::Seq => {
                let items = value.try_iter()?.checked();
                self.group(budget, depth, ('[', ']'), items.map(|item| item.map(|item| (None, item))))?;
            }
            ValueKind::Map if is_dict(value) => {
                let mut entries = Vec::new();
                for key in value.try_iter()?.checked() {
                    let key = key?;
                    let item = value.get_item(&key)?;
                    entries.push((Some(self.key(budget, &key)?), item));
                }
                if self.sorted {
                    entries.sort_by(|(first, _), (second, _)| first.cmp(second));
                }
                self.group(budget, depth, ('{', '}'), entries.into_iter().map(Ok))?;
            }
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.out.push_str(&number(value)),
            _ => {
                let message = format!("tojson: {} is not JSON serializable", type_name(value));
                return Err(Error::new(ErrorKind::BadSerialization, message));
            }
        }
        budget.spend_visits(1)?;
        budget.fits(self.out.len())
    }

    /// Dictionary keys are strings; `json.dumps` converts other scalars.
    fn key(&self, budget: &mut Budget, key: &Value) -> Result<String, Error> {
        let written = match key.kind() {
            ValueKind::None => "null".to_owned(),
            ValueKind::Bool => if key.is_true() { "true" } else { "false" }.to_owned(),
            ValueKind::Number => number(key),
            _ => {
                let plain = budget.marks.plain(key);
                plain.ok_or_else(|| invalid(format!("tojson: {} cannot be a key", type_name(key))))?
            }
        };
        budget.spend_bytes(written.len())?;
        Ok(written)
    }

    fn group(
        &mut self,
        budget: &mut Budget,
        depth: usize,
        (open, close): (char, char),
        items: impl Iterator<Item = Result<(Option<String>, Value), Error>>,
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
                self.string(&key);
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
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            let plain = |c: char| matches!(c, ' '..='~') && !matches!(c, '\\' | '"');
            let end = rest.find(|c| !plain(c)).unwrap_or(rest.len());
            if let Some((run, after)) = rest.split_at_checked(end)
                && !run.is_empty()
            {
                self.out.push_str(run);
                rest = after;
                continue;
            }
            rest = rest.get(c.len_utf8()..).unwrap_or_default();
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if c < ' ' || (self.ascii && c > '~') => {
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

/// Numbers as printed by Python; non-finite ones have their JavaScript names.
fn number(value: &Value) -> String {
    match repr::scalar(value).unwrap_or_default().as_str() {
        "nan" => "NaN".to_owned(),
        "inf" => "Infinity".to_owned(),
        "-inf" => "-Infinity".to_owned(),
        other => other.to_owned(),
    }
}
