//! Streaming detokenisation: token ids to text that is always valid UTF-8.
//!
//! A token may end in the middle of a character; incomplete bytes are held until the rest arrives. Invalid
//! bytes become U+FFFD, exactly as in [`String::from_utf8_lossy`]. Stop strings are handled in `stop.rs`.

use super::vocab::Vocab;
use crate::TokenId;
use std::sync::Arc;

/// Streaming detokenizer for one sequence.
#[derive(Debug)]
pub struct Detokenizer {
    vocab: Arc<Vocab>,
    control: Control,
    /// Incomplete UTF-8 sequence, at most 3 bytes.
    pending: Vec<u8>,
    text: String,
}

/// Control tokens that are included in the text.
#[derive(Debug)]
enum Control {
    /// The listed ones.
    Some(Vec<TokenId>),
    All,
}

impl Detokenizer {
    /// Detokenizer at the start of a text. Control tokens are omitted.
    pub fn new(vocab: &Arc<Vocab>) -> Detokenizer {
        Detokenizer::with_shown(vocab, Vec::new())
    }

    /// Detokenizer that includes these control tokens in the text, such as markers for a parser of the
    /// output.
    pub fn with_shown(vocab: &Arc<Vocab>, shown: Vec<TokenId>) -> Detokenizer {
        Detokenizer {
            vocab: Arc::clone(vocab),
            control: Control::Some(shown),
            pending: Vec::with_capacity(64),
            text: String::with_capacity(64),
        }
    }

    /// Detokenizer that includes all control tokens in the text (`<|im_end|>`), for debugging.
    pub fn with_control(vocab: &Arc<Vocab>) -> Detokenizer {
        Detokenizer { control: Control::All, ..Detokenizer::new(vocab) }
    }

    /// Text completed by this token: valid UTF-8, possibly empty. Ids outside of the vocabulary have no text.
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

    /// Ends the text. An incomplete character becomes U+FFFD.
    pub fn finish(&mut self) -> &str {
        self.text.clear();
        if !self.pending.is_empty() {
            self.text.push(char::REPLACEMENT_CHARACTER);
            self.pending.clear();
        }
        &self.text
    }
}

/// Moves all bytes except an incomplete last character from `bytes` to the end of `text`.
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

/// Whether these bytes are the start of a valid character.
fn is_incomplete(bytes: &[u8]) -> bool {
    matches!(std::str::from_utf8(bytes), Err(error) if error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::parts::VocabParts;
    use proptest::prelude::*;

    /// A SentencePiece vocabulary with the 256 bytes and one control token.
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
