//! One internal form of a conversation, whatever the API that it came by.

use ottava::Request;
use ottava::chat::{Tool, Tools};
use ottava::text::{Content, ContentPart, Message, RenderOptions};
use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::fields::Fields;

/// Messages, and what the template is told beside them.
#[derive(Debug)]
pub(crate) struct Conversation {
    messages: Vec<Message>,
    options: RenderOptions,
    /// What the model may call.
    tools: Tools,
}

impl Conversation {
    pub(crate) fn take(fields: &mut Fields) -> Result<Conversation, ApiError> {
        let messages = fields.take("messages").ok_or_else(|| {
            ApiError::invalid("messages", "messages: expected a list of messages, found none")
        })?;
        let Value::Array(messages) = messages else {
            return Err(ApiError::invalid("messages", "messages: expected a list of messages"));
        };
        if messages.is_empty() {
            return Err(ApiError::invalid("messages", "messages: expected at least one, found none"));
        }
        let messages = messages.into_iter().enumerate().map(|(at, value)| message(at, value));
        let messages = messages.collect::<Result<_, _>>()?;
        Ok(Conversation::new(messages, options(fields)?, Tools::default()))
    }

    /// Of an API that has its own form of all three.
    pub(crate) fn new(messages: Vec<Message>, options: RenderOptions, tools: Tools) -> Conversation {
        Conversation { messages, options, tools }
    }

    pub(crate) fn request(&self) -> Request {
        let mut options = self.options.clone();
        if !self.tools.list.is_empty() {
            options.tools = Some(self.tools.list.iter().map(Tool::to_json).collect());
        }
        Request::chat(self.messages.clone()).template(options)
    }
}

/// A message, checked: a role, and no part that is more than text.
fn message(at: usize, value: Value) -> Result<Message, ApiError> {
    let param = || format!("messages[{at}]");
    let mut message: Message = serde_json::from_value(value).map_err(|error| {
        ApiError::invalid(param(), format!("messages[{at}]: expected a role and a content: {error}"))
    })?;
    // OpenAI's newer name of the same role, which templates do not know.
    if message.role == "developer" {
        message.role = "system".into();
    }
    if !["system", "user", "assistant", "tool"].contains(&message.role.as_str()) {
        let role = crate::error::quoted(&message.role);
        let text =
            format!("messages[{at}].role: expected system, developer, user, assistant or tool, found {role}");
        return Err(ApiError::invalid(format!("messages[{at}].role"), text));
    }
    if let Content::Parts(parts) = &message.content
        && let Some(part) = parts.iter().find(|part| !is_text(part))
    {
        let kind = crate::error::quoted(&part.0.get("type").unwrap_or(&Value::Null).to_string());
        let text = format!("messages[{at}].content: this model reads text, found a part of type {kind}");
        return Err(ApiError::unsupported(format!("messages[{at}].content"), text));
    }
    Ok(message)
}

fn is_text(part: &ContentPart) -> bool {
    part.0.get("type").and_then(Value::as_str) == Some("text") && part.as_text().is_some()
}

/// What the template is told: `chat_template_kwargs`, documents, how much to think.
pub(crate) fn options(fields: &mut Fields) -> Result<RenderOptions, ApiError> {
    let mut options = RenderOptions::default();
    if let Some(prompt) = fields.bool("add_generation_prompt")? {
        options.add_generation_prompt = prompt;
    }
    let mut variables = Map::new();
    if let Some(effort) = fields.string("reasoning_effort")? {
        variables.insert("enable_thinking".into(), (effort != "none").into());
        variables.insert("reasoning_effort".into(), effort.into());
    }
    if let Some(documents) = fields.take("documents") {
        variables.insert("documents".into(), documents);
    }
    // What is given by its name in the template stands.
    variables.extend(fields.object("chat_template_kwargs")?.unwrap_or_default());
    options.variables = variables;
    Ok(options)
}
