//! The input of `/v1/responses`: a text or items, and tools.

use std::collections::HashSet;

use ottava::chat::{ToolChoice, Tools};
use serde_json::Value;

use crate::error::{ApiError, wrong};
use crate::request::conversation::{Conversation, arguments, choice_of_word, options};
use crate::request::fields::RequestFields;
use crate::request::json_fields::Fields;
use crate::request::message_builder::{Turns, chosen, text, tools, unknown_type};
use crate::request::table::{
    CONVERSATION, INPUT, INSTRUCTIONS, PREVIOUS_RESPONSE_ID, REASONING, RESPONSES_PARALLEL,
    RESPONSES_TOOL_CHOICE, RESPONSES_TOOLS, STORED_PROMPT,
};

/// This API's name for a tool's parameters.
const SCHEMA: &str = "parameters";
/// Types of a message's parts.
const TEXTS: &[&str] = &["input_text", "output_text", "text", "refusal"];
/// Calls of hosted tools. Their results are in the text of the server that ran them.
const HOSTED: &[&str] = &[
    "web_search_call",
    "file_search_call",
    "code_interpreter_call",
    "image_generation_call",
    "mcp_list_tools",
    "mcp_call",
];
/// Types of a reasoning item's parts.
const THOUGHTS: &[&str] = &["reasoning_text", "summary_text"];

/// Takes the conversation. Fields that need a stored state are refused.
pub(super) fn conversation(fields: &mut RequestFields) -> Result<Conversation, ApiError> {
    for row in [&PREVIOUS_RESPONSE_ID, &CONVERSATION, &STORED_PROMPT] {
        fields.take(row)?;
    }
    let mut turns = Turns::default();
    if let Some(instructions) = fields.take(&INSTRUCTIONS)? {
        turns.say("system", instructions);
    }
    match fields.take(&INPUT)? {
        Some(Value::String(text)) => turns.say("user", text),
        Some(Value::Array(items)) if !items.is_empty() => {
            for (at, item) in items.into_iter().enumerate() {
                read(&mut turns, Fields::at(&format!("input[{at}]"), item)?)?;
            }
        }
        None | Some(Value::Array(_)) => return Err(fields.missing(&INPUT, "a list of at least one")),
        Some(other) => return Err(wrong("input", "a list", &other)),
    }
    let effort = match fields.inner(&REASONING)? {
        Some(mut reasoning) => reasoning.string("effort")?,
        None => None,
    };
    let tools = callable(fields)?;
    Ok(Conversation::new(turns.messages(), options(fields, effort)?, tools))
}

/// The functions with their choice.
fn callable(fields: &mut RequestFields) -> Result<Tools, ApiError> {
    let mut tools = tools(&fields.take(&RESPONSES_TOOLS)?.unwrap_or_default(), SCHEMA, is_function)?;
    let (choice, allowed) = choice(fields)?;
    if let Some(allowed) = allowed {
        tools.list.retain(|tool| allowed.contains(&tool.name));
    }
    let tools = chosen(tools, choice, SCHEMA)?;
    Ok(if fields.take(&RESPONSES_PARALLEL)? == Some(false) { tools.single() } else { tools })
}

/// `tool_choice` in this API's form, and the names of the allowed tools if not all are.
fn choice(fields: &mut RequestFields) -> Result<(ToolChoice, Option<HashSet<String>>), ApiError> {
    let value = match fields.take(&RESPONSES_TOOL_CHOICE)? {
        None => return Ok((ToolChoice::Auto, None)),
        Some(Value::String(word)) => return Ok((choice_of_word("tool_choice", &word)?, None)),
        Some(value) => value,
    };
    let mut choice = Fields::at("tool_choice", value)?;
    let kind = choice.needed("type")?;
    match kind.as_str() {
        "function" => Ok((ToolChoice::Named(choice.needed("name")?), None)),
        "allowed_tools" => {
            let mode = choice.needed("mode")?;
            let name = |tool: &Value| tool["name"].as_str().map(str::to_owned);
            let names = choice.list("tools")?.unwrap_or_default().iter().filter_map(name).collect();
            Ok((choice_of_word("tool_choice.mode", &mode)?, Some(names)))
        }
        _ => Err(unknown_type(&choice, &kind, "function or allowed_tools")),
    }
}

pub(super) fn is_function(tool: &Value) -> bool {
    tool["type"] == "function"
}

/// Reads an item of the input.
fn read(turns: &mut Turns, mut item: Fields) -> Result<(), ApiError> {
    let kind = item.string("type")?.unwrap_or_else(|| "message".into());
    match kind.as_str() {
        "message" => {
            let role = role(&mut item)?;
            turns.say(role, content(&mut item, "content", TEXTS)?);
        }
        "function_call" => {
            let (id, name, text) = (item.needed("call_id")?, item.needed("name")?, item.needed("arguments")?);
            turns.call(id, name, arguments(&text));
        }
        "function_call_output" => {
            let id = item.needed("call_id")?;
            turns.result(id, content(&mut item, "output", TEXTS)?);
        }
        "reasoning" => turns.think(thought(&mut item)?),
        kind if HOSTED.contains(&kind) => {}
        _ => {
            let expected = "message, function_call, function_call_output or reasoning";
            return Err(unknown_type(&item, &kind, expected));
        }
    }
    Ok(())
}

fn role(item: &mut Fields) -> Result<&'static str, ApiError> {
    let role = item.needed("role")?;
    match role.as_str() {
        "user" => Ok("user"),
        "assistant" => Ok("assistant"),
        "system" | "developer" => Ok("system"),
        _ => Err(wrong(&item.place("role"), "user, assistant, system or developer", &role.into())),
    }
}

fn content(item: &mut Fields, name: &str, types: &[&str]) -> Result<String, ApiError> {
    let content = item.take(name).ok_or_else(|| item.missing(name, "a text or a list of parts"))?;
    text(&item.place(name), content, types)
}

/// The reasoning text, or else its summary. Encrypted reasoning of another server is dropped.
fn thought(item: &mut Fields) -> Result<String, ApiError> {
    let mut thought = |name: &str| match item.take(name) {
        Some(parts) => text(&item.place(name), parts, THOUGHTS),
        None => Ok(String::new()),
    };
    let (content, summary) = (thought("content")?, thought("summary")?);
    Ok(if content.is_empty() { summary } else { content })
}
