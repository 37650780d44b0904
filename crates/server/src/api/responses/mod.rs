//! `/v1/responses`: OpenAI's API for agents, stateless. `input` reads the conversation so far, `history` its
//! items and `tools` its tools. `output` writes events, `item` the items in them.

mod history;
mod input;
mod item;
mod output;
mod tools;

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use crate::answer::stream::respond;
use crate::api::chat::begin;
use crate::api::tokens::ids_of;
use crate::api::typed::{ApiRequest, Groups, Typed};
use crate::error::{ApiError, json_body, wrong};
use crate::ids::{now, random_hex};
use crate::request::conversation::Conversation;
use crate::request::fields::{RequestFields, Row};
use crate::request::params::Params;
use crate::request::table::*;
use crate::state::App;

/// A request of `/v1/responses`.
pub(crate) struct ResponsesRequest {
    /// The response before its first item, without the model's name.
    shell: Value,
    conversation: Conversation,
    params: Params,
}

impl ApiRequest for ResponsesRequest {
    const GROUPS: Groups = &[&[&RESPONSES_INPUT, &TEMPLATE, &RESPONSES_OUTPUT], GENERATION];
    const REQUIRED: &'static [&'static str] = &["input"];

    fn read(fields: &mut RequestFields, key: Option<&str>) -> Result<ResponsesRequest, ApiError> {
        let shell = shell(fields);
        let conversation = input::conversation(fields)?;
        Ok(ResponsesRequest { shell, conversation, params: params(fields, key)? })
    }
}

/// A request of `/v1/responses/input_tokens`.
pub(crate) struct CountRequest {
    conversation: Conversation,
}

impl ApiRequest for CountRequest {
    const GROUPS: Groups = &[&[&RESPONSES_INPUT, &TEMPLATE]];
    const REQUIRED: &'static [&'static str] = &["input"];

    fn read(fields: &mut RequestFields, _: Option<&str>) -> Result<CountRequest, ApiError> {
        Ok(CountRequest { conversation: input::conversation(fields)? })
    }
}

/// Answers an input.
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    Typed(request, ignored, room): Typed<ResponsesRequest>,
) -> Result<Response, ApiError> {
    let ResponsesRequest { mut shell, conversation, mut params } = request;
    let ignored = ignored.counted(&app);
    shell["model"] = app.name().into();
    let items = output::Items::new(shell, conversation.forms());
    let (answers, _) = begin(&app, conversation, &mut params).await.map_err(own)?;
    drop(room);
    Ok(ignored.onto(respond(&app, params.stream, answers, items).await?))
}

/// Number of tokens of an input.
pub(crate) async fn input_tokens(
    State(app): State<Arc<App>>,
    Typed(request, ignored, _): Typed<CountRequest>,
) -> Result<Response, ApiError> {
    let ignored = ignored.counted(&app);
    let count = ids_of(&app, request.conversation).await.map_err(own)?.len();
    let answer = json!({"object": "response.input_tokens", "input_tokens": count});
    Ok(ignored.onto(json_body(&answer).into_response()))
}

/// Parameters of this API, then those shared with chat.
fn params(fields: &mut RequestFields, key: Option<&str>) -> Result<Params, ApiError> {
    fields.take(&RESPONSES_N)?;
    fields.take(&BACKGROUND)?;
    fields.take(&RESPONSES_TOP_LOGPROBS)?;
    if fields.take(&INCLUDE)?.is_some_and(|list| list.contains(&"message.output_text.logprobs".into())) {
        return Err(ApiError::unsupported("include", "include: log-probabilities are in the chat API only"));
    }
    fields.take(&MAX_TOOL_CALLS)?;
    match fields.take(&TRUNCATION)?.as_deref() {
        None | Some("auto" | "disabled") => {}
        Some(other) => return Err(wrong("truncation", "\"auto\" or \"disabled\"", &other.into())),
    }
    let most = fields.take(&MAX_OUTPUT_TOKENS)?;
    let format = format(fields)?;
    let mut params = Params::take(fields, key, format).map_err(own)?;
    params.max_tokens = most.or(params.max_tokens);
    Ok(params)
}

/// Renames chat's fields in an error to this API's.
fn own(error: ApiError) -> ApiError {
    error.renamed("response_format", "text.format").renamed("messages", "input")
}

/// `text.format` in the form of chat's `response_format`, which nests the schema one level deeper.
fn format(fields: &mut RequestFields) -> Result<Option<Map<String, Value>>, ApiError> {
    let Some(mut text) = fields.inner(&TEXT_FORMAT)? else { return Ok(None) };
    let Some(mut format) = text.object("format")? else { return Ok(None) };
    if let Some(kind) = format.remove("type") {
        let schema = (kind == "json_schema").then(|| std::mem::take(&mut format));
        format.insert("type".into(), kind);
        format.extend(schema.map(|schema| ("json_schema".into(), schema.into())));
    }
    Ok(Some(format))
}

/// The response before its first item. It repeats the request's fields; the model's name is set later.
fn shell(fields: &RequestFields) -> Value {
    let asked = |field: &dyn Row, default: Value| fields.get(field).cloned().unwrap_or(default);
    let tools = fields.get(&RESPONSES_TOOLS).and_then(Value::as_array).into_iter().flatten();
    json!({
        "id": format!("resp_{}", random_hex::<16>()),
        "object": "response",
        "created_at": now(),
        "status": "in_progress",
        "background": false,
        "completed_at": null,
        "error": null,
        "incomplete_details": null,
        "instructions": asked(&INSTRUCTIONS, Value::Null),
        "max_output_tokens": asked(&MAX_OUTPUT_TOKENS, Value::Null),
        "metadata": asked(&METADATA, json!({})),
        "model": null,
        "output": [],
        "parallel_tool_calls": asked(&RESPONSES_PARALLEL, true.into()),
        "previous_response_id": null,
        "reasoning": asked(&REASONING, json!({"effort": null, "summary": null})),
        "store": false,
        "temperature": asked(&TEMPERATURE, 1.0.into()),
        "text": asked(&TEXT_FORMAT, json!({"format": {"type": "text"}})),
        "tool_choice": asked(&RESPONSES_TOOL_CHOICE, "auto".into()),
        "tools": tools.filter(|tool| tools::is_callable(tool)).collect::<Vec<_>>(),
        "top_p": asked(&TOP_P, 1.0.into()),
        "truncation": "disabled",
        "usage": null,
        "user": asked(&USER, Value::Null),
    })
}
