//! Text input of all commands: arguments, standard input and files.
//!
//! Input is bounded and UTF-8. An error names the source and the offset of the bad byte.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal, Read, Stdin};
use std::path::Path;

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};

use super::{Failure, output};

/// Maximum bytes of a text.
pub const TEXT_BYTES_MAX: usize = 16 << 20;
/// Name of standard input in messages.
pub const STDIN: &str = "standard input";
/// Byte-order mark, which editors on Windows write at the start of a text.
const MARK: char = '\u{feff}';
/// Time in milliseconds that `TEXT` waits for the first byte of piped input before it is left out.
const SILENCE_MS: u16 = 5000;

/// The text of `run`, `tokenize` and `score`.
#[derive(Args)]
pub struct TextInput {
    /// Text; - or none reads standard input. Piped input follows TEXT after a blank line
    ///
    /// Standard input is UTF-8 of at most 16 MiB. A terminal or an empty input adds nothing to TEXT. A pipe
    /// that stays silent for 5 seconds is left out, with a note; `TEXT -` waits for it. In a loop that reads
    /// a file, add `< /dev/null`, or the command consumes the file's lines. If an option's FILE is -,
    /// standard input is that file and nothing follows TEXT.
    #[arg(value_name = "TEXT", value_parser = utf8(), allow_negative_numbers = true)]
    text: Option<String>,
    /// After TEXT: wait for standard input without a time limit
    #[arg(id = "stdin", value_name = "-", value_parser = only_dash)]
    dash: Option<String>,
}

impl TextInput {
    /// Reads the text. Without `TEXT`, a terminal or an empty standard input is an error. If one of `options`
    /// reads standard input, the text is `TEXT` alone.
    pub fn read(&self, options: &[Option<&'static str>]) -> Result<String, Failure> {
        let own = (self.dash.is_some() || matches!(self.text.as_deref(), None | Some("-"))).then_some("TEXT");
        check_readers(options.iter().copied().chain([own]))?;
        let is_left = options.iter().all(Option::is_none);
        match self.text.as_deref() {
            Some("-") => read_stdin(),
            Some(text) if self.dash.is_some() || is_left && has_input() => Ok(joined(text, read_stdin()?)),
            Some(text) => Ok(text.to_owned()),
            None if std::io::stdin().is_terminal() => {
                Err(Failure::Usage("no text: give TEXT, or pipe it to standard input".into()))
            }
            None => match read_stdin()? {
                text if text.is_empty() => {
                    Err(Failure::Usage("no text: there is no TEXT, and standard input is empty".into()))
                }
                text => Ok(text),
            },
        }
    }
}

/// `name`, if the option's file is `-`: standard input.
pub fn reader(name: &'static str, file: impl AsRef<OsStr>) -> Option<&'static str> {
    (file.as_ref() == "-").then_some(name)
}

/// Refuses a command of which more than one part reads standard input: the second would read an empty text.
pub fn check_readers(readers: impl IntoIterator<Item = Option<&'static str>>) -> Result<(), Failure> {
    let mut readers = readers.into_iter().flatten();
    match (readers.next(), readers.next()) {
        (Some(first), Some(second)) => Err(Failure::Usage(format!(
            "{STDIN} is read once: expected another source of {first} or of {second}"
        ))),
        _ => Ok(()),
    }
}

/// `text`, then the piped `input` after a blank line.
fn joined(text: &str, input: String) -> String {
    if input.is_empty() { text.to_owned() } else { format!("{text}\n\n{input}") }
}

/// Value parser of UTF-8 text; its error has the offset of the bad byte.
pub fn utf8() -> impl TypedValueParser<Value = String> {
    OsStringValueParser::new().try_map(|text: OsString| utf8_of(&text))
}

/// UTF-8 text of an argument or a variable; the error has the offset of the bad byte.
pub fn utf8_of(text: &OsStr) -> Result<String, String> {
    let bytes = text.as_encoded_bytes();
    let text = std::str::from_utf8(bytes).map_err(|error| not_utf8(bytes, error.valid_up_to()))?;
    Ok(text.to_owned())
}

/// Value parser of the argument after `TEXT`, which can only be `-`.
fn only_dash(text: &str) -> Result<String, String> {
    if text == "-" { Ok(text.to_owned()) } else { Err("expected one TEXT: put it in quotes".into()) }
}

/// The reason against a text that is not UTF-8 from byte `at` on. UTF-16, which PowerShell writes, is
/// recognised by its byte-order mark.
fn not_utf8(bytes: &[u8], at: usize) -> String {
    if at == 0 && (bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff")) {
        return "expected UTF-8, found UTF-16".into();
    }
    let byte = bytes.get(at).copied().unwrap_or_default();
    format!("the byte at offset {at} is not UTF-8 (0x{byte:02x})")
}

/// Reads all of standard input.
pub fn read_stdin() -> Result<String, Failure> {
    read(std::io::stdin().lock(), STDIN, TEXT_BYTES_MAX)
}

/// Reads a file, or standard input for `-`.
pub fn read_file(path: &Path) -> Result<String, Failure> {
    if path.as_os_str() == "-" {
        return read_stdin();
    }
    read_path(path)
}

/// Reads a file. `-` is an ordinary file name here.
pub fn read_path(path: &Path) -> Result<String, Failure> {
    read_path_within(path, TEXT_BYTES_MAX)
}

/// Reads a file of at most `most` bytes.
pub fn read_path_within(path: &Path, most: usize) -> Result<String, Failure> {
    let file = File::open(path).map_err(|error| Failure::Failed(format!("{}: {error}", path.display())))?;
    read(file, &path.display().to_string(), most)
}

/// API keys of a text, one per line. Lines that begin with `#` are comments. A text without a key is an
/// error, which has the text's `name`.
pub fn keys(text: &str, name: &str) -> Result<Vec<String>, Failure> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let keys: Vec<String> = lines.map(str::to_owned).collect();
    match keys.is_empty() {
        false => Ok(keys),
        true => Err(Failure::Failed(format!("{name}: expected a key a line, found none"))),
    }
}

/// Reads all of a source of at most `most` bytes, without a byte-order mark. Errors have its `name`.
fn read(mut from: impl Read, name: &str, most: usize) -> Result<String, Failure> {
    let mut bytes = Vec::new();
    loop {
        let room = (most + 1).saturating_sub(bytes.len()) as u64;
        match from.by_ref().take(room).read_to_end(&mut bytes) {
            Ok(_) => break,
            // The parent process may have left the pipe in non-blocking mode.
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock && wait_for_stdin(None) => {}
            Err(error) => return Err(Failure::Failed(format!("{name}: {error}"))),
        }
    }
    if bytes.len() > most {
        return Err(Failure::Failed(format!("{name}: {}", too_long(most))));
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Failure::Failed(format!("{name}: {}", not_utf8(error.as_bytes(), at)))
    })?;
    Ok(text.strip_prefix(MARK).map(str::to_owned).unwrap_or(text))
}

fn too_long(most: usize) -> String {
    format!("more than {} MiB, expected at most so much text", most >> 20)
}

/// Whether there is standard input to read in addition to `TEXT`. Prints a note if a pipe stays silent.
fn has_input() -> bool {
    if std::io::stdin().is_terminal() {
        return false;
    }
    let comes = wait_for_stdin(Some(SILENCE_MS));
    if !comes {
        let seconds = SILENCE_MS / 1000;
        output::tell(format_args!(
            "note: {STDIN} gave nothing for {seconds} s and is left out; a - behind the text waits for it"
        ));
    }
    comes
}

/// Whether standard input is readable or at its end. Waits for at most `milliseconds`, or for ever if `None`.
#[cfg(unix)]
fn wait_for_stdin(milliseconds: Option<u16>) -> bool {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use std::os::fd::AsFd;
    let stdin = std::io::stdin();
    let mut descriptors = [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
    let timeout = milliseconds.map_or(PollTimeout::NONE, PollTimeout::from);
    loop {
        match poll(&mut descriptors, timeout) {
            Err(nix::errno::Errno::EINTR) => {}
            found => return found.is_ok_and(|ready| ready > 0),
        }
    }
}

/// Without `poll`, standard input counts as readable: the read itself blocks.
#[cfg(not(unix))]
fn wait_for_stdin(milliseconds: Option<u16>) -> bool {
    milliseconds.is_some()
}

/// Line reader of standard input that is not a terminal.
pub struct Lines<R = BufReader<Stdin>> {
    from: R,
    /// Offset of the next line, in bytes.
    offset: usize,
    number: usize,
}

/// Result of reading a line.
#[derive(Debug, PartialEq)]
pub enum NextLine {
    /// A line without its line break.
    Line(String),
    /// The reason why a line cannot be used. Reading goes on with the next one.
    Bad(String),
    End,
}

impl Lines {
    pub fn of_stdin() -> Lines {
        Lines::new(BufReader::new(std::io::stdin()))
    }
}

impl<R: BufRead> Lines<R> {
    fn new(from: R) -> Lines<R> {
        Lines { from, offset: 0, number: 0 }
    }

    /// Number of lines read so far.
    pub fn count(&self) -> usize {
        self.number
    }

    /// Reads the next line.
    pub fn next_line(&mut self) -> Result<NextLine, Failure> {
        let mut bytes = Vec::new();
        let start = self.offset;
        let is_whole = self.read_line(&mut bytes).map_err(|e| Failure::Failed(format!("{STDIN}: {e}")))?;
        if self.offset == start {
            return Ok(NextLine::End);
        }
        self.number += 1;
        if !is_whole {
            return Ok(NextLine::Bad(format!("{STDIN}, line {}: {}", self.number, too_long(TEXT_BYTES_MAX))));
        }
        Ok(match std::str::from_utf8(&bytes) {
            Ok(line) => {
                let line = line.strip_prefix(MARK).filter(|_| start == 0).unwrap_or(line);
                NextLine::Line(line.trim_end_matches(['\n', '\r']).to_owned())
            }
            Err(error) if start == 0 && error.valid_up_to() == 0 => {
                NextLine::Bad(format!("{STDIN}, line 1: {}", not_utf8(&bytes, 0)))
            }
            Err(error) => {
                let (at, byte) = (error.valid_up_to(), bytes.get(error.valid_up_to()));
                let (offset, byte) = (start + at, byte.copied().unwrap_or_default());
                NextLine::Bad(format!(
                    "{STDIN}, line {}: the byte at offset {offset} is not UTF-8 (0x{byte:02x})",
                    self.number
                ))
            }
        })
    }

    /// Reads up to a line break or the end. A line over the limit is dropped and gives `false`.
    fn read_line(&mut self, line: &mut Vec<u8>) -> std::io::Result<bool> {
        let mut is_whole = true;
        loop {
            let block = match self.from.fill_buf() {
                Ok(block) => block,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock && wait_for_stdin(None) => {
                    continue;
                }
                Err(error) => return Err(error),
            };
            let end = block.iter().position(|&byte| byte == b'\n').map(|at| at + 1);
            let taken = end.unwrap_or(block.len());
            is_whole = is_whole && line.len() + taken <= TEXT_BYTES_MAX;
            if is_whole {
                line.extend(block.iter().take(taken));
            } else {
                *line = Vec::new();
            }
            self.from.consume(taken);
            self.offset += taken;
            if end.is_some() || taken == 0 {
                return Ok(is_whole);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(result: Result<String, Failure>) -> String {
        match result {
            Err(Failure::Failed(message)) => message,
            other => panic!("expected a failure, found {other:?}"),
        }
    }

    #[test]
    fn what_is_no_utf8_is_named_by_source_and_offset() {
        assert_eq!(read(&b"ok"[..], STDIN, TEXT_BYTES_MAX).unwrap(), "ok");
        assert_eq!(
            failed(read(&b"ok \xff"[..], STDIN, TEXT_BYTES_MAX)),
            "standard input: the byte at offset 3 is not UTF-8 (0xff)"
        );
        // A truncated character, and a surrogate.
        assert!(
            failed(read("né".as_bytes().split_at(2).0, "note", TEXT_BYTES_MAX))
                .contains("note: the byte at offset 1")
        );
        assert!(
            failed(read(&b"a\xed\xa0\x80"[..], "note", TEXT_BYTES_MAX))
                .contains("offset 1 is not UTF-8 (0xed)")
        );
    }

    #[test]
    fn a_byte_order_mark_is_dropped_and_utf_16_is_named() {
        for (bytes, text) in [("\u{feff}a", "a"), ("\u{feff}", ""), ("a\u{feff}", "a\u{feff}")] {
            assert_eq!(read(bytes.as_bytes(), "note", TEXT_BYTES_MAX).unwrap(), text);
        }
        for order in [u16::to_le_bytes, u16::to_be_bytes] {
            let bytes: Vec<u8> = "\u{feff}{}".encode_utf16().flat_map(order).collect();
            let expected = "note: expected UTF-8, found UTF-16";
            assert_eq!(failed(read(&bytes[..], "note", TEXT_BYTES_MAX)), expected);
            let line = Lines::new(BufReader::new(&bytes[..])).next_line().unwrap();
            assert_eq!(line, NextLine::Bad("standard input, line 1: expected UTF-8, found UTF-16".into()));
        }
        let mut lines = Lines::new(BufReader::new("\u{feff}one\n\u{feff}two".as_bytes()));
        assert_eq!(lines.next_line().unwrap(), NextLine::Line("one".into()));
        assert_eq!(lines.next_line().unwrap(), NextLine::Line("\u{feff}two".into()));
    }

    #[test]
    fn keys_stand_on_lines_of_their_own_between_comments() {
        let text = "\r\n# of May\r\nalpha\r\n  beta \n#gamma\n";
        assert_eq!(keys(text, "file").unwrap(), ["alpha", "beta"]);
        for text in ["", "\n \n", "# only a comment"] {
            assert!(failed(keys(text, "file").map(|_| String::new())).starts_with("file: "), "{text}");
        }
    }

    #[test]
    fn a_text_is_read_up_to_its_limit_and_no_further() {
        let exact = read(std::io::repeat(b'a').take(TEXT_BYTES_MAX as u64), "note", TEXT_BYTES_MAX).unwrap();
        assert_eq!(exact.len(), TEXT_BYTES_MAX);
        assert_eq!(
            failed(read(std::io::repeat(b'a'), "note", TEXT_BYTES_MAX)),
            "note: more than 16 MiB, expected at most so much text"
        );
    }

    #[test]
    fn input_follows_the_text_after_a_blank_line() {
        assert_eq!(joined("Summarise", "a note\n".into()), "Summarise\n\na note\n");
        assert_eq!(joined("Summarise", String::new()), "Summarise");
    }

    #[test]
    fn bad_lines_are_told_and_the_next_is_read() {
        let long = [b"a".repeat(TEXT_BYTES_MAX), b"\nend".to_vec()].concat();
        let text = [&b"one\r\ntwo \xc3\x28\n"[..], &long].concat();
        let mut lines = Lines::new(BufReader::new(&*text));
        let mut next = || lines.next_line().unwrap();
        assert_eq!(next(), NextLine::Line("one".into()));
        assert_eq!(
            next(),
            NextLine::Bad("standard input, line 2: the byte at offset 9 is not UTF-8 (0xc3)".into())
        );
        assert_eq!(
            next(),
            NextLine::Bad("standard input, line 3: more than 16 MiB, expected at most so much text".into())
        );
        assert_eq!((next(), next()), (NextLine::Line("end".into()), NextLine::End));
        assert_eq!(lines.count(), 4);
    }
}
