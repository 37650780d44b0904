//! Ctrl-C: it stops an answer of `chat`, ends a tool that a pull waits for, and else ends the program.
//!
//! A process has one handler for a signal, so what it does is a value of the process, too. It runs on a thread of its
//! own, which may wait for a lock.

use std::process::{Child, Command};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use super::Failure;

/// What stops the answer at work.
static ANSWER: Mutex<Option<Stop>> = Mutex::new(None);
/// A tool's process group; 0 if none runs.
static GROUP: Mutex<i32> = Mutex::new(0);

type Stop = Box<dyn FnOnce() + Send>;

/// The exit code of a program that Ctrl-C ended, as shells have it.
const INTERRUPTED: i32 = 130;

/// Watches for Ctrl-C from here on.
pub fn watch() -> Result<(), Failure> {
    static WATCHED: OnceLock<Result<(), String>> = OnceLock::new();
    let watched = WATCHED.get_or_init(|| ctrlc::set_handler(interrupted).map_err(|error| error.to_string()));
    watched.clone().map_err(|error| Failure::Failed(format!("cannot watch for Ctrl-C: {error}")))
}

fn interrupted() {
    if stop_answer() {
        return;
    }
    // Until the program has ended no further tool starts: it would be left behind.
    let group = lock(&GROUP);
    end_group(*group);
    std::process::exit(INTERRUPTED);
}

/// Stops the answer at work; whether there was one. An answer is stopped once: a device that hangs does not end it, so
/// a second Ctrl-C ends the program.
fn stop_answer() -> bool {
    let stop = lock(&ANSWER).take();
    stop.map(|stop| stop()).is_some()
}

fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each is one value, so none is half changed.
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

/// While it lives, Ctrl-C stops an answer.
pub struct Answering(());

impl Answering {
    /// An answer begins, which `stop` stops.
    pub fn new(stop: impl FnOnce() + Send + 'static) -> Answering {
        *lock(&ANSWER) = Some(Box::new(stop));
        Answering(())
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        *lock(&ANSWER) = None;
    }
}

/// While it lives, Ctrl-C ends a tool's process group, too.
pub struct Tool(());

impl Tool {
    /// Starts a tool that leads a process group of its own. Ctrl-C waits until the group is known.
    pub fn start(command: &mut Command) -> std::io::Result<(Tool, Child)> {
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(command, 0);
        let mut group = lock(&GROUP);
        let child = command.spawn()?;
        *group = child.id().try_into().unwrap_or(0);
        Ok((Tool(()), child))
    }

    /// Ends all processes of the group.
    pub fn end(&self) {
        end_group(*lock(&GROUP));
    }
}

impl Drop for Tool {
    fn drop(&mut self) {
        *lock(&GROUP) = 0;
    }
}

/// Ends all processes of a group that a tool leads; nothing for 0.
fn end_group(group: i32) {
    #[cfg(unix)]
    if group > 1 {
        use nix::sys::signal::{Signal, killpg};
        // It may have ended by itself.
        let _ = killpg(nix::unistd::Pid::from_raw(group), Signal::SIGKILL);
    }
    #[cfg(not(unix))]
    let _ = group;
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn an_answer_is_stopped_at_once_and_only_once() {
        let stops = Arc::new(AtomicUsize::new(0));
        let begin = || {
            let stops = Arc::clone(&stops);
            Answering::new(move || _ = stops.fetch_add(1, Ordering::Relaxed))
        };
        assert!(!stop_answer(), "none is at work");
        let answering = begin();
        assert!(stop_answer(), "no token is waited for");
        assert_eq!(stops.load(Ordering::Relaxed), 1);
        assert!(!stop_answer(), "a second Ctrl-C ends the program");
        drop(answering);
        drop(begin());
        assert!(!stop_answer(), "it has ended");
        assert_eq!(stops.load(Ordering::Relaxed), 1);
    }
}
