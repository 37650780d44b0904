//! Lines on stderr through a bounded queue, so that a server never waits for the reader of its log.
//!
//! A process has one stderr, so the queue is global. Without [`start`], lines are written directly. Lines
//! beyond the queue are dropped and counted.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::visible;

/// The queue, once it is started.
static NOTES: OnceLock<Notes> = OnceLock::new();
/// Lines in the queue.
const LINES_MAX: usize = 1024;
/// Longest time for the last lines at the program's end.
const LAST_LINES: Duration = Duration::from_secs(1);

/// A queue with a writer thread.
struct Notes {
    queue: SyncSender<Entry>,
    dropped: Arc<AtomicU64>,
}

enum Entry {
    Text(String),
    /// Dropped once all texts before it are written.
    Flush(SyncSender<()>),
}

/// Starts the queue. Panics of all threads go through it, too.
pub fn start() {
    // If the thread cannot start, lines are written directly.
    let Ok(notes) = Notes::over(std::io::stderr(), LINES_MAX) else { return };
    if NOTES.set(notes).is_err() {
        return;
    }
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        let line = format!("thread {} {panic}", thread.name().unwrap_or("without a name"));
        write(visible::one_line(&line) + "\n");
        let trace = Backtrace::capture();
        if trace.status() == BacktraceStatus::Captured {
            write(trace.to_string());
        }
    }));
}

/// Writes a text with its line break. A full or closed stderr is ignored.
pub fn write(text: String) {
    match NOTES.get() {
        Some(notes) => notes.write(text),
        None => _ = std::io::stderr().lock().write_all(text.as_bytes()),
    }
}

/// Waits a moment for the queue to be written, at the program's end.
pub fn finish() {
    if let Some(notes) = NOTES.get() {
        notes.finish(LAST_LINES);
    }
}

impl Notes {
    /// A queue of `texts_max` texts in front of a writer.
    fn over(out: impl Write + Send + 'static, texts_max: usize) -> std::io::Result<Notes> {
        let (queue, entries) = sync_channel(texts_max);
        let dropped = Arc::<AtomicU64>::default();
        let counted = Arc::clone(&dropped);
        let run = move || write_all(out, &entries, &counted);
        std::thread::Builder::new().name("ottava-notes".into()).spawn(run)?;
        Ok(Notes { queue, dropped })
    }

    fn write(&self, text: String) {
        if let Err(TrySendError::Full(_)) = self.queue.try_send(Entry::Text(text)) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn finish(&self, most: Duration) {
        let (flush, flushed) = sync_channel(0);
        if self.queue.try_send(Entry::Flush(flush)).is_ok() {
            // Nothing is ever sent: the end of the channel or of the time ends the wait.
            let _ = flushed.recv_timeout(most);
        }
    }
}

/// Writes the entries, and the number of dropped ones after them.
fn write_all(mut out: impl Write, entries: &Receiver<Entry>, dropped: &AtomicU64) {
    for entry in entries {
        match entry {
            // A closed stderr is ignored.
            Entry::Text(text) => _ = out.write_all(text.as_bytes()),
            Entry::Flush(flush) => drop(flush),
        }
        let dropped = dropped.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            let note = format!("note: {dropped} lines were dropped, as standard error was not read\n");
            let _ = out.write_all(note.as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// A writer that waits for a permit before each text.
    struct Slow {
        permits: Receiver<()>,
        written: Arc<Mutex<String>>,
    }

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            // Without a sender it writes at once.
            let _ = self.permits.recv();
            *self.written.lock().expect("no panic") += &String::from_utf8_lossy(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_that_are_not_read_are_dropped_and_counted() {
        let (permit, permits) = sync_channel(0);
        let written = Arc::default();
        let notes = Notes::over(Slow { permits, written: Arc::clone(&written) }, 4).expect("a thread");
        for line in 0..100 {
            notes.write(format!("{line}\n"));
        }
        // The end does not wait either.
        notes.finish(Duration::ZERO);
        assert_eq!(*written.lock().expect("no panic"), "");
        drop(permit);
        while !written.lock().expect("no panic").contains("dropped") {
            std::thread::yield_now();
        }
        notes.write("again\n".into());
        notes.finish(Duration::from_secs(60));
        let written = written.lock().expect("no panic").clone();
        let lines: Vec<&str> = written.lines().collect();
        let (notes, texts): (Vec<&str>, Vec<&str>) =
            lines.iter().partition(|line| line.starts_with("note: "));
        // One text may have left the queue for the writer.
        let kept = texts.len() - 1;
        assert!((4..=5).contains(&kept), "{written}");
        assert_eq!(texts.last(), Some(&"again"));
        let count = 100 - kept;
        assert_eq!(notes, [format!("note: {count} lines were dropped, as standard error was not read")]);
    }
}
