//! `/v1/messages`: Anthropic's API. `input` reads the conversation, `output` writes the answer's blocks and events. What goes
//! wrong before an answer is in this API's form, too: the gate sees to it.

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
use crate::ids::random_hex;
use crate::request::json_fields::Fields;
use crate::request::params::{Params, TOKENS_MAX, stop};
use crate::state::App;

/// Answers a conversation.
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    client: Client,
    body: Bytes,
) -> Result<Response, ApiError> {
    let mut fields = app.fields(&body)?;
    let conversation = input::conversation(&mut fields)?;
    let mut params = params(&mut fields, &client)?;
    let ignored = client.ignored(&app, fields);
    let (answers, tokens) = begin(&app, conversation, &mut params).await.map_err(own)?;
    let blocks = output::Blocks::new(shell(&app, tokens));
    Ok(ignored.onto(respond(&app, params.stream, answers, blocks).await?))
}

/// How many tokens a conversation is: those of the prompt that an answer would begin with.
pub(crate) async fn count_tokens(
    State(app): State<Arc<App>>,
    client: Client,
    body: Bytes,
) -> Result<Response, ApiError> {
    let mut fields = app.fields(&body)?;
    let conversation = input::conversation(&mut fields)?;
    // What an answer follows is no part of its prompt.
    fields.take("response_format");
    let ignored = client.ignored(&app, fields);
    let count = ids_of(&app, conversation).await?.len();
    Ok(ignored.onto(json_body(&json!({"input_tokens": count})).into_response()))
}

/// How an answer is asked for: the fields of this API, then those that it shares with chat.
fn params(fields: &mut Fields, client: &Client) -> Result<Params, ApiError> {
    fields.refuse("n", |n| n == 1)?;
    fields.refuse("container", |_| false)?;
    fields.refuse("mcp_servers", |servers| servers.as_array().is_some_and(Vec::is_empty))?;
    let most = fields.count("max_tokens", 1, TOKENS_MAX)?;
    let most = most.ok_or_else(|| fields.missing("max_tokens", "a whole number"))?;
    let stops = stop(fields, "stop_sequences")?;
    let mut params = Params::take(fields, client.key()).map_err(own)?;
    params.max_tokens = Some(most);
    if !stops.is_empty() {
        params.stop = stops;
    }
    Ok(params)
}

/// An error by this API's name of the field.
fn own(error: ApiError) -> ApiError {
    error.renamed("response_format", "output_config.format")
}

/// The message before its first block. How much of the prompt is in the cache is known at its end.
fn shell(app: &App, prompt: usize) -> Value {
    json!({
        "id": format!("msg_{}", random_hex::<12>()),
        "type": "message",
        "role": "assistant",
        "model": app.name(),
        "content": [],
        "stop_reason": null,
        "stop_sequence": null,
        "usage": {
            "input_tokens": prompt, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 0,
        },
    })
}
