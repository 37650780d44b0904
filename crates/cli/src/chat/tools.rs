//! Tools in a conversation: what an answer calls, and the results that are waited for.

use std::collections::VecDeque;
use std::path::Path;

use ottava::chat::{ChatPart, Tool, Tools};
use ottava::text::{Message, ToolCall};
use serde_json::Value;

use super::super::{Failure, input, output};

/// The tools of a file: a list in the chat API's form.
pub fn read(path: &Path) -> Result<Tools, Failure> {
    let failed = |why: String| Failure::Failed(format!("{}: {why}", path.display()));
    let list: Vec<Value> = serde_json::from_str(&input::read_file(path)?)
        .map_err(|error| failed(format!("expected a JSON list of tools: {error}")))?;
    let tools = list.iter().enumerate().map(|(at, tool)| Tool::from_json(&format!("tools[{at}]"), tool));
    let tools = Tools::new(tools.collect::<Result<_, _>>().map_err(|error| failed(error.to_string()))?);
    tools.check().map_err(|error| failed(error.to_string()))?;
    Ok(tools)
}

/// What an assistant said and called, as it is put into the conversation.
#[derive(Default)]
pub struct Said {
    text: String,
    reasoning: String,
    calls: Vec<Call>,
}

/// A call whose result is waited for.
pub struct Call {
    id: String,
    name: String,
    arguments: String,
}

impl Said {
    /// Shows parts of the answer, and keeps them.
    pub fn take(&mut self, parts: Vec<ChatPart>) -> Result<(), Failure> {
        for part in parts {
            match part {
                ChatPart::Text(text) => {
                    output::print(&text)?;
                    self.text += &text;
                }
                ChatPart::Reasoning(text) => {
                    output::print(&text)?;
                    self.reasoning += &text;
                }
                ChatPart::CallStart { id, name, .. } => {
                    let is_first = self.text.is_empty() && self.reasoning.is_empty() && self.calls.is_empty();
                    output::print(&format!("{}{name} ", if is_first { "" } else { "\n" }))?;
                    self.calls.push(Call { id, name, arguments: String::new() });
                }
                ChatPart::CallArguments { text, .. } => {
                    output::print(&text)?;
                    if let Some(call) = self.calls.last_mut() {
                        call.arguments += &text;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The assistant's message, and the calls in it. One that broke off is left out, with a note.
    pub fn finish(self) -> (Message, VecDeque<Call>) {
        let mut message = Message::new("assistant", self.text);
        if !self.reasoning.is_empty() {
            message = message.with_reasoning(self.reasoning);
        }
        let (mut calls, mut whole) = (Vec::new(), VecDeque::new());
        for call in self.calls {
            match serde_json::from_str(&call.arguments) {
                Ok(Value::Object(fields)) => {
                    calls.push(ToolCall::new(call.id.as_str(), call.name.as_str(), fields.into()));
                    whole.push_back(call);
                }
                _ => output::tell(format_args!("note: the call of {} broke off", call.name)),
            }
        }
        if !calls.is_empty() {
            message = message.with_tool_calls(calls);
        }
        (message, whole)
    }
}

impl Call {
    /// The tool's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The message of its result.
    pub fn result(self, text: &str) -> Message {
        Message::new("tool", text).with_tool_call_id(self.id).with_name(self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_becomes_a_message_with_its_calls() {
        let start =
            |index, name: &str| ChatPart::CallStart { index, id: format!("c{index}"), name: name.into() };
        let arguments = |index, text: &str| ChatPart::CallArguments { index, text: text.into() };
        let mut said = Said::default();
        said.take(vec![ChatPart::Reasoning("Hm.".into()), ChatPart::Text("I look.".into())]).unwrap();
        said.take(vec![start(0, "f"), arguments(0, "{\"a\""), arguments(0, ":1}")]).unwrap();
        said.take(vec![start(1, "g"), arguments(1, "{\"b\":")]).unwrap();
        let (message, calls) = said.finish();
        let expected = serde_json::json!({
            "role": "assistant", "content": "I look.", "reasoning_content": "Hm.",
            "tool_calls": [{"id": "c0", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}],
        });
        assert_eq!(serde_json::to_value(message).unwrap(), expected);
        let results: Vec<Message> = calls.into_iter().map(|call| call.result("two")).collect();
        let expected =
            serde_json::json!([{"role": "tool", "content": "two", "tool_call_id": "c0", "name": "f"}]);
        assert_eq!(serde_json::to_value(results).unwrap(), expected);
    }
}
