//! [`ChatPrompt`]: a rendered conversation with the origin of its parts, input of the tokenizer.

use super::origin::Text;
use std::ops::Range;

/// A rendered prompt: text with the byte ranges that users wrote.
///
/// `Tokenizer::encode_prompt` recognises control tokens in the template's text only. A name with any
/// character from a message, a tool or a variable is ordinary text.
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

    /// The whole text. The origin of its parts is lost: control tokens in it must not be parsed.
    pub fn into_text(self) -> String {
        self.text
    }

    /// Byte ranges written by users, ascending and not adjacent.
    pub fn user_spans(&self) -> &[Range<usize>] {
        &self.user
    }

    /// Whether the prompt starts with this piece, written by the template.
    pub fn starts_with(&self, piece: &str) -> bool {
        self.text.starts_with(piece) && !self.is_users(0..piece.len())
    }

    /// Whether any of these bytes is a user's.
    pub(crate) fn is_users(&self, range: Range<usize>) -> bool {
        let after = self.user.partition_point(|span| span.end <= range.start);
        self.user.get(after).is_some_and(|span| span.start < range.end)
    }

    /// End of the template's text that starts at `at`; `at` itself if that text is a user's.
    pub(crate) fn template_end(&self, at: usize) -> usize {
        let after = self.user.partition_point(|span| span.end <= at);
        self.user.get(after).map_or(self.text.len(), |span| span.start.max(at))
    }
}
