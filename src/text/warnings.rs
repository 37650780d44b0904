//! What a vocabulary's file does not say rightly, and what is made of it: a line each, for people.

use std::fmt::Display;
use std::path::Path;

use crate::checkpoint::shown_path;

/// Most characters of a line.
const LINE_MAX: usize = 300;

/// Lines that name the file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Warnings {
    file: String,
    lines: Vec<String>,
    /// The name that the file has for a key of GGUF.
    names: Option<fn(&'static str) -> &'static str>,
}

impl Warnings {
    /// None yet, of this file.
    pub(crate) fn of(file: &Path) -> Warnings {
        Warnings { file: shown_path(file), ..Warnings::default() }
    }

    /// None yet, of a document that has other names for GGUF's keys.
    #[cfg(feature = "safetensors")]
    pub(crate) fn of_document(file: &Path, names: fn(&'static str) -> &'static str) -> Warnings {
        Warnings { names: Some(names), ..Warnings::of(file) }
    }

    /// What the file calls a key of GGUF.
    pub(crate) fn name(&self, key: &'static str) -> &'static str {
        self.names.map_or(key, |names| names(key))
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

/// Pieces with the same fault: one line tells all of them.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    count: usize,
    first: Option<String>,
}

impl Pieces {
    pub(crate) fn add(&mut self, piece: &str) {
        self.count += 1;
        self.first.get_or_insert_with(|| format!("{piece:?}"));
    }

    /// The first and how many there are beside it. `None` if there is none.
    pub(crate) fn shown(&self) -> Option<String> {
        let first = self.first.as_ref()?;
        Some(match self.count {
            1 => first.clone(),
            count => format!("{first} (and {} more)", count - 1),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_path_leaves_room_for_the_message() {
        let path = format!("{}/model.gguf", "é".repeat(1000));
        let mut warnings = Warnings::of(Path::new(&path));
        warnings.add("what is said");
        let [line] = warnings.lines() else { panic!("one line") };
        assert!(line.starts_with('…') && line.ends_with("é/model.gguf: tokenizer: what is said"), "{line}");
        assert!(line.chars().count() < LINE_MAX / 2, "{line}");
        warnings.add("x".repeat(500));
        assert!(warnings.lines()[1].ends_with("x…") && warnings.lines()[1].chars().count() == LINE_MAX);
        let mut short = Warnings::of(Path::new("a.gguf"));
        short.add("no\nline\tbreak");
        assert_eq!(short.lines(), ["a.gguf: tokenizer: no line break"]);
    }
}
