//! `/v1/chat/completions`.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use ottava::TokenId;
use ottava::chat::ChatPart;
use ottava::engine::Logprobs;
use ottava::text::Vocab;
use serde_json::{Value, json};

use crate::answer::choices::{self, extend_text};
use crate::answer::custom_input::CustomInput;
use crate::answer::json::Json;
use crate::answer::openai_chunks::{Frame, append, extend, fold_chunk, numbers, stop_reason, timings};
use crate::answer::stream::{ResponseFormat, respond};
use crate::answer::{Answers, End, Output, Piece};
use crate::api::typed::{ApiRequest, Groups, Typed};
use crate::error::ApiError;
use crate::ids::random_hex;
use crate::request::call_forms::CallForms;
use crate::request::conversation::{Conversation, of_messages};
use crate::request::fields::RequestFields;
use crate::request::params::Params;
use crate::request::table::{
    CHAT_INPUT, CHAT_LOGPROBS, GENERATION, LOGPROBS, RETURN_TOKEN_IDS, TEMPLATE, TOKEN_IDS, TOP_LOGPROBS,
};
use crate::state::App;

/// A request of `/v1/chat/completions`.
pub(crate) struct ChatRequest {
    conversation: Conversation,
    params: Params,
}

impl ApiRequest for ChatRequest {
    const GROUPS: Groups = &[&[&CHAT_INPUT, &TEMPLATE, &CHAT_LOGPROBS, &TOKEN_IDS], GENERATION];
    const REQUIRED: &'static [&'static str] = &["messages"];

    fn read(fields: &mut RequestFields, key: Option<&str>) -> Result<ChatRequest, ApiError> {
        let conversation = Conversation::take(fields)?;
        let token_ids = fields.take(&RETURN_TOKEN_IDS)?.unwrap_or(false);
        let mut params = Params::take(fields, key, None)?;
        (params.logprobs, params.token_ids) = (logprobs(fields)?, token_ids);
        if params.max_tokens == Some(0) {
            return Err(ApiError::invalid("max_tokens", "max_tokens: expected at least 1, found 0"));
        }
        Ok(ChatRequest { conversation, params })
    }
}

/// Answers a conversation.
pub(crate) async fn completions(
    State(app): State<Arc<App>>,
    Typed(request, ignored, room): Typed<ChatRequest>,
) -> Result<Response, ApiError> {
    let ChatRequest { conversation, mut params } = request;
    let ignored = ignored.counted(&app);
    let forms = conversation.forms();
    let (answers, _) = begin(&app, conversation, &mut params).await?;
    drop(room);
    let chunks = Chunks::new(&app, &params, forms, answers.prompt_ids(0));
    Ok(ignored.onto(respond(&app, params.stream, answers, chunks).await?))
}

/// Submits a conversation of any API, and returns its answers with the number of prompt tokens.
pub(crate) async fn begin(
    app: &Arc<App>,
    conversation: Conversation,
    params: &mut Params,
) -> Result<(Answers, usize), ApiError> {
    let grammar = params.take_grammar(app).await?;
    let demands = Arc::clone(&app.demands);
    let prompt = app.work(move |engine| conversation.prompt(engine, &demands, grammar.as_ref())).await?;
    let tokens = prompt.ids.len();
    params.bound(app.engine.info().context_max, 1, 0)?;
    Ok((Answers::begin(app, vec![prompt], params).map_err(of_messages)?, tokens))
}

fn logprobs(fields: &mut RequestFields) -> Result<Option<usize>, ApiError> {
    let wanted = fields.take(&LOGPROBS)?.unwrap_or(false);
    let top = fields.take(&TOP_LOGPROBS)?;
    match (wanted, top) {
        (true, top) => Ok(Some(top.unwrap_or(0))),
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => {
            Err(ApiError::invalid("top_logprobs", "top_logprobs: expected logprobs to be true"))
        }
    }
}

/// The chunks of a chat's answer.
struct Chunks {
    frame: Frame,
    vocab: Arc<Vocab>,
    forms: CallForms,
    /// Input of custom calls, by choice and call.
    inputs: HashMap<(usize, usize), CustomInput>,
    /// By choice: whether its first chunk, with the role, was sent.
    begun: Vec<bool>,
    /// The prompt's token ids; `None` if token ids are not requested.
    prompt_ids: Option<Value>,
    with_logprobs: bool,
}

impl Chunks {
    fn new(app: &App, params: &Params, forms: CallForms, prompt: &[TokenId]) -> Chunks {
        let id = format!("chatcmpl-{}", random_hex::<12>());
        let frame = Frame::new(id, "chat.completion.chunk", app, params, 1).counting_reasoning();
        let begun = vec![false; frame.choices()];
        let prompt_ids = params.token_ids.then(|| numbers(prompt));
        let vocab = Arc::clone(app.engine.vocab());
        let with_logprobs = params.logprobs.is_some();
        Chunks { frame, vocab, forms, inputs: HashMap::new(), begun, prompt_ids, with_logprobs }
    }

    fn chunk(&self, index: usize, delta: Value, logprobs: Value, finish: Value) -> Value {
        self.frame
            .chunk(json!({"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}))
    }

    /// The first chunk of a choice, sent with its first token. It has no content: clients measure the time to
    /// the first token by a chunk, or by its content.
    fn role(&mut self, index: usize) -> Vec<Value> {
        match self.begun.get_mut(index) {
            Some(begun) if !*begun => *begun = true,
            _ => return Vec::new(),
        }
        let mut first = self.chunk(index, json!({"role": "assistant"}), Value::Null, Value::Null);
        if let Some(ids) = &self.prompt_ids {
            first["prompt_token_ids"] = ids.clone();
        }
        vec![first]
    }

    /// A chunk for each part; the first has the token's log-probabilities and id.
    fn token(&mut self, index: usize, id: TokenId, parts: Vec<ChatPart>, mut logprobs: Value) -> Vec<Value> {
        let mut deltas: Vec<Value> = parts.into_iter().filter_map(|part| self.delta(index, part)).collect();
        if deltas.is_empty() && (!logprobs.is_null() || self.prompt_ids.is_some()) {
            deltas.push(json!({}));
        }
        let chunk = |delta| self.chunk(index, delta, logprobs.take(), Value::Null);
        let mut chunks: Vec<Value> = deltas.into_iter().map(chunk).collect();
        if let (Some(first), Some(_)) = (chunks.first_mut(), &self.prompt_ids) {
            first["choices"][0]["token_ids"] = numbers(&[id]);
        }
        chunks
    }

    /// The delta for a part.
    fn delta(&mut self, choice: usize, part: ChatPart) -> Option<Value> {
        let call = |call: Value| Some(json!({"tool_calls": [call]}));
        match part {
            ChatPart::Text(text) => Some(json!({"content": text})),
            ChatPart::Reasoning(text) => Some(json!({"reasoning_content": text})),
            ChatPart::CallStart { index, id, name } if self.forms.is_custom(&name) => {
                self.inputs.insert((choice, index), CustomInput::default());
                call(
                    json!({"index": index, "id": id, "type": "custom", "custom": {"name": name, "input": ""}}),
                )
            }
            ChatPart::CallStart { index, id, name } => call(json!({
                "index": index, "id": id, "type": "function", "function": {"name": name, "arguments": ""},
            })),
            ChatPart::CallArguments { index, text } => match self.inputs.get_mut(&(choice, index)) {
                Some(input) => {
                    let text = Some(input.push(&text)).filter(|text| !text.is_empty())?;
                    call(json!({"index": index, "custom": {"input": text}}))
                }
                None => call(json!({"index": index, "function": {"arguments": text}})),
            },
            _ => None,
        }
    }

    /// Deltas with the text that custom calls held back to the end.
    fn rest(&mut self, choice: usize) -> Vec<Value> {
        let mut calls: Vec<_> = self.inputs.iter_mut().filter(|((of, _), _)| *of == choice).collect();
        calls.sort_by_key(|((_, index), _)| *index);
        let rest = calls.into_iter().map(|((_, index), input)| (*index, input.finish()));
        rest.filter(|(_, text)| !text.is_empty())
            .map(|(index, text)| json!({"tool_calls": [{"index": index, "custom": {"input": text}}]}))
            .collect()
    }

    fn ended(&mut self, index: usize, mut end: End) -> Vec<Value> {
        let parts = std::mem::take(&mut end.parts).into_iter();
        let mut deltas: Vec<Value> = parts.filter_map(|part| self.delta(index, part)).collect();
        deltas.extend(self.rest(index));
        let mut last = self.chunk(index, json!({}), Value::Null, end.finish.into());
        last["choices"][0]["stop_reason"] = stop_reason(&end);
        if let (Some((id, _)), Some(_)) = (&end.token, &self.prompt_ids) {
            last["choices"][0]["token_ids"] = numbers(&[*id]);
        }
        last["timings"] = timings(&end.usage, &end.timings);
        let rest = deltas.into_iter().map(|delta| self.chunk(index, delta, Value::Null, Value::Null));
        rest.chain([last]).collect()
    }
}

impl ResponseFormat for Chunks {
    fn begin(&mut self) -> Vec<Value> {
        Vec::new()
    }

    fn chunks(&mut self, Output { index, piece }: Output) -> Vec<Value> {
        self.frame.note(
            index,
            match &piece {
                Piece::Token { usage, .. } => *usage,
                Piece::End(end) => end.usage,
            },
        );
        let mut chunks = self.role(index);
        chunks.extend(match piece {
            Piece::Token { id, parts, logprobs, .. } => {
                self.frame.read(index, &parts);
                let logprobs = logprobs.map_or(
                    Value::Null,
                    |found| json!({"content": [token(&self.vocab, id, &found)], "refusal": null}),
                );
                self.token(index, id, parts, logprobs)
            }
            Piece::End(end) => self.ended(index, end),
        });
        chunks
    }

    fn end(&mut self) -> Vec<Value> {
        self.frame.end()
    }

    fn empty(&self) -> Value {
        let choice = |index: usize| {
            let message = json!({"role": "assistant", "content": ""});
            json!({"index": index, "message": message, "logprobs": null, "finish_reason": null})
        };
        let mut whole = self.frame.whole("chat.completion");
        whole["choices"] = (0..self.frame.choices()).map(choice).collect();
        if let Some(ids) = &self.prompt_ids {
            whole["prompt_token_ids"] = ids.clone();
        }
        whole
    }

    fn whole(&self, folded: Value) -> Json {
        match self.with_logprobs {
            true => Json::Pieces(choices::pieces(folded, |_| None)),
            false => Json::Value(folded),
        }
    }

    fn fold(&self, whole: &mut Value, chunk: Value) {
        fold_chunk(whole, chunk, |choice, part| {
            fold_delta(&mut choice["message"], &part["delta"]);
            // A message with calls alone has no content, not an empty text.
            if part["finish_reason"] == "tool_calls" && choice["message"]["content"] == "" {
                choice["message"]["content"] = Value::Null;
            }
            extend_text(&mut choice["logprobs"], "content", &part["logprobs"]["content"]);
            extend(choice, "token_ids", &part["token_ids"]);
        });
    }
}

/// Folds a delta into a message.
fn fold_delta(message: &mut Value, delta: &Value) {
    append(&mut message["content"], &delta["content"]);
    if delta["reasoning_content"].is_string() {
        let reasoning = &mut message["reasoning_content"];
        if reasoning.is_null() {
            *reasoning = "".into();
        }
        append(reasoning, &delta["reasoning_content"]);
    }
    for call in delta["tool_calls"].as_array().into_iter().flatten() {
        let index = call["index"].as_u64().and_then(|index| usize::try_from(index).ok()).unwrap_or_default();
        match message["tool_calls"].get_mut(index) {
            Some(kept) if kept["type"] == "custom" => {
                append(&mut kept["custom"]["input"], &call["custom"]["input"]);
            }
            Some(kept) => append(&mut kept["function"]["arguments"], &call["function"]["arguments"]),
            None => {
                let mut first = call.clone();
                first.as_object_mut().map(|call| call.shift_remove("index"));
                extend(message, "tool_calls", &json!([first]));
            }
        }
    }
}

/// A token with its log-probability and its alternatives.
fn token(vocab: &Vocab, id: TokenId, found: &Logprobs) -> Value {
    let entry = |id, logprob: f64| {
        let bytes = vocab.bytes(id).unwrap_or_default();
        json!({"token": String::from_utf8_lossy(bytes), "logprob": logprob, "bytes": bytes})
    };
    let mut token = entry(id, found.chosen);
    token["top_logprobs"] = found.top.iter().map(|&(id, logprob)| entry(id, logprob)).collect();
    token
}
