//! SentencePiece-style BPE with scores, as in Llama 2 and Gemma.
//!
//! The adjacent pair of symbols with the highest score of its joint piece is merged, until no pair is a
//! piece. Text without a piece falls back to bytes. This is the BPE variant of SentencePiece; the supported
//! families do not use the unigram variant (a search for the best path).

use super::error::TextError;
use super::index::{Index, Key};
use super::kind::{TokenKind, byte_token};
use super::limit::Ids;
use super::merge::{Rules, merge};
use super::vocab::Vocab;
use crate::TokenId;
use std::cmp::Ordering;

/// Tokenizer with a score per piece.
#[derive(Debug)]
pub(crate) struct Spm {
    pieces: Index,
    /// Score by token id.
    scores: Vec<f32>,
    bytes: ByteTokens,
    unknown: Option<TokenId>,
}

/// A text with its tokenizer and vocabulary.
#[derive(Clone, Copy)]
struct Text<'t> {
    spm: &'t Spm,
    vocab: &'t Vocab,
    text: &'t str,
}

/// Byte range of the text: a piece or a single character.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Span {
    start: usize,
    len: usize,
}

/// Score of a piece, with a total order.
struct Score(f32);

impl Spm {
    /// Indexes the pieces.
    pub(crate) fn new(vocab: &Vocab, scores: Vec<f32>) -> Spm {
        // Control and unused tokens are never produced from text.
        let from_text =
            |id: &TokenId| matches!(vocab.kind(*id), Some(TokenKind::Normal | TokenKind::UserDefined));
        let pieces = Index::new(vocab, Key::Piece, vocab.ids().filter(from_text));
        Spm { pieces, scores, bytes: ByteTokens::new(vocab), unknown: vocab.unknown() }
    }

    /// Appends the tokens of `text`. Spaces are already replaced by `▁`.
    pub(crate) fn encode(&self, vocab: &Vocab, text: &str, out: &mut Ids) -> Result<(), TextError> {
        let characters = text.char_indices().map(|(start, c)| Span { start, len: c.len_utf8() });
        let text = Text { spm: self, vocab, text };
        merge(&text, characters, |span| text.emit(span, out))
    }
}

/// Byte tokens `<0xNN>`, by byte.
#[derive(Debug)]
pub(crate) struct ByteTokens(Box<[Option<TokenId>; 256]>);

impl ByteTokens {
    pub(crate) fn new(vocab: &Vocab) -> ByteTokens {
        let mut bytes = Box::new([None; 256]);
        for id in vocab.ids().filter(|&id| vocab.kind(id) == Some(TokenKind::Byte)) {
            let byte = vocab.piece(id).and_then(byte_token);
            if let Some(slot) = byte.and_then(|byte| bytes.get_mut(usize::from(byte))) {
                slot.get_or_insert(id);
            }
        }
        ByteTokens(bytes)
    }

    /// Whether every byte has a token.
    pub(crate) fn are_all(&self) -> bool {
        self.0.iter().all(Option::is_some)
    }

    /// Byte tokens of a text; `None` if one is missing.
    pub(crate) fn of(&self, text: &str) -> Option<impl Iterator<Item = TokenId>> {
        let token = |byte: u8| self.0.get(usize::from(byte)).copied().flatten();
        text.bytes().all(|byte| token(byte).is_some()).then(|| text.bytes().filter_map(token))
    }
}

impl Text<'_> {
    fn piece(&self, Span { start, len }: Span) -> Option<TokenId> {
        self.spm.pieces.find(self.vocab, self.text.get(start..start + len)?.as_bytes())
    }

    fn emit(&self, span: Span, out: &mut Ids) -> Result<(), TextError> {
        if let Some(id) = self.piece(span) {
            return out.push(id);
        }
        let spelled = self.text.get(span.start..span.start + span.len).unwrap_or_default();
        if let Some(mut ids) = self.spm.bytes.of(spelled) {
            return ids.try_for_each(|id| out.push(id));
        }
        let character = spelled.chars().next().unwrap_or_default();
        let unknown = self.spm.unknown;
        out.push(unknown.ok_or(TextError::Unencodable { character, offset: span.start })?)
    }
}

impl Rules for Text<'_> {
    type Symbol = Span;
    type Rank = Score;

    fn join(&self, left: Span, right: Span) -> Option<(Score, Span)> {
        let joint = Span { start: left.start, len: left.len + right.len };
        let score = self.spm.scores.get(self.piece(joint)?.index())?;
        Some((Score(*score), joint))
    }
}

impl Ord for Score {
    fn cmp(&self, other: &Score) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for Score {
    fn partial_cmp(&self, other: &Score) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Score {
    fn eq(&self, other: &Score) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Score {}
