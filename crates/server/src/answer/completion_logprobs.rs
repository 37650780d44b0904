//! Log-probabilities in the form of completions: parallel lists, with the text offset of each token.

use ottava::TokenId;
use ottava::text::Vocab;
use serde_json::{Map, Value, json};

/// Names of the lists.
pub(crate) const NAMES: [&str; 4] = ["tokens", "token_logprobs", "top_logprobs", "text_offset"];
/// Search window, in bytes, for the next token after text that no token spells.
const NEAR: usize = 64;

/// A token's log-probability, and those of its alternatives.
type Found<'f> = Option<(f64, &'f [(TokenId, f64)])>;

/// The lists of one token.
pub(crate) fn lists(vocab: &Vocab, token: (TokenId, usize), found: Found<'_>) -> Value {
    let list = |name: &&str| ((*name).to_owned(), json!([listed(name, vocab, token, found)]));
    Value::Object(NAMES.iter().map(list).collect())
}

/// A token's element of the list `name`; the token comes with its offset in characters.
pub(crate) fn listed(name: &str, vocab: &Vocab, (id, offset): (TokenId, usize), found: Found<'_>) -> Value {
    match (name, found) {
        ("tokens", _) => spelled(vocab, id).into(),
        ("text_offset", _) => offset.into(),
        ("token_logprobs", Some((chosen, _))) => json!(chosen),
        ("top_logprobs", Some((chosen, top))) => best(vocab, (id, chosen), top),
        _ => Value::Null,
    }
}

/// The best tokens and the chosen one, which may not be among them. Of tokens with equal spelling the
/// likeliest is kept, unless one of them is the chosen token.
fn best(vocab: &Vocab, (id, chosen): (TokenId, f64), top: &[(TokenId, f64)]) -> Value {
    let mut best = Map::new();
    for &(id, logprob) in top {
        best.entry(spelled(vocab, id)).or_insert_with(|| json!(logprob));
    }
    best.insert(spelled(vocab, id), json!(chosen));
    best.into()
}

/// Text of a token; for invalid UTF-8 the bytes as escapes, as OpenAI prints them.
fn spelled(vocab: &Vocab, id: TokenId) -> String {
    let bytes = vocab.bytes(id).unwrap_or_default();
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes.iter().fold("bytes:".to_owned(), |text, byte| text + &format!("\\x{byte:02x}")),
    }
}

/// A position in a text of byte pieces, counted in characters.
#[derive(Clone, Debug, Default)]
pub(crate) struct Place {
    /// Complete characters so far.
    chars: usize,
    /// First bytes of an incomplete character.
    pending: Vec<u8>,
}

impl Place {
    /// After `chars` characters.
    pub(crate) fn behind(chars: usize) -> Place {
        Place { chars, pending: Vec::new() }
    }

    /// Advances by `bytes` and returns the index of the character in which they begin. Invalid UTF-8 counts
    /// as one character, as in [`String::from_utf8_lossy`].
    pub(crate) fn pass(&mut self, bytes: &[u8]) -> usize {
        let start = self.chars + usize::from(self.is_cut_by(bytes));
        self.pending.extend_from_slice(bytes);
        let all = std::mem::take(&mut self.pending);
        let mut chunks = all.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            self.chars += chunk.valid().chars().count();
            let invalid = chunk.invalid();
            if chunks.peek().is_none() && may_become_whole(invalid) {
                self.pending = invalid.to_vec();
            } else if !invalid.is_empty() {
                self.chars += 1;
            }
        }
        start
    }

    /// Length of the text; an incomplete character counts as one.
    pub(crate) fn end(&mut self) -> usize {
        self.chars += usize::from(!self.pending.is_empty());
        self.pending.clear();
        self.chars
    }

    /// Whether the bytes do not continue the incomplete character, which then never becomes whole.
    fn is_cut_by(&self, bytes: &[u8]) -> bool {
        let (false, Some(first)) = (self.pending.is_empty(), bytes.first()) else { return false };
        let begun = [self.pending.as_slice(), &[*first]].concat();
        std::str::from_utf8(&begun).is_err() && !may_become_whole(&begun)
    }
}

/// Whether the bytes are a prefix of a character.
fn may_become_whole(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

/// Position of a prompt's tokens in its text. A tokenizer may add tokens that the text lacks, such as a BOS,
/// and may lack tokens for some of its characters.
#[derive(Debug)]
pub(crate) struct Walk<'t> {
    rest: &'t [u8],
    place: Place,
}

impl<'t> Walk<'t> {
    /// At the beginning of a text.
    pub(crate) fn new(text: &'t [u8]) -> Walk<'t> {
        Walk { rest: text, place: Place::default() }
    }

    /// Advances past the next token and returns the index of the character in which it begins.
    pub(crate) fn pass(&mut self, vocab: &Vocab, id: TokenId) -> usize {
        let (skipped, own) = covered(self.rest, vocab.bytes(id).unwrap_or_default(), vocab.is_control(id));
        let (skipped, rest) = self.rest.split_at_checked(skipped).unwrap_or_default();
        let (own, rest) = rest.split_at_checked(own).unwrap_or_default();
        self.place.pass(skipped);
        self.rest = rest;
        self.place.pass(own)
    }
}

/// Bytes of the text before a token, and bytes of the token.
fn covered(text: &[u8], token: &[u8], is_control: bool) -> (usize, usize) {
    if text.starts_with(token) {
        return (0, token.len());
    }
    // SentencePiece puts a space before a text.
    if let Some(bare) = token.strip_prefix(b" ").filter(|bare| text.starts_with(bare)) {
        return (0, bare.len());
    }
    // A BOS is not in the text, and an unknown token stood for a character that the next token follows.
    let mut near = text.windows(token.len().max(1)).take(NEAR);
    match near.position(|bytes| bytes == token) {
        Some(skipped) if !is_control => (skipped, token.len()),
        _ => (0, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The offset of each piece, and the length of the text.
    fn places(pieces: &[&[u8]]) -> (Vec<usize>, usize) {
        let mut place = Place::default();
        (pieces.iter().map(|piece| place.pass(piece)).collect(), place.end())
    }

    #[test]
    fn parts_of_a_character_stand_where_it_does() {
        assert_eq!(places(&[b"a", b"\xf0\x9f", b"\x98", b"\x80b", b"c"]), (vec![0, 1, 1, 1, 3], 4));
        assert_eq!(places(&["é".as_bytes(), b"", b"x"]), (vec![0, 1, 1], 2));
    }

    #[test]
    fn what_never_becomes_a_character_counts_as_one() {
        for pieces in [
            &[b"\xf0\x9f" as &[u8], b"b", b"\xff\xff", b"c"] as &[&[u8]],
            &[b"\xe2\x82", b"\xe2", b"\x82", b"\xac"],
            &[b"a\xf0", b"", b"\xf0", b"\x9f"],
            &[b"\xef\xbf", b"\xbd"],
        ] {
            let (starts, end) = places(pieces);
            let text = pieces.concat();
            assert_eq!(end, String::from_utf8_lossy(&text).chars().count(), "{pieces:?}");
            // A piece begins after the pieces before it, or in their last, incomplete character.
            let before = |n: usize| String::from_utf8_lossy(&pieces[..n].concat()).chars().count();
            for (n, start) in starts.into_iter().enumerate() {
                assert!(start == before(n) || start + 1 == before(n), "{n} of {pieces:?}: {start}");
            }
        }
        assert_eq!(places(&[b"\xe2\x82", b"\xe2", b"\x82", b"\xac"]).0, [0, 1, 1, 1]);
    }

    #[test]
    fn tokens_are_found_in_the_text() {
        assert_eq!(covered(b"the end", b"the", false), (0, 3));
        assert_eq!(covered(b"the end", b" the", false), (0, 3), "the space was not written");
        assert_eq!(covered(b"the end", b"<s>", true), (0, 0), "a BOS was not written");
        assert_eq!(covered(b"the <s>", b"<s>", true), (0, 0), "this one is another");
        assert_eq!(covered("éa".as_bytes(), b"a", false), (2, 1), "no token spells the first");
        assert_eq!(covered(b"", b"a", false), (0, 0));
        assert_eq!(covered(b"a", b"", false), (0, 0));
    }
}
