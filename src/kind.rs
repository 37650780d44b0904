//! Error kinds: one classification for the errors of all layers, for callers that handle them.

/// Category of an error. Services map it to a status code; messages are for people.
///
/// | kind | status of `ottava serve` |
/// |---|---|
/// | `Overloaded` | 429 |
/// | `TooLong`, `Invalid`, `Unsupported` | 400 |
/// | `OutOfMemory`, `DeviceLost`, `Stopped` | 503 |
/// | all others | 500 |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The queue is full: retry later.
    Overloaded,
    /// The request exceeds the context length or the KV cache.
    TooLong,
    /// An argument is out of range; `field()` may name it.
    Invalid,
    /// Valid, but not supported by this build or this model.
    Unsupported,
    /// A file does not exist.
    NotFound,
    /// The model file is damaged or inconsistent.
    BadModel,
    /// The host or the device is out of memory or threads.
    OutOfMemory,
    /// The device or its driver is missing.
    NoDevice,
    /// The device has failed and accepts no work until the process restarts.
    DeviceLost,
    /// The engine accepts no more work, or ended before the answer was complete.
    Stopped,
    /// A file could not be read or written.
    Io,
    /// A defect of this crate, of the model's values, or of callbacks supplied by the caller.
    Internal,
}

impl ErrorKind {
    /// Whether a retry of the same call on the same engine may succeed.
    pub const fn retry(self) -> bool {
        matches!(self, ErrorKind::Overloaded | ErrorKind::OutOfMemory)
    }
}

impl From<&std::io::Error> for ErrorKind {
    fn from(error: &std::io::Error) -> ErrorKind {
        match error.kind() {
            std::io::ErrorKind::NotFound => ErrorKind::NotFound,
            std::io::ErrorKind::OutOfMemory => ErrorKind::OutOfMemory,
            _ => ErrorKind::Io,
        }
    }
}
