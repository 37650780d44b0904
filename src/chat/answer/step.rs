//! What readers of characters have in common: what a character did, and literals.

/// What a character did.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// More is expected.
    More,
    /// What is read ends with it.
    Done,
    /// What is read ended before these characters, which are read again.
    Before(String),
    /// It is not what is read here. These characters are read again.
    Wrong(String),
}

/// Finds out which of some literals comes. White space before it, and at a literal's ends, does not count.
#[derive(Debug, Default)]
pub(super) struct Literal {
    held: String,
}

/// What a character made of a literal.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    More,
    /// It is complete: this one of them.
    One(usize),
    /// It is none of them. These characters are read again.
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

/// Finds the end of a text whose characters are let out as soon as they cannot be part of it.
#[derive(Debug, Default)]
pub(super) struct Until {
    held: String,
}

impl Until {
    /// Puts what is certain behind `out`; whether the text has ended, and with which of its ends.
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

    /// What was held when nothing more came.
    pub(super) fn rest(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}
