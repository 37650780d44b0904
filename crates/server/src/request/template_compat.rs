//! Rewrites messages for chat templates with special demands. No rewriting changes the content.

use std::mem;

use ottava::text::Message;
use serde_json::Value;

use crate::ids::sha256;
use crate::request::message_builder::append;

/// Length of call ids, letters and digits, in Mistral's templates.
const ID_CHARACTERS: usize = 9;

/// Writes the arguments of calls as JSON text. Most templates expect an object.
pub(crate) fn arguments_as_texts(messages: &mut [Message]) -> bool {
    let calls = messages.iter_mut().filter_map(|message| message.tool_calls.as_mut()).flatten();
    let arguments = calls.filter_map(|call| call.0.pointer_mut("/function/arguments"));
    let objects = arguments.filter(|arguments| arguments.is_object());
    objects.map(|arguments| *arguments = arguments.to_string().into()).count() > 0
}

/// Shortens ids of calls as Mistral's templates require. The mapping is stable, so that the next turn's
/// prompt begins with this one.
pub(crate) fn short_ids(messages: &mut [Message]) -> bool {
    let mut changed = false;
    for message in messages {
        let calls = message.tool_calls.iter_mut().flatten().filter_map(|call| call.0.get_mut("id"));
        for id in calls {
            if let Value::String(id) = id {
                changed |= shorten(id);
            }
        }
        changed |= message.tool_call_id.as_mut().is_some_and(shorten);
    }
    changed
}

/// Shortens an id, unless it fits.
fn shorten(id: &mut String) -> bool {
    if id.len() == ID_CHARACTERS && id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return false;
    }
    let digits = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let bytes = sha256(&[id.as_bytes()]);
    *id = bytes
        .iter()
        .take(ID_CHARACTERS)
        .map(|&byte| char::from(digits[usize::from(byte) % digits.len()]))
        .collect();
    true
}

/// Joins consecutive user turns, and appends a user's text after a tool's results to the last result:
/// templates with strictly alternating roles have no other place for it.
pub(crate) fn join(messages: &mut Vec<Message>) -> bool {
    let before = messages.len();
    let mut joined: Vec<Message> = Vec::with_capacity(before);
    for message in mem::take(messages) {
        match joined.last_mut() {
            Some(last) if message.role == "user" && ["user", "tool"].contains(&last.role.as_str()) => {
                append(&mut last.content, &message.content.to_text());
            }
            _ => joined.push(message),
        }
    }
    *messages = joined;
    messages.len() < before
}

#[cfg(test)]
mod tests {
    use ottava::text::ToolCall;
    use serde_json::json;

    use super::*;

    fn called(id: &str) -> Vec<Message> {
        let call = ToolCall::new(id, "f", json!({"x": 1}));
        vec![
            Message::new("user", "a"),
            Message::new("assistant", "").with_tool_calls(vec![call]),
            Message::new("tool", "one").with_tool_call_id(id),
        ]
    }

    #[test]
    fn an_id_becomes_the_same_short_one_everywhere() {
        let mut messages = called("toolu_01A09q90qw90lq917835lq9");
        assert!(short_ids(&mut messages));
        let id = messages[2].tool_call_id.clone().expect("an id");
        assert!(id.len() == ID_CHARACTERS && id.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{id}");
        assert_eq!(messages[1].tool_calls.as_ref().expect("calls")[0].0["id"], id.as_str());
        assert!(!short_ids(&mut messages), "it is short");
        let mut others = called("toolu_01A09q90qw90lq917835lq8");
        short_ids(&mut others);
        assert_ne!(others[2].tool_call_id, Some(id));
    }

    #[test]
    fn turns_of_a_user_are_one_and_go_behind_results() {
        let mut messages = called("c");
        messages.push(Message::new("user", "go on"));
        messages.insert(1, Message::new("user", "b"));
        assert!(join(&mut messages));
        let texts: Vec<_> =
            messages.iter().map(|message| (message.role.as_str(), message.content.to_text())).collect();
        let expected = [("user", "a\n\nb"), ("assistant", ""), ("tool", "one\n\ngo on")];
        assert_eq!(texts, expected.map(|(role, text)| (role, text.into())));
        assert!(!join(&mut messages));
    }

    #[test]
    fn arguments_become_the_text_that_they_are() {
        let mut messages = called("c");
        assert!(arguments_as_texts(&mut messages) && !arguments_as_texts(&mut messages));
        assert_eq!(
            messages[1].tool_calls.as_ref().expect("calls")[0].0["function"]["arguments"],
            "{\"x\":1}"
        );
    }
}
