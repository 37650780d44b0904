//! `/v1/responses`: OpenAI's API for agents, without a memory of its own. `input` reads what came before, `output` writes
//! the answer's items and events.

mod input;
mod output;

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::answer::stream::respond;
use crate::api::chat::begin;
use crate::api::tokens::ids_of;
use crate::error::{ApiError, json_body};
use crate::http::middleware::Client;
use crate::ids::{now, random_hex};
use crate::request::json_fields::{Fields, wrong};
use crate::request::params::{Params, TOKENS_MAX};
use crate::state::App;

/// Answers an input.
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    client: Client,
    body: Bytes,
) -> Result<Response, ApiError> {
    let mut fields = app.fields(&body)?;
    let shell = shell(&app, &fields);
    let conversation = input::conversation(&mut fields)?;
    let mut params = params(&mut fields, &client)?;
    let ignored = client.ignored(&app, fields);
    let (answers, _) = begin(&app, conversation, &mut params).await.map_err(own)?;
    Ok(ignored.onto(respond(&app, params.stream, answers, output::Items::new(shell)).await?))
}

/// How many tokens an input is.
pub(crate) async fn input_tokens(
    State(app): State<Arc<App>>,
    client: Client,
    body: Bytes,
) -> Result<Response, ApiError> {
    let mut fields = app.fields(&body)?;
    let conversation = input::conversation(&mut fields)?;
    let ignored = client.ignored(&app, fields);
    let count = ids_of(&app, conversation).await.map_err(own)?.len();
    let answer = json!({"object": "response.input_tokens", "input_tokens": count});
    Ok(ignored.onto(json_body(&answer).into_response()))
}

/// How an answer is asked for: the fields of this API, then those that it shares with chat.
fn params(fields: &mut Fields, client: &Client) -> Result<Params, ApiError> {
    fields.refuse("n", |n| n == 1)?;
    fields.refuse("background", |background| background == false)?;
    fields.refuse("top_logprobs", |top| top == 0)?;
    if fields.list("include")?.is_some_and(|list| list.contains(&"message.output_text.logprobs".into())) {
        return Err(ApiError::unsupported("include", "include: log-probabilities are in the chat API only"));
    }
    // Tools are called by clients only, so there is nothing to count.
    fields.take("max_tool_calls");
    match fields.string("truncation")?.as_deref() {
        None | Some("auto" | "disabled") => {}
        Some(other) => return Err(wrong("truncation", "\"auto\" or \"disabled\"", &other.into())),
    }
    let most = fields.count("max_output_tokens", 1, TOKENS_MAX)?;
    format(fields)?;
    let mut params = Params::take(fields, client.key()).map_err(own)?;
    params.max_tokens = most.or(params.max_tokens);
    Ok(params)
}

/// An error by this API's name of the field.
fn own(error: ApiError) -> ApiError {
    error.renamed("response_format", "text.format").renamed("messages", "input")
}

/// `text.format` in the form of chat's `response_format`, which has a schema one deeper.
fn format(fields: &mut Fields) -> Result<(), ApiError> {
    let Some(mut text) = fields.inner("text")? else { return Ok(()) };
    let Some(mut format) = text.object("format")? else { return Ok(()) };
    if let Some(kind) = format.remove("type") {
        let schema = (kind == "json_schema").then(|| std::mem::take(&mut format));
        format.insert("type".into(), kind);
        format.extend(schema.map(|schema| ("json_schema".into(), schema.into())));
    }
    fields.put("response_format", format);
    Ok(())
}

/// The response before its first item. It repeats what it was asked for.
fn shell(app: &App, fields: &Fields) -> Value {
    let asked = |name: &str, default: Value| fields.get(name).cloned().unwrap_or(default);
    let tools = fields.get("tools").and_then(Value::as_array).into_iter().flatten();
    json!({
        "id": format!("resp_{}", random_hex::<16>()),
        "object": "response",
        "created_at": now(),
        "status": "in_progress",
        "background": false,
        "completed_at": null,
        "error": null,
        "incomplete_details": null,
        "instructions": asked("instructions", Value::Null),
        "max_output_tokens": asked("max_output_tokens", Value::Null),
        "metadata": asked("metadata", json!({})),
        "model": app.name(),
        "output": [],
        "parallel_tool_calls": asked("parallel_tool_calls", true.into()),
        "previous_response_id": null,
        "reasoning": asked("reasoning", json!({"effort": null, "summary": null})),
        "store": false,
        "temperature": asked("temperature", 1.0.into()),
        "text": asked("text", json!({"format": {"type": "text"}})),
        "tool_choice": asked("tool_choice", "auto".into()),
        "tools": tools.filter(|tool| input::is_function(tool)).collect::<Vec<_>>(),
        "top_p": asked("top_p", 1.0.into()),
        "truncation": "disabled",
        "usage": null,
        "user": asked("user", Value::Null),
    })
}
