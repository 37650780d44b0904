//! Unigram, as in T5 and XLM-RoBERTa: the segmentation with the greatest sum of log-probabilities (Kudo 2018,
//! <https://arxiv.org/abs/1804.10959>), found by Viterbi's algorithm.
//!
//! Where no piece spans a place, all segmentations pass it: the best one up to there is emitted at once.
//! Natural text has such a place at each word.

use std::ops::Range;

use super::error::TextError;
use super::kind::TokenKind;
use super::limit::Ids;
use super::spm::ByteTokens;
use super::trie::Trie;
use super::vocab::Vocab;
use crate::TokenId;

/// Distance of an unknown character's score from the lowest score, as in SentencePiece.
const UNKNOWN_PENALTY: f64 = 10.0;

/// Unigram tokenizer.
#[derive(Debug)]
pub(crate) struct Unigram {
    pieces: Trie,
    /// Log-probability by token id.
    scores: Vec<f64>,
    unknown_score: f64,
    unknown: Option<TokenId>,
    /// Byte tokens for unknown text, if the model falls back to them.
    bytes: Option<ByteTokens>,
}

/// Best segmentation up to a place.
#[derive(Clone, Copy, Debug)]
struct Node {
    score: f64,
    /// The last piece; `None` if no segmentation was found yet.
    last: Option<Edge>,
}

/// A piece, or a character without one.
#[derive(Clone, Copy, Debug)]
struct Edge {
    start: usize,
    id: Option<TokenId>,
}

/// Text that is being segmented.
struct Search<'t> {
    unigram: &'t Unigram,
    text: &'t str,
    /// Byte offset of the first node.
    base: usize,
    nodes: Vec<Node>,
    /// Characters at the end that are no pieces. One token replaces all of them.
    unknown: Range<usize>,
}

impl Unigram {
    /// Indexes the pieces. There is a score for each token.
    pub(crate) fn new(vocab: &Vocab, scores: Vec<f64>, byte_fallback: bool) -> Result<Unigram, TextError> {
        let is = |id: TokenId, kind| vocab.kind(id) == Some(kind);
        let pieces = vocab.ids().filter(|&id| is(id, TokenKind::Normal));
        let pieces = Trie::new(pieces.filter_map(|id| Some((vocab.piece(id)?.as_bytes(), id))))?;
        let used = vocab.ids().zip(&scores).filter(|(id, _)| !is(*id, TokenKind::Unused));
        let lowest = used.map(|(_, &score)| score).fold(f64::INFINITY, f64::min);
        let unknown_score = if lowest.is_finite() { lowest - UNKNOWN_PENALTY } else { -UNKNOWN_PENALTY };
        let bytes = byte_fallback.then(|| ByteTokens::new(vocab));
        Ok(Unigram { pieces, scores, unknown_score, unknown: vocab.unknown(), bytes })
    }

    /// Appends the tokens of `text`. Spaces are already replaced by `▁`.
    pub(crate) fn encode(&self, text: &str, out: &mut Ids) -> Result<(), TextError> {
        let start = Node { score: 0.0, last: None };
        let mut search = Search { unigram: self, text, base: 0, nodes: vec![start], unknown: 0..0 };
        for (at, character) in text.char_indices() {
            search.emit_if_passed(at, out)?;
            search.extend(at, character);
        }
        search.emit_if_passed(text.len(), out)?;
        search.emit_unknown(out)
    }

    fn score(&self, id: TokenId) -> f64 {
        self.scores.get(id.index()).copied().unwrap_or(self.unknown_score)
    }
}

impl Search<'_> {
    /// Extends the segmentations that end at a character by each piece that starts there.
    fn extend(&mut self, at: usize, character: char) {
        let Some(Node { score, .. }) = self.nodes.get(at - self.base).copied() else { return };
        let rest = self.text.get(at..).unwrap_or_default().as_bytes();
        let mut is_piece = false;
        for (len, id) in self.unigram.pieces.prefixes(rest) {
            is_piece |= len == character.len_utf8();
            let edge = Edge { start: at, id: Some(id) };
            self.offer(at + len, score + self.unigram.score(id), edge);
        }
        if !is_piece {
            let edge = Edge { start: at, id: None };
            self.offer(at + character.len_utf8(), score + self.unigram.unknown_score, edge);
        }
    }

    /// Replaces the best segmentation up to `end` by a better one. Of equal ones, the first stays.
    fn offer(&mut self, end: usize, score: f64, edge: Edge) {
        let index = end - self.base;
        if index >= self.nodes.len() {
            self.nodes.resize(index + 1, Node { score: f64::NEG_INFINITY, last: None });
        }
        if let Some(node) = self.nodes.get_mut(index)
            && (node.last.is_none() || score > node.score)
        {
            *node = Node { score, last: Some(edge) };
        }
    }

    /// Emits the best segmentation up to `at` if no piece spans that place.
    fn emit_if_passed(&mut self, at: usize, out: &mut Ids) -> Result<(), TextError> {
        let index = at - self.base;
        if index == 0 || index + 1 != self.nodes.len() {
            return Ok(());
        }
        let (mut edges, mut end) = (Vec::new(), at);
        while let Some(edge) = self.nodes.get(end - self.base).and_then(|node| node.last) {
            edges.push((edge.start..end, edge.id));
            end = edge.start;
        }
        for (span, id) in edges.into_iter().rev() {
            match id {
                Some(id) => {
                    self.emit_unknown(out)?;
                    out.push(id)?;
                }
                None if self.unknown.is_empty() => self.unknown = span,
                None => self.unknown.end = span.end,
            }
        }
        // The sum goes on, so that it is rounded as in a search over the whole text.
        let score = self.nodes.last().map_or(0.0, |node| node.score);
        self.nodes.clear();
        self.nodes.push(Node { score, last: None });
        self.base = at;
        Ok(())
    }

    /// Emits the characters at the end that are no pieces, as bytes or as one unknown token.
    fn emit_unknown(&mut self, out: &mut Ids) -> Result<(), TextError> {
        let span = std::mem::take(&mut self.unknown);
        let text = self.text.get(span.clone()).unwrap_or_default();
        let Some(character) = text.chars().next() else { return Ok(()) };
        if let Some(mut ids) = self.unigram.bytes.as_ref().and_then(|bytes| bytes.of(text)) {
            return ids.try_for_each(|id| out.push(id));
        }
        let unknown = self.unigram.unknown;
        out.push(unknown.ok_or(TextError::Unencodable { character, offset: span.start })?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::parts::VocabParts;
    use proptest::prelude::*;

    fn unigram(pieces: &[(String, f32)], bytes: bool) -> Unigram {
        let mut rows = vec![("<unk>".to_owned(), 2, 0.0)];
        rows.extend(pieces.iter().map(|(piece, score)| (piece.clone(), 1, *score)));
        if bytes {
            rows.extend((0..=255).map(|byte| (format!("<0x{byte:02X}>"), 6, 0.0)));
        }
        let parts = VocabParts {
            model: "t5".to_owned(),
            tokens: rows.iter().map(|row| &row.0).collect(),
            types: Some(rows.iter().map(|row| row.1).collect()),
            scores: Some(rows.iter().map(|row| row.2).collect()),
            unknown: Some(0),
            ..VocabParts::default()
        };
        let scores = rows.iter().map(|row| f64::from(row.2)).collect();
        Unigram::new(&Vocab::from_parts(&parts).unwrap(), scores, bytes).unwrap()
    }

    fn encode(unigram: &Unigram, text: &str) -> Vec<u32> {
        let mut ids = Ids::new(usize::MAX, None);
        unigram.encode(text, &mut ids).unwrap();
        ids.after(&[]).unwrap().into_iter().map(|id| id.0).collect()
    }

    /// Score of each segmentation of a text, with unknown characters as single pieces.
    fn all_scores(pieces: &[(String, f32)], unknown: f64, text: &str) -> Vec<f64> {
        let Some(first) = text.chars().next() else { return vec![0.0] };
        let mut starts: Vec<(usize, f64)> = pieces
            .iter()
            .filter(|(piece, _)| text.starts_with(&**piece))
            .map(|(piece, score)| (piece.len(), f64::from(*score)))
            .collect();
        if !starts.iter().any(|(len, _)| *len == first.len_utf8()) {
            starts.push((first.len_utf8(), unknown));
        }
        let rest = |(len, score): &(usize, f64)| {
            let score = *score;
            all_scores(pieces, unknown, &text[*len..]).into_iter().map(move |rest| score + rest)
        };
        starts.iter().flat_map(rest).collect()
    }

    proptest! {
        /// Scores are halves, so that sums are exact in any order.
        #[test]
        fn the_best_of_all_segmentations_is_found(
            pieces in proptest::collection::btree_map("[abé]{1,4}", 1..20_u8, 1..12),
            text in "[abéx]{0,9}",
        ) {
            let pieces: Vec<(String, f32)> =
                pieces.into_iter().map(|(piece, score)| (piece, -f32::from(score) / 2.0)).collect();
            let unigram = unigram(&pieces, false);
            let ids = encode(&unigram, &text);
            // An unknown token replaces a run. Each character of the run has a score.
            let known = |id: u32| pieces.get((id as usize).checked_sub(1)?);
            let covered: usize = ids.iter().filter_map(|&id| known(id)).map(|(piece, _)| piece.chars().count()).sum();
            let unknown = (text.chars().count() - covered) as f64 * unigram.unknown_score;
            let found = unknown + ids.iter().filter_map(|&id| known(id)).map(|(_, score)| f64::from(*score)).sum::<f64>();
            let best = all_scores(&pieces, unigram.unknown_score, &text).into_iter().fold(f64::NEG_INFINITY, f64::max);
            prop_assert_eq!(found, best, "{:?}", ids);
            prop_assert!(!ids.windows(2).any(|pair| pair == [0, 0]), "{:?}", ids);
        }
    }

    fn abc() -> Vec<(String, f32)> {
        [("▁", -3.0), ("a", -2.0), ("ab", -2.5), ("b", -2.0)]
            .map(|(piece, score)| (piece.to_owned(), score))
            .into()
    }

    #[test]
    fn unknown_characters_are_one_token_or_bytes() {
        assert_eq!(encode(&unigram(&abc(), false), "▁abxéya"), [1, 3, 0, 2]);
        let byte = |byte: u8| 5 + u32::from(byte);
        let expected = [1, 3, byte(b'x'), byte(0xc3), byte(0xa9), 2];
        assert_eq!(encode(&unigram(&abc(), true), "▁abxéa"), expected);
        // The names of special and byte tokens are text.
        let [less, x] = [byte(b'<'), byte(b'x')];
        assert_eq!(encode(&unigram(&abc(), true), "<x"), [less, x]);
    }

    #[test]
    fn a_limit_ends_the_work_and_a_text_without_unknown_token_fails() {
        let mut ids = Ids::new(3, None);
        let error = unigram(&abc(), false).encode(&"ab▁".repeat(1000), &mut ids).unwrap_err();
        assert!(matches!(error, TextError::TooLong { at_least: 4, limit: 3 }), "{error}");
        let without = Unigram { unknown: None, ..unigram(&abc(), false) };
        let error = without.encode("abé", &mut Ids::new(9, None)).unwrap_err();
        assert!(matches!(error, TextError::Unencodable { character: 'é', offset: 2 }), "{error}");
    }

    #[test]
    fn scores_that_are_no_numbers_do_no_harm() {
        let pieces = [("a", f32::NEG_INFINITY), ("aa", f32::INFINITY), ("b", f32::NAN)];
        let pieces: Vec<_> = pieces.map(|(piece, score)| (piece.to_owned(), score)).into();
        assert!(!encode(&unigram(&pieces, false), "aaabbaxb").is_empty());
    }
}
