//! Building blocks of the character-wise parsers: step results, literals and delimited text.

/// Effect of one character on a parser.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The construct is incomplete.
    More,
    /// The construct ends with this character.
    Done,
    /// The construct ended before these characters; the caller reads them again.
    Before(String),
    /// Syntax error: the caller reads these characters again.
    Wrong(String),
}

/// Matcher for one of several literals. White space before the literal and at its ends is ignored.
#[derive(Debug, Default)]
pub(super) struct Literal {
    held: String,
}

/// Match state after a character.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    More,
    /// Complete match: index of the literal.
    One(usize),
    /// No match: the characters to read again.
    None(String),
}

impl Literal {
    pub(super) fn push(&mut self, c: char, options: &[&str]) -> Found {
        if self.held.is_empty() && c.is_whitespace() {
            return Found::More;
        }
        self.held.push(c);
        if let Some(at) = options.iter().position(|option| option.trim() == self.held) {
            self.held.clear();
            return Found::One(at);
        }
        let may = options.iter().any(|option| option.trim().starts_with(&self.held));
        if may { Found::More } else { Found::None(std::mem::take(&mut self.held)) }
    }
}

/// Scanner for text up to one of several delimiters. Emits characters as soon as they cannot belong to a
/// delimiter.
#[derive(Debug, Default)]
pub(super) struct Until {
    held: String,
}

impl Until {
    /// Appends certain characters to `out`. Returns the index of the delimiter if the text has ended.
    pub(super) fn push(&mut self, c: char, ends: &[&str], out: &mut String) -> Option<usize> {
        self.held.push(c);
        loop {
            if let Some(at) = ends.iter().position(|end| *end == self.held) {
                self.held.clear();
                return Some(at);
            }
            if self.held.is_empty() || ends.iter().any(|end| end.starts_with(&self.held)) {
                return None;
            }
            out.push(self.held.remove(0));
        }
    }

    /// Characters still held back at the end of input.
    pub(super) fn rest(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}
