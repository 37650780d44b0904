//! The conversation of `/v1/messages`: a system text, messages of blocks, and tools.

use ottava::chat::{Tool, ToolChoice, ToolError, Tools};
use serde_json::{Map, Value, json};

use crate::error::{ApiError, wrong};
use crate::request::call_forms::{client_tool, client_tool_of_messages};
use crate::request::conversation::{Conversation, arguments, options};
use crate::request::fields::RequestFields;
use crate::request::json_fields::Fields;
use crate::request::message_builder::{Turns, chosen, function, refused};
use crate::request::parts::{Media, Parts};
use crate::request::skipped::Skipped;
use crate::request::table::{
    CACHE_CONTROL, MESSAGES, MESSAGES_TOOL_CHOICE, MESSAGES_TOOLS, OUTPUT_CONFIG, OUTPUT_FORMAT, SYSTEM,
    THINKING,
};

/// This API's name for a tool's parameters.
const SCHEMA: &str = "input_schema";
/// Field of the conversation, in the names of skipped blocks.
const FIELD: &str = "messages";

/// A format for the answer, in the form of chat's `response_format`.
type Format = Option<Map<String, Value>>;

/// Takes the conversation, and the format in `output_config`.
pub(super) fn conversation(fields: &mut RequestFields) -> Result<(Conversation, Format), ApiError> {
    let mut turns = Turns::default();
    if let Some(system) = fields.take(&SYSTEM)? {
        let mut parts = Parts { field: "system", media: Media::Refused, skipped: fields.skipped() };
        turns.say("system", parts.text("system", system)?);
    }
    let messages = fields.needed_list(&MESSAGES)?;
    for (at, message) in messages.into_iter().enumerate() {
        let mut message = Fields::at(&format!("messages[{at}]"), message)?;
        let role = role(&mut message)?;
        read(&mut turns, role, message, fields.skipped())?;
    }
    let tools = callable(fields)?;
    let thinks = thinks(fields)?;
    let (effort, format) = output_config(fields)?;
    fields.take(&CACHE_CONTROL)?;
    let mut options = options(fields, effort)?;
    options.variables.entry("enable_thinking").or_insert(thinks.into());
    let messages = turns.messages();
    // This API's prefill: the answer continues an assistant's text at the end.
    options.continue_final_message |= messages.last().is_some_and(|last| last.role == "assistant");
    let conversation = Conversation::new(messages, options, tools);
    Ok((conversation.map_err(|error| error.renamed("continue_final_message", "messages"))?, format))
}

fn role(message: &mut Fields) -> Result<&'static str, ApiError> {
    let role = message.needed("role")?;
    match role.as_str() {
        "user" => Ok("user"),
        "assistant" => Ok("assistant"),
        "system" => Ok("system"),
        _ => Err(wrong(&message.place("role"), "user, assistant or system", &role.into())),
    }
}

/// Reads a message: a text, or blocks. Consecutive blocks with text are joined.
fn read(turns: &mut Turns, role: &str, mut message: Fields, skipped: &mut Skipped) -> Result<(), ApiError> {
    let expected = "a text or a list of blocks";
    let content = message.take("content").ok_or_else(|| message.missing("content", expected))?;
    let place = message.place("content");
    let blocks = match content {
        Value::String(text) => vec![json!({"type": "text", "text": text})],
        Value::Array(blocks) => blocks,
        other => return Err(wrong(&place, expected, &other)),
    };
    let media = if role == "assistant" { Media::Noted } else { Media::Refused };
    let mut said: Vec<String> = Vec::new();
    for (at, value) in blocks.into_iter().enumerate() {
        let mut block = Fields::at(&format!("{place}[{at}]"), value)?;
        let kind = block.needed("type")?;
        if is_step(role, &kind) {
            say(turns, role, &mut said);
            step(turns, &kind, block, skipped)?;
        } else if kind == "redacted_thinking" {
            // Encrypted reasoning of another server.
            skipped.add(FIELD, &kind);
        } else {
            said.extend(Parts { field: FIELD, media, skipped }.part(&kind, &mut block)?);
        }
    }
    say(turns, role, &mut said);
    Ok(())
}

fn say(turns: &mut Turns, role: &str, said: &mut Vec<String>) {
    if !said.is_empty() {
        turns.say(role, std::mem::take(said).join("\n"));
    }
}

/// Whether a block is reasoning, a call or a result, which are no text of their turn.
fn is_step(role: &str, kind: &str) -> bool {
    match role {
        "assistant" => ["thinking", "tool_use"].contains(&kind),
        _ => kind == "tool_result",
    }
}

fn step(turns: &mut Turns, kind: &str, mut block: Fields, skipped: &mut Skipped) -> Result<(), ApiError> {
    match kind {
        "thinking" => turns.think(block.needed("thinking")?),
        "tool_use" => {
            let (id, name) = (block.needed("id")?, block.needed("name")?);
            let input = match block.take("input").ok_or_else(|| block.missing("input", "an object"))? {
                Value::String(text) => arguments(&text),
                input => input,
            };
            turns.call(id, name, input);
        }
        _ => {
            let id = block.needed("tool_use_id")?;
            let content = block.take("content").unwrap_or_else(|| "".into());
            let mut parts = Parts { field: FIELD, media: Media::Noted, skipped };
            turns.result(id, parts.text(&block.place("content"), content)?);
        }
    }
    Ok(())
}

/// The tools with their choice.
fn callable(fields: &mut RequestFields) -> Result<Tools, ApiError> {
    let list = fields.take(&MESSAGES_TOOLS)?.unwrap_or_default();
    let mut tools = Vec::new();
    for (at, entry) in list.iter().enumerate() {
        match tool(&format!("tools[{at}]"), entry) {
            Some(tool) => tools.push(tool.map_err(|error| refused(error, SCHEMA))?),
            None => fields.skipped().add("tools", entry["type"].as_str().unwrap_or_default()),
        }
    }
    let tools = Tools::new(tools);
    let Some(mut choice) = fields.inner(&MESSAGES_TOOL_CHOICE)? else {
        return chosen(tools, ToolChoice::Auto, SCHEMA);
    };
    let kind = choice.needed("type")?;
    let wanted = match kind.as_str() {
        "auto" => ToolChoice::Auto,
        "any" => ToolChoice::Required,
        "tool" => ToolChoice::Named(choice.needed("name")?),
        "none" => ToolChoice::None,
        _ => return Err(wrong(&choice.place("type"), "auto, any, tool or none", &kind.into())),
    };
    let tools = chosen(tools, wanted, SCHEMA)?;
    Ok(if choice.bool("disable_parallel_tool_use")? == Some(true) { tools.single() } else { tools })
}

/// A tool that the client runs; `None` for one of Anthropic's servers, such as a search.
fn tool(place: &str, entry: &Value) -> Option<Result<Tool, ToolError>> {
    let name = &entry["name"];
    match &entry["type"] {
        Value::String(kind) if kind != "custom" => {
            client_tool_of_messages(kind).map(|key| client_tool(place, name, key))
        }
        Value::Null | Value::String(_) => Some(function(place, name, entry, SCHEMA)),
        _ => None,
    }
}

/// Whether reasoning is enabled. This API has it off by default; a budget is ignored.
fn thinks(fields: &mut RequestFields) -> Result<bool, ApiError> {
    let Some(mut thinking) = fields.inner(&THINKING)? else { return Ok(false) };
    let kind = thinking.needed("type")?;
    match kind.as_str() {
        "enabled" | "adaptive" => Ok(true),
        "disabled" => Ok(false),
        _ => Err(wrong(&thinking.place("type"), "enabled, adaptive or disabled", &kind.into())),
    }
}

/// Effort and format of `output_config`. `output_format` is the older place of the format.
fn output_config(fields: &mut RequestFields) -> Result<(Option<String>, Format), ApiError> {
    const OLDER: &str = "output_format";
    let older = fields.take(&OUTPUT_FORMAT)?;
    let (effort, format) = match fields.inner(&OUTPUT_CONFIG)? {
        Some(mut config) => (config.string("effort")?, config.object("format")?),
        None => (None, None),
    };
    if older.is_some() && format.is_some() {
        let message = format!("{OLDER}: expected one thing to follow, found output_config.format beside it");
        return Err(ApiError::invalid(OLDER, message));
    }
    let format = format.or(older).map(|format| {
        let schema = json!({"name": "output", "schema": format.get("schema")});
        let kind = format.get("type").cloned().unwrap_or_default();
        Map::from_iter([("type".to_owned(), kind), ("json_schema".to_owned(), schema)])
    });
    Ok((effort, format))
}
