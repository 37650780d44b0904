//! Answers as server-sent events, or whole. A whole answer is the fold of the chunks of a stream.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};

use crate::answer::json::{self, Json, Pieces, Slice, is_large};
use crate::answer::{Answers, Output};
use crate::error::{ApiError, stopping};
use crate::http::auth::Phase;
use crate::state::App;

/// Chunks in the queue of a slow reader before the answer waits.
const CHUNKS: usize = 16;

/// Comment before an answer's first piece, in marked streams.
pub(crate) const ANSWER_MARK: &[u8] = b": answer\n\n";
/// Comment in its place if the engine is lost before the first piece.
pub(crate) const LOST_MARK: &[u8] = b": lost\n\n";

/// Framing of a stream apart from its chunks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wire {
    /// Whether an event has its chunk's `type` as its name.
    pub(crate) named: bool,
    /// Bytes sent after an idle interval.
    pub(crate) quiet: &'static str,
    /// Bytes after the last chunk.
    pub(crate) last: &'static str,
}

impl Wire {
    /// A chunk as an event.
    fn event(self, chunk: &Value) -> String {
        match chunk["type"].as_str().filter(|_| self.named) {
            Some(name) => format!("event: {name}\ndata: {chunk}\n\n"),
            None => format!("data: {chunk}\n\n"),
        }
    }
}

/// Wire format of an API's answers.
pub(crate) trait ResponseFormat: Send + 'static {
    /// Default: chat and completions.
    const WIRE: Wire = Wire { named: false, quiet: ": keep-alive\n\n", last: "data: [DONE]\n\n" };

    /// Whether the chunks before and after the outputs are large, so that worker threads have to make them.
    fn is_large(&self) -> bool {
        false
    }

    /// Chunks before the first output.
    fn begin(&mut self) -> Vec<Value>;
    /// Further events before the first output, if there are any.
    fn opening(&self) -> Option<Pieces> {
        None
    }
    /// The chunks of a piece.
    fn chunks(&mut self, output: Output) -> Vec<Value>;
    /// Chunks after the last output.
    fn end(&mut self) -> Vec<Value>;
    /// A whole answer before its first chunk.
    fn empty(&self) -> Value;
    /// Folds a chunk into a whole answer.
    fn fold(&self, whole: &mut Value, chunk: Value);
    /// The text of a whole answer.
    fn whole(&self, folded: Value) -> Json {
        Json::Value(folded)
    }
    /// Chunks at the end of a failed stream.
    fn failed(&mut self, error: &ApiError) -> Vec<Value> {
        vec![error.to_json()]
    }
}

/// An answer, streamed or whole by the request's `stream`.
pub(crate) async fn respond(
    app: &Arc<App>,
    stream: bool,
    answers: Answers,
    format: impl ResponseFormat,
) -> Result<Response, ApiError> {
    if stream { Ok(streamed(app, answers, format)) } else { whole(app, answers, format).await }
}

async fn whole(
    app: &Arc<App>,
    mut answers: Answers,
    format: impl ResponseFormat,
) -> Result<Response, ApiError> {
    let mut phase = app.guard.phase.clone();
    let (mut format, mut folded) = made(app, format, |format| {
        let (empty, first) = (format.empty(), format.begin());
        fold(format, empty, first)
    })
    .await?;
    loop {
        let output = tokio::select! {
            output = answers.next() => output,
            () = ending(&mut phase) => Some(Err(stopping())),
        };
        let Some(output) = output else { break };
        let chunks = format.chunks(output?);
        folded = fold(&format, folded, chunks);
    }
    let (_, text) = made(app, format, |format| {
        let last = format.end();
        format.whole(fold(format, folded, last))
    })
    .await?;
    json::answer(app, text).await
}

/// Folds chunks one by one: all chunks of an answer take many times the memory of its text.
fn fold(format: &impl ResponseFormat, mut folded: Value, chunks: Vec<Value>) -> Value {
    chunks.into_iter().for_each(|chunk| format.fold(&mut folded, chunk));
    folded
}

/// Makes something of a format's first or last chunks, on a worker thread if they are large.
async fn made<D: ResponseFormat, T: Send + 'static>(
    app: &Arc<App>,
    mut format: D,
    make: impl FnOnce(&mut D) -> T + Send + 'static,
) -> Result<(D, T), ApiError> {
    if !format.is_large() {
        let made = make(&mut format);
        return Ok((format, made));
    }
    app.work(move |_| {
        let made = make(&mut format);
        Ok((format, made))
    })
    .await
}

/// Streams an answer. The headers are sent before the prompt is processed.
fn streamed<D: ResponseFormat>(app: &Arc<App>, answers: Answers, format: D) -> Response {
    let (sender, receiver) = mpsc::channel(CHUNKS);
    let writer = Writer { app: Arc::clone(app), sender, wire: D::WIRE };
    tokio::spawn(writer.run(answers, format));
    let body = futures_util::stream::unfold(receiver, |mut receiver: mpsc::Receiver<Bytes>| async move {
        receiver.recv().await.map(|bytes| (Ok::<_, Infallible>(bytes), receiver))
    });
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream; charset=utf-8"),
        (header::CACHE_CONTROL, "no-cache"),
        // Disables response buffering in nginx.
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (StatusCode::OK, headers, Body::from_stream(body)).into_response()
}

/// Writer of one stream. It ends when the reader is gone or too slow; dropping its answers cancels them.
struct Writer {
    app: Arc<App>,
    sender: mpsc::Sender<Bytes>,
    wire: Wire,
}

/// The reader went away.
struct Gone;

impl Writer {
    async fn run(self, answers: Answers, format: impl ResponseFormat) {
        // The reader is gone: there is no recipient for an error.
        let _ = self.write(answers, format).await;
    }

    async fn write<D: ResponseFormat>(&self, mut answers: Answers, format: D) -> Result<(), Gone> {
        let mut phase = self.app.guard.phase.clone();
        let mut format = self.events(format, D::begin).await?;
        if let Some(events) = format.opening() {
            self.pieces(events).await?;
        }
        let mut quiet = Instant::now() + self.app.guard.config.keep_alive;
        let mut unmarked = self.app.guard.config.marks_answers;
        loop {
            let output = tokio::select! {
                output = answers.next() => output,
                () = self.sender.closed() => return Err(Gone),
                () = ending(&mut phase) => Some(Err(stopping())),
                () = sleep_until(quiet) => {
                    self.send(self.wire.quiet.into()).await?;
                    quiet = Instant::now() + self.app.guard.config.keep_alive;
                    continue;
                }
            };
            if std::mem::take(&mut unmarked) {
                self.send(mark(output.as_ref()).into()).await?;
            }
            match output {
                Some(Ok(output)) => {
                    for chunk in format.chunks(output) {
                        self.chunk(chunk).await?;
                    }
                }
                Some(Err(error)) => {
                    self.events(format, move |format| format.failed(&error)).await?;
                    return Ok(());
                }
                None => break,
            }
            quiet = Instant::now() + self.app.guard.config.keep_alive;
        }
        self.events(format, D::end).await?;
        self.send(self.wire.last.into()).await
    }

    /// Sends the first or last chunks of a format.
    async fn events<D: ResponseFormat>(
        &self,
        format: D,
        chunks: impl FnOnce(&mut D) -> Vec<Value> + Send + 'static,
    ) -> Result<D, Gone> {
        let (format, chunks) = made(&self.app, format, chunks).await.map_err(|_| Gone)?;
        for chunk in chunks {
            self.chunk(chunk).await?;
        }
        Ok(format)
    }

    async fn chunk(&self, chunk: Value) -> Result<(), Gone> {
        let wire = self.wire;
        let event = if is_large(&chunk) {
            self.app.work(move |_| Ok(wire.event(&chunk))).await.map_err(|_| Gone)?
        } else {
            wire.event(&chunk)
        };
        self.send(event.into()).await
    }

    /// Sends events in pieces, each slice after the one before it is taken.
    async fn pieces(&self, events: Pieces) -> Result<(), Gone> {
        let mut rest = Some(events);
        while let Some(pieces) = rest {
            let slice = Slice::written(&self.app, pieces).await.map_err(|_| Gone)?;
            self.send(slice.bytes).await?;
            rest = slice.rest;
        }
        Ok(())
    }

    async fn send(&self, bytes: Bytes) -> Result<(), Gone> {
        if bytes.is_empty() {
            return Ok(());
        }
        match timeout(self.app.guard.config.write_timeout, self.sender.send(bytes)).await {
            Ok(Ok(())) => Ok(()),
            _ => Err(Gone),
        }
    }
}

/// Mark before a stream's first output, its end or its error.
fn mark(first: Option<&Result<Output, ApiError>>) -> &'static [u8] {
    match first {
        Some(Err(error)) if error.is_lost() => LOST_MARK,
        // Not an answer, and another process would fail alike.
        Some(Err(_)) => b"",
        _ => ANSWER_MARK,
    }
}

/// Ready when running answers have to end.
pub(crate) async fn ending(phase: &mut tokio::sync::watch::Receiver<Phase>) {
    // The sender is dropped with the server; wait for ever then.
    if phase.wait_for(|phase| *phase == Phase::Ending).await.is_err() {
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use ottava::ErrorKind;

    use super::*;
    use crate::answer::output_items::tests::{outputs, text};
    use crate::error::of_engine;

    #[test]
    fn a_lost_engine_is_marked_and_another_error_is_not() {
        let failed = |kind| mark(Some(&Err(of_engine(kind, None, "why"))));
        assert_eq!(failed(ErrorKind::DeviceLost), LOST_MARK);
        assert_eq!(failed(ErrorKind::Stopped), LOST_MARK);
        assert_eq!(failed(ErrorKind::Overloaded), b"");
        assert_eq!(mark(outputs(vec![text("a")], "stop", None).pop().map(Ok).as_ref()), ANSWER_MARK);
        assert_eq!(mark(None), ANSWER_MARK);
    }
}
