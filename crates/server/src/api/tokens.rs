//! `/tokenize` and `/detokenize`, with llama.cpp's and vLLM's names; prompt tokens of a chat for clients and
//! routers.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use ottava::text::{AddBos, Special, Vocab};
use ottava::{Engine, TokenId};
use serde_json::{Value, json};

use crate::answer::json::{self, Json, Pieces, Slice, elements, string};
use crate::answer::openai_chunks::numbers;
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
use crate::request::template_demands::TemplateDemands;
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

/// Most tokens with a text of each.
const PIECES_MAX: usize = 1 << 20;

/// Tokens of a text or of a conversation.
pub(crate) async fn tokenize(
    State(app): State<Arc<App>>,
    Typed(request, ignored, _): Typed<TokenizeRequest>,
) -> Result<Response, ApiError> {
    let demands = Arc::clone(&app.demands);
    let slice = app.work(move |engine| {
        let ids = ids(engine, &demands, &request.source)?;
        for (name, found) in
            [("return_token_strs", request.with_strings), ("with_pieces", request.with_pieces)]
        {
            if found && ids.len() > PIECES_MAX {
                let message = format!("{name}: expected at most {PIECES_MAX} tokens, found {}", ids.len());
                return Err(ApiError::invalid(name, message));
            }
        }
        Ok(Slice::of(tokenized(engine, ids.into(), &request)))
    });
    let slice = slice.await?;
    Ok(ignored.counted(&app).onto(slice.into_response(&app)))
}

/// The answer of `/tokenize`.
fn tokenized(engine: &Engine, ids: Arc<[TokenId]>, request: &TokenizeRequest) -> Pieces {
    let (count, most) = (ids.len(), engine.info().context_max);
    let head = format!(r#"{{"count":{count},"max_model_len":{most},"tokens":["#);
    let (all, with_pieces) = ((Arc::clone(engine.vocab()), ids), request.with_pieces);
    let tokens = each(all.clone(), move |vocab, id| match with_pieces {
        true => piece(vocab, id).to_string(),
        false => id.0.to_string(),
    });
    let strings = request.with_strings.then(|| {
        let strings = each(all, |vocab, id| {
            Value::from(String::from_utf8_lossy(vocab.bytes(id).unwrap_or_default())).to_string()
        });
        text(r#"],"token_strs":["#).chain(strings)
    });
    Box::new(text(&head).chain(tokens).chain(strings.into_iter().flatten()).chain(text("]}")))
}

/// A piece of its own.
fn text(piece: &str) -> std::iter::Once<String> {
    std::iter::once(piece.to_owned())
}

/// Each token as an element of a list.
fn each(
    (vocab, ids): (Arc<Vocab>, Arc<[TokenId]>),
    write: impl Fn(&Vocab, TokenId) -> String,
) -> impl Iterator<Item = String> {
    elements((0..ids.len()).map(move |at| ids.get(at).map(|id| write(&vocab, *id)).unwrap_or_default()))
}

/// A token in llama.cpp's form: id, and text or, for invalid UTF-8, bytes.
fn piece(vocab: &Vocab, id: TokenId) -> Value {
    let bytes = vocab.bytes(id).unwrap_or_default();
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

fn ids(engine: &Engine, demands: &TemplateDemands, source: &Source) -> Result<Vec<TokenId>, ApiError> {
    match source {
        Source::Chat(conversation) => conversation.ids(engine, demands),
        Source::Text { text, special, bos } => engine
            .tokenizer()
            .encode(text, *special, *bos)
            .map_err(|error| ApiError::from(ottava::Error::from(error))),
    }
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

/// Most bytes of a text for token ids.
const TEXT_MAX: usize = 16 << 20;

/// The text of tokens, control tokens included.
pub(crate) async fn detokenize(
    State(app): State<Arc<App>>,
    Typed(request, ignored, _): Typed<DetokenizeRequest>,
) -> Result<Response, ApiError> {
    let slice = app.work(move |engine| {
        let vocab = engine.vocab();
        let lengths = request.ids.iter().map(|id| vocab.bytes(*id).map(<[u8]>::len));
        let bytes: usize = lengths.sum::<Option<usize>>().ok_or_else(no_ids)?;
        if bytes > TEXT_MAX {
            let message = format!("tokens: expected at most {TEXT_MAX} bytes of text, found {bytes}");
            return Err(ApiError::invalid("tokens", message));
        }
        let found: Arc<str> = engine.tokenizer().decode_with_control(&request.ids).into();
        let pieces = text(r#"{"content":"#)
            .chain(string(Arc::clone(&found), ""))
            .chain(text(r#","prompt":"#))
            .chain(string(found, ""))
            .chain(text("}"));
        Ok(Slice::of(Box::new(pieces)))
    });
    let slice = slice.await?;
    Ok(ignored.counted(&app).onto(slice.into_response(&app)))
}

/// The tokens of a conversation's prompt.
pub(crate) async fn ids_of(app: &Arc<App>, conversation: Conversation) -> Result<Vec<TokenId>, ApiError> {
    let demands = Arc::clone(&app.demands);
    app.work(move |engine| conversation.ids(engine, &demands)).await
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
    Typed(request, ignored, _): Typed<CountRequest>,
) -> Result<Response, ApiError> {
    let count = ids_of(&app, request.conversation).await?.len();
    let answer =
        json_body(&json!({"object": "response.input_tokens", "input_tokens": count})).into_response();
    Ok(ignored.counted(&app).onto(answer))
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
    Typed(request, ignored, _): Typed<RenderRequest>,
) -> Result<Response, ApiError> {
    let RenderRequest { conversation, stream, cache_salt, priority } = request;
    let ids = ids_of(&app, conversation).await?;
    let answer = json!({
        "request_id": format!("chatcmpl-{}", random_hex::<12>()), "token_ids": numbers(&ids), "sampling_params": {},
        "model": app.name(), "stream": stream, "cache_salt": cache_salt, "priority": priority, "features": null,
    });
    Ok(ignored.counted(&app).onto(json::answer(&app, Json::Value(answer)).await?))
}
