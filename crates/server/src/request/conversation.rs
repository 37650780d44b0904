//! The internal form of a conversation, for all APIs.

use std::collections::HashSet;

use ottava::chat::{Tool, ToolChoice, ToolError, Tools};
use ottava::constrain::Grammar;
use ottava::text::{Content, ContentPart, Message, RenderOptions, TextError, ToolCall};
use ottava::{Engine, Request, TokenId};
use serde_json::{Map, Value, json};

use crate::error::{ApiError, wrong};
use crate::request::call_forms::{CallForm, CallForms, CallKind, custom_arguments, custom_tool};
use crate::request::fields::RequestFields;
use crate::request::parts::omitted;
use crate::request::prompt::Prompt;
use crate::request::skipped::Skipped;
use crate::request::table::{
    ADD_GENERATION_PROMPT, CHAT_MESSAGES, CHAT_TEMPLATE_KWARGS, CHAT_TOOL_CHOICE, CHAT_TOOLS,
    CONTINUE_FINAL_MESSAGE, DOCUMENTS, PARALLEL_TOOL_CALLS, REASONING_EFFORT,
};
use crate::request::template_demands::TemplateDemands;

/// Messages with their tools and template options.
#[derive(Debug)]
pub(crate) struct Conversation {
    messages: Vec<Message>,
    options: RenderOptions,
    /// Tools that the model may call.
    tools: Tools,
    forms: CallForms,
}

impl Conversation {
    pub(crate) fn take(fields: &mut RequestFields) -> Result<Conversation, ApiError> {
        let messages = fields.needed_list(&CHAT_MESSAGES)?.into_iter().enumerate();
        let skipped = fields.skipped();
        let messages = messages.map(|(at, value)| message(at, value, skipped)).collect::<Result<_, _>>()?;
        let (tools, forms) = tools(fields)?;
        Ok(Conversation::new(messages, options(fields, None)?, tools)?.with_forms(forms))
    }

    /// A conversation with functions as its tools.
    ///
    /// # Errors
    /// A last message that cannot be continued, if the options continue it.
    pub(crate) fn new(
        messages: Vec<Message>,
        options: RenderOptions,
        tools: Tools,
    ) -> Result<Conversation, ApiError> {
        let last = messages.last().filter(|last| last.role == "assistant" && last.tool_calls.is_none());
        if options.continue_final_message && last.is_none() {
            let message = "continue_final_message: expected a text of the assistant's at the end, found another message";
            return Err(ApiError::invalid("continue_final_message", message));
        }
        Ok(Conversation { messages, options, tools, forms: CallForms::default() })
    }

    /// Sets the forms of tools that are no plain functions.
    pub(crate) fn with_forms(mut self, forms: CallForms) -> Conversation {
        self.forms = forms;
        self
    }

    /// The forms of calls in the answer.
    pub(crate) fn forms(&self) -> CallForms {
        self.forms.clone()
    }

    /// Token ids of the prompt.
    pub(crate) fn ids(&self, engine: &Engine, demands: &TemplateDemands) -> Result<Vec<TokenId>, ApiError> {
        self.encoded((engine, demands), |request| engine.prompt_ids(&request))
    }

    /// Encodes the messages. Those that the template refuses are rewritten by its demands.
    fn encoded<T>(
        &self,
        (engine, demands): (&Engine, &TemplateDemands),
        encode: impl Fn(Request) -> ottava::Result<T>,
    ) -> Result<T, ApiError> {
        let encode = |messages: Vec<Message>| {
            encode(Request::chat(messages).template(self.options.clone()).tools(self.tools.clone()))
        };
        let refused = match encode(self.messages.clone()) {
            Err(refused) if is_refusal(&refused) => refused,
            other => return other.map_err(of_messages),
        };
        let accepts = |messages| match engine.prompt_ids(&Request::chat(messages)) {
            Err(error) if error.retry() => Err(of_messages(error)),
            ids => Ok(ids.is_ok()),
        };
        match demands.met(&self.messages, accepts)?.map(encode) {
            None => Err(refused.into()),
            Some(Err(error)) if is_refusal(&error) => Err(refused.into()),
            Some(other) => other.map_err(of_messages),
        }
    }

    /// The prompt with its tools and an optional grammar for the text. Compiling the grammar may take a
    /// second.
    pub(crate) fn prompt(
        &self,
        engine: &Engine,
        demands: &TemplateDemands,
        grammar: Option<&Grammar>,
    ) -> Result<Prompt, ApiError> {
        let prepared = self.encoded((engine, demands), |request| {
            engine.prepare(match grammar {
                Some(grammar) => request.format(grammar.clone()),
                None => request,
            })
        })?;
        Ok(Prompt::chat(engine, prepared, &self.tools))
    }
}

/// Whether the template refuses the messages.
fn is_refusal(error: &ottava::Error) -> bool {
    matches!(error, ottava::Error::Text(TextError::TemplateRender(_)))
}

/// An engine's error by the conversation's field: its prompt is made of messages.
pub(crate) fn of_messages(error: impl Into<ApiError>) -> ApiError {
    error.into().renamed("prompt", "messages")
}

/// `tools`, `tool_choice` and `parallel_tool_calls`.
fn tools(fields: &mut RequestFields) -> Result<(Tools, CallForms), ApiError> {
    let refused = |error: ToolError| ApiError::invalid(error.field.as_str(), error.to_string());
    let list = fields.take(&CHAT_TOOLS)?.unwrap_or_default();
    let tool = |(at, value): (usize, &Value)| {
        let place = format!("tools[{at}]");
        match value["custom"] {
            Value::Object(_) if value["type"] == "custom" => {
                custom_tool(&place, &value["custom"]["name"], &value["custom"])
            }
            _ => Tool::from_json(&place, value),
        }
    };
    let mut tools: Vec<Tool> =
        list.iter().enumerate().map(tool).collect::<Result<_, _>>().map_err(refused)?;
    let is_custom = list.iter().map(|tool| tool["type"] == "custom");
    let custom = tools.iter().zip(is_custom).filter(|(_, is_custom)| *is_custom);
    let form = |name: &String| CallForm { kind: CallKind::Custom, name: name.clone(), namespace: None };
    let forms = custom.map(|(tool, _)| (tool.name.clone(), form(&tool.name))).collect();
    let (choice, allowed) = choice(fields)?;
    if let Some(allowed) = allowed {
        let names: HashSet<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
        if let Some(unknown) = allowed.iter().find(|name| !names.contains(name.as_str())) {
            return Err(wrong("tool_choice.allowed_tools.tools", "names of tools", &unknown.as_str().into()));
        }
        tools.retain(|tool| allowed.contains(&tool.name));
    }
    let tools = Tools::new(tools).choice(choice);
    tools.check().map_err(refused)?;
    let is_single = fields.take(&PARALLEL_TOOL_CALLS)? == Some(false);
    Ok((if is_single { tools.single() } else { tools }, CallForms::new(forms)))
}

/// `tool_choice`, and the names of the allowed tools if not all are.
fn choice(fields: &mut RequestFields) -> Result<(ToolChoice, Option<HashSet<String>>), ApiError> {
    let value = match fields.take(&CHAT_TOOL_CHOICE)? {
        None => return Ok((ToolChoice::Auto, None)),
        Some(Value::String(word)) => return Ok((choice_of_word("tool_choice", &word)?, None)),
        Some(value) => value,
    };
    let allowed = &value["allowed_tools"];
    let name = |tool: &Value| {
        let kind = tool["type"].as_str().filter(|kind| ["function", "custom"].contains(kind))?;
        tool[kind]["name"].as_str().map(str::to_owned)
    };
    match (value["type"].as_str(), name(&value), allowed["mode"].as_str()) {
        (_, Some(name), _) => Ok((ToolChoice::Named(name), None)),
        (Some("allowed_tools"), _, Some(mode)) => {
            let names = allowed["tools"].as_array().map(|tools| tools.iter().filter_map(name).collect());
            Ok((choice_of_word("tool_choice.allowed_tools.mode", mode)?, names))
        }
        _ => {
            let expected = "auto, none, required, a tool with its name, or allowed_tools with a mode";
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
    if call.0["type"] == "custom" {
        let custom = call.0["custom"].take();
        let function =
            json!({"name": custom["name"], "arguments": custom_arguments(custom["input"].clone())});
        call.0 = json!({"id": call.0["id"], "type": "function", "function": function});
    }
    // A name may be empty: a model wrote it, and the conversation goes on.
    if !call.0.pointer("/function/name").is_some_and(Value::is_string) {
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
    let parsed = |text: &str| crate::request::json::parse(text.as_bytes()).unwrap_or_default();
    let found = match parsed(text) {
        // Some clients encode the object twice.
        Value::String(inner) => parsed(&inner),
        found => found,
    };
    match found {
        Value::Object(fields) => fields.into(),
        _ if ["", "null"].contains(&text.trim()) => json!({}),
        _ => text.into(),
    }
}

/// Reads a message: a known role, and text parts only.
fn message(at: usize, value: Value, skipped: &mut Skipped) -> Result<Message, ApiError> {
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
    let is_users = ["system", "user"].contains(&message.role.as_str());
    if let Content::Parts(parts) = &mut message.content {
        parts.iter_mut().for_each(refusal_as_text);
        if !is_users {
            parts.iter_mut().filter(|part| !is_text(part)).for_each(|part| noted(part, skipped));
        }
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

/// Replaces a part of a tool's result or of another server's answer by its text, or by a note of its absence.
fn noted(part: &mut ContentPart, skipped: &mut Skipped) {
    let text = part.as_text().map(str::to_owned).unwrap_or_else(|| {
        let kind = part.0.get("type").and_then(Value::as_str).unwrap_or_default();
        skipped.add("messages", kind);
        omitted(kind)
    });
    *part = ContentPart::text(text);
}

fn is_text(part: &ContentPart) -> bool {
    part.0.get("type").and_then(Value::as_str) == Some("text") && part.as_text().is_some()
}

/// Variables of the chat template. `effort` replaces the field `reasoning_effort`.
pub(crate) fn options(fields: &mut RequestFields, effort: Option<String>) -> Result<RenderOptions, ApiError> {
    let mut options = RenderOptions::default();
    let prompt = fields.take(&ADD_GENERATION_PROMPT)?;
    options.continue_final_message = fields.take(&CONTINUE_FINAL_MESSAGE)?.unwrap_or(false);
    if options.continue_final_message && prompt == Some(true) {
        let message = "continue_final_message: expected add_generation_prompt to be false, found true";
        return Err(ApiError::invalid("continue_final_message", message));
    }
    options.add_generation_prompt = prompt.unwrap_or(true);
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
