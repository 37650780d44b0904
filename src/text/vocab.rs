//! [`Vocab`]: bytes and kind of each token, and the special ids.
//!
//! GGUF files have three spellings. `gpt2` stores every byte as a printable character (the byte-level
//! alphabet of GPT-2); `llama` and `t5` (SentencePiece) store a space as `▁` and single bytes as `<0xNN>`;
//! `bert` (WordPiece) marks the place in a word. All are decoded here once, at load. `tokenizer.rs` turns
//! text into ids.

use super::byte_level::byte_of;
use super::error::TextError;
#[cfg(feature = "safetensors")]
use super::folder::FolderText;
use super::kind::{TokenKind, byte_token};
use super::known;
use super::parts::{Spelling, VocabParts};
use super::spaces::{SpacePrefix, Spaces};
use super::vocab_data::VocabData;
use super::warnings::Warnings;
#[cfg(feature = "text")]
use super::word_marks::Place;
use super::word_marks::WordMarks;
use crate::TokenId;
use crate::checkpoint::{Checkpoint, Ends, Metadata, Strings, TextSource};

/// Vocabulary of a model.
#[derive(Debug)]
pub struct Vocab {
    bytes: ByteStrings,
    pieces: Strings,
    #[cfg_attr(not(feature = "text"), expect(dead_code, reason = "for text to ids"))]
    spelling: Spelling,
    #[cfg_attr(not(feature = "text"), expect(dead_code, reason = "for text to ids"))]
    marks: WordMarks,
    #[cfg_attr(not(feature = "text"), expect(dead_code, reason = "for text to ids"))]
    longest: usize,
    kinds: Vec<TokenKind>,
    bos: Option<TokenId>,
    leading: Vec<TokenId>,
    eos: Option<TokenId>,
    unknown: Option<TokenId>,
    stop_ids: Vec<TokenId>,
    add_bos: bool,
    spaces: Spaces,
    warnings: Warnings,
}

impl Vocab {
    /// Vocabulary of a model file. If two tokens have the same spelling, both are decoded and the lower id is
    /// used for encoding. Inconsistent metadata are repaired; [`Vocab::warnings`] lists the repairs.
    ///
    /// # Errors
    /// Any [`TextError`] about a metadata key: missing, of the wrong type, or without tokens.
    pub fn from_metadata(metadata: &Metadata) -> Result<Vocab, TextError> {
        Vocab::from_parts(&VocabParts::read(metadata)?)
    }

    /// Vocabulary of a checkpoint.
    ///
    /// # Errors
    /// As [`Vocab::from_metadata`]; for a folder, [`TextError::Metadata`] for an invalid document.
    pub fn from_checkpoint(checkpoint: &dyn Checkpoint) -> Result<Vocab, TextError> {
        match checkpoint.text() {
            TextSource::Metadata(metadata) => Vocab::from_metadata(metadata),
            #[cfg(feature = "safetensors")]
            TextSource::Documents(documents) => Vocab::from_parts(&FolderText::read(documents)?.parts),
        }
    }

    /// Vocabulary of ids without text. `ends` are the stop tokens.
    ///
    /// # Errors
    /// [`TextError::BadValue`] for a count of 0.
    #[cfg(not(feature = "text"))]
    pub(crate) fn of_numbers(count: usize, ends: &[TokenId]) -> Result<Vocab, TextError> {
        Vocab::from_parts(&VocabParts::of_numbers(count, ends.iter().map(|id| id.0)))
    }

    /// Repairs the parts and decodes all tokens.
    pub(crate) fn from_parts(parts: &VocabParts) -> Result<Vocab, TextError> {
        Ok(Vocab::new(VocabData::new(parts.clone())?))
    }

    /// Decodes all tokens.
    pub(crate) fn new(parts: VocabData) -> Vocab {
        // Decoded tokens are not longer than their pieces, so `Ends` can represent all ends.
        let spelled_max = parts.tokens.iter().map(str::len).sum();
        let mut bytes = ByteStrings {
            bytes: Vec::with_capacity(spelled_max),
            ends: Ends::with_capacity(parts.tokens.len()),
        };
        let mut spelled = Vec::new();
        let mut longest = 0;
        for (piece, &kind) in parts.tokens.iter().zip(&parts.kinds) {
            spelled.clear();
            spell(piece, kind, (parts.spelling, &parts.marks), &mut spelled);
            bytes.push(&spelled);
            longest = longest.max(piece.len());
        }
        let mut leading: Vec<TokenId> = parts.bos.into_iter().chain(parts.after_bos).collect();
        if !parts.add_bos {
            leading.clear();
        }
        let mut vocab = Vocab {
            bytes,
            pieces: parts.tokens,
            spelling: parts.spelling,
            marks: parts.marks,
            longest,
            kinds: parts.kinds,
            bos: parts.bos,
            leading,
            eos: parts.eos,
            unknown: parts.unknown,
            stop_ids: parts.ends,
            add_bos: parts.add_bos,
            spaces: parts.spaces,
            warnings: parts.warnings,
        };
        vocab.add_markers();
        vocab
    }

    /// Adds the vocabulary's end-of-turn tokens to the stop tokens.
    fn add_markers(&mut self) {
        let named = |name| self.find(name).is_some_and(|id| self.is_control(id));
        // With these tokens, `<|end|>` ends a message but not the answer.
        let messages = named("<|return|>") && named("<|call|>");
        let ends = |id: &TokenId| match (self.piece(*id), self.kind(*id)) {
            (Some("<|end|>"), _) if messages => false,
            (Some("<|call|>"), Some(TokenKind::Control)) if messages => true,
            (Some(piece), Some(kind)) => known::ends_a_turn(piece, kind),
            _ => false,
        };
        let markers: Vec<TokenId> = self.ids().filter(ends).collect();
        markers.into_iter().for_each(|id| self.stop_at(id));
    }

    /// Adds a stop token.
    pub(crate) fn stop_at(&mut self, id: TokenId) {
        self.stop_ids.push(id);
        self.stop_ids.sort_unstable();
        self.stop_ids.dedup();
    }

    /// Warnings about inconsistent metadata and their repair, one line each with the file's name.
    pub fn warnings(&self) -> &[String] {
        self.warnings.lines()
    }

    /// Upper bound of the bytes per token.
    #[cfg(feature = "text")]
    pub(crate) fn longest(&self) -> usize {
        self.longest
    }

    /// Replaces the warnings.
    #[cfg(feature = "text")]
    pub(crate) fn keep_warnings(&mut self, warnings: Warnings) {
        self.warnings = warnings;
    }

    /// Adds a warning.
    #[cfg(feature = "text")]
    pub(crate) fn warn(&mut self, what: impl std::fmt::Display) {
        self.warnings.add(what);
    }

    /// Appends the bytes of a piece in a merge rule.
    #[cfg(feature = "text")]
    pub(crate) fn spell(&self, written: &str, out: &mut Vec<u8>) {
        match self.spelling {
            // Rules use the byte alphabet for spaces even if the pieces do not.
            Spelling::Plain => out.extend_from_slice(written.replace('Ġ', " ").as_bytes()),
            spelling => spell(written, TokenKind::Normal, (spelling, &self.marks), out),
        }
    }

    /// Place in a word and text of a WordPiece piece.
    #[cfg(feature = "text")]
    pub(crate) fn place<'p>(&self, piece: &'p str) -> (Place, &'p str) {
        self.marks.place(piece)
    }

    /// Number of tokens.
    #[allow(clippy::len_without_is_empty)] // a vocabulary is never empty
    pub fn len(&self) -> usize {
        self.kinds.len()
    }

    /// Bytes of the token, not always valid UTF-8. `None` for an id outside of the vocabulary.
    pub fn bytes(&self, id: TokenId) -> Option<&[u8]> {
        self.bytes.get(id.index())
    }

    /// Spelling of the token in the file. `None` for an id outside of the vocabulary.
    pub fn piece(&self, id: TokenId) -> Option<&str> {
        self.pieces.get(id.index())
    }

    /// Kind of the token. `None` for an id outside of the vocabulary.
    pub fn kind(&self, id: TokenId) -> Option<TokenKind> {
        self.kinds.get(id.index()).copied()
    }

    /// Whether the token is structure rather than text (control or unknown).
    pub fn is_control(&self, id: TokenId) -> bool {
        matches!(self.kind(id), Some(TokenKind::Control | TokenKind::Unknown))
    }

    /// Begin-of-sequence token.
    pub fn bos(&self) -> Option<TokenId> {
        self.bos
    }

    /// End-of-sequence token.
    pub fn eos(&self) -> Option<TokenId> {
        self.eos
    }

    /// Substitute for text outside the vocabulary.
    pub fn unknown(&self) -> Option<TokenId> {
        self.unknown
    }

    /// Stop tokens: end of sequence and the end-of-turn tokens of chat formats.
    pub fn stop_ids(&self) -> &[TokenId] {
        &self.stop_ids
    }

    /// Whether the model expects [`Vocab::bos`] before a text.
    pub fn add_bos(&self) -> bool {
        self.add_bos
    }

    /// Special tokens that the model expects before a text: [`Vocab::bos`], and after it those of a tokenizer
    /// with several (Whisper). Empty if it expects none.
    pub fn leading(&self) -> &[TokenId] {
        &self.leading
    }

    /// Whether a space is added before a text, as in SentencePiece.
    pub fn add_space_prefix(&self) -> bool {
        self.spaces.prefix != SpacePrefix::Never
    }

    /// Treatment of the spaces of a text.
    #[cfg(feature = "text")]
    pub(crate) fn spaces(&self) -> Spaces {
        self.spaces
    }

    /// Id of the token with this spelling in the file, the lowest of several. Linear search.
    pub fn find(&self, piece: &str) -> Option<TokenId> {
        self.ids().find(|&id| self.piece(id) == Some(piece))
    }

    /// All ids, ascending.
    pub fn ids(&self) -> impl Iterator<Item = TokenId> + use<> {
        (0..self.kinds.len()).map(|index| TokenId(index as u32))
    }
}

/// Appends the bytes of a piece to `out`.
fn spell(piece: &str, kind: TokenKind, (spelling, marks): (Spelling, &WordMarks), out: &mut Vec<u8>) {
    let verbatim = matches!(kind, TokenKind::Control | TokenKind::UserDefined | TokenKind::Unknown);
    match spelling {
        _ if verbatim => out.extend_from_slice(piece.as_bytes()),
        Spelling::ByteLevel => piece.chars().for_each(|c| match byte_of(c) {
            Some(byte) => out.push(byte),
            None => push_char(c, out),
        }),
        Spelling::Plain => out.extend_from_slice(piece.as_bytes()),
        Spelling::WordPiece => {
            let (space, text) = marks.spelled(piece);
            out.extend_from_slice(space.as_bytes());
            out.extend_from_slice(text.as_bytes());
        }
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

/// Like [`Strings`], for arbitrary bytes.
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
