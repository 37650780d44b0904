//! What people see beside the answer: progress bars, statistics, one-line errors, JSON.

use std::io::{IsTerminal, Write};

use indicatif::{ProgressBar, ProgressStyle};
use ottava::engine::{MemoryStats, Timings, Usage};
use ottava::model::SidecarUse;
use ottava::{Bytes, EngineInfo, LoadProgress};

use super::Failure;

/// Whether progress and statistics are wanted: stderr is a terminal.
pub fn is_interactive() -> bool {
    std::io::stderr().is_terminal()
}

/// A message without line breaks or control characters.
pub fn one_line(message: &str) -> String {
    message.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Writes text to stdout at once; a reader that went away is [`Failure::Closed`], not a panic.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// Writes text and a line break to stdout.
pub fn print_line(text: impl std::fmt::Display) -> Result<(), Failure> {
    print(&format!("{text}\n"))
}

/// Prints one JSON object as a line on stdout.
pub fn print_json(value: &serde_json::Value) -> Result<(), Failure> {
    print_line(value)
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

/// Says so where packed weights could not be taken from their file, or are not kept.
pub fn tell_sidecar(sidecar: &SidecarUse) {
    match sidecar {
        SidecarUse::Off | SidecarUse::Read | SidecarUse::Written { replaced: None } => {}
        SidecarUse::Written { replaced: Some(why) } => {
            eprintln!("warning: packed weights were replaced: {}", one_line(why));
        }
        SidecarUse::NotWritten { reason } => {
            eprintln!("warning: packed weights are not kept: {}", one_line(reason));
        }
    }
}

/// Says so where a program that could use a GPU does not, though nobody asked for the CPU.
pub fn tell_fallback(info: &EngineInfo) {
    if let (true, Some(why)) = (cfg!(feature = "cuda"), &info.fallback) {
        eprintln!("note: runs on {}: {}", info.device, one_line(why));
    }
}

/// The line under an answer.
pub fn stats_line(usage: &Usage, timings: &Timings, memory: &MemoryStats) -> String {
    let bytes = |bytes: u64| Bytes(usize::try_from(bytes).unwrap_or(usize::MAX));
    format!(
        "[{} prompt tokens ({} cached), {:.0} tokens/s; {} tokens, {:.0} tokens/s; first token after {:.0} ms; \
         weights {}, keys and values {} at most, intermediates {}]",
        usage.prompt_tokens,
        usage.cached_tokens,
        timings.prefill_tokens_per_s,
        usage.completion_tokens,
        timings.decode_tokens_per_s,
        timings.first_token_s * 1e3,
        bytes(memory.weights.bytes),
        bytes(memory.kv_pages.bytes_max),
        bytes(memory.arena.bytes),
    )
}
