//! Output to stdout and stderr: answers, progress bars, statistics, one-line messages, JSON.
//!
//! All output goes through this file; `notes` queues a server's lines. On a terminal, control characters from
//! files, models and users are escaped (`visible`); a pipe gets stdout's bytes unchanged.

use std::io::{BufWriter, IsTerminal, StdoutLock, Write};
use std::path::Path;

use indicatif::{ProgressBar, ProgressStyle};
use ottava::engine::{MemoryStats, Timings, Usage};
use ottava::model::SidecarUse;
use ottava::{EngineInfo, LoadProgress};

use super::{Failure, notes, visible};

/// Whether to print progress and statistics: stderr is a terminal.
pub fn is_interactive() -> bool {
    std::io::stderr().is_terminal()
}

/// Writes one line to stderr, shortened and escaped; in a server through a queue (`notes`).
pub fn tell(line: impl std::fmt::Display) {
    notes::write(visible::one_line(&line.to_string()) + "\n");
}

/// Writes text to stdout and flushes. A closed pipe gives [`Failure::Closed`], not a panic.
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

/// Converts a write error of stdout.
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

/// Prints a file's path as a line. A pipe gets the path's bytes, which need not be UTF-8.
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

/// Buffered writer of lines to stdout.
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

    /// Flushes the buffer.
    pub fn finish(mut self) -> Result<(), Failure> {
        self.out.flush().map_err(stdout_failure)
    }
}

/// Progress bar in bytes; hidden unless stderr is a terminal.
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

/// Progress bar of a model load.
pub struct LoadBar(ProgressBar);

impl LoadBar {
    /// A bar of length 0, until the first update.
    pub fn new() -> LoadBar {
        LoadBar(byte_bar(0, "loading"))
    }

    /// Moves the bar.
    pub fn update(&self, progress: LoadProgress<'_>) {
        self.0.set_length(progress.bytes_total);
        self.0.set_position(progress.bytes_done);
    }

    /// Removes the bar.
    pub fn finish(&self) {
        self.0.finish_and_clear();
    }
}

/// A byte count, displayed in B, KiB, MiB or GiB.
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

/// Warns if the sidecar was replaced or could not be written.
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

/// Prints a note if a program built for GPUs fell back to the CPU by `--device auto`.
pub fn tell_fallback(info: &EngineInfo) {
    if let (true, Some(why)) = (cfg!(feature = "cuda"), &info.fallback) {
        tell(format_args!("note: runs on {}: {why}", info.device_name));
    }
}

/// Prints the warnings about a model file, one line each.
pub fn tell_warnings(warnings: &[String]) {
    warnings.iter().for_each(|warning| tell(format_args!("warning: {warning}")));
}

/// Statistics line of an answer.
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
