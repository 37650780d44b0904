//! Sizes of the terminals of a Lark grammar. A terminal becomes one regular expression, with the terminals
//! that it names in their places.

use std::collections::HashMap;

use super::regex;

/// Maximum depth of terminals in each other.
const DEPTH_MAX: usize = 64;

/// Sizes of the terminals of a grammar. Its tokens are added in order.
#[derive(Default)]
pub(super) struct Terminals {
    sizes: HashMap<String, Terminal>,
    /// Definition that the tokens belong to.
    current: String,
    word: String,
    /// First word of the line: the name of a definition, if a colon follows.
    first: Option<String>,
    is_defined: bool,
    /// Nodes of all regular expressions.
    nodes: usize,
}

#[derive(Default)]
struct Terminal {
    /// Nodes of regular expressions and operators of repetition.
    own: usize,
    names: Vec<String>,
}

impl Terminals {
    /// Adds a token: a string, a regular expression, a comment, or one character.
    ///
    /// # Errors
    /// Regular expressions with too many nodes.
    pub(super) fn add(&mut self, token: &str) -> Result<(), String> {
        match token.chars().next() {
            Some(c) if c.is_alphanumeric() || c == '_' => {
                self.word.push(c);
                return Ok(());
            }
            Some(':') if !self.is_defined => {
                self.end_word();
                self.current = self.first.take().unwrap_or_default();
                self.is_defined = true;
            }
            Some('?' | '*' | '+' | '~' | '{') => self.count(1),
            Some('/') if !token.starts_with("//") && token.len() > 1 => {
                let pattern = token.strip_prefix('/').and_then(|rest| rest.strip_suffix('/'));
                let size = pattern.map_or(0, regex::size);
                self.count(size);
                self.nodes += size;
                regex::within_limit(self.nodes)?;
            }
            _ => {}
        }
        self.end_word();
        if token.ends_with('\n') {
            self.end_line();
        }
        Ok(())
    }

    fn count(&mut self, nodes: usize) {
        self.sizes.entry(self.current.clone()).or_default().own += nodes;
    }

    fn end_word(&mut self) {
        let word = std::mem::take(&mut self.word);
        if word.is_empty() {
            return;
        }
        match (&self.first, self.is_defined) {
            (None, false) => self.first = Some(word),
            _ => self.name(word),
        }
    }

    fn end_line(&mut self) {
        self.is_defined = false;
        if let Some(word) = self.first.take() {
            self.name(word);
        }
    }

    /// Adds a terminal that the current one names.
    fn name(&mut self, word: String) {
        if is_terminal(&word) && is_terminal(&self.current) {
            self.sizes.entry(self.current.clone()).or_default().names.push(word);
        }
    }

    /// Refuses terminals that are too large or too deep.
    ///
    /// # Errors
    /// The exceeded limit.
    pub(super) fn within_limits(mut self) -> Result<(), String> {
        self.end_word();
        self.end_line();
        let mut sizes: HashMap<&str, usize> = HashMap::new();
        for _ in 0..DEPTH_MAX {
            let size = |terminal: &Terminal| {
                let named = terminal.names.iter().filter_map(|name| sizes.get(name.as_str()));
                named.fold(terminal.own, |all, size| all.saturating_add(*size))
            };
            let terminals = self.sizes.iter().filter(|(name, _)| is_terminal(name));
            let next: HashMap<&str, usize> =
                terminals.map(|(name, terminal)| (name.as_str(), size(terminal))).collect();
            regex::within_limit(next.values().copied().max().unwrap_or(0))?;
            if next == sizes {
                return Ok(());
            }
            sizes = next;
        }
        Err(format!("expected at most {DEPTH_MAX} terminals in each other, found more"))
    }
}

fn is_terminal(name: &str) -> bool {
    name.trim_start_matches('_').starts_with(char::is_uppercase)
}

#[cfg(test)]
mod tests {
    use crate::constrain::lark::Lark;

    #[test]
    fn terminals_count_what_they_name_and_rules_do_not() {
        let chain = |times: usize| {
            format!("start: C A\nA: {}\nB: A A A\nC: {}", "\"a\"? ".repeat(20), "B ".repeat(times))
        };
        let deep: String = (0..100).map(|at| format!("T{at}: T{} \"x\"\n", at + 1)).collect();
        for text in [
            chain(30),
            format!("start: {}", "\"a\"? ".repeat(3_000)),
            format!("start: T\nT: {}\"b\"", "\"a\" | ".repeat(3_000)),
            "start: T // T: T T\nT[lazy]: /a+/ | \"?\"\n | U\nU.2: \"b\"".into(),
            "start: a\na: a? B\nB: \"b\"".into(),
        ] {
            assert!(Lark::parse(&text).is_ok(), "{text:.80}");
        }
        for text in [
            chain(50),
            format!("start: T\nT: {}", "\"a\"? ".repeat(3_000)),
            format!("start: {}", "/.*/ ".repeat(2_000)),
            "start: A\nA: B? B\nB: A? A".into(),
            format!("start: T0\n{deep}T100: \"y\"?"),
        ] {
            assert!(Lark::parse(&text).is_err(), "{text:.80}");
        }
    }
}
