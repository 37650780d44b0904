//! PTX text to tokens. Comments vanish; a token knows its line and place in the text.

use std::fmt;

use super::Number;
use crate::error::LoadError;

/// A token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Token<'a> {
    /// An opcode, directive, name or register, with its dots: `.param`, `ld.global.u32`, `%tid.x`.
    Word(&'a str),
    Number(Number),
    Text(&'a str),
    Punct(char),
}

impl fmt::Display for Token<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Token::Word(word) => write!(f, "`{word}`"),
            Token::Number(_) => f.write_str("a number"),
            Token::Text(text) => write!(f, "{text:?}"),
            Token::Punct(punct) => write!(f, "`{punct}`"),
        }
    }
}

/// A token and where it stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spanned<'a> {
    pub(super) token: Token<'a>,
    pub(super) line: u32,
    pub(super) start: usize,
    pub(super) end: usize,
}

pub(super) fn error(line: u32, message: impl Into<String>) -> LoadError {
    LoadError { kernel: String::new(), line, text: String::new(), message: message.into() }
}

struct Lexer<'a> {
    text: &'a str,
    at: usize,
    line: u32,
}

/// All tokens of a text.
pub(super) fn tokens(text: &str) -> Result<Vec<Spanned<'_>>, LoadError> {
    let mut lexer = Lexer { text, at: 0, line: 1 };
    let mut found = Vec::new();
    while lexer.skip_blank()? {
        let (start, line) = (lexer.at, lexer.line);
        let token = lexer.token()?;
        found.push(Spanned { token, line, start, end: lexer.at });
    }
    Ok(found)
}

impl<'a> Lexer<'a> {
    fn byte(&self, ahead: usize) -> u8 {
        self.text.as_bytes().get(self.at + ahead).copied().unwrap_or(0)
    }

    /// Skips white space and comments; whether something follows.
    fn skip_blank(&mut self) -> Result<bool, LoadError> {
        loop {
            match (self.byte(0), self.byte(1)) {
                (0, _) if self.at >= self.text.len() => return Ok(false),
                (b'\n', _) => {
                    self.line += 1;
                    self.at += 1;
                }
                (b'/', b'/') => self.at += self.rest().find('\n').unwrap_or(self.rest().len()),
                (b'/', b'*') => {
                    let end =
                        self.rest().find("*/").ok_or_else(|| error(self.line, "comment without end"))?;
                    self.line += self.rest()[..end].matches('\n').count() as u32;
                    self.at += end + 2;
                }
                // A text out of a binary may end with zeros.
                (b' ' | b'\t' | b'\r' | 0, _) => self.at += 1,
                _ => return Ok(true),
            }
        }
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn token(&mut self) -> Result<Token<'a>, LoadError> {
        match self.byte(0) {
            b'0'..=b'9' => self.number(),
            b'"' => self.string(),
            b'A'..=b'Z' | b'a'..=b'z' | b'_' | b'$' | b'%' | b'.' => Ok(Token::Word(self.word())),
            byte if byte.is_ascii_graphic() => {
                self.at += 1;
                Ok(Token::Punct(byte as char))
            }
            _ => Err(error(self.line, "character that no PTX has")),
        }
    }

    fn word(&mut self) -> &'a str {
        let start = self.at;
        self.at += 1;
        loop {
            match self.byte(0) {
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'_' | b'$' | b'%' | b'.' => self.at += 1,
                // `L1::no_allocate`, but not the colon of a label.
                b':' if self.byte(1) == b':' && self.byte(2).is_ascii_alphanumeric() => self.at += 2,
                _ => return &self.text[start..self.at],
            }
        }
    }

    fn string(&mut self) -> Result<Token<'a>, LoadError> {
        let body = &self.rest()[1..];
        let end = body.find(['"', '\n']).filter(|end| body.as_bytes()[*end] == b'"');
        let end = end.ok_or_else(|| error(self.line, "string without end"))?;
        self.at += end + 2;
        Ok(Token::Text(&body[..end]))
    }

    fn number(&mut self) -> Result<Token<'a>, LoadError> {
        let rest = self.rest();
        let length = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '.').unwrap_or(rest.len());
        self.at += length;
        let word = &rest[..length];
        parse_number(word).map(Token::Number).ok_or_else(|| error(self.line, format!("bad number `{word}`")))
    }
}

fn parse_number(word: &str) -> Option<Number> {
    let hex = |digits: &str, length: usize| {
        (digits.len() == length).then(|| u64::from_str_radix(digits, 16).ok()).flatten()
    };
    match word.get(..2) {
        Some("0f" | "0F") => return hex(&word[2..], 8).map(|bits| Number::Single(bits as u32)),
        Some("0d" | "0D") => return hex(&word[2..], 16).map(Number::Double),
        _ => {}
    }
    if word.contains('.') {
        return word.parse::<f64>().ok().map(|v| Number::Double(v.to_bits()));
    }
    let word = word.strip_suffix('U').unwrap_or(word);
    let value = match word.get(..2) {
        Some("0x" | "0X") => u64::from_str_radix(&word[2..], 16),
        Some("0b" | "0B") => u64::from_str_radix(&word[2..], 2),
        _ if word.len() > 1 && word.starts_with('0') => u64::from_str_radix(&word[1..], 8),
        _ => word.parse(),
    };
    value.ok().map(Number::Int)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_numbers_and_labels() {
        let found =
            tokens("L1: ld.global.L1::no_allocate.v4.u32 %r1, [%rd2+-16]; // x\n0f3F800000 0x10U 017 $L__a")
                .unwrap();
        let words: Vec<Token> = found.iter().map(|t| t.token).collect();
        assert_eq!(
            words[..4],
            [
                Token::Word("L1"),
                Token::Punct(':'),
                Token::Word("ld.global.L1::no_allocate.v4.u32"),
                Token::Word("%r1")
            ]
        );
        assert_eq!(
            words[words.len() - 4..],
            [
                Token::Number(Number::Single(0x3f80_0000)),
                Token::Number(Number::Int(16)),
                Token::Number(Number::Int(15)),
                Token::Word("$L__a")
            ]
        );
        assert_eq!(found.last().unwrap().line, 2);
    }

    #[test]
    fn what_is_no_ptx_is_an_error() {
        for text in ["\"abc", "/* x", "0f12", "9z", "é", "\u{1}"] {
            assert!(tokens(text).is_err(), "{text}");
        }
    }
}
