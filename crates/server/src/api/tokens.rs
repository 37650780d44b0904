//! `/tokenize` and `/detokenize`, by llama.cpp's and by vLLM's names; the tokens of a chat for clients and routers.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use ottava::text::{AddBos, Special};
use ottava::{Engine, TokenId};
use serde_json::{Value, json};

use crate::error::{ApiError, json_body};
use crate::ids::random_hex;
use crate::request::conversation::Conversation;
use crate::request::json_fields::Fields;
use crate::state::App;

/// What is made into tokens.
enum Source {
    Text { text: String, special: Special, bos: AddBos },
    Chat(Box<Conversation>),
}

/// The tokens of a text or of a conversation.
pub(crate) async fn tokenize(State(app): State<Arc<App>>, body: Bytes) -> Result<Response, ApiError> {
    let mut fields = app.fields(&body)?;
    let spelled = fields.bool("return_token_strs")?.unwrap_or(false);
    let with_pieces = fields.bool("with_pieces")?.unwrap_or(false);
    let source = source(&mut fields)?;
    let answer = app.work(move |engine| {
        let ids = ids(engine, &source)?;
        let mut answer =
            json!({"count": ids.len(), "max_model_len": engine.info().context_max, "tokens": numbers(&ids)});
        if spelled {
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

/// A token as llama.cpp has it: its id, and its text, or its bytes where they are no UTF-8.
fn piece(engine: &Engine, id: TokenId) -> Value {
    let bytes = engine.vocab().bytes(id).unwrap_or_default();
    match std::str::from_utf8(bytes) {
        Ok(text) => json!({"id": id.0, "piece": text}),
        Err(_) => json!({"id": id.0, "piece": bytes}),
    }
}

fn source(fields: &mut Fields) -> Result<Source, ApiError> {
    // llama.cpp adds no BOS unless asked, vLLM does unless told not to; each has its own name for the text.
    let llama = fields.string("content")?;
    let vllm = fields.string("prompt")?.or(fields.string("text")?);
    let add = fields.bool("add_special_tokens")?.or(fields.bool("add_special")?);
    let parse = fields.bool("parse_special")?.unwrap_or(true);
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

/// The text of tokens, control tokens included.
pub(crate) async fn detokenize(State(app): State<Arc<App>>, body: Bytes) -> Result<Response, ApiError> {
    let mut fields = app.fields(&body)?;
    let wrong = || ApiError::invalid("tokens", "tokens: expected a list of token ids");
    let vocab = app.engine.vocab().len();
    let id = |value: &Value| {
        let id = value.as_u64().and_then(|id| u32::try_from(id).ok()).map(TokenId);
        id.filter(|id| (id.0 as usize) < vocab).ok_or_else(wrong)
    };
    let tokens = fields.take("tokens").ok_or_else(wrong)?;
    let ids = tokens.as_array().ok_or_else(wrong)?.iter().map(id).collect::<Result<Vec<_>, _>>()?;
    let text = app.engine.tokenizer().decode_with_control(&ids);
    Ok(json_body(&json!({"content": text, "prompt": text})).into_response())
}

/// The tokens of a conversation's prompt.
pub(crate) async fn ids_of(app: &Arc<App>, conversation: Conversation) -> Result<Vec<TokenId>, ApiError> {
    app.work(move |engine| conversation.ids(engine)).await
}

/// How many tokens a chat's prompt is.
pub(crate) async fn input_tokens(State(app): State<Arc<App>>, body: Bytes) -> Result<Response, ApiError> {
    let mut fields = app.fields(&body)?;
    let count = ids_of(&app, Conversation::take(&mut fields)?).await?.len();
    Ok(json_body(&json!({"object": "response.input_tokens", "input_tokens": count})).into_response())
}

/// A chat's prompt as tokens, as vllm-router asks for them before it chooses a worker.
pub(crate) async fn render(State(app): State<Arc<App>>, body: Bytes) -> Result<Response, ApiError> {
    let mut fields = app.fields(&body)?;
    let mut answer = json!({
        "request_id": format!("chatcmpl-{}", random_hex::<12>()), "token_ids": [], "sampling_params": {},
        "model": app.name(), "stream": fields.bool("stream")?.unwrap_or(false),
        "cache_salt": fields.string("cache_salt")?, "priority": fields.integer("priority")?.unwrap_or(0),
        "features": null,
    });
    answer["token_ids"] = numbers(&ids_of(&app, Conversation::take(&mut fields)?).await?);
    Ok(json_body(&answer).into_response())
}
