//! Stop strings in streamed text. They are found across pieces, and no part of one is emitted.
//!
//! The matcher works on text after detokenisation, because a stop string need not start or end at a token
//! boundary. The engine handles stop tokens.

/// Result of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopOutcome<'a> {
    /// Text that is certainly not part of a stop string.
    pub emit: &'a str,
    /// The stop string that was found, if any. The text ends before it.
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
    /// Possible prefix of a stop string.
    held: String,
    emitted: String,
    /// Index of the stop string that was found.
    met: Option<usize>,
}

impl StopMatcher {
    /// Matcher for these strings. Empty strings are ignored.
    pub fn new(stops: Vec<String>) -> StopMatcher {
        let stops = stops.into_iter().filter(|stop| !stop.is_empty()).collect();
        StopMatcher { stops, held: String::new(), emitted: String::new(), met: None }
    }

    /// Consumes a piece of text and returns the text that can be shown. Emits nothing after a stop string.
    pub fn push(&mut self, text: &str) -> StopOutcome<'_> {
        self.emitted.clear();
        if self.met.is_none() {
            self.held.push_str(text);
            let (end, met) = match self.first_stop() {
                Some((start, index)) => (start, Some(index)),
                None => (self.held.len() - self.held_back(), None),
            };
            self.emitted.extend(self.held.drain(..end));
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
        &self.emitted
    }

    /// Start and index of the stop string that is completed first.
    fn first_stop(&self) -> Option<(usize, usize)> {
        let occurrence = |(index, stop): (usize, &String)| {
            self.held.find(stop.as_str()).map(|start| (start + stop.len(), start, index))
        };
        self.stops.iter().enumerate().filter_map(occurrence).min().map(|(_end, start, index)| (start, index))
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

    /// Reference implementation: the text up to the stop string with the first end (the longest of those).
    fn naive<'t>(text: &'t str, stops: &[String]) -> (&'t str, Option<&'t str>) {
        for end in (0..=text.len()).filter(|&end| text.is_char_boundary(end)) {
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
    fn of_two_that_end_together_the_longer_counts() {
        let mut matcher = StopMatcher::new(strings(&["b", "ab"]));
        assert_eq!(matcher.push("xab"), StopOutcome { emit: "x", stop: Some("ab") });
    }

    proptest! {
        #[test]
        fn agrees_with_the_naive_model(
            pieces in proptest::collection::vec("[abé]{0,4}", 0..12),
            stops in proptest::collection::vec("[abé]{0,4}", 0..4),
        ) {
            let mut matcher = StopMatcher::new(stops.clone());
            let (mut shown, mut stop) = (String::new(), None);
            let whole = pieces.concat();
            let (expected, expected_stop) = naive(&whole, &stops);
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
