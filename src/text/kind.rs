//! [`TokenKind`]: what a token is for.

/// The kind of a token, as the file's `token_type` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TokenKind {
    /// A piece of text.
    Normal,
    /// Stands for text that the vocabulary cannot spell.
    Unknown,
    /// Structure (begin, end, roles): never text of a user or for a reader.
    Control,
    /// Text that is always one token, whatever stands around it.
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
