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
use std::collections::{BinaryHeap, HashMap};

/// Segments text by the scores of its pieces.
#[derive(Debug)]
pub(crate) struct Spm {
    pieces: HashMap<Box<str>, Piece>,
    /// `<0xNN>` tokens, by byte.
    bytes: Box<[Option<TokenId>; 256]>,
    unknown: Option<TokenId>,
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    id: TokenId,
    score: f32,
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
        let scores = parts.scores.iter().flatten().copied();
        let mut pieces = HashMap::with_capacity(vocab.len());
        let mut bytes = Box::new([None; 256]);
        for (id, score) in vocab.ids().zip(scores) {
            let (Some(piece), Some(kind)) = (vocab.piece(id), vocab.kind(id)) else { continue };
            match kind {
                TokenKind::Normal | TokenKind::UserDefined if !piece.is_empty() => {
                    pieces.entry(Box::from(piece)).or_insert(Piece { id, score });
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
        Spm { pieces, bytes, unknown: vocab.unknown() }
    }

    /// Appends the tokens of `text`, in which spaces are already written `▁`.
    pub(crate) fn encode(&self, text: &str, out: &mut Vec<TokenId>) -> Result<(), TextError> {
        let mut symbols = characters(text);
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
        text: &str,
        symbols: &[Symbol],
        neighbours: (Option<usize>, Option<usize>),
        pairs: &mut BinaryHeap<Pair>,
    ) {
        let (Some(left), Some(right)) = neighbours else { return };
        let (Some(first), Some(second)) = (symbols.get(left), symbols.get(right)) else { return };
        let len = first.len + second.len;
        let joint = text.get(first.start..first.start + len);
        if let Some(piece) = joint.and_then(|joint| self.pieces.get(joint)) {
            pairs.push(Pair { score: piece.score, left, right, len });
        }
    }

    fn emit(&self, text: &str, symbol: &Symbol, out: &mut Vec<TokenId>) -> Result<(), TextError> {
        let spelled = text.get(symbol.start..symbol.start + symbol.len).unwrap_or_default();
        if let Some(piece) = self.pieces.get(spelled) {
            out.push(piece.id);
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
