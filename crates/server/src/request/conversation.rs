//! The internal form of a conversation, for all APIs.

use std::collections::HashSet;

use ottava::chat::{Tool, ToolChoice, ToolError, Tools};
use ottava::constrain::Grammar;
use ottava::text::{Content, ContentPart, Message, RenderOptions, ToolCall};
use ottava::{Engine, Request, TokenId};
use serde_json::{Map, Value, json};

use crate::error::{ApiError, wrong};
use crate::request::fields::RequestFields;
use crate::request::prompt::Prompt;
use crate::request::table::{
    ADD_GENERATION_PROMPT, CHAT_MESSAGES, CHAT_TEMPLATE_KWARGS, CHAT_TOOL_CHOICE, CHAT_TOOLS, DOCUMENTS,
    PARALLEL_TOOL_CALLS, REASONING_EFFORT,
};
use crate::request::template_compat;

/// Messages with their tools and template options.
#[derive(Debug)]
pub(crate) struct Conversation {
    messages: Vec<Message>,
    options: RenderOptions,
    /// Tools that the model may call.
    tools: Tools,
    /// Whether consecutive turns of one role may be joined.
    may_join: bool,
}

/// Rewrites messages; returns whether anything changed.
type Change = fn(&mut Vec<Message>) -> bool;

impl Conversation {
    pub(crate) fn take(fields: &mut RequestFields) -> Result<Conversation, ApiError> {
        let messages = fields.needed_list(&CHAT_MESSAGES)?.into_iter().enumerate();
        let messages = messages.map(|(at, value)| message(at, value)).collect::<Result<_, _>>()?;
        Ok(Conversation {
            may_join: false,
            ..Conversation::new(messages, options(fields, None)?, tools(fields)?)
        })
    }

    /// A conversation of Responses or Messages, whose consecutive turns of one role may be joined.
    pub(crate) fn new(messages: Vec<Message>, options: RenderOptions, tools: Tools) -> Conversation {
        Conversation { messages, options, tools, may_join: true }
    }

    /// Token ids of the prompt.
    pub(crate) fn ids(&self, engine: &Engine) -> Result<Vec<TokenId>, ApiError> {
        self.encoded(|request| engine.prompt_ids(&request))
    }

    /// Encodes the messages. Those that the template refuses are rewritten in the ways that other templates
    /// accept.
    fn encoded<T>(&self, encode: impl Fn(Request) -> ottava::Result<T>) -> Result<T, ApiError> {
        let encode = |messages: Vec<Message>| {
            encode(Request::chat(messages).template(self.options.clone()).tools(self.tools.clone()))
        };
        let error = match encode(self.messages.clone()) {
            Err(error @ ottava::Error::Text(_)) => error,
            other => return Ok(other?),
        };
        let join: Change = if self.may_join { template_compat::join } else { |_| false };
        let texts: Change = |messages| template_compat::arguments_as_texts(messages);
        let short_ids: Change = |messages| template_compat::short_ids(messages);
        let attempts: [&[Change]; 4] =
            [&[texts], &[short_ids], &[short_ids, join], &[short_ids, join, texts]];
        for changes in attempts {
            let mut messages = self.messages.clone();
            let changed = changes.iter().filter(|change| change(&mut messages)).count();
            if changed == 0 {
                continue;
            }
            match encode(messages) {
                Err(ottava::Error::Text(_)) => {}
                other => return Ok(other?),
            }
        }
        Err(error.into())
    }

    /// The prompt with its tools and an optional grammar for the text. Compiling the grammar may take a
    /// second.
    pub(crate) fn prompt(&self, engine: &Engine, says: Option<&Grammar>) -> Result<Prompt, ApiError> {
        let prepared = self.encoded(|request| {
            engine.prepare(match says {
                Some(says) => request.format(says.clone()),
                None => request,
            })
        })?;
        Ok(Prompt::chat(engine, prepared, &self.tools))
    }
}

/// `tools`, `tool_choice` and `parallel_tool_calls`.
fn tools(fields: &mut RequestFields) -> Result<Tools, ApiError> {
    let refused = |error: ToolError| ApiError::invalid(error.field.as_str(), error.to_string());
    let list = fields.take(&CHAT_TOOLS)?.unwrap_or_default();
    let tool = |(at, value): (usize, &Value)| Tool::from_json(&format!("tools[{at}]"), value);
    let mut list: Vec<Tool> = list.iter().enumerate().map(tool).collect::<Result<_, _>>().map_err(refused)?;
    let (choice, allowed) = choice(fields)?;
    if let Some(allowed) = allowed {
        let names: HashSet<&str> = list.iter().map(|tool| tool.name.as_str()).collect();
        if let Some(unknown) = allowed.iter().find(|name| !names.contains(name.as_str())) {
            return Err(wrong("tool_choice.allowed_tools.tools", "names of tools", &unknown.as_str().into()));
        }
        list.retain(|tool| allowed.contains(&tool.name));
    }
    let tools = Tools::new(list).choice(choice);
    tools.check().map_err(refused)?;
    Ok(if fields.take(&PARALLEL_TOOL_CALLS)? == Some(false) { tools.single() } else { tools })
}

/// `tool_choice`, and the names of the allowed tools if not all are.
fn choice(fields: &mut RequestFields) -> Result<(ToolChoice, Option<HashSet<String>>), ApiError> {
    let value = match fields.take(&CHAT_TOOL_CHOICE)? {
        None => return Ok((ToolChoice::Auto, None)),
        Some(Value::String(word)) => return Ok((choice_of_word("tool_choice", &word)?, None)),
        Some(value) => value,
    };
    let allowed = &value["allowed_tools"];
    match (value["type"].as_str(), value["function"]["name"].as_str(), allowed["mode"].as_str()) {
        (Some("function"), Some(name), _) => Ok((ToolChoice::Named(name.into()), None)),
        (Some("allowed_tools"), _, Some(mode)) => {
            let name = |tool: &Value| tool["function"]["name"].as_str().map(str::to_owned);
            let names = allowed["tools"].as_array().map(|tools| tools.iter().filter_map(name).collect());
            Ok((choice_of_word("tool_choice.allowed_tools.mode", mode)?, names))
        }
        _ => {
            let expected = "auto, none, required, a function with its name, or allowed_tools with a mode";
            Err(wrong("tool_choice", expected, &value))
        }
    }
}

/// A tool choice by its word.
pub(crate) fn choice_of_word(place: &str, word: &str) -> Result<ToolChoice, ApiError> {
    match word {
        "auto" => Ok(ToolChoice::Auto),
        "none" => Ok(ToolChoice::None),
        "required" => Ok(ToolChoice::Required),
        _ => Err(wrong(place, "auto, none, required or an object", &word.into())),
    }
}

/// An assistant's call in the form that templates expect: arguments as an object where they are one.
fn call(place: &str, call: &mut ToolCall) -> Result<(), ApiError> {
    let name = call.0.pointer("/function/name").and_then(Value::as_str);
    if name.is_none_or(str::is_empty) {
        let place = format!("{place}.function.name");
        return Err(ApiError::invalid(
            place.as_str(),
            format!("{place}: expected a tool's name, found none"),
        ));
    }
    let found = &mut call.0["function"]["arguments"];
    match found {
        Value::String(text) => *found = arguments(text),
        Value::Null => *found = json!({}),
        _ => {}
    }
    Ok(())
}

/// Arguments of a call as an object, which most templates expect; other text is kept.
pub(crate) fn arguments(text: &str) -> Value {
    match crate::request::json::parse(text.as_bytes()) {
        Ok(Value::Object(fields)) => fields.into(),
        _ if text.trim().is_empty() => json!({}),
        _ => text.into(),
    }
}

/// Reads a message: a known role, and text parts only.
fn message(at: usize, value: Value) -> Result<Message, ApiError> {
    let param = || format!("messages[{at}]");
    let Some(fields) = value.as_object() else {
        return Err(wrong(&param(), "an object with a role and a content", &value));
    };
    let content = fields.get("content").unwrap_or(&Value::Null);
    // Content is optional for calls alone and for empty tool results.
    let needs_text = fields.get("role").is_none_or(|role| role != "assistant" && role != "tool");
    let is_list = content.as_array().is_some_and(|parts| parts.iter().all(Value::is_object));
    if !(content.is_string() || is_list || content.is_null() && !needs_text) {
        let expected = "a text or a list of parts";
        return Err(wrong(&format!("{}.content", param()), expected, content));
    }
    let mut message: Message = serde_json::from_value(value).map_err(|error| {
        ApiError::invalid(param(), format!("messages[{at}]: expected a role and a content: {error}"))
    })?;
    // OpenAI's newer name of the system role, unknown to templates.
    if message.role == "developer" {
        message.role = "system".into();
    }
    if !["system", "user", "assistant", "tool"].contains(&message.role.as_str()) {
        let role = crate::error::quoted(&message.role);
        let text =
            format!("messages[{at}].role: expected system, developer, user, assistant or tool, found {role}");
        return Err(ApiError::invalid(format!("messages[{at}].role"), text));
    }
    if let Content::Parts(parts) = &mut message.content {
        parts.iter_mut().for_each(refusal_as_text);
    }
    if let Content::Parts(parts) = &message.content
        && let Some(part) = parts.iter().find(|part| !is_text(part))
    {
        let found = match part.0.get("type") {
            Some(kind) if kind != "text" => format!("a part of type {}", crate::error::shown(kind)),
            _ => "a part without a type or a text".to_owned(),
        };
        let text = format!("messages[{at}].content: this model reads text, found {found}");
        return Err(ApiError::unsupported(format!("messages[{at}].content"), text));
    }
    for (call_at, tool_call) in message.tool_calls.iter_mut().flatten().enumerate() {
        call(&format!("messages[{at}].tool_calls[{call_at}]"), tool_call)?;
    }
    Ok(plainer(message))
}

/// Normalises spellings of clients to the one that most templates expect.
fn plainer(mut message: Message) -> Message {
    message.tool_calls = message.tool_calls.filter(|calls| !calls.is_empty());
    if matches!(message.content, Content::Null | Content::Absent) {
        message.content = "".into();
    }
    if let (None, Some(Value::String(reasoning))) =
        (&message.reasoning_content, message.more.get("reasoning"))
    {
        message.reasoning_content = Some(reasoning.clone());
    }
    message
}

/// Turns an assistant's refusal part into text.
fn refusal_as_text(part: &mut ContentPart) {
    if part.0.get("type").is_some_and(|kind| kind == "refusal")
        && let Some(text @ Value::String(_)) = part.0.remove("refusal")
    {
        part.0.insert("type".into(), "text".into());
        part.0.insert("text".into(), text);
    }
}

fn is_text(part: &ContentPart) -> bool {
    part.0.get("type").and_then(Value::as_str) == Some("text") && part.as_text().is_some()
}

/// Variables of the chat template. `effort` replaces the field `reasoning_effort`.
pub(crate) fn options(fields: &mut RequestFields, effort: Option<String>) -> Result<RenderOptions, ApiError> {
    let mut options = RenderOptions::default();
    if let Some(prompt) = fields.take(&ADD_GENERATION_PROMPT)? {
        options.add_generation_prompt = prompt;
    }
    let mut variables = Map::new();
    let own = fields.take(&REASONING_EFFORT)?;
    if let Some(effort) = effort.or(own) {
        variables.insert("enable_thinking".into(), (effort != "none").into());
        variables.insert("reasoning_effort".into(), effort.into());
    }
    if let Some(documents) = fields.take(&DOCUMENTS)? {
        variables.insert("documents".into(), documents);
    }
    // Variables by their own names come last and so replace these.
    variables.extend(fields.take(&CHAT_TEMPLATE_KWARGS)?.unwrap_or_default());
    options.variables = variables;
    Ok(options)
}
