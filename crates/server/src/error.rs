//! Errors of the server and of requests.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use ottava::ErrorKind;
use ottava::engine::SubmitError;
use serde_json::{Value, json};

/// Errors of a server's start and run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// A public address without a key.
    #[error("{host} is no loopback address: serving others needs a key (--api-key-file or OTTAVA_API_KEY)")]
    Open {
        /// The configured address.
        host: IpAddr,
    },
    /// An empty API key.
    #[error("a key is empty")]
    EmptyKey,
    /// A setting that no request can match: its name, and the reason.
    #[error("{0}: {1}")]
    Setting(&'static str, String),
    /// The address cannot be bound.
    #[error("{address}: cannot listen: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        source: std::io::Error,
    },
    /// Two models have one name.
    #[error("two models have the name {0}")]
    Name(String),
    /// Cache events cannot be published.
    #[cfg(feature = "kv-events")]
    #[error("{0}: cannot publish the cache's changes: {1}")]
    Events(String, String),
    /// A model's process ended too often.
    #[error("the engine of {0} ended {1} times in ten minutes, the last time with: {2}")]
    Restarts(String, usize, String),
    /// The system cannot start threads.
    #[error("cannot start the server's threads: {0}")]
    Threads(std::io::Error),
}

/// Most characters of a client's text in a message.
const QUOTED_MAX: usize = 200;

/// Code of a prompt, or of prompt and answer, beyond the context.
const TOO_LONG: &str = "context_length_exceeded";
/// Code of a lost engine, which answers no further request.
const LOST: &str = "engine_lost";
/// Header by which a front detects a lost engine, whatever the error's form.
pub(crate) const LOST_HEADER: &str = "x-ottava-engine-lost";

/// An error of a request, with the fields of OpenAI's error object.
#[derive(Clone, Debug)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    kind: &'static str,
    code: Option<&'static str>,
    param: Option<String>,
    message: String,
    /// Seconds until a retry, for the header Retry-After.
    retry_after: Option<u32>,
    /// Whether clients must not retry, for the header `x-should-retry` of OpenAI's and Anthropic's clients.
    is_final: bool,
    overflow: Option<Overflow>,
}

/// A prompt beyond the context. Agents shorten their conversation when they read these words.
#[derive(Clone, Copy, Debug)]
struct Overflow {
    /// Tokens of the prompt, or the number counted so far.
    tokens: usize,
    context: usize,
}

impl Overflow {
    /// Tokens of prompt and answer: an answer has at least one.
    fn needed(self) -> usize {
        self.tokens.max(self.context.saturating_add(1))
    }

    /// OpenAI's words, with the field of the prompt.
    fn to_openai(self, field: &str) -> String {
        let (needed, context) = (self.needed(), self.context);
        format!(
            "This model's maximum context length is {context} tokens. However, your {field} resulted in at least \
             {needed} tokens. Please reduce the length of the {field}."
        )
    }

    /// Anthropic's words.
    fn to_anthropic(self) -> String {
        format!("prompt is too long: {} tokens > {} maximum", self.needed(), self.context)
    }

    /// Adds llama.cpp's fields to an error object.
    fn onto(self, error: &mut Value) {
        (error["n_prompt_tokens"], error["n_ctx"]) = (self.tokens.into(), self.context.into());
    }
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, kind: &'static str, message: impl fmt::Display) -> ApiError {
        let mut message = message.to_string();
        if let Some((end, _)) = message.char_indices().nth(4 * QUOTED_MAX) {
            message.truncate(end);
        }
        ApiError {
            status,
            kind,
            code: None,
            param: None,
            message,
            retry_after: None,
            is_final: false,
            overflow: None,
        }
    }

    /// The error of a wrong field.
    pub(crate) fn invalid(param: impl Into<String>, message: impl fmt::Display) -> ApiError {
        let error = ApiError::new(StatusCode::BAD_REQUEST, "invalid_request_error", message);
        ApiError { param: Some(param.into()), ..error }
    }

    /// A field without an implementation.
    pub(crate) fn unsupported(param: impl Into<String>, message: impl fmt::Display) -> ApiError {
        ApiError::invalid(param, message).with_code("unsupported_parameter")
    }

    pub(crate) fn with_code(mut self, code: &'static str) -> ApiError {
        self.code = Some(code);
        self
    }

    /// The engine ended before or during the request.
    pub(crate) fn lost(message: impl fmt::Display) -> ApiError {
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message).with_code(LOST)
    }

    /// Whether the engine is lost.
    pub(crate) fn is_lost(&self) -> bool {
        self.code == Some(LOST)
    }

    /// The error of an unknown model.
    pub(crate) fn unknown_model(self) -> ApiError {
        ApiError { status: StatusCode::NOT_FOUND, ..self }.with_code("model_not_found")
    }

    /// The error of a field with too many values.
    pub(crate) fn too_large(self) -> ApiError {
        ApiError { status: StatusCode::PAYLOAD_TOO_LARGE, ..self }
    }

    pub(crate) fn retry_after(mut self, seconds: u32) -> ApiError {
        self.retry_after = Some(seconds);
        self
    }

    /// Forbids clients to retry.
    pub(crate) fn never_retry(self) -> ApiError {
        ApiError { is_final: true, retry_after: None, ..self }
    }

    /// Renames the field in an error of a converted request to this API's name for it.
    pub(crate) fn renamed(mut self, from: &str, to: &str) -> ApiError {
        if self.param.as_deref().is_some_and(|param| param.starts_with(from)) {
            self.param = self.param.map(|param| param.replacen(from, to, 1));
            self.message = match (self.overflow, &self.param) {
                (Some(overflow), Some(param)) => overflow.to_openai(param),
                _ => self.message.replacen(from, to, 1),
            };
        }
        self
    }

    /// The error of a prompt beyond the context.
    fn too_long(tokens: usize, context: usize) -> ApiError {
        const FIELD: &str = "prompt";
        let overflow = Overflow { tokens, context };
        let error = ApiError::invalid(FIELD, overflow.to_openai(FIELD)).with_code(TOO_LONG);
        ApiError { overflow: Some(overflow), ..error }
    }

    /// The error code in the form of Responses.
    pub(crate) fn responses_code(&self) -> &'static str {
        match self.status {
            _ if self.code == Some(TOO_LONG) => TOO_LONG,
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_exceeded",
            status if status.is_client_error() => "invalid_prompt",
            _ => "server_error",
        }
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// The error in Anthropic's form.
    pub(crate) fn to_anthropic(&self) -> Value {
        let kind = match self.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            408 => "timeout_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            503 => "overloaded_error",
            400..=499 => "invalid_request_error",
            _ => "api_error",
        };
        let mut error = json!({"type": kind, "message": self.message});
        if let Some(overflow) = self.overflow {
            error["message"] = overflow.to_anthropic().into();
            overflow.onto(&mut error);
        }
        json!({"type": "error", "error": error})
    }

    /// The error object, as a body or as a stream's last event.
    pub(crate) fn to_json(&self) -> Value {
        let mut error =
            json!({"message": self.message, "type": self.kind, "param": self.param, "code": self.code});
        self.overflow.iter().for_each(|overflow| overflow.onto(&mut error));
        json!({"error": error})
    }
}

/// A client's value as JSON, at most [`QUOTED_MAX`] characters of it.
pub(crate) fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => quoted(text),
        other => cut(&other.to_string(), str::to_owned),
    }
}

/// At most [`QUOTED_MAX`] characters of a text, quoted.
pub(crate) fn quoted(text: &str) -> String {
    cut(text, |text| format!("{text:?}"))
}

fn cut(text: &str, show: impl Fn(&str) -> String) -> String {
    match text.char_indices().nth(QUOTED_MAX) {
        Some((end, _)) => format!("{}…", show(&text[..end])),
        None => show(text),
    }
}

/// The error of a value of another type or range.
pub(crate) fn wrong(place: &str, expected: &str, found: &Value) -> ApiError {
    let found = shown(found);
    ApiError::invalid(place, format!("{place}: expected {expected}, found {found}"))
}

/// An engine's error, by its kind.
pub(crate) fn of_engine(kind: ErrorKind, field: Option<&str>, message: impl fmt::Display) -> ApiError {
    let (status, name, code) = match kind {
        ErrorKind::Overloaded => (StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", Some("overloaded")),
        ErrorKind::TooLong => (StatusCode::BAD_REQUEST, "invalid_request_error", Some(TOO_LONG)),
        ErrorKind::Invalid => (StatusCode::BAD_REQUEST, "invalid_request_error", None),
        ErrorKind::Unsupported => {
            (StatusCode::BAD_REQUEST, "invalid_request_error", Some("unsupported_parameter"))
        }
        ErrorKind::OutOfMemory => (StatusCode::SERVICE_UNAVAILABLE, "server_error", Some("unavailable")),
        ErrorKind::DeviceLost | ErrorKind::Stopped => {
            (StatusCode::SERVICE_UNAVAILABLE, "server_error", Some(LOST))
        }
        _ => (StatusCode::INTERNAL_SERVER_ERROR, "server_error", None),
    };
    let error = ApiError::new(status, name, message);
    let retry_after = (status == StatusCode::TOO_MANY_REQUESTS).then_some(1);
    // HTTP requests have no `mask` field; several fields can produce one, so `param` is left empty.
    let param = field.filter(|&field| field != "mask").map(str::to_owned);
    ApiError { code, param, retry_after, ..error }
}

/// The error of a full queue.
pub(crate) fn overloaded(message: &str) -> ApiError {
    of_engine(ErrorKind::Overloaded, None, message)
}

/// The error of an answer that the server's end cuts short.
pub(crate) fn stopping() -> ApiError {
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", "the server is stopping")
        .with_code("unavailable")
        .retry_after(5)
}

impl From<ottava::Error> for ApiError {
    fn from(error: ottava::Error) -> ApiError {
        match error {
            ottava::Error::Submit(SubmitError::TooLong { tokens, context_max }) => {
                ApiError::too_long(tokens, context_max)
            }
            // The pool of pages is smaller than the context.
            ottava::Error::Submit(SubmitError::TooLarge { .. }) => {
                let message = format!("prompt and answer exceed the context size: {error}");
                of_engine(error.kind(), error.field(), message)
            }
            error => of_engine(error.kind(), error.field(), &error),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, json_body(&self.to_json())).into_response();
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.is_final {
            let name = HeaderName::from_static("x-should-retry");
            response.headers_mut().insert(name, HeaderValue::from_static("false"));
        }
        if self.is_lost() {
            response.headers_mut().insert(LOST_HEADER, HeaderValue::from_static("1"));
        }
        // The middleware rewrites the body for routes with Anthropic's form.
        response.extensions_mut().insert(self);
        response
    }
}

/// A JSON answer.
pub(crate) fn json_body(value: &Value) -> ([(header::HeaderName, &'static str); 1], String) {
    ([(header::CONTENT_TYPE, "application/json")], value.to_string())
}
