//! JSON's values, Python's and Gemma's, character by character into JSON.
//!
//! It is tolerant of what comes and strict in what it writes: texts in single quotes, Python's `True` and `None`, keys
//! without quotes and a comma before the end are read in every format. White space between values is left out.

use super::step::{Step, Until};

/// A value being read.
#[derive(Debug)]
pub(super) struct Value {
    /// What stands around texts besides quotes; nothing where it is empty.
    quote: &'static str,
    /// What ends each object and list that is open.
    closers: Vec<char>,
    state: State,
}

#[derive(Debug)]
enum State {
    /// A value.
    Value,
    /// An object.
    Object,
    /// The first entry of an object or a list, or its end.
    First,
    /// A further one, or its end.
    Next,
    /// What stands between a key and its value.
    Colon,
    /// A comma or an end.
    After,
    Text(Text),
    Word(String),
    /// The mark before a text.
    Mark(String),
}

#[derive(Debug)]
enum Text {
    /// In quotes.
    Quoted { end: char, escape: Escape },
    /// Between marks.
    Marked(Until),
}

#[derive(Clone, Copy, Debug)]
enum Escape {
    No,
    /// Behind a backslash.
    Begun,
    /// So many hexadecimal digits.
    Digits(usize),
}

impl Value {
    /// Any value.
    pub(super) fn new(quote: &'static str) -> Value {
        Value { quote, closers: Vec::new(), state: State::Value }
    }

    /// An object.
    pub(super) fn object(quote: &'static str) -> Value {
        Value { state: State::Object, ..Value::new(quote) }
    }

    /// An object whose first key comes, up to this character.
    pub(super) fn fields_until(end: char, out: &mut String) -> Value {
        out.push('{');
        Value { quote: "", closers: vec![end], state: State::First }
    }

    /// Takes a character and writes what is certain.
    pub(super) fn push(&mut self, c: char, out: &mut String) -> Step {
        match std::mem::replace(&mut self.state, State::After) {
            State::Text(text) => self.text(text, c, out),
            State::Word(word) => self.word(word, c, out),
            State::Mark(held) => self.mark(held, c, out),
            state if c.is_whitespace() => self.stay(state),
            State::Object if c != '{' => wrong(c),
            State::Value | State::Object => self.begin(c, out),
            State::First => self.entry(c, out),
            State::Next if self.closers.last() == Some(&c) => self.close(c, out),
            State::Next => {
                out.push(',');
                self.entry(c, out)
            }
            State::Colon if c == ':' || c == '=' => {
                out.push(':');
                self.stay(State::Value)
            }
            State::After if c == ',' && !self.closers.is_empty() => self.stay(State::Next),
            State::After if self.closers.last() == Some(&c) => self.close(c, out),
            State::Colon | State::After => wrong(c),
        }
    }

    /// What came and has not been written, when nothing more comes.
    pub(super) fn rest(&mut self) -> String {
        match &mut self.state {
            State::Word(text) | State::Mark(text) => std::mem::take(text),
            State::Text(Text::Marked(until)) => until.rest(),
            State::Text(Text::Quoted { escape: Escape::Begun, .. }) => "\\".into(),
            _ => String::new(),
        }
    }

    fn stay(&mut self, state: State) -> Step {
        self.state = state;
        Step::More
    }

    /// Whether a key comes where an entry does.
    fn has_keys(&self) -> bool {
        self.closers.last().is_some_and(|&end| end != ']')
    }

    /// The first character of an entry.
    fn entry(&mut self, c: char, out: &mut String) -> Step {
        if self.closers.last() == Some(&c) {
            return self.close(c, out);
        }
        // A key is a text or a word; which state follows tells it from a value.
        match c {
            '{' | '[' if self.has_keys() => wrong(c),
            _ => {
                if self.has_keys() {
                    self.closers.push(':');
                }
                self.begin(c, out)
            }
        }
    }

    fn begin(&mut self, c: char, out: &mut String) -> Step {
        match c {
            '{' | '[' => {
                self.closers.push(if c == '{' { '}' } else { ']' });
                out.push(c);
                self.stay(State::First)
            }
            '"' | '\'' => {
                out.push('"');
                self.stay(State::Text(Text::Quoted { end: c, escape: Escape::No }))
            }
            _ if self.quote.starts_with(c) => self.mark(String::new(), c, out),
            _ if is_word(c) => self.stay(State::Word(c.into())),
            _ => wrong(c),
        }
    }

    fn close(&mut self, c: char, out: &mut String) -> Step {
        self.closers.pop();
        out.push(if c == ']' { ']' } else { '}' });
        self.ended()
    }

    /// A key or a value has ended.
    fn ended(&mut self) -> Step {
        match self.closers.last() {
            None => Step::Done,
            Some(':') => {
                self.closers.pop();
                self.stay(State::Colon)
            }
            Some(_) => self.stay(State::After),
        }
    }

    fn mark(&mut self, mut held: String, c: char, out: &mut String) -> Step {
        held.push(c);
        if held == self.quote {
            out.push('"');
            return self.stay(State::Text(Text::Marked(Until::default())));
        }
        if self.quote.starts_with(&held) { self.stay(State::Mark(held)) } else { Step::Wrong(held) }
    }

    fn text(&mut self, mut text: Text, c: char, out: &mut String) -> Step {
        let has_ended = match &mut text {
            Text::Marked(until) => {
                let mut plain = String::new();
                let end = until.push(c, &[self.quote], &mut plain);
                escape_into(&plain, out);
                end.is_some()
            }
            Text::Quoted { end, escape: Escape::No } if c == *end => true,
            Text::Quoted { escape, .. } => match escape.push(c, out) {
                Some(next) => {
                    *escape = next;
                    false
                }
                None => return wrong(c),
            },
        };
        if !has_ended {
            return self.stay(State::Text(text));
        }
        out.push('"');
        self.ended()
    }

    fn word(&mut self, mut word: String, c: char, out: &mut String) -> Step {
        if is_word(c) {
            word.push(c);
            return self.stay(State::Word(word));
        }
        let is_key = self.closers.last() == Some(&':');
        match word.as_str() {
            text if is_key => {
                out.push('"');
                escape_into(text, out);
                out.push('"');
            }
            "true" | "True" => out.push_str("true"),
            "false" | "False" => out.push_str("false"),
            "null" | "None" => out.push_str("null"),
            text if serde_json::from_str::<serde_json::Number>(text).is_ok() => out.push_str(text),
            _ => return Step::Wrong(word + c.encode_utf8(&mut [0; 4])),
        }
        match self.ended() {
            Step::Done => Step::Before(c.into()),
            _ => self.push(c, out),
        }
    }
}

impl Escape {
    /// Writes a character of a quoted text; what follows it.
    fn push(self, c: char, out: &mut String) -> Option<Escape> {
        match (self, c) {
            (Escape::No, '\\') => return Some(Escape::Begun),
            (Escape::No, _) => escape_into(c.encode_utf8(&mut [0; 4]), out),
            (Escape::Begun, 'u') => {
                out.push_str("\\u");
                return Some(Escape::Digits(4));
            }
            (Escape::Begun, 'x') => {
                out.push_str("\\u00");
                return Some(Escape::Digits(2));
            }
            (Escape::Begun, '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't') => out.extend(['\\', c]),
            (Escape::Begun, '\'') => out.push(c),
            // In Python, a backslash before a line's end is nothing, and before another character itself.
            (Escape::Begun, '\n') => {}
            (Escape::Begun, _) => {
                out.push_str("\\\\");
                escape_into(c.encode_utf8(&mut [0; 4]), out);
            }
            (Escape::Digits(left), _) if c.is_ascii_hexdigit() => {
                out.push(c);
                return Some(if left > 1 { Escape::Digits(left - 1) } else { Escape::No });
            }
            (Escape::Digits(_), _) => return None,
        }
        Some(Escape::No)
    }
}

fn wrong(c: char) -> Step {
    Step::Wrong(c.into())
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '-' | '+' | '.')
}

/// A text as it stands within JSON's quotes.
pub(super) fn escape_into(text: &str, out: &mut String) {
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c.is_control() && u32::from(c) < 0x20 => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
}
