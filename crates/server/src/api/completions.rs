//! `/v1/completions`: prompts without a template.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use ottava::engine::{Logprobs, ScoreOptions, Scores, Timings, Usage};
use ottava::text::Vocab;
use ottava::{Engine, Request, TokenId};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::answer::choices::{self, Echo, Scored, extend_text};
use crate::answer::completion_logprobs::{NAMES, Place, lists};
use crate::answer::json::{Json, Pieces};
use crate::answer::openai_chunks::{Frame, append, extend, fold_chunk, numbers, stop_reason, timings};
use crate::answer::stream::{ResponseFormat, respond};
use crate::answer::{Answers, End, Output, Piece, text_of, too_late};
use crate::api::typed::{ApiRequest, Groups, Typed};
use crate::error::ApiError;
use crate::ids::random_hex;
use crate::request::fields::RequestFields;
use crate::request::params::Params;
use crate::request::prompt::Prompt;
use crate::request::table::{
    COMPLETION_LOGPROBS, COMPLETIONS, ECHO, GENERATION, PROMPT, RETURN_TOKEN_IDS, SUFFIX, TOKEN_IDS,
};
use crate::state::App;

/// Most prompts of a request.
const PROMPTS_MAX: usize = 64;
/// Most answers to all prompts of a request.
const ANSWERS_MAX: usize = 512;
/// Default of `max_tokens`.
const MAX_TOKENS: usize = 16;

/// A request of `/v1/completions`.
pub(crate) struct CompletionRequest {
    prompts: Vec<Given>,
    echo: bool,
    params: Params,
}

impl ApiRequest for CompletionRequest {
    const GROUPS: Groups = &[&[&COMPLETIONS, &TOKEN_IDS], GENERATION];
    const REQUIRED: &'static [&'static str] = &["prompt"];

    fn read(fields: &mut RequestFields, key: Option<&str>) -> Result<CompletionRequest, ApiError> {
        // A number in this API, a flag in chat's.
        let logprobs = fields.take(&COMPLETION_LOGPROBS)?;
        let echo = fields.take(&ECHO)?.unwrap_or(false);
        fields.take(&SUFFIX)?;
        let token_ids = fields.take(&RETURN_TOKEN_IDS)?.unwrap_or(false);
        let mut params = Params::take(fields, key, None)?;
        (params.logprobs, params.token_ids) = (logprobs, token_ids);
        params.max_tokens = params.max_tokens.or(Some(MAX_TOKENS));
        let prompts = prompts(fields)?;
        let answers = prompts.len().saturating_mul(params.n);
        if answers > ANSWERS_MAX {
            let message =
                format!("n: expected at most {ANSWERS_MAX} answers to all prompts, found {answers}");
            return Err(ApiError::invalid("n", message));
        }
        if params.max_tokens == Some(0) && !echo {
            return Err(ApiError::invalid(
                "max_tokens",
                "max_tokens: expected at least 1 without echo, found 0",
            ));
        }
        Ok(CompletionRequest { prompts, echo, params })
    }
}

/// Continues prompts.
pub(crate) async fn completions(
    State(app): State<Arc<App>>,
    Typed(request, ignored, room): Typed<CompletionRequest>,
) -> Result<Response, ApiError> {
    let CompletionRequest { prompts, echo, mut params } = request;
    let ignored = ignored.counted(&app);
    params.compile(&app).await?;
    let prompts = app.work(move |engine| read(engine, prompts)).await?;
    drop(room);
    let tokens = prompts.iter().map(|prompt| prompt.ids.len()).sum();
    params.bound_prompt_ids(tokens)?;
    let echoed = if echo { tokens } else { 0 };
    params.bound(app.engine.info().context_max, prompts.len(), echoed)?;
    let echoes = if echo { echoes(&app, &prompts, &params).await? } else { Vec::new() };
    let chunks = Chunks::new(&app, &params, echoes, &prompts);
    let answers = match params.max_tokens {
        Some(0) => Answers::ended(&app, ends(&prompts, params.n)),
        _ => {
            let plain = |prompt: Read| Prompt::plain(prompt.ids);
            Answers::begin(&app, prompts.into_iter().map(plain).collect(), &params)?
        }
    };
    Ok(ignored.onto(respond(&app, params.stream, answers, chunks).await?))
}

/// A prompt as sent.
#[derive(Debug)]
enum Given {
    Text(String),
    Tokens(Vec<TokenId>),
}

/// A text, token ids, or a list of either.
fn prompts(fields: &mut RequestFields) -> Result<Vec<Given>, ApiError> {
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
    let prompts: Vec<Given> = match fields.take(&PROMPT)?.ok_or_else(wrong)? {
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

/// A prompt's token ids, and its text in bytes: as sent, or decoded from token ids.
#[derive(Clone, Debug)]
struct Read {
    ids: Vec<TokenId>,
    text: Vec<u8>,
}

/// Tokenises prompts.
fn read(engine: &Engine, prompts: Vec<Given>) -> Result<Vec<Read>, ApiError> {
    let read = |prompt| match prompt {
        Given::Text(text) => {
            // A raw prompt is written whole by the client, control tokens included.
            let ids = engine.prompt_ids(&Request::text(text.as_str()).parse_control_tokens())?;
            Ok(Read { ids, text: text.into_bytes() })
        }
        Given::Tokens(ids) => {
            let ids = engine.prompt_ids(&Request::tokens(ids))?;
            let text = spelled(engine.vocab(), &ids);
            Ok(Read { ids, text })
        }
    };
    prompts.into_iter().map(read).collect()
}

/// The bytes of tokens, control tokens included, without the space that a tokenizer puts before a text.
fn spelled(vocab: &Vocab, ids: &[TokenId]) -> Vec<u8> {
    let text: Vec<u8> = ids.iter().flat_map(|&id| vocab.bytes(id).unwrap_or_default()).copied().collect();
    match text.strip_prefix(b" ") {
        Some(rest) if vocab.add_space_prefix() => rest.to_vec(),
        _ => text,
    }
}

/// The echoes of prompts, with log-probabilities if requested.
async fn echoes(app: &Arc<App>, prompts: &[Read], params: &Params) -> Result<Vec<Arc<Echo>>, ApiError> {
    let mut options = ScoreOptions::default();
    (options.top, options.cache_salt) = (params.logprobs.unwrap_or_default(), params.salt());
    let (prompts, with_logprobs) = (prompts.to_vec(), params.logprobs.is_some());
    let echo = move |engine: &Engine, prompt: &Read, options: &ScoreOptions| {
        let scored = with_logprobs.then(|| scored(engine, prompt, options)).transpose()?;
        let text = String::from_utf8_lossy(&prompt.text).into();
        Ok(Arc::new(Echo { text, scored: scored.map(Arc::new) }))
    };
    let echoed = app.wait(move |engine, gone| {
        options.cancelled = Some(Arc::clone(gone));
        prompts.iter().map(|prompt| echo(engine, prompt, &options)).collect()
    });
    match app.guard.config.request_timeout {
        Some(time) => timeout(time, echoed).await.map_err(|_| too_late(app))?,
        None => echoed.await,
    }
}

/// A prompt's tokens with their log-probabilities; the first has none.
fn scored(engine: &Engine, Read { ids, text }: &Read, options: &ScoreOptions) -> Result<Scored, ApiError> {
    let scores = match ids.len() {
        0 | 1 => Scores::default(),
        _ => engine.score_with(ids, options.clone())?,
    };
    Ok(Scored::new(engine.vocab(), text, ids, scores))
}

/// The chunks of completions.
struct Chunks {
    frame: Frame,
    vocab: Arc<Vocab>,
    /// Choices of each prompt.
    n: usize,
    /// By prompt; empty without `echo`.
    echoes: Arc<[Arc<Echo>]>,
    /// By choice: length of the text so far.
    places: Vec<Place>,
    with_logprobs: bool,
    /// Whether token ids are requested.
    token_ids: bool,
    /// By choice: the prompt's token ids, until the first chunk has them.
    prompt_ids: Vec<Value>,
}

impl Chunks {
    fn new(app: &App, params: &Params, echoes: Vec<Arc<Echo>>, prompts: &[Read]) -> Chunks {
        let id = format!("cmpl-{}", random_hex::<12>());
        let frame = Frame::new(id, "text_completion", app, params, prompts.len());
        let n = params.n.max(1);
        let mut places = vec![Place::default(); frame.choices()];
        for (places, echo) in places.chunks_mut(n).zip(&echoes) {
            places.fill(Place::behind(echo.text.chars().count()));
        }
        let listed = prompts.iter().filter(|_| params.token_ids);
        let prompt_ids = listed.flat_map(|prompt| std::iter::repeat_n(numbers(&prompt.ids), n)).collect();
        let (vocab, with_logprobs, token_ids) =
            (Arc::clone(app.engine.vocab()), params.logprobs.is_some(), params.token_ids);
        Chunks { frame, vocab, n, echoes: echoes.into(), places, with_logprobs, token_ids, prompt_ids }
    }

    /// The echo of each choice.
    fn echo(&self) -> impl Fn(usize) -> Option<Arc<Echo>> + Clone + use<> {
        let (echoes, n) = (Arc::clone(&self.echoes), self.n);
        move |index| echoes.get(index / n).cloned()
    }

    fn chunk(&mut self, index: usize, text: &str, logprobs: Value, finish: Value) -> Value {
        let mut choice = choice(index, text, logprobs, finish);
        if let Some(ids) = self.prompt_ids.get_mut(index).map(Value::take).filter(|ids| !ids.is_null()) {
            choice["prompt_token_ids"] = ids;
        }
        self.frame.chunk(choice)
    }

    /// Adds the id of a chunk's token, if token ids are requested.
    fn with_id(&self, mut chunk: Value, id: Option<TokenId>) -> Value {
        if let Some(id) = id.filter(|_| self.token_ids) {
            chunk["choices"][0]["token_ids"] = numbers(&[id]);
        }
        chunk
    }

    /// Log-probabilities of a choice's next token, or null.
    fn token(&mut self, index: usize, id: TokenId, found: Option<&Logprobs>) -> Value {
        // Control tokens add no text.
        let bytes = self.vocab.bytes(id).filter(|_| !self.vocab.is_control(id)).unwrap_or_default();
        let offset = self.places.get_mut(index).map_or(0, |place| place.pass(bytes));
        found.map_or(Value::Null, |found| self.listed((id, offset), found))
    }

    /// Log-probabilities of the token that ended the turn.
    fn last(&mut self, index: usize, (id, found): &(TokenId, Option<Logprobs>)) -> Value {
        let offset = self.places.get_mut(index).map_or(0, Place::end);
        found.as_ref().map_or(Value::Null, |found| self.listed((*id, offset), found))
    }

    fn listed(&self, token: (TokenId, usize), found: &Logprobs) -> Value {
        lists(&self.vocab, token, Some((found.chosen, &found.top)))
    }
}

/// A choice of a chunk.
fn choice(index: usize, text: &str, logprobs: Value, finish: Value) -> Value {
    json!({"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish})
}

impl ResponseFormat for Chunks {
    fn begin(&mut self) -> Vec<Value> {
        Vec::new()
    }

    /// A chunk with the echo of each choice.
    fn opening(&self) -> Option<Pieces> {
        let choices = if self.echoes.is_empty() { 0 } else { self.frame.choices() };
        let chunks: Vec<_> =
            (0..choices).map(|index| self.frame.chunk(choice(index, "", Value::Null, Value::Null))).collect();
        let (echo, text) = (self.echo(), |text: &str| std::iter::once(text.to_owned()));
        let events = chunks.into_iter().flat_map(move |chunk| {
            text("data: ").chain(choices::pieces(chunk, echo.clone())).chain(text("\n\n"))
        });
        (choices > 0).then(|| Box::new(events) as Pieces)
    }

    fn chunks(&mut self, Output { index, piece }: Output) -> Vec<Value> {
        match piece {
            Piece::Token { id, parts, logprobs, usage } => {
                let text = text_of(parts);
                self.frame.note(index, usage);
                let logprobs = self.token(index, id, logprobs.as_ref());
                if text.is_empty() && logprobs.is_null() && !self.token_ids {
                    return Vec::new();
                }
                let chunk = self.chunk(index, &text, logprobs, Value::Null);
                vec![self.with_id(chunk, Some(id))]
            }
            Piece::End(end) => {
                self.frame.note(index, end.usage);
                let logprobs = end.token.as_ref().map_or(Value::Null, |token| self.last(index, token));
                let (reason, id) = (stop_reason(&end), end.token.as_ref().map(|(id, _)| *id));
                let last = self.chunk(index, &text_of(end.parts), logprobs, end.finish.into());
                let mut last = self.with_id(last, id);
                last["choices"][0]["stop_reason"] = reason;
                last["timings"] = timings(&end.usage, &end.timings);
                vec![last]
            }
        }
    }

    fn end(&mut self) -> Vec<Value> {
        self.frame.end()
    }

    fn empty(&self) -> Value {
        let choice = |index: usize| choice(index, "", Value::Null, Value::Null);
        let mut whole = self.frame.whole("text_completion");
        whole["choices"] = (0..self.frame.choices()).map(choice).collect();
        whole
    }

    fn whole(&self, folded: Value) -> Json {
        match self.with_logprobs || !self.echoes.is_empty() {
            true => Json::Pieces(choices::pieces(folded, self.echo())),
            false => Json::Value(folded),
        }
    }

    fn fold(&self, whole: &mut Value, chunk: Value) {
        fold_chunk(whole, chunk, |choice, part| {
            append(&mut choice["text"], &part["text"]);
            for name in ["prompt_token_ids", "token_ids"] {
                extend(choice, name, &part[name]);
            }
            for name in NAMES {
                extend_text(&mut choice["logprobs"], name, &part["logprobs"][name]);
            }
        });
    }
}

/// Outputs of a request for no token: the prompts themselves are the answer.
fn ends(prompts: &[Read], n: usize) -> Vec<Output> {
    let end = |index: usize| {
        let mut usage = Usage::default();
        usage.prompt_tokens = prompts.get(index / n).map_or(0, |prompt| prompt.ids.len());
        let timings = Timings::default();
        let parts = Vec::new();
        Piece::End(End {
            parts,
            finish: "length",
            stop: None,
            token: None,
            at_stop_token: false,
            usage,
            timings,
        })
    };
    (0..prompts.len() * n).map(|index| Output { index, piece: end(index) }).collect()
}
