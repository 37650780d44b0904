//! What each token of a model spells: bytes, kind, and the ids with a meaning of their own.
//!
//! Two spellings exist in GGUF files. `gpt2` stores every byte as a printable character (the byte-level
//! alphabet of GPT-2); `llama` (SentencePiece) stores a space as `▁` and lone bytes as `<0xNN>`. Both are
//! undone here, once, at load. Turning text into ids is the matter of `tokenizer.rs`.

use super::byte_level::byte_of;
use super::error::TextError;
use super::parts::{Spelling, VocabParts, key};
use crate::TokenId;
use crate::weights::{Ends, Metadata, Strings};

/// Tokens that end a turn in the chat formats of the supported families; generation stops at them when
/// the vocabulary has them as control (or user-defined) tokens.
const END_OF_TURN: [&str; 9] = [
    "<|im_end|>",
    "<end_of_turn>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|end_of_turn|>",
    "<EOT>",
];

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
    fn from_code(code: u32) -> Option<TokenKind> {
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

/// The vocabulary of a model.
#[derive(Debug)]
pub struct Vocab {
    bytes: ByteStrings,
    pieces: Strings,
    kinds: Vec<TokenKind>,
    bos: Option<TokenId>,
    eos: Option<TokenId>,
    unknown: Option<TokenId>,
    stop_ids: Vec<TokenId>,
    add_bos: bool,
    add_space_prefix: bool,
}

impl Vocab {
    /// The vocabulary of a model file. Where two tokens are spelled alike, both decode and the lower id
    /// encodes.
    ///
    /// # Errors
    /// Every [`TextError`] that names a key: missing, of another type, or not fitting the number of tokens.
    pub fn from_metadata(metadata: &Metadata) -> Result<Vocab, TextError> {
        Vocab::from_parts(&VocabParts::read(metadata)?)
    }

    /// Checks the parts and spells out every token.
    pub(crate) fn from_parts(parts: &VocabParts) -> Result<Vocab, TextError> {
        let spelling = parts.spelling()?;
        let kinds = kinds(parts)?;
        check_scores(parts, spelling)?;
        // No piece spells more than its own length, so all of them end where `Ends` can say it.
        let spelled_max = parts.tokens.iter().map(str::len).sum();
        let mut bytes = ByteStrings {
            bytes: Vec::with_capacity(spelled_max),
            ends: Ends::with_capacity(parts.tokens.len()),
        };
        let mut spelled = Vec::new();
        for (piece, &kind) in parts.tokens.iter().zip(&kinds) {
            spelled.clear();
            spell(piece, kind, spelling, &mut spelled);
            bytes.push(&spelled);
        }
        let mut vocab = Vocab {
            bytes,
            pieces: parts.tokens.clone(),
            kinds,
            bos: special_id(parts.bos, key::BOS, parts.tokens.len())?,
            eos: special_id(parts.eos, key::EOS, parts.tokens.len())?,
            unknown: special_id(parts.unknown, key::UNKNOWN, parts.tokens.len())?,
            stop_ids: Vec::new(),
            add_bos: parts.add_bos.unwrap_or(adds_bos_by_default(parts, spelling)),
            add_space_prefix: parts.add_space_prefix.unwrap_or(spelling == Spelling::SentencePiece),
        };
        let eot = special_id(parts.eot, key::EOT, parts.tokens.len())?;
        vocab.stop_ids = stop_ids(&vocab, eot);
        Ok(vocab)
    }

    /// Number of tokens.
    #[allow(clippy::len_without_is_empty)] // a vocabulary is never empty
    pub fn len(&self) -> usize {
        self.kinds.len()
    }

    /// What the token spells (not always whole UTF-8). `None` where the id is not in the vocabulary.
    pub fn bytes(&self, id: TokenId) -> Option<&[u8]> {
        self.bytes.get(id.index())
    }

    /// The token as the file writes it. `None` where the id is not in the vocabulary.
    pub fn piece(&self, id: TokenId) -> Option<&str> {
        self.pieces.get(id.index())
    }

    /// The kind of the token. `None` where the id is not in the vocabulary.
    pub fn kind(&self, id: TokenId) -> Option<TokenKind> {
        self.kinds.get(id.index()).copied()
    }

    /// Whether the token is structure rather than text (control or unknown).
    pub fn is_control(&self, id: TokenId) -> bool {
        matches!(self.kind(id), Some(TokenKind::Control | TokenKind::Unknown))
    }

    /// The token that begins a sequence.
    pub fn bos(&self) -> Option<TokenId> {
        self.bos
    }

    /// The token that ends a sequence.
    pub fn eos(&self) -> Option<TokenId> {
        self.eos
    }

    /// The token that stands for text which cannot be spelled.
    pub fn unknown(&self) -> Option<TokenId> {
        self.unknown
    }

    /// The tokens at which generation ends: end of sequence and the end-of-turn markers of chat formats.
    pub fn stop_ids(&self) -> &[TokenId] {
        &self.stop_ids
    }

    /// Whether the model wants [`Vocab::bos`] before a text.
    pub fn add_bos(&self) -> bool {
        self.add_bos
    }

    /// Whether a space is put before a text, as SentencePiece does.
    pub fn add_space_prefix(&self) -> bool {
        self.add_space_prefix
    }

    /// The id with this spelling in the file; the lowest where there are several. Looks at every token.
    pub fn find(&self, piece: &str) -> Option<TokenId> {
        self.ids().find(|&id| self.piece(id) == Some(piece))
    }

    /// Every id, ascending.
    pub fn ids(&self) -> impl Iterator<Item = TokenId> + use<> {
        (0..self.kinds.len()).map(|index| TokenId(index as u32))
    }
}

fn kinds(parts: &VocabParts) -> Result<Vec<TokenKind>, TextError> {
    let count = parts.tokens.len();
    if count == 0 || u32::try_from(count).is_err() {
        return Err(TextError::BadValue {
            key: key::TOKENS,
            expected: "between 1 and 2^32 - 1 tokens".to_owned(),
            found: count.to_string(),
        });
    }
    let Some(types) = &parts.types else { return Ok(vec![TokenKind::Normal; count]) };
    expect_length(key::TYPES, types.len(), count)?;
    let kind = |(index, &code): (usize, &u32)| {
        TokenKind::from_code(code).ok_or_else(|| TextError::BadValue {
            key: key::TYPES,
            expected: "token types 0 to 6".to_owned(),
            found: format!("{code} at index {index}"),
        })
    };
    types.iter().enumerate().map(kind).collect()
}

fn check_scores(parts: &VocabParts, spelling: Spelling) -> Result<(), TextError> {
    let Some(scores) = &parts.scores else {
        return match spelling {
            Spelling::ByteLevel => Ok(()),
            Spelling::SentencePiece => Err(TextError::MissingKey { key: key::SCORES }),
        };
    };
    expect_length(key::SCORES, scores.len(), parts.tokens.len())?;
    match scores.iter().position(|score| score.is_nan()) {
        None => Ok(()),
        Some(index) => Err(TextError::BadValue {
            key: key::SCORES,
            expected: "numbers".to_owned(),
            found: format!("NaN at index {index}"),
        }),
    }
}

fn expect_length(key: &'static str, found: usize, tokens: usize) -> Result<(), TextError> {
    if found == tokens {
        return Ok(());
    }
    Err(TextError::BadValue {
        key,
        expected: format!("{tokens} values, one a token"),
        found: found.to_string(),
    })
}

fn special_id(id: Option<u32>, key: &'static str, tokens: usize) -> Result<Option<TokenId>, TextError> {
    match id {
        Some(id) if id as usize >= tokens => Err(TextError::BadValue {
            key,
            expected: format!("a token id below {tokens}"),
            found: id.to_string(),
        }),
        _ => Ok(id.map(TokenId)),
    }
}

/// What files that do not say are meant to do: SentencePiece and Llama-3 vocabularies begin with BOS.
fn adds_bos_by_default(parts: &VocabParts, spelling: Spelling) -> bool {
    spelling == Spelling::SentencePiece || matches!(parts.pre.as_str(), "llama-bpe" | "llama3" | "llama-v3")
}

fn stop_ids(vocab: &Vocab, eot: Option<TokenId>) -> Vec<TokenId> {
    let structural =
        |id: &TokenId| matches!(vocab.kind(*id), Some(TokenKind::Control | TokenKind::UserDefined));
    let marker = |id: &TokenId| vocab.piece(*id).is_some_and(|piece| END_OF_TURN.contains(&piece));
    let markers = vocab.ids().filter(structural).filter(marker);
    let mut ids: Vec<TokenId> = vocab.eos.into_iter().chain(eot).chain(markers).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// Appends to `out` the bytes that a piece stands for.
fn spell(piece: &str, kind: TokenKind, spelling: Spelling, out: &mut Vec<u8>) {
    let verbatim = matches!(kind, TokenKind::Control | TokenKind::UserDefined | TokenKind::Unknown);
    match spelling {
        _ if verbatim => out.extend_from_slice(piece.as_bytes()),
        Spelling::ByteLevel => piece.chars().for_each(|c| match byte_of(c) {
            Some(byte) => out.push(byte),
            None => push_char(c, out),
        }),
        Spelling::SentencePiece => match byte_token(piece) {
            Some(byte) if kind == TokenKind::Byte => out.push(byte),
            _ => piece.split('▁').enumerate().for_each(|(index, part)| {
                out.extend_from_slice(if index > 0 { b" " } else { b"" });
                out.extend_from_slice(part.as_bytes());
            }),
        },
    }
}

fn push_char(c: char, out: &mut Vec<u8>) {
    out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
}

/// The byte of a `<0xNN>` piece.
pub(crate) fn byte_token(piece: &str) -> Option<u8> {
    let digits = piece.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() == 2 { u8::from_str_radix(digits, 16).ok() } else { None }
}

/// As [`Strings`], of any bytes.
#[derive(Debug)]
struct ByteStrings {
    bytes: Vec<u8>,
    ends: Ends,
}

impl ByteStrings {
    fn push(&mut self, string: &[u8]) {
        self.bytes.extend_from_slice(string);
        self.ends.push(self.bytes.len());
    }

    fn get(&self, index: usize) -> Option<&[u8]> {
        self.bytes.get(self.ends.range(index)?)
    }
}

#[cfg(test)]
mod tests;
