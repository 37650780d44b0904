//! Tools in a conversation: the calls of an answer, and their results.

use std::path::Path;

use ottava::chat::{ChatPart, Tool, Tools};
use ottava::text::{Message, ToolCall};
use serde_json::Value;

use super::super::{Failure, input, output};

/// Reads the tools of a file: a JSON list in the chat API's form.
pub fn read(path: &Path) -> Result<Tools, Failure> {
    let failed = |why: String| Failure::Failed(format!("{}: {why}", path.display()));
    let list: Vec<Value> = serde_json::from_str(&input::read_file(path)?)
        .map_err(|error| failed(format!("expected a JSON list of tools: {error}")))?;
    let tools = list.iter().enumerate().map(|(at, tool)| Tool::from_json(&format!("tools[{at}]"), tool));
    let tools = Tools::new(tools.collect::<Result<_, _>>().map_err(|error| failed(error.to_string()))?);
    tools.check().map_err(|error| failed(error.to_string()))?;
    Ok(tools)
}

/// Parts of an answer, collected for the conversation: text, reasoning and tool calls.
#[derive(Default)]
pub struct Said {
    text: String,
    reasoning: String,
    calls: Vec<Call>,
}

/// Tool calls of the last answer, and the results received so far.
#[derive(Default)]
pub struct Pending {
    calls: Vec<Call>,
    results: Vec<Message>,
}

/// A tool call, with its arguments as JSON text.
pub struct Call {
    id: String,
    name: String,
    arguments: String,
}

impl Said {
    /// Prints parts of the answer and collects them.
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

    /// The assistant's message, and its calls. An incomplete call is left out, with a note.
    pub fn finish(self) -> (Message, Pending) {
        let mut message = Message::new("assistant", self.text);
        if !self.reasoning.is_empty() {
            message = message.with_reasoning(self.reasoning);
        }
        let (mut calls, mut whole) = (Vec::new(), Pending::default());
        for call in self.calls {
            match serde_json::from_str(&call.arguments) {
                Ok(Value::Object(fields)) => {
                    calls.push(ToolCall::new(call.id.as_str(), call.name.as_str(), fields.into()));
                    whole.calls.push(call);
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

impl Pending {
    /// Name of the tool that returns the next line, if a call is pending.
    pub fn next(&self) -> Option<&str> {
        self.calls.get(self.results.len()).map(|call| call.name.as_str())
    }

    /// Takes a line as a user message or as the next result. Returns the messages once no result is missing.
    pub fn take(&mut self, line: &str) -> Option<Vec<Message>> {
        let Some(call) = self.calls.get(self.results.len()) else {
            return Some(vec![Message::new("user", line)]);
        };
        let result = Message::new("tool", line).with_tool_call_id(call.id.as_str());
        self.results.push(result.with_name(call.name.as_str()));
        (self.results.len() == self.calls.len()).then(|| self.results.clone())
    }

    /// Removes the last result, because its line failed. Its call is pending again.
    pub fn take_back(&mut self) {
        self.results.pop();
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
        let (message, mut pending) = said.finish();
        let expected = serde_json::json!({
            "role": "assistant", "content": "I look.", "reasoning_content": "Hm.",
            "tool_calls": [{"id": "c0", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}],
        });
        assert_eq!(serde_json::to_value(message).unwrap(), expected);
        assert_eq!(pending.next(), Some("f"));
        let results = pending.take("two");
        let expected =
            serde_json::json!([{"role": "tool", "content": "two", "tool_call_id": "c0", "name": "f"}]);
        assert_eq!(serde_json::to_value(results).unwrap(), expected);
    }

    #[test]
    fn a_result_without_an_answer_is_asked_for_again_and_the_others_stay() {
        let call = |id: &str| Call { id: id.into(), name: id.into(), arguments: "{}".into() };
        let mut pending = Pending { calls: vec![call("f"), call("g")], results: Vec::new() };
        assert!(pending.take("one").is_none());
        let texts = |messages: Option<Vec<Message>>| {
            let messages = messages.unwrap_or_default();
            messages.iter().map(|message| message.content.to_text()).collect::<Vec<_>>()
        };
        assert_eq!(texts(pending.take("too long")), ["one", "too long"]);
        pending.take_back();
        assert_eq!(pending.next(), Some("g"));
        assert_eq!(texts(pending.take("two")), ["one", "two"]);
        let mut nobody = Pending::default();
        let said = nobody.take("a line").unwrap_or_default();
        nobody.take_back();
        assert_eq!((said.len(), said[0].role.as_str(), nobody.next()), (1, "user", None));
    }
}
