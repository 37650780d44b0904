//! Input of encoder models: a text or a pair of texts, with the special tokens of the model and token types.

use super::error::TextError;
use super::frames::{Part, What};
use super::tokenizer::{AddBos, Special, Tokenizer};
use crate::TokenId;

/// A text, or a pair as rerankers take: a query and a document.
#[derive(Clone, Copy, Debug)]
pub struct Texts<'t> {
    /// The text, or the first of a pair.
    pub first: &'t str,
    /// The second text of a pair.
    pub second: Option<&'t str>,
}

impl<'t> Texts<'t> {
    /// A single text.
    pub fn single(text: &'t str) -> Texts<'t> {
        Texts { first: text, second: None }
    }

    /// A pair of texts.
    pub fn pair(first: &'t str, second: &'t str) -> Texts<'t> {
        Texts { first, second: Some(second) }
    }
}

/// Treatment of an input with more tokens than this, special tokens included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokensMax {
    /// [`TextError::TooLong`].
    Refuse(usize),
    /// Tokens at the end are dropped, first those of the longer text of a pair.
    Truncate(usize),
}

/// Input of an encoder model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoding {
    /// Token ids, with the model's special tokens.
    pub ids: Vec<TokenId>,
    /// Token type of each id: in models with two types, 1 for the second text of a pair.
    pub types: Vec<u32>,
    /// Number of tokens before truncation.
    pub untruncated: usize,
}

impl Tokenizer {
    /// Encodes a text or a pair with the special tokens of the model around it, as embedding models and
    /// rerankers expect.
    ///
    /// # Errors
    /// [`TextError::TooLong`] if there are too many tokens, or not even room for the special ones; as
    /// [`Tokenizer::encode`].
    pub fn encode_input(
        &self,
        texts: Texts<'_>,
        special: Special,
        tokens_max: TokensMax,
    ) -> Result<Encoding, TextError> {
        let parts = self.frame(texts.second.is_some());
        let added = specials(parts);
        let (limit, read_max) = match tokens_max {
            TokensMax::Refuse(limit) => (limit, limit.saturating_sub(added)),
            TokensMax::Truncate(limit) => (limit, usize::MAX),
        };
        let too_long = |tokens: usize| TextError::TooLong { at_least: tokens, limit };
        let encode = |text: &str, before: usize| {
            let ids = self.encode_within(text, special, AddBos::No, read_max - before);
            ids.map_err(|error| match error {
                TextError::TooLong { at_least, .. } => too_long(at_least.saturating_add(before + added)),
                other => other,
            })
        };
        if limit < added {
            return Err(too_long(added));
        }
        let mut first = encode(texts.first, 0)?;
        let mut second = texts.second.map_or(Ok(Vec::new()), |text| encode(text, first.len()))?;
        let untruncated = first.len() + second.len() + added;
        let (kept_first, kept_second) = kept(first.len(), second.len(), limit - added);
        first.truncate(kept_first);
        second.truncate(kept_second);
        let mut encoding = Encoding { ids: Vec::new(), types: Vec::new(), untruncated };
        for part in parts {
            encoding.push(part, &first, &second);
        }
        Ok(encoding)
    }

    /// Number of special tokens that [`Tokenizer::encode_input`] adds to a text, or to a pair.
    pub fn special_tokens(&self, is_pair: bool) -> usize {
        specials(self.frame(is_pair))
    }

    fn frame(&self, is_pair: bool) -> &[Part<TokenId>] {
        let frames = self.frames();
        if is_pair { &frames.pair } else { &frames.single }
    }
}

/// Number of special tokens.
fn specials<I>(parts: &[Part<I>]) -> usize {
    parts.iter().filter(|part| matches!(part.what, What::Special(_))).count()
}

impl Encoding {
    fn push(&mut self, part: &Part<TokenId>, first: &[TokenId], second: &[TokenId]) {
        match &part.what {
            What::Special(id) => self.ids.push(*id),
            What::First => self.ids.extend_from_slice(first),
            What::Second => self.ids.extend_from_slice(second),
        }
        self.types.resize(self.ids.len(), part.kind);
    }
}

/// Tokens of each text that are kept of at most `room`: the longer text is cut first, as by Hugging Face's
/// `longest_first`.
fn kept(first: usize, second: usize, room: usize) -> (usize, usize) {
    let half = room / 2;
    match (first, second) {
        _ if first.saturating_add(second) <= room => (first, second),
        // The longer of two texts above half keeps an odd token.
        _ if first > half && second > half => {
            if first > second {
                (room - half, half)
            } else {
                (half, room - half)
            }
        }
        _ if first > second => (room - second, second),
        _ => (first, room - first),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lengths as `tokenizers` 0.23 truncates them.
    #[test]
    fn the_longer_text_is_cut_first() {
        for (first, second, room, expected) in [
            (3, 4, 7, (3, 4)),
            (3, 40, 10, (3, 7)),
            (40, 3, 10, (7, 3)),
            (40, 50, 11, (5, 6)),
            (50, 40, 11, (6, 5)),
            (6, 6, 11, (5, 6)),
            (6, 5, 10, (5, 5)),
            (9, 0, 4, (4, 0)),
            (0, 9, 4, (0, 4)),
            (5, 5, 0, (0, 0)),
        ] {
            assert_eq!(kept(first, second, room), expected, "{first} and {second} in {room}");
        }
    }
}
