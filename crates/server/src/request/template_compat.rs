//! Rewrites messages for chat templates with special demands. No rewriting changes the content. Each returns
//! whether anything changed, and is linear in the messages.

use std::mem;

use ottava::text::{Content, ContentPart, Message};
use serde_json::{Value, json};

use crate::ids::sha256;

/// Name of arguments that are no object, as Anthropic's clients write it.
pub(crate) const INVALID: &str = "INVALID_JSON";

/// Length of call ids, letters and digits, in Mistral's templates.
const ID_CHARACTERS: usize = 9;

/// Writes the arguments of calls as JSON text. Most templates expect an object.
pub(crate) fn arguments_as_texts(messages: &mut [Message]) -> bool {
    let objects = arguments(messages).filter(|arguments| arguments.is_object());
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

/// Wraps arguments that are no object, such as those of an answer that was cut. Most templates iterate over
/// the names.
pub(crate) fn broken_arguments_as_objects(messages: &mut [Message]) -> bool {
    let broken = arguments(messages).filter(|arguments| !arguments.is_object());
    broken.map(|arguments| *arguments = json!({INVALID: arguments.take()})).count() > 0
}

/// Moves every system text into the user turn next to it, for templates without a system role.
pub(crate) fn systems_into_users(messages: &mut Vec<Message>) -> bool {
    into_users(messages, |_| true)
}

/// Moves system texts after the first message into the user turns next to them. Their place is kept: at the
/// beginning they would change the prefix of a long conversation.
pub(crate) fn later_systems_into_users(messages: &mut Vec<Message>) -> bool {
    into_users(messages, |before| !before.is_empty())
}

/// Moves system texts into user turns if `moves` holds for the messages before them.
fn into_users(messages: &mut Vec<Message>, moves: impl Fn(&[Message]) -> bool) -> bool {
    let (mut changed, mut is_open) = (false, false);
    let mut kept: Vec<Message> = Vec::with_capacity(messages.len());
    for mut message in mem::take(messages) {
        let moved = message.role == "system" && moves(&kept);
        if moved {
            message.role = "user".into();
        }
        // A turn made of system texts alone continues with the user's text.
        let joins = is_open || moved;
        is_open = match kept.last_mut().filter(|last| joins && message.role == "user" && last.role == "user")
        {
            Some(last) => {
                append(&mut last.content, &message.content);
                is_open && moved
            }
            None => {
                kept.push(message);
                moved
            }
        };
        changed |= moved;
    }
    *messages = kept;
    changed
}

/// Joins the system texts at the beginning.
pub(crate) fn join_first_systems(messages: &mut Vec<Message>) -> bool {
    let mut is_first = true;
    join(messages, |last, message| {
        is_first &= last.role == "system" && message.role == "system";
        is_first
    })
}

/// Joins consecutive user turns.
pub(crate) fn join_users(messages: &mut Vec<Message>) -> bool {
    join(messages, |last, message| last.role == "user" && message.role == "user")
}

/// Joins consecutive turns of the assistant, up to its calls.
pub(crate) fn join_assistants(messages: &mut Vec<Message>) -> bool {
    let is_open = |last: &Message| last.role == "assistant" && last.tool_calls.is_none();
    join(messages, |last, message| is_open(last) && message.role == "assistant")
}

/// Appends a user's text after a tool's results to the last result.
pub(crate) fn join_users_to_results(messages: &mut Vec<Message>) -> bool {
    join(messages, |last, message| last.role == "tool" && message.role == "user")
}

/// Joins each message to the one before it if `joins` holds for the two.
fn join(messages: &mut Vec<Message>, mut joins: impl FnMut(&Message, &Message) -> bool) -> bool {
    let before = messages.len();
    let mut joined: Vec<Message> = Vec::with_capacity(before);
    for message in mem::take(messages) {
        match joined.last_mut().filter(|last| joins(last, &message)) {
            Some(last) => {
                append(&mut last.content, &message.content);
                if let Some(thought) = message.reasoning_content {
                    last.reasoning_content.get_or_insert_default().push_str(&thought);
                }
                last.tool_calls = last.tool_calls.take().or(message.tool_calls);
            }
            None => joined.push(message),
        }
    }
    *messages = joined;
    messages.len() < before
}

/// Puts an empty user turn after the system texts, before an assistant that begins or the end.
pub(crate) fn user_first(messages: &mut Vec<Message>) -> bool {
    let at = messages.iter().position(|message| message.role != "system").unwrap_or(messages.len());
    let is_absent = messages.get(at).is_none_or(|message| message.role == "assistant");
    if is_absent {
        messages.insert(at, Message::new("user", ""));
    }
    is_absent
}

/// Appends a text as a paragraph. Linear in the appended text.
pub(crate) fn append(content: &mut Content, more: &Content) {
    if !matches!(content, Content::Text(_)) {
        *content = lines(content).into();
    }
    let Content::Text(text) = content else { return };
    let more = lines(more);
    if !text.is_empty() && !more.is_empty() {
        text.push_str("\n\n");
    }
    text.push_str(&more);
}

/// The text of a content, a line for each part.
fn lines(content: &Content) -> String {
    match content {
        Content::Parts(parts) => parts.iter().filter_map(ContentPart::as_text).collect::<Vec<_>>().join("\n"),
        other => other.to_text(),
    }
}

/// Arguments of all calls.
fn arguments(messages: &mut [Message]) -> impl Iterator<Item = &mut Value> {
    let calls = messages.iter_mut().filter_map(|message| message.tool_calls.as_mut()).flatten();
    calls.filter_map(|call| call.0.pointer_mut("/function/arguments"))
}

#[cfg(test)]
mod tests {
    use ottava::text::ToolCall;

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

    /// Roles and texts after a change, and whether anything changed.
    fn changed(change: fn(&mut Vec<Message>) -> bool, turns: &[(&str, &str)]) -> (bool, Vec<String>) {
        let mut messages: Vec<_> = turns.iter().map(|&(role, text)| Message::new(role, text)).collect();
        let changed = change(&mut messages);
        let shown = |message: &Message| format!("{}: {}", message.role, message.content.to_text());
        (changed, messages.iter().map(shown).collect())
    }

    fn owned(lines: &[&str]) -> Vec<String> {
        lines.iter().map(|&line| line.to_owned()).collect()
    }

    #[test]
    fn consecutive_turns_are_joined() {
        let turns = [("user", "a"), ("user", "b"), ("user", ""), ("assistant", "c"), ("assistant", "d")];
        let users = owned(&["user: a\n\nb", "assistant: c", "assistant: d"]);
        assert_eq!(changed(join_users, &turns), (true, users));
        let assistants = owned(&["user: a", "user: b", "user: ", "assistant: c\n\nd"]);
        assert_eq!(changed(join_assistants, &turns), (true, assistants));
        assert!(!changed(join_users, &turns[2..]).0);
        let mut messages = called("c");
        messages.push(Message::new("assistant", "Done."));
        messages.insert(1, Message::new("assistant", "I look.").with_reasoning("hm"));
        assert!(join_assistants(&mut messages));
        let first = &messages[1];
        assert_eq!((first.content.to_text().as_str(), first.tool_calls.is_some()), ("I look.", true));
        assert_eq!((messages.len(), first.reasoning_content.as_deref()), (4, Some("hm")));
        let after = [("tool", "one"), ("user", "go on"), ("user", "b")];
        let results = owned(&["tool: one\n\ngo on\n\nb"]);
        assert_eq!(changed(join_users_to_results, &after), (true, results));
    }

    #[test]
    fn system_texts_are_joined_or_moved_to_the_next_user_turn() {
        let turns = [
            ("system", "s"),
            ("system", "t"),
            ("user", "a"),
            ("system", "u"),
            ("assistant", "b"),
            ("system", "v"),
            ("system", "w"),
            ("user", "c"),
            ("user", "d"),
        ];
        let (is_changed, joined) = changed(join_first_systems, &turns);
        assert!(is_changed && joined[0] == "system: s\n\nt" && joined.len() == 8, "{joined:?}");
        let later =
            owned(&["system: s", "user: t\n\na\n\nu", "assistant: b", "user: v\n\nw\n\nc", "user: d"]);
        assert_eq!(changed(later_systems_into_users, &turns), (true, later));
        let all = owned(&["user: s\n\nt\n\na\n\nu", "assistant: b", "user: v\n\nw\n\nc", "user: d"]);
        assert_eq!(changed(systems_into_users, &turns), (true, all));
        assert!(!changed(later_systems_into_users, &turns[..1]).0);
    }

    #[test]
    fn an_assistant_that_begins_follows_an_empty_user_turn() {
        let (is_changed, turns) = changed(user_first, &[("system", "s"), ("assistant", "a")]);
        assert_eq!((is_changed, turns), (true, owned(&["system: s", "user: ", "assistant: a"])));
        assert_eq!(changed(user_first, &[("system", "s")]), (true, owned(&["system: s", "user: "])));
        assert!(!changed(user_first, &[("system", "s"), ("user", "a")]).0);
    }

    #[test]
    fn broken_arguments_become_an_object() {
        let mut messages = called("c");
        assert!(!broken_arguments_as_objects(&mut messages));
        let broken = |messages: &mut [Message], found: Value| {
            messages[1].tool_calls.as_mut().expect("calls")[0].0["function"]["arguments"] = found;
            assert!(broken_arguments_as_objects(messages));
            messages[1].tool_calls.as_ref().expect("calls")[0].0["function"]["arguments"].clone()
        };
        assert_eq!(broken(&mut messages, "{\"x\": ".into()), json!({"INVALID_JSON": "{\"x\": "}));
        assert_eq!(broken(&mut messages, json!([1])), json!({"INVALID_JSON": [1]}));
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
