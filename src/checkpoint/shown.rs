//! Sanitised text for error messages: one line, no control characters, bounded length.

use std::path::Path;

/// Maximum characters of a name or value in a message.
const CHARS: usize = 72;
/// Maximum characters of a message from another library.
#[cfg(feature = "text")]
const LINE_CHARS: usize = 300;
/// Maximum characters of a path in a message; the end is kept, with the file name.
const PATH_CHARS: usize = 96;

/// A text, cut after the first [`CHARS`] characters.
pub(crate) fn shown(text: &str) -> String {
    let mut shown: String = text.chars().take(CHARS).map(printable).collect();
    if text.chars().nth(CHARS).is_some() {
        shown.push('…');
    }
    shown
}

/// A text as one line, cut after [`LINE_CHARS`] characters.
#[cfg(feature = "text")]
pub(crate) fn shown_line(text: &str) -> String {
    text.chars().take(LINE_CHARS).map(printable).collect()
}

/// A path, cut to its last [`PATH_CHARS`] characters.
pub(crate) fn shown_path(path: &Path) -> String {
    let text = path.to_string_lossy();
    let skipped = text.chars().count().saturating_sub(PATH_CHARS);
    let end = text.chars().skip(skipped).map(printable);
    if skipped == 0 { end.collect() } else { std::iter::once('…').chain(end).collect() }
}

/// Bytes escaped as ASCII, cut like [`shown`].
pub(super) fn shown_bytes(bytes: &[u8]) -> String {
    shown(&bytes.iter().take(CHARS).copied().collect::<Vec<u8>>().escape_ascii().to_string())
}

/// Replaces control characters and bidirectional marks by U+FFFD.
fn printable(c: char) -> char {
    // Bidirectional marks and line separators would reorder or break the rest of the line.
    let turns = matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    if c.is_control() || turns { '\u{fffd}' } else { c }
}

/// File name of part `part` (from 1) of a split model.
pub(super) fn part_name(name: &str, part: u64, count: u64) -> String {
    format!("{name}-{part:05}-of-{count:05}.gguf")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_one_short_line() {
        assert_eq!(shown("blk.0.attn_q"), "blk.0.attn_q");
        assert_eq!(shown("a\nb\x1b[2J\u{202e}"), "a\u{fffd}b\u{fffd}[2J\u{fffd}");
        assert_eq!(shown(&"x".repeat(72)), "x".repeat(72));
        assert_eq!(shown(&"ü".repeat(60_000)), "ü".repeat(72) + "…");
        assert_eq!(shown_bytes(b"PK\x03"), "PK\\x03");
        assert!(shown_bytes(&[0; 9000]).chars().count() <= 73);
    }

    #[test]
    fn a_long_path_keeps_its_name() {
        let path = format!("/{}/model.gguf", "folder/".repeat(60));
        let text = shown_path(Path::new(&path));
        assert!(
            text.starts_with('…') && text.ends_with("/model.gguf") && text.chars().count() == 97,
            "{text}"
        );
        assert_eq!(shown_path(Path::new("a/b.gguf")), "a/b.gguf");
    }
}
