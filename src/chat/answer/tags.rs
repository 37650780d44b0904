//! Parser for arguments in XML-like tags; emits JSON.

use serde_json::Value as Json;

use super::convert::convert;
use super::step::{Found, Literal, Step, Until};
use super::value::escape_into;
use crate::chat::format::Tags as Row;
use crate::chat::schema::{Kind, kind};

/// Maximum length of a key in bytes.
const KEY_BYTES_MAX: usize = 256;

/// State of the arguments of one call.
#[derive(Debug)]
pub(super) struct Tags {
    row: &'static Row,
    /// Parameter schema of the tool.
    parameters: Json,
    state: State,
    literal: Literal,
    /// End delimiter of a value that is on lines of its own.
    line_end: String,
    /// Whether an argument has been emitted.
    is_open: bool,
}

#[derive(Debug)]
enum State {
    /// Before the opening tag of an argument, or the end.
    Key,
    Name(String),
    /// Before the opening tag of a value.
    Open {
        key: String,
        /// Raw text of the argument so far.
        raw: String,
    },
    Value(Value),
}

#[derive(Debug)]
struct Value {
    key: String,
    kind: Kind,
    until: Until,
    /// Buffered text: for typed values, the whole value; for strings, the part not yet emitted.
    plain: String,
    /// Whether a leading line break is dropped.
    at_start: bool,
}

impl Tags {
    pub(super) fn new(row: &'static Row, parameters: &Json) -> Tags {
        let (literal, line_end) = (Literal::default(), format!("\n{}", row.value_end.trim()));
        Tags { row, parameters: parameters.clone(), state: State::Key, literal, line_end, is_open: false }
    }

    pub(super) fn push(&mut self, c: char, out: &mut String) -> Step {
        match std::mem::replace(&mut self.state, State::Key) {
            State::Key => match self.literal.push(c, &[self.row.key]) {
                Found::More => Step::More,
                Found::One(_) => self.stay(State::Name(String::new())),
                Found::None(again) => {
                    out.push_str(if self.is_open { "}" } else { "{}" });
                    Step::Before(again)
                }
            },
            State::Name(name) => self.name(name, c, out),
            State::Open { key, raw } => match self.literal.push(c, &[self.row.value]) {
                Found::More => self.stay(State::Open { key, raw }),
                Found::One(_) => self.value(key, out),
                Found::None(again) => Step::Wrong(raw + &again),
            },
            State::Value(value) => self.content(value, c, out),
        }
    }

    /// Unemitted text at the end of input.
    pub(super) fn rest(&mut self) -> String {
        match &mut self.state {
            State::Key => String::new(),
            State::Name(name) | State::Open { key: name, .. } => std::mem::take(name),
            State::Value(value) => std::mem::take(&mut value.plain) + &value.until.rest(),
        }
    }

    fn stay(&mut self, state: State) -> Step {
        self.state = state;
        Step::More
    }

    fn name(&mut self, mut name: String, c: char, out: &mut String) -> Step {
        name.push(c);
        let end = self.row.key_end.iter().find_map(|end| name.strip_suffix(end.trim()));
        let Some(key) = end.map(str::trim) else {
            let is_short = name.len() <= KEY_BYTES_MAX;
            return if is_short {
                self.stay(State::Name(name))
            } else {
                Step::Wrong(format!("{}{name}", self.row.key))
            };
        };
        let (key, raw) = (key.to_owned(), format!("{}{name}", self.row.key));
        if self.row.value.is_empty() { self.value(key, out) } else { self.stay(State::Open { key, raw }) }
    }

    /// Starts the value of `key`.
    fn value(&mut self, key: String, out: &mut String) -> Step {
        out.push_str(if self.is_open { ",\"" } else { "{\"" });
        self.is_open = true;
        escape_into(&key, out);
        out.push_str("\":");
        let kind = kind(&self.parameters, &key);
        if kind == Kind::Text {
            out.push('"');
        }
        let until = Until::default();
        self.stay(State::Value(Value { key, kind, until, plain: String::new(), at_start: self.row.lines }))
    }

    fn content(&mut self, mut value: Value, c: char, out: &mut String) -> Step {
        if std::mem::take(&mut value.at_start) && c == '\n' {
            return self.stay(State::Value(value));
        }
        let end = self.row.value_end.trim();
        let ends: &[&str] = if self.row.lines { &[end, &self.line_end] } else { &[end] };
        let ended = value.until.push(c, ends, &mut value.plain).is_some();
        if value.kind == Kind::Text {
            escape_into(&value.plain, out);
            value.plain.clear();
        }
        if !ended {
            return self.stay(State::Value(value));
        }
        match value.kind {
            Kind::Text => out.push('"'),
            Kind::Any => out.push_str(&convert(&self.parameters, &value.key, &value.plain)),
        }
        self.stay(State::Key)
    }
}
