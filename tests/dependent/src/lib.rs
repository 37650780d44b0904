//! What a service makes of the library: answers and statuses, with its own `Bytes` and its own templates.

use std::time::{Duration, Instant};

use bytes::Bytes;
use ottava::engine::EngineState;
use ottava::{Engine, Error, ErrorKind, Request};

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
    engine.drain(Instant::now() + Duration::from_secs(30)).cut_off
}

/// A request that the library refuses, as the service tells it.
pub fn refusal(engine: &Engine, request: Request) -> Option<(u16, Option<&'static str>)> {
    engine.submit(request).err().map(|error| (status(&error), error.field()))
}
