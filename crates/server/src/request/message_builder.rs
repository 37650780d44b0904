//! Builds messages for Responses and Messages. Both have turns as lists of items or blocks, where templates
//! expect messages.

use std::collections::HashMap;

use ottava::chat::{Tool, ToolChoice, ToolError, Tools};
use ottava::text::{Content, Message, ToolCall};
use serde_json::{Value, json};

use crate::error::{ApiError, quoted, wrong};
use crate::request::json_fields::Fields;

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
                append(&mut last.content, &text);
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

/// Appends a paragraph to a content, in place: a client may send thousands.
pub(crate) fn append(content: &mut Content, more: &str) {
    match content {
        Content::Text(text) => text.extend(["\n\n", more]),
        other => *other = format!("{}\n\n{more}", other.to_text()).into(),
    }
}

/// Whether the message is an assistant's with reasoning only.
fn is_begun(message: &Message) -> bool {
    let silent = matches!(&message.content, Content::Text(text) if text.is_empty());
    message.role == "assistant" && silent && message.tool_calls.is_none()
}

/// A content's text: a string, or a list of parts of these types.
pub(crate) fn text(place: &str, content: Value, types: &[&str]) -> Result<String, ApiError> {
    match content {
        Value::String(text) => Ok(text),
        Value::Array(parts) => {
            let part = |(at, part)| text_of(Fields::at(&format!("{place}[{at}]"), part)?, types);
            Ok(parts.into_iter().enumerate().map(part).collect::<Result<Vec<_>, _>>()?.join("\n"))
        }
        other => Err(wrong(place, "a text or a list of parts", &other)),
    }
}

fn text_of(mut part: Fields, types: &[&str]) -> Result<String, ApiError> {
    let kind = part.needed("type")?;
    if !types.contains(&kind.as_str()) {
        return Err(unknown_type(&part, &kind, &format!("a text ({})", types.join(", "))));
    }
    part.needed(if kind == "refusal" { "refusal" } else { "text" })
}

/// The error of a part or an item of an unknown type.
pub(crate) fn unknown_type(of: &Fields, kind: &str, expected: &str) -> ApiError {
    let place = of.place("type");
    let message = format!("{place}: expected {expected}, found {}", quoted(kind));
    ApiError::unsupported(place, message)
}

/// The callable tools of a request; `schema` is this API's name for a tool's parameters.
pub(crate) fn tools(
    list: &[Value],
    schema: &str,
    is_function: fn(&Value) -> bool,
) -> Result<Tools, ApiError> {
    let tool = |(at, entry): (usize, &Value)| {
        let function = json!({
            "name": entry["name"], "description": entry["description"], "parameters": entry[schema],
            "strict": entry["strict"],
        });
        let entry = json!({"type": "function", "function": function});
        Tool::from_json(&format!("tools[{at}]"), &entry).map_err(|error| refused(error, schema))
    };
    // Hosted tools (a search, a shell) run at the API's provider; clients send them to any server.
    let functions = list.iter().enumerate().filter(|(_, entry)| !entry.is_object() || is_function(entry));
    Ok(Tools::new(functions.map(tool).collect::<Result<_, _>>()?))
}

/// The tools with a choice, checked.
pub(crate) fn chosen(tools: Tools, choice: ToolChoice, schema: &str) -> Result<Tools, ApiError> {
    let tools = tools.choice(choice);
    tools.check().map_err(|error| refused(error, schema))?;
    Ok(tools)
}

/// The chat API has a tool's fields one deeper.
fn refused(error: ToolError, schema: &str) -> ApiError {
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
    fn tools_of_other_types_are_skipped_and_wrong_ones_named() {
        let is_function = |entry: &Value| entry["type"] == "function";
        let list =
            [json!({"type": "web_search"}), json!({"type": "function", "name": "f", "parameters": {"a": 1}})];
        let found = tools(&list, "parameters", is_function).expect("tools");
        assert_eq!((found.list.len(), &found.list[0].parameters), (1, &json!({"a": 1})));
        let cases = [
            (json!({"type": "function"}), "tools[1].name"),
            (json!({"type": "function", "name": "f", "parameters": 1}), "tools[1].parameters"),
            (json!(1), "tools[1].name"),
        ];
        for (entry, field) in cases {
            let error = tools(&[json!({}), entry], "parameters", is_function).expect_err("refused").to_json();
            assert_eq!(error["error"]["param"], field);
        }
        let error =
            chosen(found, ToolChoice::Named("g".into()), "parameters").expect_err("refused").to_json();
        assert_eq!(error["error"]["param"], "tool_choice");
    }
}
