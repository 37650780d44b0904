//! What people see beside the answer: progress bars, statistics, one-line messages, JSON.
//!
//! All that goes to stdout or stderr goes through here: a terminal gets no control sequences of what files,
//! models and users wrote (`visible` spells them out), a pipe gets stdout's bytes as they are.

use std::io::{BufWriter, IsTerminal, StdoutLock, Write};
use std::path::Path;

use indicatif::{ProgressBar, ProgressStyle};
use ottava::engine::{MemoryStats, Timings, Usage};
use ottava::model::SidecarUse;
use ottava::{EngineInfo, LoadProgress};

use super::{Failure, visible};

/// Whether progress and statistics are wanted: stderr is a terminal.
pub fn is_interactive() -> bool {
    std::io::stderr().is_terminal()
}

/// Writes one line to stderr, shortened and made visible. A stderr that is full or closed ends no work.
pub fn tell(line: impl std::fmt::Display) {
    let line = visible::one_line(&line.to_string()) + "\n";
    let _ = std::io::stderr().lock().write_all(line.as_bytes());
}

/// Writes text to stdout at once; a reader that went away is [`Failure::Closed`], not a panic.
pub fn print(text: &str) -> Result<(), Failure> {
    if std::io::stdout().is_terminal() {
        return print_bytes(visible::for_terminal(text).as_bytes());
    }
    print_bytes(text.as_bytes())
}

fn print_bytes(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(stdout_failure)
}

/// Why stdout took no more.
pub fn stdout_failure(error: std::io::Error) -> Failure {
    match error.kind() {
        std::io::ErrorKind::BrokenPipe => Failure::Closed,
        _ => Failure::Output(format!("standard output: {error}")),
    }
}

/// Writes text and a line break to stdout.
pub fn print_line(text: impl std::fmt::Display) -> Result<(), Failure> {
    print(&format!("{text}\n"))
}

/// Prints a file's path as a line, for a pipe with the bytes that name it.
pub fn print_path(path: &Path) -> Result<(), Failure> {
    if std::io::stdout().is_terminal() {
        return print_line(path.display());
    }
    print_bytes(&[path.as_os_str().as_encoded_bytes(), b"\n"].concat())
}

/// Prints one JSON object as a line on stdout.
pub fn print_json(value: &serde_json::Value) -> Result<(), Failure> {
    let line = format!("{value}\n");
    if std::io::stdout().is_terminal() {
        return print_bytes(visible::json_for_terminal(&line).as_bytes());
    }
    print_bytes(line.as_bytes())
}

/// Many lines on stdout.
pub struct Page {
    out: BufWriter<StdoutLock<'static>>,
    is_terminal: bool,
}

impl Page {
    pub fn new() -> Page {
        let out = std::io::stdout();
        let is_terminal = out.is_terminal();
        Page { out: BufWriter::new(out.lock()), is_terminal }
    }

    /// Writes a line.
    pub fn line(&mut self, text: impl std::fmt::Display) -> Result<(), Failure> {
        let text = format!("{text}\n");
        let shown = if self.is_terminal { visible::for_terminal(&text) } else { text.into() };
        self.out.write_all(shown.as_bytes()).map_err(stdout_failure)
    }

    /// The last lines are out when this returns.
    pub fn finish(mut self) -> Result<(), Failure> {
        self.out.flush().map_err(stdout_failure)
    }
}

/// A byte-counting bar on a terminal, silent elsewhere.
pub fn byte_bar(bytes: u64, what: &str) -> ProgressBar {
    if !is_interactive() {
        return ProgressBar::hidden();
    }
    let template = "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
    let bar = ProgressBar::new(bytes).with_message(what.to_owned());
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// The bar of a loading model.
pub struct LoadBar(ProgressBar);

impl LoadBar {
    /// A bar that does not show yet.
    pub fn new() -> LoadBar {
        LoadBar(byte_bar(0, "loading"))
    }

    /// Moves the bar.
    pub fn update(&self, progress: LoadProgress<'_>) {
        self.0.set_length(progress.bytes_total);
        self.0.set_position(progress.bytes_done);
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        self.0.finish_and_clear();
    }
}

/// A number of bytes, for people.
pub struct Bytes(pub u64);

impl std::fmt::Display for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let bytes = self.0 as f64;
        match self.0 {
            0..1024 => write!(f, "{} B", self.0),
            1024..1_048_576 => write!(f, "{:.1} KiB", bytes / 1024.0),
            1_048_576..1_073_741_824 => write!(f, "{:.1} MiB", bytes / 1_048_576.0),
            _ => write!(f, "{:.2} GiB", bytes / 1_073_741_824.0),
        }
    }
}

/// Says so where packed weights could not be taken from their file, or are not kept.
pub fn tell_sidecar(sidecar: &SidecarUse) {
    match sidecar {
        SidecarUse::Off | SidecarUse::Read | SidecarUse::Written { replaced: None } => {}
        SidecarUse::Written { replaced: Some(why) } => {
            tell(format_args!("warning: packed weights were replaced: {why}"));
        }
        SidecarUse::NotWritten { reason } => {
            tell(format_args!("warning: packed weights are not kept: {reason}"));
        }
    }
}

/// Says so where a program that could use a GPU does not, though nobody asked for the CPU.
pub fn tell_fallback(info: &EngineInfo) {
    if let (true, Some(why)) = (cfg!(feature = "cuda"), &info.fallback) {
        tell(format_args!("note: runs on {}: {why}", info.device_name));
    }
}

/// Says what a model's file says badly, a line each.
pub fn tell_warnings(warnings: &[String]) {
    warnings.iter().for_each(|warning| tell(format_args!("warning: {warning}")));
}

/// The line under an answer.
pub fn stats_line(usage: &Usage, timings: &Timings, memory: &MemoryStats) -> String {
    format!(
        "[{} prompt tokens ({} cached), {:.0} tokens/s; {} tokens, {:.0} tokens/s; first token after {:.0} ms; \
         weights {}, keys and values {} at most, intermediates {}]",
        usage.prompt_tokens,
        usage.cached_tokens,
        timings.prefill_tokens_per_s,
        usage.completion_tokens,
        timings.decode_tokens_per_s,
        timings.first_token_s * 1e3,
        Bytes(memory.weights.bytes),
        Bytes(memory.kv_pages.bytes_max),
        Bytes(memory.arena.bytes),
    )
}
