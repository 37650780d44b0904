//! Routes about the server itself: models, health, metrics, version, the page, and the fallbacks.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequestParts, Path, State};
use axum::http::request::Parts;
use axum::http::{StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use ottava::engine::EngineState;
use serde_json::{Value, json};

use crate::error::{ApiError, json_body, quoted};
use crate::http::path;
use crate::state::App;

/// The page at `/`.
const PAGE: &str = include_str!("page.html");

/// `/v1/models`
pub(crate) async fn models(State(app): State<Arc<App>>) -> Response {
    json_body(&json!({"object": "list", "data": [model_of(&app, app.name())]})).into_response()
}

/// `/v1/models/{id}`, where the name may contain slashes.
pub(crate) async fn model(State(app): State<Arc<App>>, InPath(id): InPath) -> Result<Response, ApiError> {
    if app.names().contains(&id) {
        return Ok(json_body(&model_of(&app, &id)).into_response());
    }
    let message = format!("the model {} is not served here", quoted(&id));
    Err(ApiError::invalid("model", message).unknown_model())
}

/// A model's name, at the end of a path.
pub(crate) struct InPath(pub String);

impl<S: Send + Sync> FromRequestParts<S> for InPath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<InPath, ApiError> {
        let name: Result<Path<String>, PathRejection> = Path::from_request_parts(parts, state).await;
        let refused =
            |_| ApiError::invalid("model", "expected a name in UTF-8, found other bytes").unknown_model();
        name.map(|Path(name)| InPath(name)).map_err(refused)
    }
}

/// A model's names other than `name`.
pub(crate) fn aliases(names: &[String], name: &str) -> Value {
    names.iter().filter(|other| *other != name).cloned().collect()
}

/// The model by one of its names.
fn model_of(app: &App, name: &str) -> Value {
    let info = app.engine.info();
    json!({
        "id": name, "object": "model", "created": app.started, "owned_by": "ottava", "root": app.name(),
        "aliases": aliases(app.names(), name),
        "max_model_len": info.context_max,
        "meta": {
            "n_ctx_train": info.context_trained, "n_params": info.parameters, "size": info.file_bytes,
            "n_vocab": app.engine.vocab().len(),
        },
    })
}

/// `/health`: liveness of the process.
pub(crate) async fn health() -> Response {
    json_body(&json!({"status": "ok"})).into_response()
}

/// `/ready`: readiness of the engine.
pub(crate) async fn ready(State(app): State<Arc<App>>) -> Response {
    let reason = match app.engine.state() {
        EngineState::Running => None,
        EngineState::Draining => Some("the engine is draining".to_owned()),
        EngineState::Dead(error) => Some(format!("the engine is dead: {error}")),
        _ => Some("the engine has stopped".to_owned()),
    };
    let running = app.engine.stats().step_running_s;
    let hangs = running > app.guard.config.step_timeout.as_secs_f64();
    let hung = hangs.then(|| format!("a step has been running for {running:.0} s"));
    readiness(reason.or_else(|| app.guard.not_serving()).or(hung))
}

/// The answer of `/ready`, by the reason against it.
pub(crate) fn readiness(reason: Option<String>) -> Response {
    match reason {
        None => json_body(&json!({"status": "ready"})).into_response(),
        Some(reason) => {
            let body = json_body(&json!({"status": "not ready", "reason": reason}));
            (StatusCode::SERVICE_UNAVAILABLE, body).into_response()
        }
    }
}

/// `/metrics`
pub(crate) async fn metrics(State(app): State<Arc<App>>) -> Response {
    app.metrics.read(&app.engine.stats());
    let Ok(text) = app.metrics.text() else { return StatusCode::INTERNAL_SERVER_ERROR.into_response() };
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}

/// `/version`
pub(crate) async fn version() -> Response {
    json_body(&json!({"version": env!("CARGO_PKG_VERSION"), "server": "ottava"})).into_response()
}

/// `/`
pub(crate) async fn page() -> Response {
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (
            header::CONTENT_SECURITY_POLICY,
            "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        ),
    ];
    (headers, PAGE).into_response()
}

/// `/v1/embeddings`: no model here makes any.
pub(crate) async fn embeddings(State(app): State<Arc<App>>) -> ApiError {
    let message = format!(
        "the model {} generates text; this server does not serve text encoders yet (`ottava embed` runs them)",
        app.name()
    );
    ApiError::unsupported("model", message)
}

/// Any other path. The error names the route that the path ends with: the base URL may be wrong.
pub(crate) async fn nothing(uri: Uri) -> ApiError {
    let path = quoted(uri.path());
    let message = match path::nearest(uri.path()) {
        Some(route) => format!("there is no route {path}; expected {route}"),
        None => format!("there is no route {path}"),
    };
    ApiError::new(StatusCode::NOT_FOUND, "invalid_request_error", message).with_code("unknown_route")
}

/// A method that the route lacks.
pub(crate) async fn no_method() -> ApiError {
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error", "the route has no such method")
}
