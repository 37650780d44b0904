//! A stream of token ids back into text that is always whole UTF-8.
//!
//! A token may end in the middle of a character; its first bytes are held until the rest has come. Bytes
//! that can never become a character turn into U+FFFD, exactly as [`String::from_utf8_lossy`] would have
//! them. Stop strings are the matter of `stop.rs`.

use super::vocab::Vocab;
use crate::TokenId;
use std::sync::Arc;

/// Turns the tokens of one sequence into text, as they come.
#[derive(Debug)]
pub struct Detokenizer {
    vocab: Arc<Vocab>,
    control: Control,
    /// The first bytes of a character that is not whole yet; at most 3.
    pending: Vec<u8>,
    text: String,
}

/// Which control tokens are spelled out.
#[derive(Debug)]
enum Control {
    /// These.
    Some(Vec<TokenId>),
    All,
}

impl Detokenizer {
    /// A detokenizer at the beginning of a text. Control tokens spell nothing.
    pub fn new(vocab: &Arc<Vocab>) -> Detokenizer {
        Detokenizer::with_shown(vocab, Vec::new())
    }

    /// The same, but these control tokens are spelled out: markers that somebody reads behind it.
    pub fn with_shown(vocab: &Arc<Vocab>, shown: Vec<TokenId>) -> Detokenizer {
        Detokenizer {
            vocab: Arc::clone(vocab),
            control: Control::Some(shown),
            pending: Vec::with_capacity(64),
            text: String::with_capacity(64),
        }
    }

    /// The same, but all control tokens are spelled out (`<|im_end|>`), for people who debug.
    pub fn with_control(vocab: &Arc<Vocab>) -> Detokenizer {
        Detokenizer { control: Control::All, ..Detokenizer::new(vocab) }
    }

    /// The text that this token completes: whole UTF-8, possibly empty. An id outside the vocabulary
    /// spells nothing.
    pub fn push(&mut self, id: TokenId) -> &str {
        self.text.clear();
        let is_shown = match &self.control {
            Control::Some(shown) => !self.vocab.is_control(id) || shown.contains(&id),
            Control::All => true,
        };
        if is_shown {
            self.pending.extend_from_slice(self.vocab.bytes(id).unwrap_or_default());
            take_whole(&mut self.pending, &mut self.text);
        }
        &self.text
    }

    /// Ends the text: a character that never became whole comes out as U+FFFD.
    pub fn finish(&mut self) -> &str {
        self.text.clear();
        if !self.pending.is_empty() {
            self.text.push(char::REPLACEMENT_CHARACTER);
            self.pending.clear();
        }
        &self.text
    }
}

/// Moves everything but an incomplete last character from `bytes` to the end of `text`.
fn take_whole(bytes: &mut Vec<u8>, text: &mut String) {
    let mut taken = 0;
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        taken += chunk.valid().len();
        let invalid = chunk.invalid();
        let at_end = taken + invalid.len() == bytes.len();
        if at_end && is_incomplete(invalid) {
            break;
        }
        if !invalid.is_empty() {
            text.push(char::REPLACEMENT_CHARACTER);
            taken += invalid.len();
        }
    }
    bytes.drain(..taken);
}

/// Whether more bytes could make a character of these.
fn is_incomplete(bytes: &[u8]) -> bool {
    matches!(std::str::from_utf8(bytes), Err(error) if error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::parts::VocabParts;
    use proptest::prelude::*;

    /// A SentencePiece vocabulary of the 256 bytes, and one control token after them.
    fn byte_vocab() -> Arc<Vocab> {
        let mut tokens: Vec<String> = (0..=255u8).map(|byte| format!("<0x{byte:02X}>")).collect();
        tokens.push("<end>".to_owned());
        let mut types = vec![6; 256];
        types.push(3);
        let parts = VocabParts {
            model: "llama".to_owned(),
            scores: Some(vec![0.0; tokens.len()]),
            types: Some(types),
            tokens: tokens.into_iter().collect(),
            ..VocabParts::default()
        };
        Arc::new(Vocab::from_parts(&parts).unwrap())
    }

    fn stream(bytes: &[u8]) -> String {
        let mut detokenizer = Detokenizer::new(&byte_vocab());
        let mut text = String::new();
        for &byte in bytes {
            text.push_str(detokenizer.push(TokenId(u32::from(byte))));
        }
        text.push_str(detokenizer.finish());
        text
    }

    #[test]
    fn characters_come_out_whole() {
        let mut detokenizer = Detokenizer::new(&byte_vocab());
        let mut emitted = Vec::new();
        for byte in "é🙂".bytes() {
            emitted.push(detokenizer.push(TokenId(u32::from(byte))).to_owned());
        }
        assert_eq!(emitted, ["", "é", "", "", "", "🙂"]);
        assert_eq!(detokenizer.finish(), "");
    }

    #[test]
    fn control_tokens_are_hidden_unless_asked_for() {
        let vocab = byte_vocab();
        assert_eq!(Detokenizer::new(&vocab).push(TokenId(256)), "");
        assert_eq!(Detokenizer::with_control(&vocab).push(TokenId(256)), "<end>");
        assert_eq!(Detokenizer::with_shown(&vocab, vec![TokenId(256)]).push(TokenId(256)), "<end>");
        assert_eq!(Detokenizer::with_shown(&vocab, vec![TokenId(1)]).push(TokenId(256)), "");
        assert_eq!(Detokenizer::new(&vocab).push(TokenId(9999)), "");
    }

    #[test]
    fn a_cut_character_ends_as_replacement() {
        assert_eq!(stream(b"a\xf0\x9f"), "a\u{fffd}");
        assert_eq!(stream(b"\xf0\x9fb"), "\u{fffd}b");
        assert_eq!(stream(b"\xff\xfe"), "\u{fffd}\u{fffd}");
    }

    proptest! {
        #[test]
        fn any_split_reads_as_the_whole(
            bytes in proptest::collection::vec(
                prop_oneof![any::<u8>(), 0x80..0xc0u8, 0xe0..0xf5u8, 0x20..0x7fu8], 0..64),
            cuts in proptest::collection::vec(1..6usize, 0..64),
        ) {
            let (mut rest, mut pending, mut text) = (bytes.as_slice(), Vec::new(), String::new());
            for cut in cuts.into_iter().chain(std::iter::repeat(7)) {
                if rest.is_empty() {
                    break;
                }
                let (head, tail) = rest.split_at(cut.min(rest.len()));
                pending.extend_from_slice(head);
                take_whole(&mut pending, &mut text);
                prop_assert!(pending.len() <= 3);
                rest = tail;
            }
            if !pending.is_empty() {
                text.push(char::REPLACEMENT_CHARACTER);
            }
            prop_assert_eq!(&text, &String::from_utf8_lossy(&bytes));
            prop_assert_eq!(&stream(&bytes), &text);
        }

        #[test]
        fn text_survives_byte_by_byte(text in any::<String>()) {
            prop_assert_eq!(stream(text.as_bytes()), text);
        }
    }
}
