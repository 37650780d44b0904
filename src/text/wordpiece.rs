//! WordPiece, as in BERT: the longest piece at each place of a word. A word without such a segmentation is
//! the unknown token.

use super::error::TextError;
use super::kind::TokenKind;
use super::limit::Ids;
use super::trie::Trie;
use super::vocab::Vocab;
use super::word_marks::Place;
use crate::TokenId;

/// WordPiece tokenizer.
#[derive(Debug)]
pub(crate) struct WordPiece {
    starts: Trie,
    rests: Trie,
    unknown: Option<TokenId>,
    /// Maximum characters of a word; a longer word is unknown.
    chars_max: usize,
}

impl WordPiece {
    /// Indexes the pieces.
    pub(crate) fn new(vocab: &Vocab, chars_max: usize) -> Result<WordPiece, TextError> {
        let pieces = |wanted: Place| {
            let from_text =
                |id: &TokenId| matches!(vocab.kind(*id), Some(TokenKind::Normal | TokenKind::UserDefined));
            let placed = vocab.ids().filter(from_text).filter_map(move |id| {
                let (place, text) = vocab.place(vocab.piece(id)?);
                (place == wanted && !text.is_empty()).then_some((text.as_bytes(), id))
            });
            Trie::new(placed)
        };
        Ok(WordPiece {
            starts: pieces(Place::Start)?,
            rests: pieces(Place::Rest)?,
            unknown: vocab.unknown(),
            chars_max,
        })
    }

    /// Appends the tokens of a word.
    pub(crate) fn encode(&self, word: &str, out: &mut Ids) -> Result<(), TextError> {
        match self.pieces(word) {
            Some(ids) => ids.into_iter().try_for_each(|id| out.push(id)),
            None => {
                let character = word.chars().next().unwrap_or_default();
                out.push(self.unknown.ok_or(TextError::Unencodable { character, offset: 0 })?)
            }
        }
    }

    /// Pieces of a word; `None` for an unknown word.
    fn pieces(&self, word: &str) -> Option<Vec<TokenId>> {
        if word.chars().nth(self.chars_max).is_some() {
            return None;
        }
        let (mut ids, mut rest, mut trie) = (Vec::new(), word.as_bytes(), &self.starts);
        while !rest.is_empty() {
            let (len, id) = trie.prefixes(rest).last()?;
            ids.push(id);
            rest = rest.get(len..)?;
            trie = &self.rests;
        }
        Some(ids)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::encoder_parts::EncoderParts;
    use crate::text::parts::VocabParts;
    use crate::text::word_marks::WordMarks;
    use proptest::prelude::*;

    /// A vocabulary with `##` before the rests of words, and its twin with `▁` before the starts.
    fn vocabs(pieces: &[String]) -> [Vocab; 2] {
        let twin = pieces.iter().map(|piece| match piece.strip_prefix("##") {
            Some(rest) => rest.to_owned(),
            None => format!("▁{piece}"),
        });
        let twin: Vec<String> = twin.collect();
        let marks = [WordMarks::Rests("##".into()), WordMarks::Starts];
        let of = |(pieces, marks): (&[String], WordMarks)| {
            let tokens = std::iter::once("[UNK]").chain(pieces.iter().map(|piece| &**piece));
            let parts = VocabParts {
                model: "bert".to_owned(),
                tokens: tokens.collect(),
                types: Some(std::iter::once(2).chain(pieces.iter().map(|_| 1)).collect()),
                encoder: Some(EncoderParts::WordPiece { marks, chars_max: 8 }),
                ..VocabParts::default()
            };
            Vocab::from_parts(&parts).unwrap()
        };
        let [rests, starts] = marks;
        [of((pieces, rests)), of((&twin, starts))]
    }

    fn encode(vocab: &Vocab, word: &str) -> Vec<u32> {
        let mut ids = Ids::new(usize::MAX, None);
        WordPiece::new(vocab, 8).unwrap().encode(word, &mut ids).unwrap();
        ids.after(&[]).unwrap().into_iter().map(|id| id.0).collect()
    }

    /// The algorithm as published: the longest piece in a list, again and again.
    fn by_list(pieces: &[String], word: &str) -> Vec<u32> {
        let (mut ids, mut rest, mut mark) = (Vec::new(), word, "");
        while !rest.is_empty() {
            let ends = rest.char_indices().map(|(at, c)| at + c.len_utf8()).rev();
            let mut found = ends.filter_map(|end| {
                let marked = format!("{mark}{}", &rest[..end]);
                Some((end, pieces.iter().position(|piece| *piece == marked)?))
            });
            let Some((end, id)) = found.next() else { return vec![0] };
            ids.push(id as u32 + 1);
            (rest, mark) = (&rest[end..], "##");
        }
        if word.chars().count() > 8 { vec![0] } else { ids }
    }

    proptest! {
        #[test]
        fn words_are_cut_as_published(
            pieces in proptest::collection::btree_set("(##)?[abé▁]{1,3}", 0..16),
            word in "[abé▁]{1,10}",
        ) {
            let pieces: Vec<String> = pieces.into_iter().collect();
            let [rests, starts] = vocabs(&pieces);
            let expected = by_list(&pieces, &word);
            prop_assert_eq!(encode(&rests, &word), &*expected);
            // `▁` itself is ambiguous in GGUF's spelling.
            if !pieces.iter().any(|piece| piece.contains('▁')) {
                prop_assert_eq!(encode(&starts, &word), expected);
            }
        }
    }

    #[test]
    fn pieces_are_spelled_with_spaces_between_words() {
        let pieces = ["a", "##b", ".", "##.", "(", "don", "'"].map(str::to_owned);
        for vocab in vocabs(&pieces) {
            let spelled = |id: u32| String::from_utf8(vocab.bytes(TokenId(id)).unwrap().to_vec()).unwrap();
            let spelled: Vec<String> = (0..=7).map(spelled).collect();
            assert_eq!(spelled, ["[UNK]", " a", "b", ".", ".", " (", " don", " '"]);
        }
    }
}
