//! `/v1/chat/completions`.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use ottava::Request;
use ottava::engine::Logprobs;
use ottava::text::{Content, ContentPart, Message, RenderOptions, Vocab};
use serde_json::{Map, Value, json};

use crate::answer::{Answers, End, Output, Piece};
use crate::app::{App, random_hex};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::gate::Client;
use crate::params::{LOGPROBS_MAX, Params};
use crate::shape::{Frame, append, extend, fold_chunk, timings};
use crate::stream::{Dialect, respond};

/// Answers a conversation.
pub(crate) async fn completions(
    State(app): State<Arc<App>>,
    client: Client,
    body: Bytes,
) -> Result<Response, ApiError> {
    let mut fields = Fields::parse(&body)?;
    app.check_model(fields.take("model"))?;
    let mut params = Params::take(&mut fields, client.key())?;
    params.logprobs = logprobs(&mut fields)?;
    if params.max_tokens == Some(0) {
        return Err(ApiError::invalid("max_tokens", "max_tokens: expected at least 1, found 0"));
    }
    let conversation = Conversation::take(&mut fields)?;
    let ignored = client.ignored(&app, fields);
    let prompt = app.work(move |engine| Ok(engine.prompt_ids(&conversation.request())?)).await?;
    let answers = Answers::begin(&app, vec![prompt], &params)?;
    let chunks = Chunks::new(&app, &params);
    Ok(ignored.onto(respond(&app, params.stream, answers, chunks).await?))
}

/// Messages, and what the template is told beside them.
#[derive(Debug)]
pub(crate) struct Conversation {
    messages: Vec<Message>,
    options: RenderOptions,
}

impl Conversation {
    pub(crate) fn take(fields: &mut Fields) -> Result<Conversation, ApiError> {
        let messages = fields.take("messages").ok_or_else(|| {
            ApiError::invalid("messages", "messages: expected a list of messages, found none")
        })?;
        let Value::Array(messages) = messages else {
            return Err(ApiError::invalid("messages", "messages: expected a list of messages"));
        };
        if messages.is_empty() {
            return Err(ApiError::invalid("messages", "messages: expected at least one, found none"));
        }
        let messages = messages.into_iter().enumerate().map(|(at, value)| message(at, value));
        let messages = messages.collect::<Result<_, _>>()?;
        Ok(Conversation { messages, options: options(fields)? })
    }

    pub(crate) fn request(&self) -> Request {
        Request::chat(self.messages.clone()).template(self.options.clone())
    }
}

/// A message, checked: a role, and no part that is more than text.
fn message(at: usize, value: Value) -> Result<Message, ApiError> {
    let param = || format!("messages[{at}]");
    let mut message: Message = serde_json::from_value(value).map_err(|error| {
        ApiError::invalid(param(), format!("messages[{at}]: expected a role and a content: {error}"))
    })?;
    // OpenAI's newer name of the same role, which templates do not know.
    if message.role == "developer" {
        message.role = "system".into();
    }
    if !["system", "user", "assistant", "tool"].contains(&message.role.as_str()) {
        let role = crate::error::quoted(&message.role);
        let text =
            format!("messages[{at}].role: expected system, developer, user, assistant or tool, found {role}");
        return Err(ApiError::invalid(format!("messages[{at}].role"), text));
    }
    if let Content::Parts(parts) = &message.content
        && let Some(part) = parts.iter().find(|part| !is_text(part))
    {
        let kind = crate::error::quoted(&part.0.get("type").unwrap_or(&Value::Null).to_string());
        let text = format!("messages[{at}].content: this model reads text, found a part of type {kind}");
        return Err(ApiError::unsupported(format!("messages[{at}].content"), text));
    }
    Ok(message)
}

fn is_text(part: &ContentPart) -> bool {
    part.0.get("type").and_then(Value::as_str) == Some("text") && part.as_text().is_some()
}

/// What the template is told: `chat_template_kwargs`, documents, how much to think.
fn options(fields: &mut Fields) -> Result<RenderOptions, ApiError> {
    let mut options = RenderOptions::default();
    if let Some(prompt) = fields.bool("add_generation_prompt")? {
        options.add_generation_prompt = prompt;
    }
    let mut variables = Map::new();
    if let Some(effort) = fields.string("reasoning_effort")? {
        variables.insert("enable_thinking".into(), (effort != "none").into());
        variables.insert("reasoning_effort".into(), effort.into());
    }
    if let Some(documents) = fields.take("documents") {
        variables.insert("documents".into(), documents);
    }
    // What is given by its name in the template stands.
    variables.extend(fields.object("chat_template_kwargs")?.unwrap_or_default());
    options.variables = variables;
    Ok(options)
}

fn logprobs(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    let wanted = fields.bool("logprobs")?.unwrap_or(false);
    let top = fields.count("top_logprobs", 0, LOGPROBS_MAX)?;
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
}

impl Chunks {
    fn new(app: &App, params: &Params) -> Chunks {
        let id = format!("chatcmpl-{}", random_hex::<12>());
        let frame = Frame::new(id, "chat.completion.chunk", app, params, 1);
        Chunks { frame, vocab: Arc::clone(app.engine.vocab()) }
    }

    fn chunk(&self, index: usize, delta: Value, logprobs: Value, finish: Value) -> Value {
        self.frame
            .chunk(json!({"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}))
    }

    fn ended(&self, index: usize, end: End) -> Vec<Value> {
        let mut chunks = Vec::new();
        if !end.text.is_empty() {
            chunks.push(self.chunk(index, json!({"content": end.text}), Value::Null, Value::Null));
        }
        let mut last = self.chunk(index, json!({}), Value::Null, end.finish.into());
        last["choices"][0]["stop_reason"] = end.stop.map_or(Value::Null, Value::from);
        last["timings"] = timings(&end.usage, &end.timings);
        chunks.push(last);
        chunks
    }
}

impl Dialect for Chunks {
    fn begin(&mut self) -> Vec<Value> {
        let delta = json!({"role": "assistant", "content": ""});
        let first = |index| self.chunk(index, delta.clone(), Value::Null, Value::Null);
        (0..self.frame.choices()).map(first).collect()
    }

    fn chunks(&mut self, Output { index, piece }: Output) -> Vec<Value> {
        match piece {
            Piece::Token { id, text, logprobs, usage } => {
                self.frame.note(index, usage);
                let logprobs = logprobs.map_or(
                    Value::Null,
                    |found| json!({"content": [token(&self.vocab, id, &found)], "refusal": null}),
                );
                if text.is_empty() && logprobs.is_null() {
                    return Vec::new();
                }
                vec![self.chunk(index, json!({"content": text}), logprobs, Value::Null)]
            }
            Piece::End(end) => {
                self.frame.note(index, end.usage);
                self.ended(index, end)
            }
        }
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
        whole
    }

    fn fold(&self, whole: &mut Value, chunk: Value) {
        fold_chunk(whole, chunk, |choice, part| {
            append(&mut choice["message"]["content"], &part["delta"]["content"]);
            extend(&mut choice["logprobs"], "content", &part["logprobs"]["content"]);
        });
    }
}

/// A token with its log-probability, and those of the best.
fn token(vocab: &Vocab, id: ottava::TokenId, found: &Logprobs) -> Value {
    let entry = |id, logprob: f64| {
        let bytes = vocab.bytes(id).unwrap_or_default();
        json!({"token": String::from_utf8_lossy(bytes), "logprob": logprob, "bytes": bytes})
    };
    let mut token = entry(id, found.chosen);
    token["top_logprobs"] = found.top.iter().map(|&(id, logprob)| entry(id, logprob)).collect();
    token
}
