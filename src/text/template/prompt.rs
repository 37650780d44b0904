//! A rendered conversation, ready for the tokenizer.

use super::origin::Text;
use std::ops::Range;

/// The prompt that a chat template makes of messages: a text, and which parts of it users wrote.
///
/// `Tokenizer::encode_prompt` takes the names of control tokens for those tokens where the template wrote
/// them, and for ordinary text where any character of them comes from a message, a tool or a variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatPrompt {
    text: String,
    user: Vec<Range<usize>>,
}

impl ChatPrompt {
    pub(super) fn new(text: Text) -> ChatPrompt {
        let (text, user) = text.into_parts();
        ChatPrompt { text, user }
    }

    /// The whole text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The whole text. Who wrote what is lost: control tokens in it must not be parsed.
    pub fn into_text(self) -> String {
        self.text
    }

    /// What users wrote: ranges of bytes, ascending and apart from each other.
    pub fn user_spans(&self) -> &[Range<usize>] {
        &self.user
    }

    /// Whether the template wrote this at the beginning.
    pub fn starts_with(&self, piece: &str) -> bool {
        self.text.starts_with(piece) && !self.is_users(0..piece.len())
    }

    /// Whether a user wrote any of these bytes.
    pub(crate) fn is_users(&self, range: Range<usize>) -> bool {
        let after = self.user.partition_point(|span| span.end <= range.start);
        self.user.get(after).is_some_and(|span| span.start < range.end)
    }

    /// Where the template's own text from `at` on ends; `at` itself where a user wrote there.
    pub(crate) fn template_end(&self, at: usize) -> usize {
        let after = self.user.partition_point(|span| span.end <= at);
        self.user.get(after).map_or(self.text.len(), |span| span.start.max(at))
    }
}
