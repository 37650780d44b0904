//! Stretches of an answer's raw text: calls, in which stop strings do not count, and everything else.

use super::AnswerParser;
use crate::text::{StopScope, Stretch};

/// Stretches that a parser is certain of. Characters are counted as they were pushed.
#[derive(Debug, Default)]
pub(super) struct Stretches {
    /// Characters pushed.
    pub(super) pushed: usize,
    certain: usize,
    found: Vec<Stretch>,
}

impl Stretches {
    /// Ends a stretch before the last `pending` characters.
    pub(super) fn end(&mut self, pending: usize, counts: bool) {
        let chars = self.pushed.saturating_sub(self.certain + pending);
        if chars == 0 {
            return;
        }
        self.certain += chars;
        match self.found.last_mut() {
            Some(last) if last.counts == counts => last.chars += chars,
            _ => self.found.push(Stretch { chars, counts }),
        }
    }
}

/// The text of an answer without its calls, as its parser reads them.
#[derive(Debug)]
pub(crate) struct OutsideCalls(AnswerParser);

impl OutsideCalls {
    /// Scope by a parser at the start of the answer.
    pub(crate) fn new(mut parser: AnswerParser) -> OutsideCalls {
        parser.stretches = Some(Stretches::default());
        OutsideCalls(parser)
    }
}

impl StopScope for OutsideCalls {
    fn push(&mut self, text: &str) -> Vec<Stretch> {
        // The parts are the caller's to parse.
        drop(self.0.push(text));
        self.0.stretches.as_mut().map(|stretches| std::mem::take(&mut stretches.found)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::chat::{ChatFormat, Tool, Tools};

    /// The stretches of a text, with calls in brackets and the uncertain rest after a bar.
    fn marked(format: &str, text: &str) -> String {
        let format = ChatFormat::of_name(format).expect("a format");
        let tools = Tools::new(vec![Tool::new("f", json!({}))]);
        let whole = |pieces: &[&str]| {
            let mut scope = OutsideCalls::new(AnswerParser::new(format, &tools));
            let mut found: Vec<Stretch> = Vec::new();
            for stretch in pieces.iter().flat_map(|piece| scope.push(piece)) {
                match found.last_mut() {
                    Some(last) if last.counts == stretch.counts => last.chars += stretch.chars,
                    _ => found.push(stretch),
                }
            }
            found
        };
        let found = whole(&[text]);
        let single: Vec<String> = text.chars().map(String::from).collect();
        let single: Vec<&str> = single.iter().map(String::as_str).collect();
        assert_eq!(found, whole(&single), "the split of {text} does not matter");
        let mut chars = text.chars();
        let mut shown = String::new();
        for Stretch { chars: count, counts } in found {
            let stretch: String = chars.by_ref().take(count).collect();
            shown += &if counts { stretch } else { format!("[{stretch}]") };
        }
        match chars.as_str() {
            "" => shown,
            rest => format!("{shown}|{rest}"),
        }
    }

    #[test]
    fn calls_are_apart_from_text() {
        let cases = [
            (
                "hermes",
                "I look.\n<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call>\nend",
                "I look.\n[<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call>]\nend",
            ),
            ("hermes", "a <tool> b", "a <tool> b"),
            ("hermes", "a <tool", "a |<tool"),
            (
                "hermes",
                "a <tool_call>{\"name\": \"g\"}</tool_call>",
                "a <tool_call>{\"name\": \"g\"}</tool_call>",
            ),
            (
                "hermes",
                "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"",
                "[<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"]",
            ),
            ("hermes", "<think>a</think>b", "<think>a</think>b"),
            (
                "llama3",
                "{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"f\", \"parameters\": {\"b\": 2}}",
                "[{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"f\", \"parameters\": {\"b\": 2}}]",
            ),
            ("llama3", "{\"parameters\": {\"b\"", "|{\"parameters\": {\"b\""),
            ("llama3", "{\"a\": 1} b", "{\"a\": 1} b"),
            ("mistral", "a[TOOL_CALLS]f[ARGS]{\"b\": 1}", "a[[TOOL_CALLS]f[ARGS]{\"b\": 1}]"),
        ];
        for (format, text, expected) in cases {
            assert_eq!(marked(format, text), expected, "{format}");
        }
    }
}
