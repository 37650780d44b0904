//! Origin of the parts of a text: the template, or users.
//!
//! Control tokens are recognised only in the template's text, so every string of a rendering carries its
//! origin. In the engine, a string of the template is "safe" and a string of a user is not. That flag exists
//! for HTML escaping and survives variables, lists and calls. A string with both origins is safe, and a pair
//! of characters that occur nowhere else ([`Marks`]) surrounds each part of a user.

use minijinja::value::Value;
use std::collections::HashSet;
use std::ops::Range;

/// A text with the byte ranges that users wrote.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Text {
    plain: String,
    /// Ascending, neither adjacent nor empty.
    user: Vec<Range<usize>>,
    /// Whether the filter `safe` created it: Python's `Markup`, to which `+` appends escaped strings only.
    markup: bool,
}

impl Text {
    /// Text of the template.
    pub(super) fn template(plain: impl Into<String>) -> Text {
        Text { plain: plain.into(), ..Text::default() }
    }

    /// Text of a user.
    pub(super) fn user(plain: impl Into<String>) -> Text {
        let plain = plain.into();
        let whole = 0..plain.len();
        Text { plain, user: if whole.is_empty() { Vec::new() } else { vec![whole] }, markup: false }
    }

    /// Text with the origin of `like`; a user's if mixed.
    pub(super) fn like(like: &Text, plain: impl Into<String>) -> Text {
        if like.user.is_empty() { Text::template(plain) } else { Text::user(plain) }
    }

    pub(super) fn as_str(&self) -> &str {
        &self.plain
    }

    pub(super) fn into_parts(self) -> (String, Vec<Range<usize>>) {
        (self.plain, self.user)
    }

    /// Converts to markup, like the filter `safe`.
    pub(super) fn into_markup(self) -> Text {
        Text { markup: true, ..self }
    }

    /// Whether all of it is the template's.
    pub(super) fn is_template(&self) -> bool {
        self.user.is_empty()
    }

    pub(super) fn is_markup(&self) -> bool {
        self.markup
    }

    /// Escaped for HTML, unless it is markup.
    pub(super) fn escaped(&self) -> Text {
        if self.markup { self.clone() } else { self.map(escape).into_markup() }
    }

    /// Bytes that the text occupies in the engine.
    pub(super) fn cost(&self) -> usize {
        self.plain.len() + self.user.len() * 8
    }

    pub(super) fn push(&mut self, other: &Text) {
        let base = self.plain.len();
        self.plain.push_str(&other.plain);
        for span in &other.user {
            self.add_span(span.start + base..span.end + base);
        }
    }

    fn add_span(&mut self, span: Range<usize>) {
        match self.user.last_mut() {
            Some(last) if last.end == span.start => last.end = span.end,
            _ if span.is_empty() => {}
            _ => self.user.push(span),
        }
    }

    /// The part in a byte range; empty if the range is invalid.
    pub(super) fn slice(&self, range: Range<usize>) -> Text {
        let plain = self.plain.get(range.clone()).unwrap_or_default();
        let mut part = Text::template(plain);
        let first = self.user.partition_point(|span| span.end <= range.start);
        for span in self.user.iter().skip(first).take_while(|span| span.start < range.end) {
            let (start, end) = (span.start.max(range.start), span.end.min(range.end));
            part.add_span(start - range.start..end - range.start);
        }
        part
    }

    /// The part with the text of `part`, a slice of this text's string.
    pub(super) fn part(&self, part: &str) -> Text {
        let start = (part.as_ptr() as usize).wrapping_sub(self.plain.as_ptr() as usize);
        self.slice(start..start.saturating_add(part.len()))
    }

    /// Applies `change` to each stretch of one origin.
    pub(super) fn map(&self, change: impl Fn(&str) -> String) -> Text {
        let mut changed = Text::default();
        let mut start = 0;
        for span in &self.user {
            changed.push(&Text::template(change(self.plain.get(start..span.start).unwrap_or_default())));
            changed.push(&Text::user(change(self.plain.get(span.clone()).unwrap_or_default())));
            start = span.end;
        }
        changed.push(&Text::template(change(self.plain.get(start..).unwrap_or_default())));
        changed
    }

    /// The characters, each with its origin.
    pub(super) fn chars(&self) -> impl Iterator<Item = Text> + '_ {
        self.plain.char_indices().map(|(at, c)| self.slice(at..at + c.len_utf8()))
    }
}

fn escape(part: &str) -> String {
    let mut out = String::with_capacity(part.len());
    for c in part.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// Delimiters of user text, in strings of mixed origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Marks {
    open: char,
    close: char,
    /// Prefix of a markup string.
    markup: char,
}

impl Default for Marks {
    fn default() -> Marks {
        Marks { open: '\u{fdd0}', close: '\u{fdd1}', markup: '\u{fdd2}' }
    }
}

/// First candidate for a mark.
const FIRST_MARK: char = '\u{fdd0}';

impl Marks {
    /// Three characters that occur in none of the texts: noncharacters, which Unicode reserves for internal
    /// use, then private-use ones. `None` if the texts contain all of them.
    pub(super) fn unused<'t>(texts: impl Iterator<Item = &'t str>) -> Option<Marks> {
        let used: HashSet<char> = texts.flat_map(str::chars).filter(|&c| c >= FIRST_MARK).collect();
        let ends = (0..=16).flat_map(|plane| [plane * 0x1_0000 + 0xfffe, plane * 0x1_0000 + 0xffff]);
        let private = (0xf_0000..=0xf_fffd).chain(0x10_0000..=0x10_fffd);
        let candidates = (0xfdd0..=0xfdef).chain(ends).chain(private).filter_map(char::from_u32);
        let mut free = candidates.filter(|c| !used.contains(c));
        Some(Marks { open: free.next()?, close: free.next()?, markup: free.next()? })
    }

    /// Text of a string value; `None` for other values.
    pub(super) fn text(self, value: &Value) -> Option<Text> {
        let string = value.as_str()?;
        Some(if value.is_safe() { self.read(string) } else { Text::user(string) })
    }

    /// String of a value without marks; `None` for other values.
    pub(super) fn plain(self, value: &Value) -> Option<String> {
        let string = value.as_str()?;
        Some(if self.stand_in(value) { self.read(string).plain } else { string.to_owned() })
    }

    /// Whether the value is a string with marks.
    pub(super) fn stand_in(self, value: &Value) -> bool {
        value.is_safe() && value.as_str().is_some_and(|string| string.contains([self.open, self.markup]))
    }

    /// A text as a value.
    pub(super) fn value(self, text: Text) -> Value {
        match text.user.as_slice() {
            _ if text.markup => Value::from_safe_string(format!("{}{}", self.markup, self.write(&text))),
            [] => Value::from_safe_string(text.plain),
            [span] if *span == (0..text.plain.len()) => Value::from(text.plain),
            _ => Value::from_safe_string(self.write(&text)),
        }
    }

    /// A text with marks around the parts of users.
    pub(super) fn write(self, text: &Text) -> String {
        let mut marked = String::with_capacity(text.cost());
        let mut start = 0;
        for span in &text.user {
            marked.push_str(text.plain.get(start..span.start).unwrap_or_default());
            marked.push(self.open);
            marked.push_str(text.plain.get(span.clone()).unwrap_or_default());
            marked.push(self.close);
            start = span.end;
        }
        marked.push_str(text.plain.get(start..).unwrap_or_default());
        marked
    }

    /// Parses a string with marks.
    pub(super) fn read(self, marked: &str) -> Text {
        let (markup, mut rest) =
            marked.strip_prefix(self.markup).map_or((false, marked), |rest| (true, rest));
        let mut text = Text { markup, ..Text::default() };
        while let Some((before, after)) = rest.split_once(self.open) {
            let (user, after) = after.split_once(self.close).unwrap_or((after, ""));
            text.plain.push_str(before);
            text.push(&Text::user(user));
            rest = after;
        }
        text.plain.push_str(rest);
        text
    }

    /// Removes characters that would be taken for marks from a computed string.
    pub(super) fn cleaned(self, string: String) -> String {
        let marks = [self.open, self.close, self.markup];
        if string.contains(marks) { string.replace(marks, "") } else { string }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mixed() -> Text {
        let mut text = Text::template("<|");
        text.push(&Text::user("héllo"));
        text.push(&Text::template("|>"));
        text
    }

    #[test]
    fn marks_come_back_as_spans() {
        let marks = Marks::default();
        assert_eq!(marks.write(&mixed()), "<|\u{fdd0}héllo\u{fdd1}|>");
        assert_eq!(marks.text(&marks.value(mixed())), Some(mixed()));
        for text in [Text::user("a"), Text::template("a"), Text::default()] {
            assert_eq!(marks.text(&marks.value(text.clone())), Some(text));
        }
        assert!(!marks.value(Text::user("a")).is_safe() && marks.value(Text::template("a")).is_safe());
    }

    #[test]
    fn parts_keep_their_origin() {
        let text = mixed();
        let mut part = Text::template("|");
        part.push(&Text::user("h"));
        assert_eq!(text.slice(1..3), part);
        assert_eq!(text.slice(0..2), Text::template("<|"));
        assert_eq!(text.slice(3..5), Text::user("é"));
        assert_eq!(text.map(str::to_uppercase).as_str(), "<|HÉLLO|>");
        assert_eq!(text.map(|part| part.repeat(2)).user.first(), Some(&(4..16)));
        assert_eq!(text.chars().filter(|c| !c.user.is_empty()).count(), 5);
    }

    #[test]
    fn strings_that_a_computation_made_have_no_marks() {
        let marks = Marks::default();
        let made = format!("a{}b{}c{}d", marks.open, marks.close, marks.markup);
        assert_eq!(marks.cleaned(made), "abcd");
        assert_eq!(marks.cleaned("é".to_owned()), "é");
    }

    #[test]
    fn marks_are_characters_that_nobody_wrote() {
        let all: String = (0xfdd0..=0xfdef).filter_map(char::from_u32).collect();
        let marks = Marks::unused([all.as_str(), "\u{fffe}"].into_iter()).unwrap();
        assert_eq!(marks, Marks { open: '\u{ffff}', close: '\u{1fffe}', markup: '\u{1ffff}' });
        assert_eq!(Marks::unused(std::iter::empty()), Some(Marks::default()));
    }
}
