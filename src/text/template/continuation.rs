//! Continuation of the last message: the prompt ends within it, like `continue_final_message` of
//! `transformers`. A tag after the message's text marks the place at which the rendered prompt is cut.

use super::origin::Text;
use crate::text::error::TextError;
use serde_json::{Value, json};

/// Tag after the text. A template that trims the text removes the space at its end.
const TAG: &str = "END-OF-THE-TEXT-TO-CONTINUE ";

/// Appends the tag to the text of the last message, or to its last text part. Returns the number of bytes of
/// white space at the end of the text.
pub(super) fn mark(messages: &mut [Value]) -> usize {
    let Some(message) = messages.last_mut() else { return 0 };
    match &mut message["content"] {
        Value::String(text) => tag(text),
        Value::Array(parts) => match parts.iter_mut().rev().find_map(text_of) {
            Some(text) => tag(text),
            None => {
                parts.push(json!({"type": "text", "text": TAG}));
                0
            }
        },
        content => {
            *content = TAG.into();
            0
        }
    }
}

fn tag(text: &mut String) -> usize {
    let trimmed = text.trim_end().len();
    // Blank texts are trimmed from the start.
    let blank = if trimmed == 0 { 0 } else { text.len() - trimmed };
    text.push_str(TAG);
    blank
}

fn text_of(part: &mut Value) -> Option<&mut String> {
    match part.get_mut("text") {
        Some(Value::String(text)) => Some(text),
        _ => None,
    }
}

/// The prompt up to the tag. If the template trimmed the text, its `blank` bytes of white space are cut, too.
///
/// # Errors
/// [`TextError::TemplateRender`] if the prompt lacks the tag: the template drops or changes the text.
pub(super) fn cut(prompt: &Text, blank: usize) -> Result<Text, TextError> {
    let text = prompt.as_str();
    let missing = || TextError::TemplateRender("expected the last message's text in the prompt".to_owned());
    let at = text.rfind(TAG.trim_end()).ok_or_else(missing)?;
    let (before, after) = text.split_at(at);
    let end = if after.starts_with(TAG) { at } else { before.trim_end().len().max(at.saturating_sub(blank)) };
    Ok(prompt.slice(0..end))
}
