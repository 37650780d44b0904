//! Stop strings that count in parts of a text only. Arguments of a tool call are no text of the answer, so a
//! stop string in them must not cut the call.

use std::fmt;

use super::stop::{StopMatcher, StopOutcome};

/// Splits an answer into stretches in which stop strings count and stretches in which they do not.
pub trait StopScope: fmt::Debug + Send {
    /// Consumes text. Returns the stretches that are certain now, which continue those of earlier calls.
    fn push(&mut self, text: &str) -> Vec<Stretch>;
}

/// Consecutive characters of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// Number of characters.
    pub chars: usize,
    /// Whether stop strings count.
    pub counts: bool,
}

/// A [`StopMatcher`] within a [`StopScope`]. Text is held back while its stretch is uncertain.
#[derive(Debug)]
pub struct ScopedStops {
    matcher: StopMatcher,
    /// `None`: stop strings count everywhere.
    scope: Option<Box<dyn StopScope>>,
    uncertain: String,
    /// Bytes at the start of `uncertain` within which no stop string ends the text.
    exempt: usize,
    emitted: String,
}

impl ScopedStops {
    /// Matcher for these strings. They count everywhere if there is no scope.
    pub fn new(stops: Vec<String>, scope: Option<Box<dyn StopScope>>) -> ScopedStops {
        let matcher = StopMatcher::new(stops);
        ScopedStops { matcher, scope, uncertain: String::new(), exempt: 0, emitted: String::new() }
    }

    /// Emits the stop string that ends the text, too.
    pub fn including_stop(mut self) -> ScopedStops {
        self.matcher = self.matcher.including_stop();
        self
    }

    /// Consumes a piece of text and returns the text that can be shown, as [`StopMatcher::push`].
    pub fn push(&mut self, text: &str) -> StopOutcome<'_> {
        if self.scope.is_none() {
            return self.matcher.push(text);
        }
        self.uncertain.push_str(text);
        self.advance(text);
        StopOutcome { emit: &self.emitted, stop: self.matcher.met() }
    }

    /// Consumes a piece of text in which no stop string ends the text, as [`StopMatcher::pass`].
    pub fn pass(&mut self, text: &str) -> &str {
        if self.scope.is_none() {
            return self.matcher.pass(text);
        }
        self.uncertain.push_str(text);
        self.exempt = self.uncertain.len();
        self.advance(text);
        &self.emitted
    }

    /// Emits the stretches that `text` makes certain.
    fn advance(&mut self, text: &str) {
        self.emitted.clear();
        for Stretch { chars, counts } in self.scope.as_mut().map(|scope| scope.push(text)).unwrap_or_default()
        {
            let end = self.uncertain.char_indices().nth(chars).map_or(self.uncertain.len(), |(end, _)| end);
            let exempt: String = self.uncertain.drain(..end.min(self.exempt)).collect();
            let rest: String = self.uncertain.drain(..end - exempt.len()).collect();
            self.exempt -= exempt.len();
            if counts {
                self.emitted.push_str(self.matcher.pass(&exempt));
                self.emitted.push_str(self.matcher.push(&rest).emit);
            } else if self.matcher.met().is_none() {
                // A stop string does not continue across a call.
                self.emitted.push_str(self.matcher.flush());
                self.emitted.extend([exempt, rest]);
            }
        }
    }

    /// Ends the stream. Returns the text held back, up to a stop string in it.
    pub fn flush(&mut self) -> &str {
        self.emitted.clear();
        let uncertain = std::mem::take(&mut self.uncertain);
        let (exempt, rest) = uncertain.split_at(std::mem::take(&mut self.exempt));
        self.emitted.push_str(self.matcher.pass(exempt));
        self.emitted.push_str(self.matcher.push(rest).emit);
        self.emitted.push_str(self.matcher.flush());
        &self.emitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A scope that takes parentheses for calls, and is uncertain from `?` to the next `!` or `(`.
    #[derive(Debug, Default)]
    struct Parentheses {
        chars: usize,
        depth: usize,
        is_uncertain: bool,
    }

    impl StopScope for Parentheses {
        fn push(&mut self, text: &str) -> Vec<Stretch> {
            let mut stretches = Vec::new();
            for c in text.chars() {
                self.chars += 1;
                self.is_uncertain = c == '?' || self.is_uncertain && !"(!".contains(c);
                if self.is_uncertain {
                    continue;
                }
                let counts = self.depth == 0 && c != '(';
                self.depth = if c == '(' { 1 } else { self.depth.saturating_sub((c == ')').into()) };
                stretches.push(Stretch { chars: std::mem::take(&mut self.chars), counts });
            }
            stretches
        }
    }

    fn shown(stops: &[&str], pieces: &[&str]) -> (String, Option<String>) {
        let stops = stops.iter().map(|&stop| stop.to_owned()).collect();
        let mut matcher = ScopedStops::new(stops, Some(Box::<Parentheses>::default()));
        let (mut text, mut stop) = (String::new(), None);
        for piece in pieces {
            let outcome = matcher.push(piece);
            text.push_str(outcome.emit);
            stop = outcome.stop.map(str::to_owned);
        }
        text.push_str(matcher.flush());
        (text, stop)
    }

    #[test]
    fn a_stop_in_a_call_does_not_count() {
        assert_eq!(shown(&["b"], &["a(", "bé", "b)c", "b)"]), ("a(béb)c".into(), Some("b".into())));
        assert_eq!(shown(&["a(b"], &["a", "(b)"]), ("a(b)".into(), None), "no stop reaches into a call");
        assert_eq!(shown(&["ab"], &["a", "(x)", "b"]), ("a(x)b".into(), None), "nor across one");
    }

    #[test]
    fn uncertain_text_is_held_until_it_is_text_or_a_call() {
        assert_eq!(shown(&["b"], &["a?b", "c!d"]), ("a?".into(), Some("b".into())));
        assert_eq!(shown(&["b"], &["a?b", "c(d)"]), ("a?bc(d)".into(), None));
        assert_eq!(shown(&["b"], &["a?é", "b"]), ("a?é".into(), None), "at the end it is text");
    }

    #[test]
    fn without_a_scope_a_stop_counts_everywhere() {
        let mut matcher = ScopedStops::new(vec!["b".into()], None);
        assert_eq!(matcher.push("(ab)"), StopOutcome { emit: "(a", stop: Some("b") });
        assert_eq!(matcher.flush(), "");
    }
}
