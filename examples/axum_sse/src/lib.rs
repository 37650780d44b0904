//! A service with axum: `POST /chat` streams an answer as server-sent events, and whoever goes away cancels theirs.
//! `crates/server` is the complete one, with OpenAI's interface.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::{Stream, StreamExt as _};
use ottava::engine::{self, EngineState, GenerationError};
use ottava::text::Message;
use ottava::{Engine, Error, ErrorKind, Request};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a caller sends.
#[derive(serde::Deserialize)]
struct Question {
    text: String,
}

/// The routes over an engine, which is cheap to clone.
pub fn service(engine: Engine) -> Router {
    Router::new().route("/chat", post(chat)).route("/ready", get(ready)).with_state(engine)
}

async fn ready(State(engine): State<Engine>) -> StatusCode {
    match engine.state() {
        EngineState::Running => StatusCode::OK,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    }
}

async fn chat(
    State(engine): State<Engine>,
    Json(question): Json<Question>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, (StatusCode, String)> {
    let request = Request::chat([Message::new("user", question.text)]).deadline(Instant::now() + PATIENCE);
    // Templates and tokenizers compute, so they have a thread that may be busy.
    let submitted = tokio::task::spawn_blocking(move || engine.submit(request)).await;
    let submitted = submitted.map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    let generation = submitted.map_err(|error| (status(&error), error.to_string()))?;
    // Axum drops the stream of a caller who has gone, and with it the generation.
    Ok(Sse::new(generation.map(|event| Ok(told(event)))).keep_alive(KeepAlive::default()))
}

/// An event of the engine as one of the stream.
fn told(event: Result<engine::Event, GenerationError>) -> Event {
    match event {
        Ok(engine::Event::Done(done)) => Event::default().event(done.finish.to_string()).data(done.text),
        Ok(event) => Event::default().data(event.text()),
        Err(error) => Event::default().event("error").data(error.to_string()),
    }
}

fn status(error: &Error) -> StatusCode {
    match error.kind() {
        ErrorKind::Invalid | ErrorKind::Unsupported => StatusCode::BAD_REQUEST,
        ErrorKind::TooLong => StatusCode::PAYLOAD_TOO_LARGE,
        ErrorKind::Overloaded => StatusCode::TOO_MANY_REQUESTS,
        ErrorKind::DeviceLost | ErrorKind::Stopped | ErrorKind::OutOfMemory => {
            StatusCode::SERVICE_UNAVAILABLE
        }
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}
