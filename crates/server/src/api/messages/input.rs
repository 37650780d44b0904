//! The conversation of `/v1/messages`: a system text, messages of blocks, and tools.

use ottava::chat::{ToolChoice, Tools};
use serde_json::{Map, Value, json};

use crate::error::{ApiError, wrong};
use crate::request::conversation::{Conversation, options};
use crate::request::fields::RequestFields;
use crate::request::json_fields::Fields;
use crate::request::message_builder::{Turns, chosen, text, tools, unknown_type};
use crate::request::table::{
    CACHE_CONTROL, MESSAGES, MESSAGES_TOOL_CHOICE, MESSAGES_TOOLS, OUTPUT_CONFIG, OUTPUT_FORMAT, SYSTEM,
    THINKING,
};

/// This API's name for a tool's parameters.
const SCHEMA: &str = "input_schema";
/// Types of parts in a system text and in a tool's result.
const TEXTS: &[&str] = &["text"];

/// A format for the answer, in the form of chat's `response_format`.
type Format = Option<Map<String, Value>>;

/// Takes the conversation, and the format in `output_config`.
pub(super) fn conversation(fields: &mut RequestFields) -> Result<(Conversation, Format), ApiError> {
    let mut turns = Turns::default();
    if let Some(system) = fields.take(&SYSTEM)? {
        turns.say("system", text("system", system, TEXTS)?);
    }
    let messages = fields.needed_list(&MESSAGES)?;
    let last = messages.len().saturating_sub(1);
    for (at, message) in messages.into_iter().enumerate() {
        let mut message = Fields::at(&format!("messages[{at}]"), message)?;
        let role = role(&mut message)?;
        if role == "assistant" && at == last {
            let place = message.place("role");
            let reason = format!("{place}: expected a user's message at the end: no answer is gone on with");
            return Err(ApiError::unsupported(place, reason));
        }
        read(&mut turns, role, message)?;
    }
    let tools = callable(fields)?;
    let thinks = thinks(fields)?;
    let (effort, format) = output_config(fields)?;
    fields.take(&CACHE_CONTROL)?;
    let mut options = options(fields, effort)?;
    options.variables.entry("enable_thinking").or_insert(thinks.into());
    Ok((Conversation::new(turns.messages(), options, tools), format))
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

/// Reads a message: a text, or blocks. Consecutive text blocks are joined.
fn read(turns: &mut Turns, role: &str, mut message: Fields) -> Result<(), ApiError> {
    let expected = "a text or a list of blocks";
    let content = message.take("content").ok_or_else(|| message.missing("content", expected))?;
    let place = message.place("content");
    let blocks = match content {
        Value::String(text) => vec![json!({"type": "text", "text": text})],
        Value::Array(blocks) => blocks,
        other => return Err(wrong(&place, expected, &other)),
    };
    let mut said: Vec<String> = Vec::new();
    for (at, value) in blocks.into_iter().enumerate() {
        let mut block = Fields::at(&format!("{place}[{at}]"), value)?;
        let kind = block.needed("type")?;
        if kind == "text" {
            said.push(block.needed("text")?);
            continue;
        }
        say(turns, role, &mut said);
        other(turns, role, &kind, block)?;
    }
    say(turns, role, &mut said);
    Ok(())
}

fn say(turns: &mut Turns, role: &str, said: &mut Vec<String>) {
    if !said.is_empty() {
        turns.say(role, std::mem::take(said).join("\n"));
    }
}

/// Reads a block of another type than text.
fn other(turns: &mut Turns, role: &str, kind: &str, mut block: Fields) -> Result<(), ApiError> {
    match (role, kind) {
        ("assistant", "thinking") => turns.think(block.needed("thinking")?),
        // Encrypted reasoning of another server.
        ("assistant", "redacted_thinking") => {}
        ("assistant", "tool_use") => {
            let (id, name) = (block.needed("id")?, block.needed("name")?);
            let input = block.object("input")?.ok_or_else(|| block.missing("input", "an object"))?;
            turns.call(id, name, input.into());
        }
        ("user", "tool_result") => {
            let id = block.needed("tool_use_id")?;
            let content = block.take("content").unwrap_or_else(|| "".into());
            turns.result(id, text(&block.place("content"), content, TEXTS)?);
        }
        // Hosted tools ran at the other server; their results are in the text.
        ("assistant", kind) if kind == "server_tool_use" || kind.ends_with("_tool_result") => {}
        ("assistant", _) => return Err(unknown_type(&block, kind, "text, thinking or tool_use")),
        _ => return Err(unknown_type(&block, kind, "text or tool_result: this model reads text")),
    }
    Ok(())
}

/// The tools with their choice.
fn callable(fields: &mut RequestFields) -> Result<Tools, ApiError> {
    let is_function = |tool: &Value| tool["type"].is_null() || tool["type"] == "custom";
    let tools = tools(&fields.take(&MESSAGES_TOOLS)?.unwrap_or_default(), SCHEMA, is_function)?;
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
