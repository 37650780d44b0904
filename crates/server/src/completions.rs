//! `/v1/completions`: prompts without a template.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use ottava::engine::{Logprobs, Timings, Usage};
use ottava::text::Vocab;
use ottava::{Engine, Request, TokenId};
use serde_json::{Value, json};

use crate::answer::{Answers, End, Output, Piece, Prompt, text_of};
use crate::app::{App, random_hex};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::gate::Client;
use crate::params::{LOGPROBS_MAX, Params};
use crate::shape::{Frame, append, extend, fold_chunk, timings};
use crate::stream::{Dialect, respond};

/// Most prompts of a request.
const PROMPTS_MAX: usize = 64;
/// Tokens of an answer unless the request says.
const MAX_TOKENS: usize = 16;

/// Continues prompts.
pub(crate) async fn completions(
    State(app): State<Arc<App>>,
    client: Client,
    body: Bytes,
) -> Result<Response, ApiError> {
    let mut fields = app.fields(&body)?;
    // In this API a number, in chat's a flag.
    let logprobs = fields.count("logprobs", 0, LOGPROBS_MAX)?;
    let echo = fields.bool("echo")?.unwrap_or(false);
    fields.refuse("suffix", |suffix| suffix == "")?;
    let mut params = Params::take(&mut fields, client.key())?;
    params.logprobs = logprobs;
    params.max_tokens = params.max_tokens.or(Some(MAX_TOKENS));
    let prompts = prompts(&mut fields)?;
    let ignored = client.ignored(&app, fields);
    if params.max_tokens == Some(0) && !echo {
        return Err(ApiError::invalid("max_tokens", "max_tokens: expected at least 1 without echo, found 0"));
    }
    params.compile(&app).await?;
    let prompts = app.work(move |engine| read(engine, prompts)).await?;
    let echoes = if echo { echoes(&app, &prompts, &params).await? } else { Vec::new() };
    let chunks = Chunks::new(&app, &params, echoes, prompts.len());
    let answers = match params.max_tokens {
        Some(0) => Answers::ended(&app, ends(&prompts, params.n)),
        _ => Answers::begin(&app, prompts.into_iter().map(Prompt::plain).collect(), &params)?,
    };
    Ok(ignored.onto(respond(&app, params.stream, answers, chunks).await?))
}

/// A prompt as it was given.
#[derive(Debug)]
enum Given {
    Text(String),
    Tokens(Vec<TokenId>),
}

/// A text, token ids, or a list of either.
fn prompts(fields: &mut Fields) -> Result<Vec<Given>, ApiError> {
    let wrong = || {
        let message = "prompt: expected a text, a list of texts, token ids, or a list of lists of token ids";
        ApiError::invalid("prompt", message)
    };
    let ids = |list: &[Value]| -> Option<Vec<TokenId>> {
        list.iter().map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok()).map(TokenId)).collect()
    };
    let one = |value: &Value| match value {
        Value::String(text) => Some(Given::Text(text.clone())),
        Value::Array(list) => ids(list).map(Given::Tokens),
        _ => None,
    };
    let prompts: Vec<Given> = match fields.take("prompt").ok_or_else(wrong)? {
        Value::Array(list) if list.first().is_some_and(|first| !first.is_number()) => {
            list.iter().map(one).collect::<Option<_>>().ok_or_else(wrong)?
        }
        value => vec![one(&value).ok_or_else(wrong)?],
    };
    if prompts.len() > PROMPTS_MAX {
        let found = prompts.len();
        return Err(ApiError::invalid(
            "prompt",
            format!("prompt: expected at most {PROMPTS_MAX}, found {found}"),
        ));
    }
    Ok(prompts)
}

/// What an answer begins with where its prompt is echoed.
#[derive(Clone, Debug, Default)]
struct Echo {
    text: String,
    logprobs: Option<Value>,
}

/// The token ids of prompts.
fn read(engine: &Engine, prompts: Vec<Given>) -> Result<Vec<Vec<TokenId>>, ApiError> {
    let ids = |prompt| {
        let request = match prompt {
            // Whoever writes a raw prompt writes all of it, control tokens included.
            Given::Text(text) => Request::text(text).parse_control_tokens(),
            Given::Tokens(ids) => Request::tokens(ids),
        };
        Ok(engine.prompt_ids(&request)?)
    };
    prompts.into_iter().map(ids).collect()
}

/// The echoes of prompts; with log-probabilities if they are asked for.
async fn echoes(app: &Arc<App>, prompts: &[Vec<TokenId>], params: &Params) -> Result<Vec<Echo>, ApiError> {
    let (prompts, top, salt) = (prompts.to_vec(), params.logprobs, params.salt());
    let echo = move |engine: &Engine, ids: &[TokenId]| {
        let logprobs = top.map(|top| scored(engine, ids, top, salt)).transpose()?;
        Ok(Echo { text: engine.tokenizer().decode(ids), logprobs })
    };
    app.wait(move |engine| prompts.iter().map(|ids| echo(engine, ids)).collect()).await
}

/// The log-probabilities of a prompt's tokens; the first has none.
fn scored(engine: &Engine, ids: &[TokenId], top: usize, salt: Option<[u8; 32]>) -> Result<Value, ApiError> {
    let vocab = engine.vocab();
    let mut list = Legacy::default();
    if let Some(&first) = ids.first() {
        list.push(vocab, first, None);
    }
    if ids.len() > 1 {
        let scores = match salt {
            Some(salt) => engine.score_salted(ids, top, salt)?,
            None => engine.score(ids, top)?,
        };
        for (at, &id) in ids.iter().enumerate().skip(1) {
            let chosen = -scores.nll.get(at - 1).copied().unwrap_or(f64::INFINITY);
            let best = scores.top.get(at - 1).into_iter().flatten();
            let log_sum = scores.log_sums.get(at - 1).copied().unwrap_or_default();
            let top: Vec<_> = best.map(|&(id, logit)| (id, f64::from(logit) - log_sum)).collect();
            list.push(vocab, id, Some((chosen, &top)));
        }
    }
    Ok(list.value())
}

/// The lists of the old API: side by side, not an object per token.
#[derive(Debug, Default)]
struct Legacy {
    tokens: Vec<Value>,
    token_logprobs: Vec<Value>,
    top_logprobs: Vec<Value>,
    text_offset: Vec<Value>,
    /// Characters so far.
    offset: usize,
}

impl Legacy {
    fn push(&mut self, vocab: &Vocab, id: TokenId, found: Option<(f64, &[(TokenId, f64)])>) {
        let spelled = |id| String::from_utf8_lossy(vocab.bytes(id).unwrap_or_default()).into_owned();
        let text = spelled(id);
        self.text_offset.push(self.offset.into());
        self.offset += text.chars().count();
        self.tokens.push(text.into());
        self.token_logprobs.push(found.map_or(Value::Null, |(chosen, _)| json!(chosen)));
        self.top_logprobs.push(found.map_or(Value::Null, |(_, top)| {
            top.iter().map(|&(id, logprob)| (spelled(id), json!(logprob))).collect()
        }));
    }

    fn value(self) -> Value {
        json!({
            "tokens": self.tokens, "token_logprobs": self.token_logprobs,
            "top_logprobs": self.top_logprobs, "text_offset": self.text_offset,
        })
    }
}

/// The names of [`Legacy`]'s lists.
const LISTS: [&str; 4] = ["tokens", "token_logprobs", "top_logprobs", "text_offset"];

/// The chunks of completions.
struct Chunks {
    frame: Frame,
    vocab: Arc<Vocab>,
    /// Choices of each prompt.
    n: usize,
    /// By prompt; none if they are not echoed.
    echoes: Vec<Echo>,
    /// By choice: characters so far.
    offsets: Vec<usize>,
}

impl Chunks {
    fn new(app: &App, params: &Params, echoes: Vec<Echo>, prompts: usize) -> Chunks {
        let id = format!("cmpl-{}", random_hex::<12>());
        let frame = Frame::new(id, "text_completion", app, params, prompts);
        let (vocab, offsets) = (Arc::clone(app.engine.vocab()), vec![0; frame.choices()]);
        Chunks { frame, vocab, n: params.n, echoes, offsets }
    }

    fn chunk(&self, index: usize, text: &str, logprobs: Value, finish: Value) -> Value {
        self.frame.chunk(json!({"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}))
    }

    fn token(&mut self, index: usize, id: TokenId, found: &Logprobs) -> Value {
        let Some(offset) = self.offsets.get_mut(index) else { return Value::Null };
        let mut list = Legacy { offset: *offset, ..Legacy::default() };
        list.push(&self.vocab, id, Some((found.chosen, &found.top)));
        *offset = list.offset;
        list.value()
    }
}

impl Dialect for Chunks {
    fn begin(&mut self) -> Vec<Value> {
        let mut chunks = Vec::new();
        for (prompt, echo) in std::mem::take(&mut self.echoes).into_iter().enumerate() {
            for index in prompt * self.n..(prompt + 1) * self.n {
                if let Some(offset) = self.offsets.get_mut(index) {
                    *offset = echo.text.chars().count();
                }
                let logprobs = echo.logprobs.clone().unwrap_or(Value::Null);
                chunks.push(self.chunk(index, &echo.text, logprobs, Value::Null));
            }
        }
        chunks
    }

    fn chunks(&mut self, Output { index, piece }: Output) -> Vec<Value> {
        match piece {
            Piece::Token { id, parts, logprobs, usage } => {
                let text = text_of(parts);
                self.frame.note(index, usage);
                let logprobs = logprobs.map_or(Value::Null, |found| self.token(index, id, &found));
                if text.is_empty() && logprobs.is_null() {
                    return Vec::new();
                }
                vec![self.chunk(index, &text, logprobs, Value::Null)]
            }
            Piece::End(end) => {
                self.frame.note(index, end.usage);
                let mut last = self.chunk(index, &text_of(end.parts), Value::Null, end.finish.into());
                last["choices"][0]["stop_reason"] = end.stop.map_or(Value::Null, Value::from);
                last["timings"] = timings(&end.usage, &end.timings);
                vec![last]
            }
        }
    }

    fn end(&mut self) -> Vec<Value> {
        self.frame.end()
    }

    fn empty(&self) -> Value {
        let choice =
            |index: usize| json!({"index": index, "text": "", "logprobs": null, "finish_reason": null});
        let mut whole = self.frame.whole("text_completion");
        whole["choices"] = (0..self.frame.choices()).map(choice).collect();
        whole
    }

    fn fold(&self, whole: &mut Value, chunk: Value) {
        fold_chunk(whole, chunk, |choice, part| {
            append(&mut choice["text"], &part["text"]);
            for name in LISTS {
                extend(&mut choice["logprobs"], name, &part["logprobs"][name]);
            }
        });
    }
}

/// What stands for the engine's pieces in a request for no token: the prompts themselves are the answer.
fn ends(prompts: &[Vec<TokenId>], n: usize) -> Vec<Output> {
    let end = |index: usize| {
        let mut usage = Usage::default();
        usage.prompt_tokens = prompts.get(index / n).map_or(0, Vec::len);
        let timings = Timings::default();
        Piece::End(End { parts: Vec::new(), finish: "length", stop: None, usage, timings })
    };
    (0..prompts.len() * n).map(|index| Output { index, piece: end(index) }).collect()
}
