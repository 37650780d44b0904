//! [`TokenKind`]: normal, control, user-defined, byte and other kinds of tokens.

/// The kind of a token, from the file's `token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TokenKind {
    /// A piece of text.
    Normal,
    /// Substitute for text outside the vocabulary.
    Unknown,
    /// Structure (begin, end, roles): neither user text nor visible output.
    Control,
    /// Text that is always one token, regardless of the text around it.
    UserDefined,
    /// Reserved; never produced from text.
    Unused,
    /// A single byte of the byte fallback.
    Byte,
}

impl TokenKind {
    pub(crate) fn from_code(code: u32) -> Option<TokenKind> {
        Some(match code {
            // 0 is "undefined" in old files.
            0 | 1 => TokenKind::Normal,
            2 => TokenKind::Unknown,
            3 => TokenKind::Control,
            4 => TokenKind::UserDefined,
            5 => TokenKind::Unused,
            6 => TokenKind::Byte,
            _ => return None,
        })
    }
}

/// The byte of a `<0xNN>` piece.
pub(crate) fn byte_token(piece: &str) -> Option<u8> {
    let digits = piece.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() == 2 { u8::from_str_radix(digits, 16).ok() } else { None }
}
