//! Escaping of text for a line or a terminal: control and invisible characters become `\u{1b}` and the like.
//!
//! Each character is escaped on its own, so no control sequence can form across pieces of a stream.

use std::borrow::Cow;

/// Maximum characters of a message.
pub const MESSAGE_CHARS_MAX: usize = 300;

/// A message on one line. Line breaks and tabs become spaces; the middle of a long message is cut.
pub fn one_line(message: &str) -> String {
    let blank = |c| if matches!(c, '\n' | '\r' | '\t') { ' ' } else { c };
    let message: String = message.trim_end().chars().map(blank).collect();
    shortened(spell(&message, is_hidden), MESSAGE_CHARS_MAX)
}

/// A name inside a line: line breaks are escaped, all other characters are unchanged.
pub fn in_line(name: &str) -> Cow<'_, str> {
    spell(name, |c| matches!(c, '\n' | '\r'))
}

/// Text for a terminal: control characters are escaped, line breaks and tabs are kept.
pub fn for_terminal(text: &str) -> Cow<'_, str> {
    spell(text, |c| steers(c) && !matches!(c, '\n' | '\t'))
}

/// JSON for a terminal: the same value, with control characters escaped inside strings.
pub fn json_for_terminal(json: &str) -> String {
    let mut shown = String::with_capacity(json.len());
    for c in json.chars() {
        if steers(c) && c != '\n' {
            // `steers` holds only for characters of at most four hexadecimal digits.
            shown.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            shown.push(c);
        }
    }
    shown
}

/// Shortens a text to `chars_max` characters by replacing its middle with an ellipsis.
pub fn shortened(text: impl AsRef<str>, chars_max: usize) -> String {
    let text = text.as_ref();
    let count = text.chars().count();
    if count <= chars_max {
        return text.to_owned();
    }
    let tail = chars_max / 2;
    let head = chars_max - tail - 1;
    text.chars().take(head).chain(['…']).chain(text.chars().skip(count - tail)).collect()
}

fn spell(text: &str, hide: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&hide) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '\n' | '\r' | '\t' if hide(c) => shown.extend(c.escape_default()),
            c if hide(c) => shown.extend(c.escape_unicode()),
            c => shown.push(c),
        }
    }
    Cow::Owned(shown)
}

/// Characters that control a terminal: C0, DEL and C1 controls, and bidirectional formatting characters.
fn steers(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Characters of `steers`, and invisible ones: joiners, fillers, tags, line separators.
fn is_hidden(c: char) -> bool {
    steers(c)
        || matches!(
            c,
            '\u{ad}' | '\u{34f}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
                | '\u{200b}'..='\u{200d}' | '\u{2028}' | '\u{2029}' | '\u{2060}'..='\u{2065}'
                | '\u{206a}'..='\u{206f}' | '\u{3164}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
                | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line_of_what_can_be_seen() {
        assert_eq!(one_line("a\nb\tc\r\n"), "a b c");
        assert_eq!(one_line("x\u{1b}[2J\u{9b}1m\u{7f}"), "x\\u{1b}[2J\\u{9b}1m\\u{7f}");
        assert_eq!(
            one_line("a\u{202e}b\u{2066}c\u{feff}\u{200b}"),
            "a\\u{202e}b\\u{2066}c\\u{feff}\\u{200b}"
        );
        assert_eq!(one_line("é 漢 😀"), "é 漢 😀");
    }

    #[test]
    fn a_long_message_keeps_both_ends() {
        let long = one_line(&format!("begin{}end", "é".repeat(5000)));
        assert_eq!(long.chars().count(), MESSAGE_CHARS_MAX);
        assert!(long.starts_with("begin") && long.ends_with("end") && long.contains('…'), "{long}");
        assert_eq!(one_line(&"x".repeat(MESSAGE_CHARS_MAX)).len(), MESSAGE_CHARS_MAX);
        let spelled = one_line(&"\u{1b}".repeat(5000));
        assert_eq!(spelled.chars().count(), MESSAGE_CHARS_MAX);
    }

    #[test]
    fn a_terminal_gets_text_and_no_commands() {
        let text = "two\nlines\tand 👩\u{200d}💻 \u{1b}]0;title\u{7}\r\u{9d}x\u{85}\u{200f}";
        let shown = for_terminal(text);
        assert!(
            shown.starts_with("two\nlines\tand 👩\u{200d}💻 \\u{1b}]0;title\\u{7}\\r\\u{9d}x"),
            "{shown}"
        );
        assert!(!shown.contains(|c| steers(c) && c != '\n' && c != '\t'));
        assert!(matches!(for_terminal("plain"), Cow::Borrowed("plain")));
        // A sequence split across pieces: its first character is escaped.
        assert_eq!(["\u{1b}", "[31m"].map(for_terminal).concat(), "\\u{1b}[31m");
    }

    #[test]
    fn json_keeps_its_value() {
        let value = serde_json::json!({ "text": "a\u{9b}31m\u{202e}\u{7f}\u{1b}" });
        let shown = json_for_terminal(&value.to_string());
        assert!(!shown.contains(steers), "{shown}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), value);
    }

    #[test]
    fn a_name_stays_on_its_line() {
        assert_eq!(in_line("a\nb\r\u{1b}"), "a\\nb\\r\u{1b}");
    }
}
