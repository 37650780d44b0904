//! The input of `/v1/responses`: a text or items, and tools.

use serde_json::Value;

use super::history::History;
use super::tools::callable;
use crate::error::{ApiError, wrong};
use crate::request::conversation::{Conversation, options};
use crate::request::fields::RequestFields;
use crate::request::message_builder::Turns;
use crate::request::table::{
    CONVERSATION, INPUT, INSTRUCTIONS, PREVIOUS_RESPONSE_ID, REASONING, STORED_PROMPT,
};

/// Takes the conversation. Fields that need a stored state are refused.
pub(super) fn conversation(fields: &mut RequestFields) -> Result<Conversation, ApiError> {
    for row in [&PREVIOUS_RESPONSE_ID, &CONVERSATION, &STORED_PROMPT] {
        fields.take(row)?;
    }
    let mut turns = Turns::default();
    if let Some(instructions) = fields.take(&INSTRUCTIONS)? {
        turns.say("system", instructions);
    }
    let input = fields.take(&INPUT)?;
    let mut history = History { turns, found: Vec::new(), skipped: fields.skipped() };
    match input {
        Some(Value::String(text)) => history.turns.say("user", text),
        Some(Value::Array(items)) if !items.is_empty() => {
            for (at, item) in items.into_iter().enumerate() {
                history.read(&format!("input[{at}]"), item)?;
            }
        }
        None | Some(Value::Array(_)) => return Err(fields.missing(&INPUT, "a list of at least one")),
        Some(other) => return Err(wrong("input", "a list", &other)),
    }
    let History { turns, found, .. } = history;
    let effort = match fields.inner(&REASONING)? {
        Some(mut reasoning) => reasoning.string("effort")?,
        None => None,
    };
    let (tools, forms) = callable(fields, &found)?;
    Ok(Conversation::new(turns.messages(), options(fields, effort)?, tools)?.with_forms(forms))
}
