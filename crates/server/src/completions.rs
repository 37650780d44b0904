//! `/v1/completions`: prompts without a template.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use ottava::engine::{Logprobs, Usage};
use ottava::text::Vocab;
use ottava::{Engine, Request, TokenId};
use serde_json::{Value, json};

use crate::answer::{Answers, Output, Piece};
use crate::app::{App, random_hex};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::gate::Client;
use crate::params::{LOGPROBS_MAX, Params};
use crate::shape::{Head, timings, usage_of};
use crate::stream::{Dialect, streamed, whole};

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
    let mut fields = Fields::parse(&body)?;
    app.check_model(fields.take("model"))?;
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
    let scored = echo && logprobs.is_some();
    let (prompts, echoes) =
        app.work(move |engine| read(engine, prompts, echo, scored.then(|| logprobs.unwrap_or(0)))).await?;
    let chunks = Chunks::new(&app, &params, echoes, prompts.len());
    if params.max_tokens == Some(0) {
        return Ok(ignored.onto(echoed(chunks, &prompts)));
    }
    let answers = Answers::begin(&app, prompts, &params)?;
    let response =
        if params.stream { streamed(&app, answers, chunks) } else { whole(&app, answers, chunks).await? };
    Ok(ignored.onto(response))
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

/// The token ids of prompts, and their echoes; with log-probabilities if `top` says of how many.
fn read(
    engine: &Engine,
    prompts: Vec<Given>,
    echo: bool,
    top: Option<usize>,
) -> Result<(Vec<Vec<TokenId>>, Vec<Echo>), ApiError> {
    let (mut all, mut echoes) = (Vec::new(), Vec::new());
    for prompt in prompts {
        let request = match prompt {
            // Whoever writes a raw prompt writes all of it, control tokens included.
            Given::Text(text) => Request::text(text).parse_control_tokens(),
            Given::Tokens(ids) => Request::tokens(ids),
        };
        let ids = engine.prompt_ids(&request)?;
        if echo {
            let text = engine.tokenizer().decode(&ids);
            let logprobs = top.map(|top| scored(engine, &ids, top)).transpose()?;
            echoes.push(Echo { text, logprobs });
        }
        all.push(ids);
    }
    Ok((all, echoes))
}

/// The log-probabilities of a prompt's tokens; the first has none.
fn scored(engine: &Engine, ids: &[TokenId], top: usize) -> Result<Value, ApiError> {
    let vocab = engine.vocab();
    let mut list = Legacy::default();
    if let Some(&first) = ids.first() {
        list.push(vocab, first, None);
    }
    if ids.len() > 1 {
        let scores = engine.score(ids, top)?;
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
    head: Head,
    vocab: Arc<Vocab>,
    params: Params,
    prompts: usize,
    /// By prompt; none if they are not echoed.
    echoes: Vec<Echo>,
    usage: Vec<Usage>,
    /// By choice: characters so far.
    offsets: Vec<usize>,
}

impl Chunks {
    fn new(app: &App, params: &Params, echoes: Vec<Echo>, prompts: usize) -> Chunks {
        let head = Head::new(format!("cmpl-{}", random_hex::<12>()), "text_completion", app);
        let choices = params.n * prompts;
        let (usage, offsets) = (vec![Usage::default(); choices], vec![0; choices]);
        let vocab = Arc::clone(app.engine.vocab());
        Chunks { head, vocab, params: params.clone(), prompts, echoes, usage, offsets }
    }

    fn chunk(&self, index: usize, text: &str, logprobs: Value, finish: Value) -> Value {
        let choice = json!({"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish});
        let usage = self.params.continuous_usage.then(|| usage_of(&self.usage, self.prompts));
        self.head.chunk(json!([choice]), usage)
    }

    fn note(&mut self, index: usize, usage: Usage) {
        if let Some(kept) = self.usage.get_mut(index) {
            *kept = usage;
        }
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
        let n = self.params.n;
        let echoes = std::mem::take(&mut self.echoes);
        let mut chunks = Vec::new();
        for (prompt, echo) in echoes.into_iter().enumerate() {
            for index in prompt * n..(prompt + 1) * n {
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
            Piece::Token { id, text, logprobs, usage } => {
                self.note(index, usage);
                let logprobs = logprobs.map_or(Value::Null, |found| self.token(index, id, &found));
                if text.is_empty() && logprobs.is_null() {
                    return Vec::new();
                }
                vec![self.chunk(index, &text, logprobs, Value::Null)]
            }
            Piece::End(end) => {
                self.note(index, end.usage);
                let mut last = self.chunk(index, &end.text, Value::Null, end.finish.into());
                last["choices"][0]["stop_reason"] = end.stop.map_or(Value::Null, Value::from);
                last["timings"] = timings(&end.usage, &end.timings);
                vec![last]
            }
        }
    }

    fn end(&mut self) -> Vec<Value> {
        let wanted = self.params.include_usage || !self.params.stream;
        if !wanted {
            return Vec::new();
        }
        vec![self.head.chunk(json!([]), Some(usage_of(&self.usage, self.prompts)))]
    }

    fn fold(&self, chunks: Vec<Value>) -> Value {
        let mut whole = self.head.whole("text_completion");
        let mut choices: Vec<Value> = (0..self.usage.len())
            .map(|index| json!({"index": index, "text": "", "logprobs": null, "finish_reason": null}))
            .collect();
        for mut chunk in chunks {
            self.head.take_totals(&mut chunk, &mut whole);
            for part in crate::shape::choices(chunk) {
                let index = part["index"].as_u64().unwrap_or(0) as usize;
                let Some(choice) = choices.get_mut(index) else { continue };
                crate::shape::append(&mut choice["text"], &part["text"]);
                for name in LISTS {
                    crate::shape::extend(&mut choice["logprobs"], name, &part["logprobs"][name]);
                }
                crate::shape::take_end(choice, part);
            }
        }
        whole["choices"] = choices.into();
        whole
    }
}

/// The answer to a request for no token: the prompts themselves, to read their log-probabilities.
fn echoed(mut chunks: Chunks, prompts: &[Vec<TokenId>]) -> Response {
    let n = chunks.params.n;
    for (index, usage) in chunks.usage.iter_mut().enumerate() {
        usage.prompt_tokens = prompts.get(index / n).map_or(0, Vec::len);
    }
    let mut all = chunks.begin();
    let ends = (0..chunks.usage.len()).map(|index| chunks.chunk(index, "", Value::Null, "length".into()));
    all.extend(ends.collect::<Vec<_>>());
    all.push(chunks.head.chunk(json!([]), Some(usage_of(&chunks.usage, chunks.prompts))));
    let whole = chunks.fold(all);
    axum::response::IntoResponse::into_response(crate::error::json_body(&whole))
}
