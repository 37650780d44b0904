//! Conversations: messages, their content and tool calls.
//!
//! Fields and JSON form are those of OpenAI's chat API, which `transformers` passes to templates, too. A
//! field that a message does not have is undefined in the template.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// One message of a conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Message {
    /// Role: `system`, `user`, `assistant`, `tool`, or another role that the template supports.
    pub role: String,
    /// Content.
    #[serde(default, skip_serializing_if = "Content::is_absent")]
    pub content: Content,
    /// The assistant's reasoning before the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// Tool calls of the assistant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Vec<ToolCall>>,
    /// Id of the call that this tool result answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// Name of the speaker, or of the tool with this result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Further fields that some templates read (`thinking`, `channel`).
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

impl Message {
    /// Message with a role and content: text, or [`Content`] with several parts.
    pub fn new(role: impl Into<String>, content: impl Into<Content>) -> Message {
        Message { role: role.into(), content: content.into(), ..Message::default() }
    }

    /// Sets the tool calls.
    pub fn with_tool_calls(mut self, calls: Vec<ToolCall>) -> Message {
        self.tool_calls = Some(calls);
        self
    }

    /// Makes this the result of the call with this id.
    pub fn with_tool_call_id(mut self, id: impl Into<String>) -> Message {
        self.tool_call_id = Some(id.into());
        self
    }

    /// Sets the name.
    pub fn with_name(mut self, name: impl Into<String>) -> Message {
        self.name = Some(name.into());
        self
    }

    /// Sets the assistant's reasoning.
    pub fn with_reasoning(mut self, reasoning: impl Into<String>) -> Message {
        self.reasoning_content = Some(reasoning.into());
        self
    }

    /// All fields by name, in the order of the struct.
    pub(super) fn fields(&self) -> Map<String, Value> {
        let mut fields = Map::new();
        let mut put = |name: &str, value: Option<Value>| {
            if let Some(value) = value {
                fields.insert(name.to_owned(), value);
            }
        };
        put("role", Some(self.role.clone().into()));
        put("content", self.content.to_json());
        put("reasoning_content", self.reasoning_content.clone().map(Value::from));
        let calls =
            |calls: &Vec<ToolCall>| calls.iter().map(|call| call.0.clone()).collect::<Vec<_>>().into();
        put("tool_calls", self.tool_calls.as_ref().map(calls));
        put("tool_call_id", self.tool_call_id.clone().map(Value::from));
        put("name", self.name.clone().map(Value::from));
        for (name, value) in &self.more {
            put(name, Some(value.clone()));
        }
        fields
    }
}

/// Content of a message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Content {
    /// Text.
    Text(String),
    /// Content parts, a list of objects: `{"type": "text", "text": …}`, images and others.
    Parts(Vec<ContentPart>),
    /// JSON's `null`, `none` in a template: an answer with tool calls only.
    Null,
    /// No content field.
    #[default]
    #[serde(skip)]
    Absent,
}

impl Content {
    /// Whether the message has no content field.
    pub fn is_absent(&self) -> bool {
        *self == Content::Absent
    }

    /// The text, or the concatenated texts of all parts.
    pub fn to_text(&self) -> String {
        match self {
            Content::Text(text) => text.clone(),
            Content::Parts(parts) => parts.iter().filter_map(ContentPart::as_text).collect(),
            Content::Null | Content::Absent => String::new(),
        }
    }

    /// The texts of a list of text parts, one line each; `None` for other content.
    pub(super) fn text_of_parts(&self) -> Option<String> {
        let Content::Parts(parts) = self else { return None };
        let texts: Option<Vec<&str>> = parts.iter().map(ContentPart::as_text).collect();
        texts.map(|texts| texts.join("\n"))
    }

    /// Length of [`Content::to_text`] in bytes.
    pub(crate) fn text_bytes(&self) -> usize {
        match self {
            Content::Text(text) => text.len(),
            Content::Parts(parts) => parts.iter().filter_map(ContentPart::as_text).map(str::len).sum(),
            Content::Null | Content::Absent => 0,
        }
    }

    fn to_json(&self) -> Option<Value> {
        match self {
            Content::Text(text) => Some(text.clone().into()),
            Content::Parts(parts) => Some(parts.iter().map(|part| Value::from(part.0.clone())).collect()),
            Content::Null => Some(Value::Null),
            Content::Absent => None,
        }
    }
}

impl From<String> for Content {
    fn from(text: String) -> Content {
        Content::Text(text)
    }
}

impl From<&str> for Content {
    fn from(text: &str) -> Content {
        Content::Text(text.to_owned())
    }
}

impl From<Vec<ContentPart>> for Content {
    fn from(parts: Vec<ContentPart>) -> Content {
        Content::Parts(parts)
    }
}

/// One part of a message's content: a JSON object with a `type`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ContentPart(pub Map<String, Value>);

impl ContentPart {
    /// A text part.
    pub fn text(text: impl Into<String>) -> ContentPart {
        let entries = [("type", "text".to_owned()), ("text", text.into())];
        ContentPart(entries.into_iter().map(|(key, value)| (key.to_owned(), value.into())).collect())
    }

    /// The text of a part; `None` if it has none.
    pub fn as_text(&self) -> Option<&str> {
        self.0.get("text").and_then(Value::as_str)
    }
}

/// A tool call: the JSON object of the chat API, with a `function` that has a `name` and `arguments`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ToolCall(pub Value);

impl ToolCall {
    /// A function call. Most templates take the arguments as an object, some as a JSON string.
    pub fn new(id: impl Into<String>, name: impl Into<String>, arguments: Value) -> ToolCall {
        let (id, name) = (id.into(), name.into());
        ToolCall(serde_json::json!({
            "id": id, "type": "function", "function": {"name": name, "arguments": arguments}
        }))
    }
}
