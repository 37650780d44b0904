//! The text in a custom tool's arguments, decoded while they are written: `{"input": "…"}`.

use crate::request::call_forms::INPUT;

/// Streaming decoder. Arguments of another form are kept as they are.
#[derive(Debug, Default)]
pub(crate) struct CustomInput {
    state: State,
}

#[derive(Debug)]
enum State {
    /// Before the text, with the characters so far.
    Before(String),
    Inside,
    /// After a backslash, with the escape so far.
    Escape(String),
    After,
    /// Another form.
    Raw,
}

impl Default for State {
    fn default() -> State {
        State::Before(String::new())
    }
}

impl CustomInput {
    /// Consumes arguments. Returns the characters of the text that are certain.
    pub(crate) fn push(&mut self, arguments: &str) -> String {
        let mut text = String::new();
        arguments.chars().for_each(|c| self.take(c, &mut text));
        text
    }

    /// Ends the arguments. Returns those held back, if they are of another form.
    pub(crate) fn finish(&mut self) -> String {
        match std::mem::replace(&mut self.state, State::After) {
            State::Before(read) => read,
            _ => String::new(),
        }
    }

    fn take(&mut self, c: char, text: &mut String) {
        match &mut self.state {
            State::Before(read) => {
                read.push(c);
                if c.is_whitespace() {
                    return;
                }
                let spelled = read.chars().filter(|c| !c.is_whitespace()).collect::<String>();
                let begin = format!("{{\"{INPUT}\":\"");
                if spelled == begin {
                    self.state = State::Inside;
                } else if !begin.starts_with(&spelled) {
                    text.push_str(read);
                    self.state = State::Raw;
                }
            }
            State::Inside => match c {
                '"' => self.state = State::After,
                '\\' => self.state = State::Escape(String::new()),
                _ => text.push(c),
            },
            State::Escape(read) => {
                read.push(c);
                if let Some(found) = unescaped(read) {
                    text.push(found);
                    self.state = State::Inside;
                }
            }
            State::After => {}
            State::Raw => text.push(c),
        }
    }
}

/// The character of an escape after its backslash; `None` while it is incomplete. Half of a surrogate pair
/// waits for the other.
fn unescaped(escape: &str) -> Option<char> {
    let Some(digits) = escape.strip_prefix('u') else {
        return Some(match escape {
            "n" => '\n',
            "r" => '\r',
            "t" => '\t',
            "b" => '\u{8}',
            "f" => '\u{c}',
            other => other.chars().next()?,
        });
    };
    let unit = |digits: Option<&str>| u16::from_str_radix(digits?, 16).ok();
    if digits.len() < 4 {
        return None;
    }
    let first = unit(digits.get(..4));
    let is_half = first.is_some_and(|unit| (0xd800..0xdc00).contains(&unit));
    if is_half && digits.len() < 10 {
        return None;
    }
    let units = if is_half { vec![first, unit(digits.get(6..10))] } else { vec![first] };
    let units = units.into_iter().map(Option::unwrap_or_default);
    Some(char::decode_utf16(units).next().and_then(Result::ok).unwrap_or(char::REPLACEMENT_CHARACTER))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn decoded(pieces: &[&str]) -> String {
        let mut input = CustomInput::default();
        let text: String = pieces.iter().map(|piece| input.push(piece)).collect();
        text + &input.finish()
    }

    #[test]
    fn the_text_does_not_depend_on_the_split() {
        let text = "a \"b\" \\ / \n\t\u{8}\u{1f} é \u{1f600}";
        let ascii = r#"{"input":"\u00e9 \ud83d\ude00 \/"}"#;
        let cases = [
            (json!({"input": text}).to_string(), text),
            (ascii.to_owned(), "é \u{1f600} /"),
            (" { \"input\" :\n\"a\" } ".to_owned(), "a"),
            ("{\"input\": 5}".to_owned(), "{\"input\": 5}"),
            ("{\"code\": \"a\"}".to_owned(), "{\"code\": \"a\"}"),
            ("{\"inp".to_owned(), "{\"inp"),
            ("{\"input\": \"a\\u00".to_owned(), "a"),
            (r#"{"input":"\ud83dabcdefg"}"#.to_owned(), "\u{fffd}g"),
        ];
        for (arguments, expected) in cases {
            assert_eq!(decoded(&[&arguments]), expected, "{arguments}");
            let single: Vec<String> = arguments.chars().map(String::from).collect();
            let single: Vec<&str> = single.iter().map(String::as_str).collect();
            assert_eq!(decoded(&single), expected, "{arguments}");
        }
    }
}
