//! Ctrl-C: it stops an answer of `chat`, ends a tool that a pull waits for, and else ends the program.
//!
//! A process has one handler for a signal, so what it does is a value of the process, too.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use super::Failure;

/// What the handler looks at.
struct Interrupts {
    answering: AtomicBool,
    stopped: AtomicBool,
    /// A tool's process group; 0 if none runs.
    group: AtomicI32,
}

static INTERRUPTS: Interrupts = Interrupts {
    answering: AtomicBool::new(false),
    stopped: AtomicBool::new(false),
    group: AtomicI32::new(0),
};

/// The exit code of a program that Ctrl-C ended, as shells have it.
const INTERRUPTED: i32 = 130;

/// Watches for Ctrl-C from here on.
pub fn watch() -> Result<(), Failure> {
    static WATCHED: OnceLock<Result<(), String>> = OnceLock::new();
    let watched = WATCHED.get_or_init(|| ctrlc::set_handler(interrupted).map_err(|error| error.to_string()));
    watched.clone().map_err(|error| Failure::Failed(format!("cannot watch for Ctrl-C: {error}")))
}

fn interrupted() {
    if INTERRUPTS.answering.load(Ordering::Relaxed) {
        INTERRUPTS.stopped.store(true, Ordering::Relaxed);
        return;
    }
    end_group(INTERRUPTS.group.load(Ordering::Relaxed));
    std::process::exit(INTERRUPTED);
}

/// While it lives, Ctrl-C stops an answer.
pub struct Answering(());

impl Answering {
    /// An answer begins.
    pub fn new() -> Answering {
        INTERRUPTS.stopped.store(false, Ordering::Relaxed);
        INTERRUPTS.answering.store(true, Ordering::Relaxed);
        Answering(())
    }

    /// Whether Ctrl-C came.
    pub fn is_stopped(&self) -> bool {
        INTERRUPTS.stopped.load(Ordering::Relaxed)
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        INTERRUPTS.answering.store(false, Ordering::Relaxed);
    }
}

/// While it lives, Ctrl-C ends a tool's process group, too.
pub struct Tool(());

impl Tool {
    /// A tool that leads a process group of its own.
    pub fn new(process: u32) -> Tool {
        INTERRUPTS.group.store(process.try_into().unwrap_or(0), Ordering::Relaxed);
        Tool(())
    }
}

impl Drop for Tool {
    fn drop(&mut self) {
        INTERRUPTS.group.store(0, Ordering::Relaxed);
    }
}

/// Ends all processes of a group that a tool leads; nothing for 0.
pub fn end_group(group: i32) {
    #[cfg(unix)]
    if group > 1 {
        use nix::sys::signal::{Signal, killpg};
        // It may have ended by itself.
        let _ = killpg(nix::unistd::Pid::from_raw(group), Signal::SIGKILL);
    }
    #[cfg(not(unix))]
    let _ = group;
}
