//! Character-wise parser for values of JSON, Python and Gemma's format; emits JSON.
//!
//! Tolerant input, strict output: every format accepts single-quoted strings, Python's `True` and `None`,
//! unquoted keys and trailing commas. White space between values is dropped.

use super::step::{Step, Until};

/// State of one value.
#[derive(Debug)]
pub(super) struct Value {
    /// String delimiter in addition to quotes; empty for none.
    quote: &'static str,
    /// Closing characters of the open objects and lists, outermost first; `:` for an open key.
    closers: Vec<char>,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Before a value.
    Value,
    /// Before a value that must be an object.
    Object,
    /// First entry of an object or a list, or its end.
    First,
    /// Further entry, or the end after a trailing comma.
    Next,
    /// Between a key and its value.
    Colon,
    /// After a value: a comma or the end.
    After,
    Text(Text),
    Word(String),
    /// Partial string delimiter.
    Mark(String),
}

#[derive(Debug)]
enum Text {
    /// In single or double quotes.
    Quoted { end: char, escape: Escape },
    /// Between string delimiters of the format.
    Marked(Until),
}

#[derive(Clone, Copy, Debug)]
enum Escape {
    No,
    /// After a backslash.
    Begun,
    /// Number of hexadecimal digits left.
    Digits(usize),
}

impl Value {
    /// Parser for any value.
    pub(super) fn new(quote: &'static str) -> Value {
        Value { quote, closers: Vec::new(), state: State::Value }
    }

    /// Parser for an object.
    pub(super) fn object(quote: &'static str) -> Value {
        Value { state: State::Object, ..Value::new(quote) }
    }

    /// Parser for the entries of an object without its opening bracket, up to `end`.
    pub(super) fn fields_until(end: char, out: &mut String) -> Value {
        out.push('{');
        Value { quote: "", closers: vec![end], state: State::First }
    }

    /// Consumes a character and emits the certain output.
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

    /// Unemitted text at the end of input.
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

    /// Whether the entries of the innermost container have keys.
    fn has_keys(&self) -> bool {
        self.closers.last().is_some_and(|&end| end != ']')
    }

    /// Handles the first character of an entry.
    fn entry(&mut self, c: char, out: &mut String) -> Step {
        if self.closers.last() == Some(&c) {
            return self.close(c, out);
        }
        // A key is a string or a word. The `:` on the stack marks it as a key.
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

    /// Ends a key or a value.
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
    /// Emits a character of a quoted string. Returns the next state, or `None` for an invalid escape.
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
            // Python: a backslash before a line break removes both; before other characters it is literal.
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

/// Escapes text for a JSON string.
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
