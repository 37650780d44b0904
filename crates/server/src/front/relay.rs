//! Relays a stream. Its beginning is held back until the answer begins, so that the request can be sent
//! again.

use std::convert::Infallible;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt as _;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::upstream::{UpstreamRequest, kept, lost, lost_again};
use crate::answer::stream::{ANSWER_MARK, LOST_MARK, ending};
use crate::error::{ApiError, stopping};
use crate::http::auth::Phase;

/// Pieces in the queue of a slow reader.
const PIECES: usize = 16;
/// Most bytes held back. A longer beginning of an answer is passed on, and its request is not repeated.
const HELD_MAX: usize = 1 << 20;
/// Prefixes of the APIs with stream errors of their own form.
const MESSAGES: &str = "/v1/messages";
const RESPONSES: &str = "/v1/responses";

/// Starts the relay of a stream, which runs until the reader is gone.
pub(super) fn stream(request: UpstreamRequest, response: hyper::Response<Incoming>, run: u64) -> Response {
    let (sender, receiver) = mpsc::channel(PIECES);
    let (parts, body) = response.into_parts();
    tokio::spawn(async move {
        // The reader is gone.
        let _ = Relay::new(request, sender).run(body, run).await;
    });
    let pieces = futures_util::stream::unfold(receiver, |mut receiver: mpsc::Receiver<Bytes>| async move {
        receiver.recv().await.map(|bytes| (Ok::<_, Infallible>(bytes), receiver))
    });
    let mut response = (parts.status, Body::from_stream(pieces)).into_response();
    *response.headers_mut() = kept(&parts.headers);
    response
}

struct Relay {
    request: Arc<UpstreamRequest>,
    sender: mpsc::Sender<Bytes>,
    phase: watch::Receiver<Phase>,
    /// Bytes before the answer's first; `None` once it has begun.
    held: Option<Vec<u8>>,
    /// Time of the next keep-alive.
    quiet: Instant,
    /// Number of the next event, in APIs with numbered events.
    number: u64,
}

/// The reader went away.
struct Gone;

impl Relay {
    fn new(request: UpstreamRequest, sender: mpsc::Sender<Bytes>) -> Relay {
        let guard = &request.shared.guard;
        let (phase, quiet) = (guard.phase.clone(), Instant::now() + guard.config.keep_alive);
        Relay { request: Arc::new(request), sender, phase, held: Some(Vec::new()), quiet, number: 0 }
    }

    async fn run(&mut self, body: Incoming, run: u64) -> Result<(), Gone> {
        if self.copy(body).await? {
            return Ok(());
        }
        if self.held.is_none() {
            return self.fail(&lost()).await;
        }
        // The client has seen none of the answer: send the request again.
        self.held = Some(Vec::new());
        let request = Arc::clone(&self.request);
        let Some(response) = self.wait(request.send(Some(run))).await? else { return Ok(()) };
        match response {
            Err(error) => self.fail(&error).await,
            Ok((response, _)) if response.status() != StatusCode::OK => match refusal(response).await {
                Some(error) => self.end_with(&error).await,
                None => self.fail(&lost_again()).await,
            },
            Ok((response, _)) => match self.copy(response.into_body()).await? {
                true => Ok(()),
                false => self.fail(&lost_again()).await,
            },
        }
    }

    /// Copies a body; returns whether the answer is complete.
    async fn copy(&mut self, body: Incoming) -> Result<bool, Gone> {
        let mut pieces = body.into_data_stream();
        loop {
            let Some(piece) = self.wait(pieces.next()).await? else { return Ok(true) };
            match piece {
                Some(Ok(bytes)) => self.take(bytes).await?,
                Some(Err(_)) => return Ok(false),
                None if self.held.as_deref().is_some_and(|held| place(held, LOST_MARK).is_some()) => {
                    return Ok(false);
                }
                None => {
                    let held = self.held.take().unwrap_or_default();
                    self.pass(held.into()).await?;
                    return Ok(true);
                }
            }
        }
    }

    /// Waits for a future. Until the answer begins, the client gets keep-alives. `None` if the server ends
    /// first; the client has got the error then.
    async fn wait<T>(&mut self, something: impl Future<Output = T>) -> Result<Option<T>, Gone> {
        let mut something = pin!(something);
        loop {
            tokio::select! {
                done = &mut something => return Ok(Some(done)),
                () = ending(&mut self.phase) => {
                    self.fail(&stopping()).await?;
                    return Ok(None);
                }
                () = self.sender.closed() => return Err(Gone),
                () = sleep_until(self.quiet), if self.held.is_some() => {
                    self.send(Bytes::from_static(b": keep-alive\n\n")).await?;
                    self.quiet = Instant::now() + self.request.shared.guard.config.keep_alive;
                }
            }
        }
    }

    /// Sends a piece, or holds it back before the answer begins.
    async fn take(&mut self, bytes: Bytes) -> Result<(), Gone> {
        let Some(held) = &mut self.held else { return self.pass(bytes).await };
        held.extend_from_slice(&bytes);
        let mark = place(held, ANSWER_MARK);
        if mark.is_none() && held.len() < HELD_MAX {
            return Ok(());
        }
        let mut all = self.held.take().unwrap_or_default();
        if let Some(mark) = mark {
            all.drain(mark..mark + ANSWER_MARK.len());
        }
        self.pass(all.into()).await
    }

    /// Sends bytes of the process, and stores the last event's number.
    async fn pass(&mut self, bytes: Bytes) -> Result<(), Gone> {
        if self.request.path().starts_with(RESPONSES) {
            self.number = last_number(&bytes).map_or(self.number, |number| number + 1);
        }
        self.send(bytes).await
    }

    /// Ends the stream with an error of the front.
    async fn fail(&self, error: &ApiError) -> Result<(), Gone> {
        let is_messages = self.request.path().starts_with(MESSAGES);
        self.end_with(&if is_messages { error.to_anthropic() } else { error.to_json() }).await
    }

    /// Ends the stream with an error object in the API's form.
    async fn end_with(&self, error: &Value) -> Result<(), Gone> {
        let event = match self.request.path() {
            path if path.starts_with(MESSAGES) => format!("event: error\ndata: {error}\n\n"),
            path if path.starts_with(RESPONSES) => {
                let inner = &error["error"];
                let event = json!({
                    "type": "error", "code": inner["code"], "message": inner["message"], "param": inner["param"],
                    "sequence_number": self.number,
                });
                format!("event: error\ndata: {event}\n\n")
            }
            _ => format!("data: {error}\n\n"),
        };
        self.send(event.into()).await
    }

    async fn send(&self, bytes: Bytes) -> Result<(), Gone> {
        if bytes.is_empty() {
            return Ok(());
        }
        let limit = self.request.shared.guard.config.write_timeout;
        match timeout(limit, self.sender.send(bytes)).await {
            Ok(Ok(())) => Ok(()),
            _ => Err(Gone),
        }
    }
}

/// Position of a mark.
fn place(bytes: &[u8], mark: &[u8]) -> Option<usize> {
    bytes.windows(mark.len()).position(|part| part == mark)
}

/// The error object of a process's answer; `None` if it is broken or no error.
async fn refusal(response: hyper::Response<Incoming>) -> Option<Value> {
    let body = response.into_body().collect().await.ok()?.to_bytes();
    serde_json::from_slice(&body).ok().filter(|body: &Value| body["error"].is_object())
}

/// The last `sequence_number` in a piece of a Responses stream.
fn last_number(bytes: &[u8]) -> Option<u64> {
    let text = String::from_utf8_lossy(bytes);
    let (_, rest) = text.rsplit_once("\"sequence_number\":")?;
    let digits = rest.trim_start().split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_number_of_a_piece_is_found() {
        assert_eq!(
            last_number(b"data: {\"sequence_number\":7}\n\ndata: {\"a\":1,\"sequence_number\":8,"),
            Some(8)
        );
        assert_eq!(last_number(b"data: {\"id\": 3}"), None);
    }
}
