//! Parser for a call that starts with the tool's name, followed by the arguments.

use super::out::Out;
use super::step::{Found, Literal, Step};
use super::tags::Tags;
use super::value::Value;
use crate::chat::format::{Arguments as Row, Ids, NamedCall};

/// State of one call.
#[derive(Debug)]
pub(super) struct Named {
    row: &'static NamedCall,
    ids: Ids,
    state: NamedCallState,
    literal: Literal,
    name: String,
    /// Call id as written by the model.
    id: Option<String>,
}

#[derive(Debug)]
enum NamedCallState {
    Prefix,
    Name,
    /// Between the name and the arguments.
    Before,
    Id,
    Arguments(Arguments),
    Suffix,
}

#[derive(Debug)]
enum Arguments {
    Value(Value),
    Tags(Box<Tags>),
}

impl Named {
    pub(super) fn new(row: &'static NamedCall, ids: Ids) -> Named {
        let state = if row.prefix.is_empty() { NamedCallState::Name } else { NamedCallState::Prefix };
        Named { row, ids, state, literal: Literal::default(), name: String::new(), id: None }
    }

    pub(super) fn push(&mut self, c: char, out: &mut Out<'_>) -> Step {
        match &mut self.state {
            NamedCallState::Prefix => match self.literal.push(c, &[self.row.prefix]) {
                Found::More => Step::More,
                Found::One(_) => self.stay(NamedCallState::Name),
                Found::None(again) => Step::Wrong(again),
            },
            NamedCallState::Name if self.name.is_empty() && c.is_whitespace() => Step::More,
            NamedCallState::Name if is_name(c) => {
                self.name.push(c);
                Step::More
            }
            NamedCallState::Name => self.named(c, out),
            NamedCallState::Before => self.before(c, out),
            NamedCallState::Id => self.id(c, out),
            NamedCallState::Arguments(arguments) => {
                let step = match arguments {
                    Arguments::Value(value) => value.push(c, &mut out.arguments),
                    Arguments::Tags(tags) => tags.push(c, &mut out.arguments),
                };
                self.argued(step)
            }
            NamedCallState::Suffix => match self.literal.push(c, &[self.row.suffix]) {
                Found::More => Step::More,
                Found::One(_) => Step::Done,
                // The suffix is optional: the call is complete without it.
                Found::None(again) => Step::Before(again),
            },
        }
    }

    /// Unemitted argument text at the end of input.
    pub(super) fn rest(&mut self) -> String {
        match &mut self.state {
            NamedCallState::Arguments(Arguments::Value(value)) => value.rest(),
            NamedCallState::Arguments(Arguments::Tags(tags)) => tags.rest(),
            _ => String::new(),
        }
    }

    /// Whether only the suffix is missing.
    pub(super) fn is_complete(&self) -> bool {
        matches!(self.state, NamedCallState::Suffix)
    }

    fn stay(&mut self, state: NamedCallState) -> Step {
        self.state = state;
        Step::More
    }

    /// Ends the name before character `c`.
    fn named(&mut self, c: char, out: &mut Out<'_>) -> Step {
        if !out.has_tool(&self.name) {
            return Step::Wrong(c.into());
        }
        self.state = NamedCallState::Before;
        self.before(c, out)
    }

    fn before(&mut self, c: char, out: &mut Out<'_>) -> Step {
        // Without a separator, the arguments begin with this character.
        if self.row.before.iter().all(|text| text.trim().is_empty()) {
            self.begin(out);
            return self.push(c, out);
        }
        let mut options = self.row.before.to_vec();
        if let (Ids::After(text) | Ids::Numbered(text), None) = (self.ids, &self.id) {
            options.push(text);
        }
        match self.literal.push(c, &options) {
            Found::More => Step::More,
            Found::One(at) if at == self.row.before.len() => {
                self.id = Some(String::new());
                self.stay(NamedCallState::Id)
            }
            Found::One(_) => {
                self.begin(out);
                Step::More
            }
            Found::None(again) => Step::Wrong(again),
        }
    }

    fn id(&mut self, c: char, out: &mut Out<'_>) -> Step {
        match &mut self.id {
            Some(id) if is_name(c) => {
                id.push(c);
                Step::More
            }
            _ => {
                self.state = NamedCallState::Before;
                self.before(c, out)
            }
        }
    }

    /// Emits the start of the call and sets up the argument parser.
    fn begin(&mut self, out: &mut Out<'_>) {
        let id = self.id.take().filter(|id| !id.is_empty()).map(|id| match self.ids {
            Ids::Numbered(separator) => {
                let whole = self.row.prefix.rsplit('>').next().unwrap_or_default();
                format!("{whole}{}{separator}{id}", self.name)
            }
            _ => id,
        });
        out.start(&self.name, id);
        self.state = NamedCallState::Arguments(match &self.row.arguments {
            Row::Json => Arguments::Value(Value::object("")),
            Row::Quoted(quote) => Arguments::Value(Value::object(quote)),
            Row::Python => Arguments::Value(Value::fields_until(')', &mut out.arguments)),
            Row::Tags(row) => Arguments::Tags(Box::new(Tags::new(row, out.parameters(&self.name)))),
        });
    }

    fn argued(&mut self, step: Step) -> Step {
        match step {
            Step::Done | Step::Before(_) if self.row.suffix.is_empty() => step,
            Step::Done => self.stay(NamedCallState::Suffix),
            Step::Before(again) => {
                // The characters that ended the arguments start the suffix.
                self.state = NamedCallState::Suffix;
                let mut rest = again.chars();
                while let Some(c) = rest.next() {
                    match self.literal.push(c, &[self.row.suffix]) {
                        Found::More => {}
                        Found::One(_) => return after(Step::Done, rest.as_str()),
                        Found::None(again) => return Step::Before(again + rest.as_str()),
                    }
                }
                Step::More
            }
            other => other,
        }
    }
}

/// A finished step, with the remaining characters to read again.
fn after(step: Step, rest: &str) -> Step {
    if rest.is_empty() { step } else { Step::Before(rest.into()) }
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.')
}
