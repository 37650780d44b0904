//! `/tokenize` and `/detokenize`, with llama.cpp's and vLLM's names; prompt tokens of a chat for clients and
//! routers.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use ottava::text::{AddBos, Special};
use ottava::{Engine, TokenId};
use serde_json::{Value, json};

use crate::api::typed::{ApiRequest, Groups, Typed};
use crate::error::{ApiError, json_body};
use crate::ids::random_hex;
use crate::request::conversation::Conversation;
use crate::request::fields::RequestFields;
use crate::request::table::{
    ADD_SPECIAL, ADD_SPECIAL_TOKENS, CACHE_SALT, CHAT_INPUT, DETOKENIZE, PARSE_SPECIAL, PRIORITY, RENDER,
    RETURN_TOKEN_STRS, STREAM, TEMPLATE, TOKENIZE, TOKENIZE_CONTENT, TOKENIZE_PROMPT, TOKENIZE_TEXT,
    TOKENS_OF_TEXT, WITH_PIECES,
};
use crate::state::App;

/// Input of `/tokenize`.
enum Source {
    Text { text: String, special: Special, bos: AddBos },
    Chat(Box<Conversation>),
}

/// A request of `/tokenize`.
pub(crate) struct TokenizeRequest {
    source: Source,
    /// Whether tokens come as strings, too (vLLM).
    with_strings: bool,
    /// Whether tokens come as objects of id and piece (llama.cpp).
    with_pieces: bool,
}

impl ApiRequest for TokenizeRequest {
    const GROUPS: Groups = &[&[&TOKENIZE, &CHAT_INPUT, &TEMPLATE]];
    const REQUIRED: &'static [&'static str] = &[];

    fn read(fields: &mut RequestFields, _: Option<&str>) -> Result<TokenizeRequest, ApiError> {
        let with_strings = fields.take(&RETURN_TOKEN_STRS)?.unwrap_or(false);
        let with_pieces = fields.take(&WITH_PIECES)?.unwrap_or(false);
        Ok(TokenizeRequest { source: source(fields)?, with_strings, with_pieces })
    }
}

/// Tokens of a text or of a conversation.
pub(crate) async fn tokenize(
    State(app): State<Arc<App>>,
    Typed(request, ..): Typed<TokenizeRequest>,
) -> Result<Response, ApiError> {
    let TokenizeRequest { source, with_strings, with_pieces } = request;
    let answer = app.work(move |engine| {
        let ids = ids(engine, &source)?;
        let mut answer =
            json!({"count": ids.len(), "max_model_len": engine.info().context_max, "tokens": numbers(&ids)});
        if with_strings {
            let bytes = |id: &TokenId| {
                String::from_utf8_lossy(engine.vocab().bytes(*id).unwrap_or_default()).into_owned()
            };
            answer["token_strs"] = ids.iter().map(bytes).collect();
        }
        if with_pieces {
            answer["tokens"] = ids.iter().map(|id| piece(engine, *id)).collect();
        }
        Ok(answer)
    });
    Ok(json_body(&answer.await?).into_response())
}

/// A token in llama.cpp's form: id, and text or, for invalid UTF-8, bytes.
fn piece(engine: &Engine, id: TokenId) -> Value {
    let bytes = engine.vocab().bytes(id).unwrap_or_default();
    match std::str::from_utf8(bytes) {
        Ok(text) => json!({"id": id.0, "piece": text}),
        Err(_) => json!({"id": id.0, "piece": bytes}),
    }
}

fn source(fields: &mut RequestFields) -> Result<Source, ApiError> {
    // By default llama.cpp adds no BOS and vLLM does; each has its own name for the text.
    let llama = fields.take(&TOKENIZE_CONTENT)?;
    let vllm = fields.take(&TOKENIZE_PROMPT)?.or(fields.take(&TOKENIZE_TEXT)?);
    let add = fields.take(&ADD_SPECIAL_TOKENS)?.or(fields.take(&ADD_SPECIAL)?);
    let parse = fields.take(&PARSE_SPECIAL)?.unwrap_or(true);
    let Some(text) = llama.clone().or(vllm) else {
        return Conversation::take(fields).map(|found| Source::Chat(Box::new(found)));
    };
    let bos = if add.unwrap_or(llama.is_none()) { AddBos::AsModel } else { AddBos::No };
    Ok(Source::Text { text, special: if parse { Special::Parse } else { Special::Text }, bos })
}

fn ids(engine: &Engine, source: &Source) -> Result<Vec<TokenId>, ApiError> {
    match source {
        Source::Chat(conversation) => conversation.ids(engine),
        Source::Text { text, special, bos } => engine
            .tokenizer()
            .encode(text, *special, *bos)
            .map_err(|error| ApiError::from(ottava::Error::from(error))),
    }
}

fn numbers(ids: &[TokenId]) -> Value {
    ids.iter().map(|id| id.0).collect()
}

/// A request of `/detokenize`.
pub(crate) struct DetokenizeRequest {
    ids: Vec<TokenId>,
}

impl ApiRequest for DetokenizeRequest {
    const GROUPS: Groups = &[&[&DETOKENIZE]];
    const REQUIRED: &'static [&'static str] = &["tokens"];

    fn read(fields: &mut RequestFields, _: Option<&str>) -> Result<DetokenizeRequest, ApiError> {
        let tokens = fields.take(&TOKENS_OF_TEXT)?.ok_or_else(no_ids)?;
        let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok()).map(TokenId);
        let ids = tokens.as_array().and_then(|list| list.iter().map(id).collect::<Option<_>>());
        Ok(DetokenizeRequest { ids: ids.ok_or_else(no_ids)? })
    }
}

fn no_ids() -> ApiError {
    ApiError::invalid("tokens", "tokens: expected a list of token ids")
}

/// The text of tokens, control tokens included.
pub(crate) async fn detokenize(
    State(app): State<Arc<App>>,
    Typed(request, ..): Typed<DetokenizeRequest>,
) -> Result<Response, ApiError> {
    let vocab = app.engine.vocab().len();
    if request.ids.iter().any(|id| id.0 as usize >= vocab) {
        return Err(no_ids());
    }
    let text = app.engine.tokenizer().decode_with_control(&request.ids);
    Ok(json_body(&json!({"content": text, "prompt": text})).into_response())
}

/// The tokens of a conversation's prompt.
pub(crate) async fn ids_of(app: &Arc<App>, conversation: Conversation) -> Result<Vec<TokenId>, ApiError> {
    app.work(move |engine| conversation.ids(engine)).await
}

/// A request of `/v1/chat/completions/input_tokens`.
pub(crate) struct CountRequest {
    conversation: Conversation,
}

impl ApiRequest for CountRequest {
    const GROUPS: Groups = &[&[&CHAT_INPUT, &TEMPLATE]];
    const REQUIRED: &'static [&'static str] = &["messages"];

    fn read(fields: &mut RequestFields, _: Option<&str>) -> Result<CountRequest, ApiError> {
        Ok(CountRequest { conversation: Conversation::take(fields)? })
    }
}

/// The number of tokens of a chat's prompt.
pub(crate) async fn input_tokens(
    State(app): State<Arc<App>>,
    Typed(request, ..): Typed<CountRequest>,
) -> Result<Response, ApiError> {
    let count = ids_of(&app, request.conversation).await?.len();
    Ok(json_body(&json!({"object": "response.input_tokens", "input_tokens": count})).into_response())
}

/// A request of `/v1/chat/completions/render`.
pub(crate) struct RenderRequest {
    conversation: Conversation,
    stream: bool,
    cache_salt: Option<String>,
    priority: i64,
}

impl ApiRequest for RenderRequest {
    const GROUPS: Groups = &[&[&CHAT_INPUT, &TEMPLATE, &RENDER]];
    const REQUIRED: &'static [&'static str] = &["messages"];

    fn read(fields: &mut RequestFields, _: Option<&str>) -> Result<RenderRequest, ApiError> {
        let stream = fields.take(&STREAM)?.unwrap_or(false);
        let (cache_salt, priority) = (fields.take(&CACHE_SALT)?, fields.take(&PRIORITY)?.unwrap_or(0));
        Ok(RenderRequest { conversation: Conversation::take(fields)?, stream, cache_salt, priority })
    }
}

/// A chat's prompt as tokens. vllm-router requests it before it chooses a worker.
pub(crate) async fn render(
    State(app): State<Arc<App>>,
    Typed(request, ..): Typed<RenderRequest>,
) -> Result<Response, ApiError> {
    let RenderRequest { conversation, stream, cache_salt, priority } = request;
    let ids = ids_of(&app, conversation).await?;
    Ok(json_body(&json!({
        "request_id": format!("chatcmpl-{}", random_hex::<12>()), "token_ids": numbers(&ids), "sampling_params": {},
        "model": app.name(), "stream": stream, "cache_salt": cache_salt, "priority": priority, "features": null,
    }))
    .into_response())
}
