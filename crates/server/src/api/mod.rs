//! Routes: a file for each API. A handler gets a typed request from `request`, has `answer` submit it to the
//! engine, and writes the answer in its API's format.
//!
//! `chat`, `completions`, `responses` and `messages` generate text. `tokens` has tokenising and token counts,
//! `meta_routes` health, models and metrics, `openapi` the description of all routes. `typed` reads a
//! handler's request.

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};

use crate::http::middleware::{count, gate};
use crate::http::threads::pass_on;
use crate::state::App;

pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod messages;
pub(crate) mod meta_routes;
pub(crate) mod openapi;
pub(crate) mod responses;
pub(crate) mod tokens;
pub(crate) mod typed;

/// All routes, with their middleware.
pub(crate) fn routes(app: &Arc<App>) -> Router {
    Router::new()
        .route("/", get(meta_routes::page))
        .route("/health", get(meta_routes::health))
        .route("/v1/health", get(meta_routes::health))
        .route("/ready", get(meta_routes::ready))
        .route("/version", get(meta_routes::version))
        .route("/openapi.json", get(openapi::openapi))
        .route("/metrics", get(meta_routes::metrics))
        .route("/v1/models", get(meta_routes::models))
        .route("/v1/models/{*id}", get(meta_routes::model))
        .route("/v1/chat/completions", post(chat::completions))
        .route("/v1/chat/completions/input_tokens", post(tokens::input_tokens))
        .route("/v1/chat/completions/render", post(tokens::render))
        .route("/v1/completions", post(completions::completions))
        .route("/v1/responses", post(responses::create))
        .route("/v1/responses/input_tokens", post(responses::input_tokens))
        .route("/v1/messages", post(messages::create))
        .route("/v1/messages/count_tokens", post(messages::count_tokens))
        .route("/v1/embeddings", post(meta_routes::embeddings))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .fallback(meta_routes::nothing)
        .method_not_allowed_fallback(meta_routes::no_method)
        // The middleware has limited the body; axum's own limit is lower.
        .layer(DefaultBodyLimit::disable())
        .layer(from_fn_with_state(Arc::clone(&app.guard), gate))
        .layer(from_fn_with_state(Arc::clone(app), count))
        .layer(from_fn_with_state(app.threads.clone(), pass_on))
        .with_state(Arc::clone(app))
}
