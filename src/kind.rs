//! What a caller decides by when something fails: one list of kinds for the errors of all layers.

/// What an error means for who called. A service maps it to a status; the messages are for people.
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
    /// Too much waits already: try again later.
    Overloaded,
    /// The request does not fit in the context or the cache.
    TooLong,
    /// A value of the caller's is out of its range; `field()` may name it.
    Invalid,
    /// Sound, but this build or this model cannot do it.
    Unsupported,
    /// A file is not there.
    NotFound,
    /// The model's file is damaged, or contradicts itself.
    BadModel,
    /// The host or the device is short of memory or threads.
    OutOfMemory,
    /// The device, or what drives it, is not there.
    NoDevice,
    /// The device takes no more work until the process is restarted.
    DeviceLost,
    /// The engine takes no more work, or ended before the answer was complete.
    Stopped,
    /// A file could not be read or written.
    Io,
    /// A defect of this crate, of a model's numbers, or of the caller's own code that it ran.
    Internal,
}

impl ErrorKind {
    /// Whether the same call may succeed a little later on the same engine.
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
