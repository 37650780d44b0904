//! Ctrl-C handling: stops a running answer of `chat`; otherwise kills the tool of a running pull and exits.
//!
//! A process has one handler per signal, so the handler's state is global. The handler runs on its own
//! thread, where it can take locks.

use std::process::{Child, Command};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use super::Failure;

/// Callback that stops the running answer.
static ANSWER: Mutex<Option<Stop>> = Mutex::new(None);
/// Process group of the running tool, or 0.
static GROUP: Mutex<i32> = Mutex::new(0);

type Stop = Box<dyn FnOnce() + Send>;

/// Exit code after Ctrl-C, by the convention of shells.
const INTERRUPTED: i32 = 130;

/// Installs the handler of Ctrl-C, once per process.
pub fn watch() -> Result<(), Failure> {
    static WATCHED: OnceLock<Result<(), String>> = OnceLock::new();
    let watched = WATCHED.get_or_init(|| ctrlc::set_handler(interrupted).map_err(|error| error.to_string()));
    watched.clone().map_err(|error| Failure::Failed(format!("cannot watch for Ctrl-C: {error}")))
}

fn interrupted() {
    if stop_answer() {
        return;
    }
    // The lock is held until exit, so that no further tool starts: it would outlive the program.
    let group = lock(&GROUP);
    end_group(*group);
    std::process::exit(INTERRUPTED);
}

/// Stops the running answer and returns whether there was one. The callback is taken, so a second Ctrl-C ends
/// the program: an answer on a hung device never ends.
fn stop_answer() -> bool {
    let stop = lock(&ANSWER).take();
    stop.map(|stop| stop()).is_some()
}

fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each lock guards a single value, which a panic cannot leave half changed.
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Guard: while it lives, Ctrl-C stops the running answer.
pub struct Answering(());

impl Answering {
    /// Registers `stop` as the callback for Ctrl-C.
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

/// Guard: while it lives, Ctrl-C also kills the tool's process group.
pub struct Tool(());

impl Tool {
    /// Starts a tool as the leader of a new process group. The handler waits until the group's id is stored.
    pub fn start(command: &mut Command) -> std::io::Result<(Tool, Child)> {
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(command, 0);
        let mut group = lock(&GROUP);
        let child = command.spawn()?;
        *group = child.id().try_into().unwrap_or(0);
        Ok((Tool(()), child))
    }

    /// Kills all processes of the group.
    pub fn end(&self) {
        end_group(*lock(&GROUP));
    }
}

impl Drop for Tool {
    fn drop(&mut self) {
        *lock(&GROUP) = 0;
    }
}

/// Kills all processes of a tool's group; does nothing for 0.
fn end_group(group: i32) {
    #[cfg(unix)]
    if group > 1 {
        use nix::sys::signal::{Signal, killpg};
        // An error means that the group has already ended.
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
