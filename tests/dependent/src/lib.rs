//! What a service makes of the library: answers and statuses, with its own `Bytes` and its own templates.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use bytes::Bytes;
// In scope as in any service: what it has in common with iterators must not be ambiguous.
use futures_util::StreamExt as _;
use ottava::engine::{EngineState, Event, FinishReason, Generation, GenerationError, Received};
use ottava::sample::TokenSet;
use ottava::{Engine, Error, ErrorKind, Request, TokenId};

/// The HTTP status of an error, from whichever layer it comes.
pub fn status(error: &Error) -> u16 {
    match error.kind() {
        ErrorKind::Invalid | ErrorKind::Unsupported => 400,
        ErrorKind::TooLong => 413,
        ErrorKind::Overloaded => 429,
        ErrorKind::DeviceLost | ErrorKind::Stopped | ErrorKind::OutOfMemory => 503,
        _ => 500,
    }
}

/// The page of an error: the service's own template engine beside the library's.
pub fn page(error: &Error) -> Result<Bytes, minijinja::Error> {
    let (status, field) = (status(error), error.field().unwrap_or("nothing"));
    let template = "{{ status }} {{ field }}: {{ message }}";
    let context = minijinja::context! { status, field, message => error.to_string() };
    Ok(minijinja::Environment::new().render_str(template, context)?.into())
}

/// Whether a router should send requests here.
pub fn is_ready(engine: &Engine) -> bool {
    matches!(engine.state(), EngineState::Running)
}

/// Ends the service: what runs may end, for a while.
pub fn shut_down(engine: &Engine) -> usize {
    engine.drain(Instant::now() + Duration::from_secs(30)).aborted
}

/// A request that the library refuses, as the service tells it.
pub fn refusal(engine: &Engine, request: Request) -> Option<(u16, Option<&'static str>)> {
    engine.submit(request).err().map(|error| (status(&error), error.field()))
}

/// How an answer ends that may take so long, read by a thread.
pub fn finish_of(mut generation: Generation) -> Result<FinishReason, GenerationError> {
    loop {
        match generation.recv() {
            Some(Ok(Event::Done(done))) => return Ok(done.finish),
            Some(Err(error)) => return Err(error),
            _ => {}
        }
    }
}

/// The same, read by a task.
pub async fn finish_of_stream(mut generation: Generation) -> Result<FinishReason, GenerationError> {
    let mut finish = FinishReason::Cancelled;
    while let Some(event) = generation.next().await {
        if let Event::Done(done) = event? {
            finish = done.finish;
        }
    }
    Ok(finish)
}

/// Waits for the first event no longer than this, and leaves the answer then.
pub fn gives_up_after(mut generation: Generation, wait: Duration) -> bool {
    matches!(generation.recv_timeout(wait), Received::Nothing)
}

/// A request whose answer is made of these tokens alone.
pub fn only(request: Request, tokens: Vec<TokenId>) -> Request {
    request.mask(move |_: &[TokenId], allowed: &mut TokenSet| allowed.extend(tokens.iter().copied()))
}

/// The least of an executor: a service has tokio's or another.
pub fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}
