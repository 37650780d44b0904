//! `/v1/messages`: Anthropic's API. `input` reads the conversation, `output` writes blocks and events. The
//! middleware converts errors before an answer to this API's form.

mod input;
mod output;

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::answer::stream::respond;
use crate::api::chat::begin;
use crate::api::tokens::ids_of;
use crate::api::typed::{ApiRequest, Groups, Typed};
use crate::error::{ApiError, json_body};
use crate::ids::random_hex;
use crate::request::conversation::Conversation;
use crate::request::fields::RequestFields;
use crate::request::params::{Params, stop};
use crate::request::table::{
    CONTAINER, GENERATION, MCP_SERVERS, MESSAGES_COUNT, MESSAGES_INPUT, MESSAGES_MAX_TOKENS, MESSAGES_N,
    MESSAGES_OUTPUT, STOP_SEQUENCES, TEMPLATE,
};
use crate::state::App;

/// A request of `/v1/messages`.
pub(crate) struct MessagesRequest {
    conversation: Conversation,
    params: Params,
}

impl ApiRequest for MessagesRequest {
    const GROUPS: Groups = &[&[&MESSAGES_INPUT, &TEMPLATE, &MESSAGES_OUTPUT], GENERATION];
    const REQUIRED: &'static [&'static str] = &["messages", "max_tokens"];

    fn read(fields: &mut RequestFields, key: Option<&str>) -> Result<MessagesRequest, ApiError> {
        let (conversation, format) = input::conversation(fields)?;
        fields.take(&MESSAGES_N)?;
        fields.take(&CONTAINER)?;
        fields.take(&MCP_SERVERS)?;
        let most = fields.take(&MESSAGES_MAX_TOKENS)?;
        let most = most.ok_or_else(|| fields.missing(&MESSAGES_MAX_TOKENS, "a whole number"))?;
        let stops = stop(fields, &STOP_SEQUENCES)?;
        let mut params = Params::take(fields, key, format).map_err(own)?;
        params.max_tokens = Some(most);
        if !stops.is_empty() {
            params.stop = stops;
        }
        Ok(MessagesRequest { conversation, params })
    }
}

/// A request of `/v1/messages/count_tokens`.
pub(crate) struct CountRequest {
    conversation: Conversation,
}

impl ApiRequest for CountRequest {
    const GROUPS: Groups = &[&[&MESSAGES_INPUT, &TEMPLATE, &MESSAGES_COUNT]];
    const REQUIRED: &'static [&'static str] = &["messages"];

    fn read(fields: &mut RequestFields, _: Option<&str>) -> Result<CountRequest, ApiError> {
        let (conversation, _) = input::conversation(fields)?;
        // The answer's format is no part of the prompt.
        fields.check(&MESSAGES_COUNT)?;
        Ok(CountRequest { conversation })
    }
}

/// Answers a conversation.
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    Typed(request, ignored, room): Typed<MessagesRequest>,
) -> Result<Response, ApiError> {
    let MessagesRequest { conversation, mut params } = request;
    let ignored = ignored.counted(&app);
    let (answers, tokens) = begin(&app, conversation, &mut params).await.map_err(own)?;
    drop(room);
    let blocks = output::Blocks::new(shell(&app, tokens));
    Ok(ignored.onto(respond(&app, params.stream, answers, blocks).await?))
}

/// Number of tokens of the prompt that an answer would begin with.
pub(crate) async fn count_tokens(
    State(app): State<Arc<App>>,
    Typed(request, ignored, _): Typed<CountRequest>,
) -> Result<Response, ApiError> {
    let ignored = ignored.counted(&app);
    let count = ids_of(&app, request.conversation).await?.len();
    Ok(ignored.onto(json_body(&json!({"input_tokens": count})).into_response()))
}

/// Renames chat's fields in an error to this API's.
fn own(error: ApiError) -> ApiError {
    error.renamed("response_format", "output_config.format")
}

/// The message before its first block. The number of cached tokens follows at the end.
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
