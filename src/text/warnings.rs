//! What a vocabulary's file does not say rightly, and what is made of it: a line each, for people.

use std::fmt::Display;
use std::path::Path;

/// Most characters of a line.
const LINE_MAX: usize = 300;

/// Lines that name the file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Warnings {
    file: String,
    lines: Vec<String>,
}

impl Warnings {
    /// None yet, of this file.
    pub(crate) fn of(file: &Path) -> Warnings {
        Warnings { file: file.display().to_string(), lines: Vec::new() }
    }

    /// Adds a line. Line breaks and control characters become spaces, and a long line is cut.
    pub(crate) fn add(&mut self, what: impl Display) {
        let line = format!("{}: tokenizer: {what}", self.file);
        let mut line: String = line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        if let Some((end, _)) =
            line.char_indices().nth(LINE_MAX - 1).filter(|(end, c)| end + c.len_utf8() < line.len())
        {
            line.truncate(end);
            line.push('…');
        }
        self.lines.push(line);
    }

    pub(crate) fn lines(&self) -> &[String] {
        &self.lines
    }
}
