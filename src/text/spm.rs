//! SentencePiece-style segmentation by scores, as Llama 2 and Gemma want it.
//!
//! Characters are merged pairwise, always the pair whose joint piece has the highest score (the leftmost
//! of equals), until no pair of neighbours is a piece. What is left without a piece falls back to bytes.
//! This is the byte-pair variety of SentencePiece; the unigram variety (a search for the best path) is not
//! used by the supported families.

use super::error::TextError;
use super::parts::VocabParts;
use super::vocab::{TokenKind, Vocab, byte_token};
use crate::TokenId;
use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;

/// Segments text by the scores of its pieces.
#[derive(Debug)]
pub(crate) struct Spm {
    pieces: Index,
    /// By id.
    scores: Vec<f32>,
    /// `<0xNN>` tokens, by byte.
    bytes: Box<[Option<TokenId>; 256]>,
    unknown: Option<TokenId>,
}

/// Ids by spelling: a hash table that leaves the spellings where they are, in the vocabulary. Hundreds of
/// thousands of keys with an allocation each took most of the time to load a small model.
#[derive(Debug)]
struct Index {
    ids: HashTable<TokenId>,
    hasher: RandomState,
}

/// What is segmented, and what with.
#[derive(Clone, Copy)]
struct Text<'t> {
    text: &'t str,
    vocab: &'t Vocab,
}

/// A stretch of the text that is a piece (or a single character), linked to its neighbours.
#[derive(Clone, Copy, Debug)]
struct Symbol {
    start: usize,
    /// 0 once it has been merged into the one before it.
    len: usize,
    before: Option<usize>,
    after: Option<usize>,
}

/// Two neighbours that could become one piece.
#[derive(Debug)]
struct Pair {
    score: f32,
    left: usize,
    right: usize,
    /// Length of both when the pair was found: another length means that the pair is out of date.
    len: usize,
}

impl Spm {
    /// Indexes the pieces. Where two tokens are spelled alike, the lower id counts.
    pub(crate) fn new(vocab: &Vocab, parts: &VocabParts) -> Spm {
        let scores = parts.scores.clone().unwrap_or_default();
        let mut pieces = Index::with_capacity(vocab.len());
        let mut bytes = Box::new([None; 256]);
        for id in vocab.ids() {
            let (Some(piece), Some(kind)) = (vocab.piece(id), vocab.kind(id)) else { continue };
            match kind {
                TokenKind::Normal | TokenKind::UserDefined if !piece.is_empty() => {
                    pieces.insert(vocab, piece, id);
                }
                TokenKind::Byte => {
                    if let Some(slot) = byte_token(piece).and_then(|byte| bytes.get_mut(usize::from(byte))) {
                        slot.get_or_insert(id);
                    }
                }
                // Control and unused tokens never come from text.
                _ => {}
            }
        }
        Spm { pieces, scores, bytes, unknown: vocab.unknown() }
    }

    /// Appends the tokens of `text`, in which spaces are already written `▁`.
    pub(crate) fn encode(&self, vocab: &Vocab, text: &str, out: &mut Vec<TokenId>) -> Result<(), TextError> {
        let text = Text { text, vocab };
        let mut symbols = characters(text.text);
        let mut pairs = BinaryHeap::new();
        for right in 1..symbols.len() {
            self.propose(text, &symbols, (Some(right - 1), Some(right)), &mut pairs);
        }
        while let Some(pair) = pairs.pop() {
            if merge(&mut symbols, &pair) {
                let Some(&Symbol { before, after, .. }) = symbols.get(pair.left) else { continue };
                self.propose(text, &symbols, (before, Some(pair.left)), &mut pairs);
                self.propose(text, &symbols, (Some(pair.left), after), &mut pairs);
            }
        }
        for symbol in symbols.iter().filter(|symbol| symbol.len > 0) {
            self.emit(text, symbol, out)?;
        }
        Ok(())
    }

    /// Queues two neighbours if together they are a piece.
    fn propose(
        &self,
        Text { text, vocab }: Text<'_>,
        symbols: &[Symbol],
        neighbours: (Option<usize>, Option<usize>),
        pairs: &mut BinaryHeap<Pair>,
    ) {
        let (Some(left), Some(right)) = neighbours else { return };
        let (Some(first), Some(second)) = (symbols.get(left), symbols.get(right)) else { return };
        let len = first.len + second.len;
        let joint = text.get(first.start..first.start + len);
        let piece = joint.and_then(|joint| self.pieces.find(vocab, joint));
        if let Some(&score) = piece.and_then(|id| self.scores.get(id.index())) {
            pairs.push(Pair { score, left, right, len });
        }
    }

    fn emit(
        &self,
        Text { text, vocab }: Text<'_>,
        symbol: &Symbol,
        out: &mut Vec<TokenId>,
    ) -> Result<(), TextError> {
        let spelled = text.get(symbol.start..symbol.start + symbol.len).unwrap_or_default();
        if let Some(id) = self.pieces.find(vocab, spelled) {
            out.push(id);
            return Ok(());
        }
        let byte = |byte: u8| self.bytes.get(usize::from(byte)).copied().flatten();
        if let Some(ids) = spelled.bytes().map(byte).collect::<Option<Vec<_>>>() {
            out.extend(ids);
            return Ok(());
        }
        let character = spelled.chars().next().unwrap_or_default();
        let unknown = self.unknown.ok_or(TextError::Unencodable { character, offset: symbol.start })?;
        out.push(unknown);
        Ok(())
    }
}

impl Index {
    fn with_capacity(pieces: usize) -> Index {
        Index { ids: HashTable::with_capacity(pieces), hasher: RandomState::new() }
    }

    fn find(&self, vocab: &Vocab, piece: &str) -> Option<TokenId> {
        let spelled = |id: &TokenId| vocab.piece(*id) == Some(piece);
        self.ids.find(self.hasher.hash_one(piece), spelled).copied()
    }

    /// Adds a piece that is not there yet.
    fn insert(&mut self, vocab: &Vocab, piece: &str, id: TokenId) {
        let spelled = |id: &TokenId| vocab.piece(*id) == Some(piece);
        let hash = |id: &TokenId| self.hasher.hash_one(vocab.piece(*id).unwrap_or_default());
        self.ids.entry(self.hasher.hash_one(piece), spelled, hash).or_insert(id);
    }
}

fn characters(text: &str) -> Vec<Symbol> {
    let mut symbols: Vec<Symbol> = text
        .char_indices()
        .enumerate()
        .map(|(index, (start, c))| Symbol {
            start,
            len: c.len_utf8(),
            before: index.checked_sub(1),
            after: Some(index + 1),
        })
        .collect();
    if let Some(last) = symbols.last_mut() {
        last.after = None;
    }
    symbols
}

/// Joins the pair if it is still as it was when it was queued.
fn merge(symbols: &mut [Symbol], pair: &Pair) -> bool {
    let Ok([left, right]) = symbols.get_disjoint_mut([pair.left, pair.right]) else { return false };
    if left.len == 0 || right.len == 0 || left.len + right.len != pair.len {
        return false;
    }
    left.len = pair.len;
    left.after = right.after;
    right.len = 0;
    if let Some(next) = right.after.and_then(|after| symbols.get_mut(after)) {
        next.before = Some(pair.left);
    }
    true
}

impl Ord for Pair {
    /// The best pair is the greatest: highest score, then leftmost.
    fn cmp(&self, other: &Pair) -> Ordering {
        self.score.total_cmp(&other.score).then_with(|| other.left.cmp(&self.left))
    }
}

impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Pair) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Pair {
    fn eq(&self, other: &Pair) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Pair {}
