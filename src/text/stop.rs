//! Stop strings in streamed text. They are found across pieces, and no part of one is emitted.
//!
//! The matcher works on text after detokenisation, because a stop string need not start or end at a token
//! boundary. The engine handles stop tokens.

use std::ops::Range;

/// Result of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopOutcome<'a> {
    /// Text that is certainly not part of a stop string.
    pub emit: &'a str,
    /// The stop string that was found, if any. The text ends before it, or after it if it is included.
    pub stop: Option<&'a str>,
}

/// Matcher for stop strings in a stream of text.
///
/// The stop string that is completed first ends the text; of two that end at the same character, the longer
/// one. So the result does not depend on how the stream is split.
///
/// ```
/// use ottava::text::StopMatcher;
///
/// let mut stops = StopMatcher::new(vec!["</answer>".into()]);
/// assert_eq!(stops.push("42</ans").emit, "42");
/// assert_eq!(stops.push("wer>\n").stop, Some("</answer>"));
/// ```
#[derive(Clone, Debug)]
pub struct StopMatcher {
    stops: Vec<String>,
    /// Whether the stop string is emitted.
    includes_stop: bool,
    /// Possible prefix of a stop string.
    held: String,
    /// Bytes of `held` within which no stop string ends the text.
    exempt: usize,
    emitted: String,
    /// Index of the stop string that was found.
    met: Option<usize>,
}

impl StopMatcher {
    /// Matcher for these strings. Empty strings are ignored.
    pub fn new(stops: Vec<String>) -> StopMatcher {
        let stops = stops.into_iter().filter(|stop| !stop.is_empty()).collect();
        StopMatcher {
            stops,
            includes_stop: false,
            held: String::new(),
            exempt: 0,
            emitted: String::new(),
            met: None,
        }
    }

    /// Emits the stop string that ends the text, too.
    pub fn including_stop(mut self) -> StopMatcher {
        self.includes_stop = true;
        self
    }

    /// Consumes a piece of text in which no stop string ends the text; one may begin there. Returns the text
    /// that can be shown.
    pub fn pass(&mut self, text: &str) -> &str {
        self.emitted.clear();
        if self.met.is_none() {
            self.held.push_str(text);
            let end = self.held.len() - self.held_back();
            self.emitted.extend(self.held.drain(..end));
            self.exempt = self.held.len();
        }
        &self.emitted
    }

    /// Consumes a piece of text and returns the text that can be shown. Emits nothing after a stop string.
    pub fn push(&mut self, text: &str) -> StopOutcome<'_> {
        self.emitted.clear();
        if self.met.is_none() {
            self.held.push_str(text);
            let (end, met) = match self.first_stop() {
                Some((occurrence, index)) => {
                    (if self.includes_stop { occurrence.end } else { occurrence.start }, Some(index))
                }
                None => (self.held.len() - self.held_back(), None),
            };
            self.emitted.extend(self.held.drain(..end));
            self.exempt = self.exempt.saturating_sub(end);
            self.met = met;
        }
        StopOutcome { emit: &self.emitted, stop: self.met() }
    }

    /// The stop string that was found, if any.
    pub(super) fn met(&self) -> Option<&str> {
        self.met.and_then(|index| self.stops.get(index)).map(String::as_str)
    }

    /// Ends the stream. Returns the text held back for a stop string that was not completed.
    pub fn flush(&mut self) -> &str {
        self.emitted.clear();
        if self.met.is_none() {
            self.emitted.push_str(&self.held);
        }
        self.held.clear();
        self.exempt = 0;
        &self.emitted
    }

    /// Place and index of the stop string that is completed first after the exempt text.
    fn first_stop(&self) -> Option<(Range<usize>, usize)> {
        let occurrence = |(index, stop): (usize, &String)| {
            let from = (self.exempt + 1).saturating_sub(stop.len());
            let from = (from..=self.held.len()).find(|&at| self.held.is_char_boundary(at))?;
            let start = from + self.held.get(from..)?.find(stop.as_str())?;
            Some((start + stop.len(), start, index))
        };
        let first = self.stops.iter().enumerate().filter_map(occurrence).min();
        first.map(|(end, start, index)| (start..end, index))
    }

    /// Length of the longest suffix of the held text that is a prefix of a stop string.
    fn held_back(&self) -> usize {
        let overlap = |stop: &String| {
            let prefixes = stop.char_indices().map(|(end, _)| &stop[..end]);
            prefixes.rev().find(|prefix| self.held.ends_with(prefix)).map_or(0, str::len)
        };
        self.stops.iter().map(overlap).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Reference implementation: the text up to the stop string with the first end (the longest of those)
    /// after `exempt` bytes.
    fn naive<'t>(text: &'t str, stops: &[String], exempt: usize) -> (&'t str, Option<&'t str>) {
        for end in (exempt + 1..=text.len()).filter(|&end| text.is_char_boundary(end)) {
            let ending = stops.iter().filter(|stop| !stop.is_empty() && text[..end].ends_with(stop.as_str()));
            if let Some(longest) = ending.map(String::len).max() {
                return (&text[..end - longest], Some(&text[end - longest..end]));
            }
        }
        (text, None)
    }

    fn strings(stops: &[&str]) -> Vec<String> {
        stops.iter().map(|&stop| stop.to_owned()).collect()
    }

    #[test]
    fn a_stop_across_pieces_never_leaks() {
        let mut matcher = StopMatcher::new(strings(&["###"]));
        assert_eq!(matcher.push("a#"), StopOutcome { emit: "a", stop: None });
        assert_eq!(matcher.push("#"), StopOutcome { emit: "", stop: None });
        assert_eq!(matcher.push("b##"), StopOutcome { emit: "##b", stop: None });
        assert_eq!(matcher.push("#c"), StopOutcome { emit: "", stop: Some("###") });
        assert_eq!(matcher.push("more"), StopOutcome { emit: "", stop: Some("###") });
        assert_eq!(matcher.flush(), "");
    }

    #[test]
    fn held_text_comes_out_at_the_end() {
        let mut matcher = StopMatcher::new(strings(&["</s>", ""]));
        assert_eq!(matcher.push("x</").emit, "x");
        assert_eq!(matcher.flush(), "</");
    }

    #[test]
    fn a_stop_is_emitted_if_it_is_included() {
        let mut matcher = StopMatcher::new(strings(&["###"])).including_stop();
        assert_eq!(matcher.push("a#"), StopOutcome { emit: "a", stop: None });
        assert_eq!(matcher.push("##b"), StopOutcome { emit: "###", stop: Some("###") });
        assert_eq!(matcher.push("c").emit, "");
        assert_eq!(matcher.flush(), "");
    }

    #[test]
    fn of_two_that_end_together_the_longer_counts() {
        let mut matcher = StopMatcher::new(strings(&["b", "ab"]));
        assert_eq!(matcher.push("xab"), StopOutcome { emit: "x", stop: Some("ab") });
    }

    proptest! {
        #[test]
        fn a_stop_may_begin_in_passed_text_and_not_end_there(
            passed in proptest::collection::vec("[abé]{0,4}", 0..6),
            pieces in proptest::collection::vec("[abé]{0,4}", 0..6),
            stops in proptest::collection::vec("[abé]{0,4}", 0..4),
        ) {
            let mut matcher = StopMatcher::new(stops.clone());
            let mut shown: String = passed.iter().map(|piece| matcher.pass(piece).to_owned()).collect();
            let mut stop = None;
            for piece in &pieces {
                let outcome = matcher.push(piece);
                shown.push_str(outcome.emit);
                stop = outcome.stop.map(str::to_owned);
            }
            shown.push_str(matcher.flush());
            let whole = passed.concat() + &pieces.concat();
            let (expected, expected_stop) = naive(&whole, &stops, passed.concat().len());
            prop_assert_eq!((shown.as_str(), stop.as_deref()), (expected, expected_stop));
        }

        #[test]
        fn agrees_with_the_naive_model(
            pieces in proptest::collection::vec("[abé]{0,4}", 0..12),
            stops in proptest::collection::vec("[abé]{0,4}", 0..4),
        ) {
            let mut matcher = StopMatcher::new(stops.clone());
            let (mut shown, mut stop) = (String::new(), None);
            let whole = pieces.concat();
            let (expected, expected_stop) = naive(&whole, &stops, 0);
            for piece in &pieces {
                let outcome = matcher.push(piece);
                shown.push_str(outcome.emit);
                stop = outcome.stop.map(str::to_owned);
                prop_assert!(expected.starts_with(&shown), "leaked: {shown:?} of {expected:?}");
            }
            shown.push_str(matcher.flush());
            prop_assert_eq!((shown.as_str(), stop.as_deref()), (expected, expected_stop));
        }
    }
}
