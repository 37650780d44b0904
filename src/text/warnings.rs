//! Warnings about inconsistent tokenizer data and their repair, one line each.

use std::fmt::Display;
use std::path::Path;

use crate::checkpoint::shown_path;

/// Maximum length of a line in characters.
const LINE_MAX: usize = 300;

/// Warnings with the name of the file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Warnings {
    file: String,
    lines: Vec<String>,
    /// Translation of GGUF keys to the names in the file.
    names: Option<fn(&'static str) -> &'static str>,
}

impl Warnings {
    /// No warnings yet, for this file.
    pub(crate) fn of(file: &Path) -> Warnings {
        Warnings { file: shown_path(file), ..Warnings::default() }
    }

    /// No warnings yet, for a document with other names for GGUF's keys.
    #[cfg(feature = "safetensors")]
    pub(crate) fn of_document(file: &Path, names: fn(&'static str) -> &'static str) -> Warnings {
        Warnings { names: Some(names), ..Warnings::of(file) }
    }

    /// The file's name for a GGUF key.
    pub(crate) fn name(&self, key: &'static str) -> &'static str {
        self.names.map_or(key, |names| names(key))
    }

    /// Adds a line. Control characters become spaces, and long lines are truncated.
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

/// Pieces with the same problem, reported in one line.
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

    /// The first piece and the number of further ones; `None` if there are none.
    pub(crate) fn shown(&self) -> Option<String> {
        let first = self.first.as_ref()?;
        Some(match self.count {
            1 => first.clone(),
            count => format!("{first} (and {} more)", count - 1),
        })
    }
}

/// Ids outside the vocabulary, reported in one line per key.
#[derive(Debug, Default)]
pub(crate) struct Outside {
    /// Key, first id and number of ids.
    keys: Vec<(&'static str, i64, usize)>,
}

impl Outside {
    pub(crate) fn add(&mut self, key: &'static str, id: i64) {
        match self.keys.iter_mut().find(|(other, ..)| *other == key) {
            Some((_, _, count)) => *count += 1,
            None => self.keys.push((key, id, 1)),
        }
    }

    /// Adds the lines. The vocabulary has this number of tokens.
    pub(crate) fn tell(&self, tokens: usize, warnings: &mut Warnings) {
        for &(key, id, count) in &self.keys {
            let key = warnings.name(key);
            let found = match count {
                1 => id.to_string(),
                _ => format!("{id} (and {} more)", count - 1),
            };
            warnings.add(format_args!(
                "`{key}`: expected a token id below {tokens}, found {found}: no such token"
            ));
        }
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
