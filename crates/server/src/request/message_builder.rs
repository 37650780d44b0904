//! Builds messages for Responses and Messages. Both have turns as lists of items or blocks, where templates
//! expect messages.

use std::collections::HashMap;

use ottava::chat::{Tool, ToolChoice, ToolError, Tools};
use ottava::text::{Content, Message, ToolCall};
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::request::call_forms;
use crate::request::template_compat::append;

/// Collects messages. Consecutive reasoning, text and calls of an assistant become one message.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    messages: Vec<Message>,
    /// Tool names by call id.
    called: HashMap<String, String>,
}

impl Turns {
    /// Adds a text. Consecutive system texts become one, because many templates accept a single one.
    pub(crate) fn say(&mut self, role: &str, text: String) {
        match self.messages.last_mut() {
            Some(last) if role == "system" && last.role == "system" => {
                append(&mut last.content, &text.into())
            }
            Some(last) if role == "assistant" && is_begun(last) => last.content = text.into(),
            _ => self.messages.push(Message::new(role, text)),
        }
    }

    /// Reasoning that precedes the assistant's next text or call.
    pub(crate) fn think(&mut self, thought: String) {
        match self.messages.last_mut().filter(|last| is_begun(last)) {
            Some(last) => last.reasoning_content.get_or_insert_default().push_str(&thought),
            None => self.messages.push(Message::new("assistant", "").with_reasoning(thought)),
        }
    }

    /// Adds a call of a tool.
    pub(crate) fn call(&mut self, id: String, name: String, arguments: Value) {
        self.called.insert(id.clone(), name.clone());
        let call = ToolCall::new(id, name, arguments);
        match self.messages.last_mut().filter(|last| last.role == "assistant") {
            Some(last) => last.tool_calls.get_or_insert_default().push(call),
            None => self.messages.push(Message::new("assistant", "").with_tool_calls(vec![call])),
        }
    }

    /// Adds a call's result, with the tool's name for the templates that require it.
    pub(crate) fn result(&mut self, id: String, text: String) {
        let mut message = Message::new("tool", text);
        message.name = self.called.get(&id).cloned();
        self.messages.push(message.with_tool_call_id(id));
    }

    /// The messages.
    pub(crate) fn messages(self) -> Vec<Message> {
        self.messages
    }
}

/// Whether the message is an assistant's with reasoning only.
fn is_begun(message: &Message) -> bool {
    let silent = matches!(&message.content, Content::Text(text) if text.is_empty());
    message.role == "assistant" && silent && message.tool_calls.is_none()
}

/// A function of a request's list of tools; `schema` is this API's name for its parameters.
///
/// # Errors
/// A wrong name or wrong parameters, by the field below `place`.
pub(crate) fn function(place: &str, name: &Value, entry: &Value, schema: &str) -> Result<Tool, ToolError> {
    call_forms::function(
        place,
        json!({
            "name": name, "description": entry["description"], "parameters": entry[schema], "strict": entry["strict"],
        }),
    )
}

/// The tools with a choice, checked.
pub(crate) fn chosen(tools: Tools, choice: ToolChoice, schema: &str) -> Result<Tools, ApiError> {
    let tools = tools.choice(choice);
    tools.check().map_err(|error| refused(error, schema))?;
    Ok(tools)
}

/// The error by the field of this API: the chat API has a tool's fields one deeper.
pub(crate) fn refused(error: ToolError, schema: &str) -> ApiError {
    let field = error.field.replace("function.parameters", schema).replace("function.", "");
    ApiError::invalid(field.as_str(), format!("{field}: {}", error.message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_assistant_does_in_a_turn_is_one_message() {
        let mut turns = Turns::default();
        turns.say("system", "a".into());
        turns.say("system", "b".into());
        turns.say("user", "hello".into());
        turns.think("hm".into());
        turns.say("assistant", "I look.".into());
        turns.call("c1".into(), "f".into(), json!({"x": 1}));
        turns.call("c2".into(), "g".into(), json!({}));
        turns.result("c1".into(), "one".into());
        turns.result("c9".into(), "nine".into());
        turns.say("assistant", "Done.".into());
        turns.say("assistant", "Really.".into());
        let found = serde_json::to_value(turns.messages()).expect("JSON");
        let call = |id: &str, name: &str, arguments: Value| {
            json!({
                "id": id, "type": "function", "function": {"name": name, "arguments": arguments},
            })
        };
        let expected = json!([
            {"role": "system", "content": "a\n\nb"},
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": "I look.", "reasoning_content": "hm",
             "tool_calls": [call("c1", "f", json!({"x": 1})), call("c2", "g", json!({}))]},
            {"role": "tool", "content": "one", "tool_call_id": "c1", "name": "f"},
            {"role": "tool", "content": "nine", "tool_call_id": "c9"},
            {"role": "assistant", "content": "Done."},
            {"role": "assistant", "content": "Really."},
        ]);
        assert_eq!(found, expected);
    }

    #[test]
    fn wrong_tools_are_named() {
        let cases = [
            (json!({}), "tools[1].name"),
            (json!({"name": "f", "parameters": 1}), "tools[1].parameters"),
            (json!(1), "tools[1].name"),
        ];
        for (entry, field) in cases {
            let error = function("tools[1]", &entry["name"], &entry, "parameters").expect_err("refused");
            assert_eq!(refused(error, "parameters").to_json()["error"]["param"], field);
        }
        let entry = json!({"name": "f", "input_schema": {"a": 1}});
        let tool = function("tools[1]", &"f".into(), &entry, "input_schema").expect("a tool");
        assert_eq!(tool.parameters, json!({"a": 1}));
        let choice = ToolChoice::Named("g".into());
        let error = chosen(Tools::new(vec![tool]), choice, "parameters").expect_err("refused").to_json();
        assert_eq!(error["error"]["param"], "tool_choice");
    }
}
