//! Parameters of every API: number and length of answers, sampling, cache salt, priority, constraint.

use std::sync::Arc;

use ottava::constrain::{Constraint, Grammar};
use ottava::{Engine, Request, TokenId};
use serde_json::{Map, Value};

use crate::error::{ApiError, shown, wrong};
use crate::ids::{random, sha256};
use crate::request::fields::{Field, RequestFields, Row as _};
use crate::request::format::Format;
use crate::request::json_fields::Fields;
use crate::request::kinds::Texts;
use crate::request::table::*;
use crate::state::App;

/// Most stop strings, and most bytes of each.
const STOP_MAX: usize = 64;
const STOP_BYTES_MAX: usize = 256;
/// Most stop tokens.
const STOP_TOKENS_MAX: usize = 256;
/// Most characters of a cache salt.
const SALT_MAX: usize = 1024;

/// Parameters of an answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Params {
    /// Answers to each prompt.
    pub(crate) n: usize,
    /// Whether the answer is streamed.
    pub(crate) stream: bool,
    /// Whether a stream ends with its usage.
    pub(crate) include_usage: bool,
    /// Whether every chunk has its usage.
    pub(crate) continuous_usage: bool,
    /// Most tokens of an answer; `None` is the rest of the context.
    pub(crate) max_tokens: Option<usize>,
    /// Number of tokens before which the answer does not end.
    min_tokens: usize,
    /// Whether an answer has the token ids of its prompt and its text.
    pub(crate) token_ids: bool,
    /// Alternatives reported with each token; `None` reports no log-probabilities.
    pub(crate) logprobs: Option<usize>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<usize>,
    min_p: Option<f32>,
    frequency_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    repetition_penalty: Option<f32>,
    /// Number of last tokens that penalties count; `None` is all.
    penalty_last_n: Option<usize>,
    pub(super) logit_bias: Vec<(TokenId, f32)>,
    seed: u64,
    pub(crate) stop: Vec<String>,
    stop_tokens: Vec<TokenId>,
    include_stop: bool,
    ignore_eos: bool,
    priority: i8,
    salt: Option<[u8; 32]>,
    /// The constraint before it is compiled.
    format: Option<Format>,
    /// The compiled constraint.
    pub(crate) constraint: Option<Constraint>,
}

impl Params {
    /// Takes the parameters of [`GENERATION`](crate::request::table::GENERATION). `key` is the client's API
    /// key, a part of the cache salt; `response_format` replaces the field of that name.
    ///
    /// # Errors
    /// The first field that is wrong or not supported.
    pub(crate) fn take(
        fields: &mut RequestFields,
        key: Option<&str>,
        response_format: Option<Map<String, Value>>,
    ) -> Result<Params, ApiError> {
        fields.check(&WITHOUT_EFFECT)?;
        fields.check(&NOT_SUPPORTED)?;
        let (include_usage, continuous_usage) = stream_options(fields)?;
        let (repetition_penalty, repeat_penalty) =
            (fields.take(&REPETITION_PENALTY)?, fields.take(&REPEAT_PENALTY)?);
        let params = Params {
            n: fields.take(&N)?.unwrap_or(1),
            stream: fields.take(&STREAM)?.unwrap_or(false),
            include_usage,
            continuous_usage,
            max_tokens: max_tokens(fields)?,
            min_tokens: fields.take(&MIN_TOKENS)?.unwrap_or(0),
            token_ids: false,
            logprobs: None,
            temperature: fields.take(&TEMPERATURE)?,
            // OpenAI's range includes 0, which keeps the likeliest token alone.
            top_p: fields.take(&TOP_P)?.map(|share| if share == 0.0 { f32::MIN_POSITIVE } else { share }),
            // llama.cpp's -1 keeps all tokens, as 0 does.
            top_k: fields.take(&TOP_K)?.map(|k| k.unwrap_or(0)),
            min_p: fields.take(&MIN_P)?,
            frequency_penalty: fields.take(&FREQUENCY_PENALTY)?,
            presence_penalty: fields.take(&PRESENCE_PENALTY)?,
            penalty_last_n: fields.take(&REPEAT_LAST_N)?.flatten(),
            repetition_penalty: repetition_penalty.or(repeat_penalty),
            logit_bias: logit_bias(fields)?,
            seed: seed(fields)?,
            stop: stop(fields, &STOP)?,
            stop_tokens: stop_tokens(fields)?,
            include_stop: fields.take(&INCLUDE_STOP)?.unwrap_or(false),
            ignore_eos: fields.take(&IGNORE_EOS)?.unwrap_or(false),
            priority: priority(fields)?,
            salt: salt(fields, key)?,
            format: Format::take(fields, response_format)?,
            constraint: None,
        };
        match fields.take(&BEST_OF)? {
            Some(best) if best != params.n => {
                Err(ApiError::unsupported("best_of", "best_of: expected as many as n"))
            }
            _ => Ok(params),
        }
    }

    /// Takes the constraint of a chat's text, for a grammar of the whole answer.
    ///
    /// # Errors
    /// As [`Format::compile`].
    pub(crate) async fn take_grammar(&mut self, app: &Arc<App>) -> Result<Option<Grammar>, ApiError> {
        match self.format.take() {
            Some(format) => format.checked(app).await.map(Some),
            None => Ok(None),
        }
    }

    /// Compiles the constraint, if there is one.
    ///
    /// # Errors
    /// As [`Format::compile`].
    pub(crate) async fn compile(&mut self, app: &Arc<App>) -> Result<(), ApiError> {
        if let Some(format) = self.format.take() {
            self.constraint = Some(format.compile(app).await?);
        }
        Ok(())
    }

    /// Checks the parameters that depend on each other or on the model.
    ///
    /// # Errors
    /// `min_tokens` above `max_tokens`, or a stop token outside the vocabulary.
    pub(crate) fn check(&self, engine: &Engine) -> Result<(), ApiError> {
        if let Some(most) = self.max_tokens.filter(|&most| most < self.min_tokens) {
            let message =
                format!("min_tokens: expected at most max_tokens, {most}, found {}", self.min_tokens);
            return Err(ApiError::invalid("min_tokens", message));
        }
        let vocab = engine.vocab().len();
        match self.stop_tokens.iter().find(|id| id.index() >= vocab) {
            Some(id) => {
                let message = format!("stop_token_ids: expected ids below {vocab}, found {id}");
                Err(ApiError::invalid("stop_token_ids", message))
            }
            None => Ok(()),
        }
    }

    /// Whether a token that ended an answer is one of the request's stop tokens and not the model's own end.
    pub(crate) fn stops_at(&self, id: TokenId, engine: &Engine) -> bool {
        let is_end = !self.ignore_eos && engine.vocab().stop_ids().contains(&id);
        !is_end && self.stop_tokens.contains(&id)
    }

    /// Prefix-cache salt: prompts are shared between requests with equal salts only.
    pub(crate) fn salt(&self) -> Option<[u8; 32]> {
        self.salt
    }

    /// The request for answer number `index` to a prompt. `room` is the rest of the context.
    pub(crate) fn apply(&self, request: Request, index: usize, room: usize) -> Request {
        let request = request
            .max_tokens(self.max_tokens.unwrap_or(room).min(room).max(1))
            .min_tokens(self.min_tokens)
            .temperature(self.temperature.unwrap_or(1.0))
            .seed(self.seed.wrapping_add(index as u64))
            .stop(self.stop.clone())
            .stop_tokens(self.stop_tokens.iter().copied())
            .logit_bias(self.logit_bias.clone())
            .penalty_last_n(self.penalty_last_n.unwrap_or(usize::MAX))
            .priority(self.priority);
        let request = given(request, self.top_p, Request::top_p);
        let request = given(request, self.top_k, Request::top_k);
        let request = given(request, self.min_p, Request::min_p);
        let request = given(request, self.frequency_penalty, Request::frequency_penalty);
        let request = given(request, self.presence_penalty, Request::presence_penalty);
        let request = given(request, self.repetition_penalty, Request::repetition_penalty);
        let request = given(request, self.salt, Request::cache_salt);
        let request = given(request, self.logprobs, Request::top_logprobs);
        let request = given(request, self.constraint.clone(), Request::mask);
        let request = if self.include_stop { request.include_stop() } else { request };
        if self.ignore_eos { request.ignore_eos() } else { request }
    }
}

/// The request with an optional setting.
fn given<T>(request: Request, value: Option<T>, set: impl FnOnce(Request, T) -> Request) -> Request {
    match value {
        Some(value) => set(request, value),
        None => request,
    }
}

fn stream_options(fields: &mut RequestFields) -> Result<(bool, bool), ApiError> {
    let mut options = Fields::of(fields.take(&STREAM_OPTIONS)?.unwrap_or_default());
    let include = options.bool("include_usage")?.unwrap_or(false);
    Ok((include, options.bool("continuous_usage_stats")?.unwrap_or(false)))
}

/// The limit by any of its names; -1 is no limit (llama.cpp).
fn max_tokens(fields: &mut RequestFields) -> Result<Option<usize>, ApiError> {
    let mut found = None;
    for row in [&MAX_COMPLETION_TOKENS, &MAX_TOKENS, &N_PREDICT] {
        found = found.or(fields.take(row)?.flatten());
    }
    Ok(found)
}

/// Token ids as keys, biases from -100 to 100 as values.
fn logit_bias(fields: &mut RequestFields) -> Result<Vec<(TokenId, f32)>, ApiError> {
    let refused = |id: &Value, bias: &Value| {
        let id = shown(id);
        let message =
            format!("logit_bias: expected token ids with numbers from -100 to 100, found {id}: {bias}");
        ApiError::invalid("logit_bias", message)
    };
    let entry = |(id, bias): (Value, Value)| {
        let token = id.as_u64().or_else(|| id.as_str()?.parse().ok()).and_then(|id| u32::try_from(id).ok());
        // llama.cpp's form of a ban.
        let number = if bias == false { Some(-100.0) } else { bias.as_f64() };
        match (token, number.filter(|bias| (-100.0..=100.0).contains(bias))) {
            (Some(token), Some(bias)) => Ok((TokenId(token), bias as f32)),
            _ => Err(refused(&id, &bias)),
        }
    };
    // An object, or llama.cpp's list of pairs.
    match fields.take(&LOGIT_BIAS)? {
        None => Ok(Vec::new()),
        Some(Value::Object(biases)) => {
            biases.into_iter().map(|(id, bias)| entry((id.into(), bias))).collect()
        }
        Some(Value::Array(pairs)) => pairs
            .into_iter()
            .map(|pair| match pair {
                Value::Array(mut pair) if pair.len() == 2 => entry((pair[0].take(), pair[1].take())),
                other => Err(refused(&other, &Value::Null)),
            })
            .collect(),
        Some(other) => Err(wrong("logit_bias", "an object of token ids and numbers", &other)),
    }
}

/// The seed; absent or -1 (llama.cpp) is random.
fn seed(fields: &mut RequestFields) -> Result<u64, ApiError> {
    Ok(fields.take(&SEED)?.flatten().unwrap_or_else(|| u64::from_le_bytes(random())))
}

/// Texts that end an answer.
pub(crate) fn stop(fields: &mut RequestFields, row: &Field<Texts>) -> Result<Vec<String>, ApiError> {
    let name = row.name();
    let mut texts = fields.take(row)?.unwrap_or_default();
    // Some clients send an empty text for none.
    texts.retain(|text| !text.is_empty());
    if texts.len() > STOP_MAX || texts.iter().any(|text| text.len() > STOP_BYTES_MAX) {
        let message = format!("{name}: expected at most {STOP_MAX} texts of at most {STOP_BYTES_MAX} bytes");
        return Err(ApiError::invalid(name, message));
    }
    Ok(texts)
}

/// Token ids that end an answer.
fn stop_tokens(fields: &mut RequestFields) -> Result<Vec<TokenId>, ApiError> {
    let Some(found) = fields.take(&STOP_TOKEN_IDS)? else { return Ok(Vec::new()) };
    let id = |id: &Value| id.as_u64().and_then(|id| u32::try_from(id).ok()).map(TokenId);
    let list = found.as_array().filter(|list| list.len() <= STOP_TOKENS_MAX);
    let ids = list.and_then(|list| list.iter().map(id).collect());
    ids.ok_or_else(|| wrong("stop_token_ids", &format!("at most {STOP_TOKENS_MAX} token ids"), &found))
}

/// Lower numbers are first in vLLM, higher ones in the engine.
fn priority(fields: &mut RequestFields) -> Result<i8, ApiError> {
    let priority = fields.take(&PRIORITY)?.unwrap_or(0);
    // The kind's bounds are those of an `i8`, which are symmetric without its lowest number.
    Ok(i8::try_from(-priority).unwrap_or(0))
}

/// The cache salt: a hash of key and `cache_salt`.
fn salt(fields: &mut RequestFields, key: Option<&str>) -> Result<Option<[u8; 32]>, ApiError> {
    let salt = fields.take(&CACHE_SALT)?;
    if let Some(salt) = &salt {
        let length = salt.chars().count();
        if !(1..=SALT_MAX).contains(&length) {
            let message = format!("cache_salt: expected 1 to {SALT_MAX} characters, found {length}");
            return Err(ApiError::invalid("cache_salt", message));
        }
    }
    if salt.is_none() && key.is_none() {
        return Ok(None);
    }
    let (key, salt) = (sha256(&[key.unwrap_or_default().as_bytes()]), salt.unwrap_or_default());
    Ok(Some(sha256(&[&key, salt.as_bytes()])))
}
