//! Tools as text, for chat templates that have no place for them: instructions with the tools' schemas, and
//! calls and results of the history between tags.
//!
//! Calls have the form of Hermes, common in training data: a JSON object with a name and arguments between
//! `<tool_call>` tags. Results are a user's turn between `<tool_response>` tags.

use serde_json::{Value, json};

use super::Tools;
use crate::text::{Content, Message};

const RESULT: [&str; 2] = ["<tool_response>\n", "\n</tool_response>"];

/// Where the instructions go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Instructions {
    /// At the end of a system text.
    System,
    /// At the beginning of the user's first text, for templates without a system role.
    User,
}

/// The tools with the form of a call.
pub(crate) fn instructions(tools: &Tools) -> String {
    let list: Vec<String> = tools.list.iter().map(|tool| tool.to_json()["function"].to_string()).collect();
    let several = if tools.single { "Call at most one tool." } else { "Each call has tags of its own." };
    format!(
        "You can call tools. They are listed here as JSON, with a schema of their parameters:\n\
         <tools>\n{}\n</tools>\n\n\
         To call a tool, write its name and its arguments as a JSON object between tags:\n\
         <tool_call>\n{{\"name\": \"the tool's name\", \"arguments\": {{\"parameter\": \"value\"}}}}\n</tool_call>\n\
         {several} Results come back between <tool_response> tags. Answer without a call if none is needed.",
        list.join("\n")
    )
}

/// Adds the instructions to the conversation.
pub(crate) fn instruct(messages: &mut Vec<Message>, instructions: &str, place: Instructions) {
    let is_system = |message: &Message| message.role == "system" || message.role == "developer";
    let (role, at) = match place {
        Instructions::System => ("system", messages.first().is_some_and(is_system).then_some(0)),
        Instructions::User => ("user", messages.iter().position(|message| message.role == "user")),
    };
    let Some(message) = at.and_then(|at| messages.get_mut(at)) else {
        return messages.insert(0, Message::new(role, instructions));
    };
    let own = message.content.to_text();
    let texts = match place {
        Instructions::System => [own.as_str(), instructions],
        Instructions::User => [instructions, own.as_str()],
    };
    message.content = joined(&texts, "\n\n").into();
}

/// Whether a conversation has calls or results.
pub(crate) fn has_calls(messages: &[Message]) -> bool {
    messages.iter().any(|message| message.role == "tool" || message.tool_calls.is_some())
}

/// Writes calls and results as text. Consecutive results, and a user's text after them, are one turn:
/// templates may require that roles alternate.
pub(crate) fn calls_as_text(messages: &[Message]) -> Vec<Message> {
    let mut written: Vec<Message> = Vec::with_capacity(messages.len());
    // Whether the last message has results.
    let mut after_results = false;
    for message in messages {
        let is_result = message.role == "tool";
        match written.last_mut().filter(|_| after_results) {
            Some(last) if is_result || message.role == "user" => {
                let more = if is_result { result(message) } else { message.content.to_text() };
                append(&mut last.content, &more);
            }
            _ if is_result => written.push(Message::new("user", result(message))),
            _ => written.push(called(message)),
        }
        after_results = is_result || after_results && message.role == "user";
    }
    written
}

fn result(message: &Message) -> String {
    let [open, close] = RESULT;
    format!("{open}{}{close}", message.content.to_text())
}

/// A message with its calls as text.
fn called(message: &Message) -> Message {
    let mut message = message.clone();
    let Some(calls) = message.tool_calls.take() else { return message };
    let text = message.content.to_text();
    let mut blocks: Vec<String> = vec![text];
    blocks.extend(calls.iter().map(|call| block(&call.0["function"])));
    let blocks: Vec<&str> = blocks.iter().map(String::as_str).collect();
    message.content = Content::Text(joined(&blocks, "\n"));
    message
}

/// A call between its tags. Arguments as a text are written as they are: they may be broken JSON.
fn block(function: &Value) -> String {
    let arguments = match &function["arguments"] {
        Value::String(text) if !text.trim().is_empty() => text.clone(),
        Value::Null | Value::String(_) => json!({}).to_string(),
        arguments => arguments.to_string(),
    };
    let name = &function["name"];
    format!("<tool_call>\n{{\"name\": {name}, \"arguments\": {arguments}}}\n</tool_call>")
}

/// Appends a line to a text, in place: a conversation may have thousands of results.
fn append(content: &mut Content, more: &str) {
    match content {
        Content::Text(text) if text.is_empty() || more.is_empty() => text.push_str(more),
        Content::Text(text) => text.extend(["\n", more]),
        other => *other = joined(&[&other.to_text(), more], "\n").into(),
    }
}

fn joined(texts: &[&str], separator: &str) -> String {
    let texts: Vec<&str> = texts.iter().copied().filter(|text| !text.is_empty()).collect();
    texts.join(separator)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::{AnswerParser, ChatFormat, ChatPart, Tool};
    use crate::text::ToolCall;

    fn texts(messages: &[Message]) -> Vec<(String, String)> {
        messages.iter().map(|message| (message.role.clone(), message.content.to_text())).collect()
    }

    fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
        expected.iter().map(|&(role, text)| (role.into(), text.into())).collect()
    }

    #[test]
    fn calls_and_results_become_turns_that_alternate() {
        let call = |name: &str, arguments: Value| ToolCall::new("c", name, arguments);
        let messages = [
            Message::new("user", "Rain?"),
            Message::new("assistant", "Let me see.").with_tool_calls(vec![
                call("rain", json!({"city": "Oslo"})),
                call("wind", json!("{\"a\": 1")),
            ]),
            Message::new("tool", "yes").with_tool_call_id("c"),
            Message::new("tool", "no").with_tool_call_id("c"),
            Message::new("user", "And snow?"),
            Message::new("assistant", Content::Null).with_tool_calls(vec![call("snow", json!(""))]),
        ];
        let expected = [
            ("user", "Rain?"),
            (
                "assistant",
                "Let me see.\n<tool_call>\n{\"name\": \"rain\", \"arguments\": {\"city\":\"Oslo\"}}\n</tool_call>\n\
                 <tool_call>\n{\"name\": \"wind\", \"arguments\": {\"a\": 1}\n</tool_call>",
            ),
            (
                "user",
                "<tool_response>\nyes\n</tool_response>\n<tool_response>\nno\n</tool_response>\nAnd snow?",
            ),
            ("assistant", "<tool_call>\n{\"name\": \"snow\", \"arguments\": {}}\n</tool_call>"),
        ];
        let written = calls_as_text(&messages);
        assert_eq!(texts(&written), pairs(&expected));
        assert!(has_calls(&messages) && !has_calls(&written));
    }

    #[test]
    fn instructions_join_a_system_text_or_the_first_question() {
        let user = || Message::new("user", "Hi");
        let placed = |mut messages: Vec<Message>, place| {
            instruct(&mut messages, "TOOLS", place);
            texts(&messages)
        };
        let (system, first) = (Instructions::System, Instructions::User);
        assert_eq!(placed(vec![user()], system), pairs(&[("system", "TOOLS"), ("user", "Hi")]));
        let kind = || vec![Message::new("system", "Be kind."), user()];
        assert_eq!(placed(kind(), system), pairs(&[("system", "Be kind.\n\nTOOLS"), ("user", "Hi")]));
        assert_eq!(placed(kind(), first), pairs(&[("system", "Be kind."), ("user", "TOOLS\n\nHi")]));
        let greets = vec![Message::new("assistant", "Hello")];
        assert_eq!(placed(greets, first), pairs(&[("user", "TOOLS"), ("assistant", "Hello")]));
    }

    /// The form in the instructions is the one that the parser reads.
    #[test]
    fn a_written_call_is_read_as_the_same_call() {
        let tools = Tools::new(vec![Tool::new("rain", json!({"type": "object"}))]);
        assert!(instructions(&tools).contains("\"name\":\"rain\""), "{}", instructions(&tools));
        let arguments = json!({"city": "</tool_call> \"Oslo\""});
        let call = ToolCall::new("c", "rain", arguments.clone());
        let message = Message::new("assistant", "See:").with_tool_calls(vec![call.clone(), call]);
        let text = texts(&calls_as_text(&[message])).remove(0).1;
        let mut parser = AnswerParser::new(ChatFormat::of_template("{{ messages }}"), &tools);
        let mut parts = parser.push(&text);
        parts.extend(parser.finish());
        assert_eq!((parser.calls(), parser.malformed()), (2, 0), "{parts:?}");
        let found = parts.iter().filter_map(|part| match part {
            ChatPart::CallArguments { text, .. } => Some(serde_json::from_str::<Value>(text).expect("JSON")),
            _ => None,
        });
        assert!(found.eq([arguments.clone(), arguments]), "{parts:?}");
    }
}
