//! Parser for a call as a JSON object with a field for the name and one for the arguments.

use serde_json::Value as Json;

use super::out::Out;
use super::step::Step;
use super::value::Value;

/// Ignored fields of a call object.
const FURTHER: [&str; 4] = ["id", "type", "tool_call_id", "tool_id"];

/// State of one call.
#[derive(Debug)]
pub(super) struct Object {
    names: &'static [&'static str],
    arguments: &'static [&'static str],
    state: State,
    /// Arguments that precede the name; emitted when the name is complete.
    early: String,
    name: Option<String>,
    has_arguments: bool,
}

#[derive(Debug)]
enum State {
    Open,
    /// First key, or the end of the object.
    First,
    Comma,
    Key(Value, String),
    Colon(Field),
    Value(OpenField),
    /// Arguments as a string that contains JSON.
    Text(OpenField),
}

/// A field with its value being read.
#[derive(Debug)]
struct OpenField {
    field: Field,
    value: Value,
    /// Raw value of a field other than streamed arguments.
    text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Name,
    Arguments,
    Further,
}

impl Object {
    pub(super) fn new(names: &'static [&'static str], arguments: &'static [&'static str]) -> Object {
        let (state, early) = (State::Open, String::new());
        Object { names, arguments, state, early, name: None, has_arguments: false }
    }

    pub(super) fn push(&mut self, c: char, out: &mut Out<'_>) -> Step {
        match std::mem::replace(&mut self.state, State::Comma) {
            State::Key(key, text) => self.key(key, text, c),
            State::Value(entry) => self.value(entry, c, out),
            State::Text(entry) => self.text(entry, c, out),
            state if c.is_whitespace() => self.stay(state),
            State::Open if c == '{' => self.stay(State::First),
            State::First if c == '"' => self.begin_key(c),
            State::Comma if c == ',' => self.stay(State::First),
            State::First | State::Comma if c == '}' => self.close(c, out),
            State::Colon(field) if c == ':' => {
                self.stay(State::Value(OpenField { field, value: Value::new(""), text: String::new() }))
            }
            State::Open | State::First | State::Comma | State::Colon(_) => Step::Wrong(c.into()),
        }
    }

    /// Unemitted argument text at the end of input.
    pub(super) fn rest(&mut self) -> String {
        match &mut self.state {
            State::Value(OpenField { field: Field::Arguments, value, .. }) => value.rest(),
            State::Text(entry) => std::mem::take(&mut entry.text),
            _ => String::new(),
        }
    }

    fn stay(&mut self, state: State) -> Step {
        self.state = state;
        Step::More
    }

    fn begin_key(&mut self, c: char) -> Step {
        let (mut key, mut text) = (Value::new(""), String::new());
        key.push(c, &mut text);
        self.stay(State::Key(key, text))
    }

    /// The fields that may still come, with their keys.
    fn fields(&self) -> impl Iterator<Item = (&'static str, Field)> {
        let names = self.names.iter().filter(|_| self.name.is_none()).map(|&key| (key, Field::Name));
        let arguments = self.arguments.iter().filter(|_| !self.has_arguments);
        let arguments = arguments.map(|&key| (key, Field::Arguments));
        names.chain(arguments).chain(FURTHER.map(|key| (key, Field::Further)))
    }

    /// Unknown keys are rejected at the first deviating character: a call that has started buffers no raw
    /// text, so the whole key must be returned.
    fn key(&mut self, mut key: Value, mut text: String, c: char) -> Step {
        let step = key.push(c, &mut text);
        let begun = text.trim_matches('"');
        let field = self.fields().find(|(key, _)| *key == begun).map(|(_, field)| field);
        match (step, field) {
            (Step::More, _) if self.fields().any(|(key, _)| key.starts_with(begun)) => {
                self.stay(State::Key(key, text))
            }
            (Step::Done, Some(field)) => self.stay(State::Colon(field)),
            (Step::More | Step::Done, _) => Step::Wrong(text),
            (Step::Before(again) | Step::Wrong(again), _) => Step::Wrong(text + &again),
        }
    }

    fn value(&mut self, mut entry: OpenField, c: char, out: &mut Out<'_>) -> Step {
        if entry.field == Field::Arguments && !self.has_arguments && !c.is_whitespace() {
            self.has_arguments = true;
            if c != '{' {
                return self.text(entry, c, out);
            }
        }
        let into = match entry.field {
            Field::Arguments if self.name.is_some() => &mut out.arguments,
            Field::Arguments => &mut self.early,
            Field::Name | Field::Further => &mut entry.text,
        };
        let step = entry.value.push(c, into);
        match step {
            Step::More => return self.stay(State::Value(entry)),
            Step::Done | Step::Before(_) => {}
            Step::Wrong(again) => return Step::Wrong(again),
        }
        if entry.field == Field::Name && !self.named(&entry.text, out) {
            return Step::Wrong(c.into());
        }
        self.go_on(step, out)
    }

    /// Continues after a value that ended with this character or before it.
    fn go_on(&mut self, step: Step, out: &mut Out<'_>) -> Step {
        self.state = State::Comma;
        match step {
            Step::Before(again) => again.chars().fold(Step::More, |_, c| self.push(c, out)),
            _ => Step::More,
        }
    }

    /// Starts the call if `text` is the name of a tool. Returns whether it is.
    fn named(&mut self, text: &str, out: &mut Out<'_>) -> bool {
        let Ok(Json::String(name)) = serde_json::from_str(text) else { return false };
        if !out.has_tool(&name) {
            return false;
        }
        out.start(&name, None);
        out.arguments.push_str(&std::mem::take(&mut self.early));
        self.name = Some(name);
        true
    }

    /// Arguments that are not an object: a string that contains one, or null.
    fn text(&mut self, mut entry: OpenField, c: char, out: &mut Out<'_>) -> Step {
        let step = entry.value.push(c, &mut entry.text);
        match step {
            Step::More => return self.stay(State::Text(entry)),
            Step::Done | Step::Before(_) => {}
            Step::Wrong(again) => return Step::Wrong(entry.text + &again),
        }
        let text = entry.text;
        let inner = match serde_json::from_str(&text) {
            Ok(Json::String(inner)) => serde_json::from_str(&inner).ok(),
            Ok(Json::Null) => Some(Json::Object(serde_json::Map::new())),
            _ => None,
        };
        let Some(Json::Object(fields)) = inner else { return Step::Wrong(text) };
        let arguments = Json::Object(fields).to_string();
        if self.name.is_some() {
            out.arguments.push_str(&arguments)
        } else {
            self.early.push_str(&arguments)
        }
        self.go_on(step, out)
    }

    fn close(&mut self, c: char, out: &mut Out<'_>) -> Step {
        if self.name.is_none() {
            return Step::Wrong(c.into());
        }
        if !self.has_arguments {
            out.arguments.push_str("{}");
        }
        Step::Done
    }
}
