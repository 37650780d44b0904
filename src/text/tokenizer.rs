//! Text to token ids, for the two kinds of tokenizer found in GGUF files.
//!
//! `gpt2` is byte-level BPE, in `bpe.rs`; `llama` is SentencePiece by scores, in `spm.rs`. Here stands what
//! both share: special tokens are cut out of the text first, then BOS and the space prefix are put where the
//! model wants them.

use super::bpe::ByteLevel;
use super::detokenize::Detokenizer;
use super::error::TextError;
use super::parts::{Spelling, VocabParts, key};
use super::spm::Spm;
use super::vocab::{TokenKind, Vocab};
use crate::TokenId;
use crate::weights::{Metadata, Strings};
use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};
use std::sync::Arc;

/// Whether the names of control tokens in a text mean those tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// `<|im_end|>` in the text is the control token: for rendered chat templates.
    Parse,
    /// `<|im_end|>` in the text is ten ordinary characters: for what a user typed.
    Text,
}

/// Whether to begin with the BOS token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddBos {
    /// If the model's metadata want it and the text does not already begin with it.
    AsModel,
    /// Never: the text goes on from something else.
    No,
}

/// The tokenizer of a model.
#[derive(Debug)]
pub struct Tokenizer {
    vocab: Arc<Vocab>,
    /// Tokens that are always matched in a text (user-defined).
    always: Matcher,
    /// Those and the control tokens.
    special: Matcher,
    pieces: Pieces,
}

/// What turns plain text into ids.
#[derive(Debug)]
enum Pieces {
    ByteLevel(ByteLevel),
    SentencePiece(Spm),
}

impl Tokenizer {
    /// The tokenizer of a model file.
    ///
    /// # Errors
    /// Every [`TextError`] that names a key: missing, of another type, not fitting the others, a
    /// pre-tokenizer that is not supported, or a merge rule that does not apply.
    pub fn from_metadata(metadata: &Metadata) -> Result<Tokenizer, TextError> {
        let parts = VocabParts::read(metadata)?;
        match metadata.strings(key::MERGES)? {
            None if parts.model == "gpt2" => Err(TextError::MissingKey { key: key::MERGES }),
            None => Tokenizer::from_parts(&parts, &Strings::default()),
            Some(rules) => Tokenizer::from_parts(&parts, rules),
        }
    }

    fn from_parts(parts: &VocabParts, rules: &Strings) -> Result<Tokenizer, TextError> {
        let vocab = Arc::new(Vocab::from_parts(parts)?);
        let pieces = match parts.spelling()? {
            Spelling::ByteLevel => Pieces::ByteLevel(ByteLevel::new(&vocab, &parts.pre, rules)?),
            Spelling::SentencePiece => Pieces::SentencePiece(Spm::new(&vocab, parts)),
        };
        let always = Matcher::new(&vocab, &[TokenKind::UserDefined])?;
        let special =
            Matcher::new(&vocab, &[TokenKind::UserDefined, TokenKind::Control, TokenKind::Unknown])?;
        Ok(Tokenizer { vocab, always, special, pieces })
    }

    /// What the ids spell.
    pub fn vocab(&self) -> &Arc<Vocab> {
        &self.vocab
    }

    /// The token ids of a text. Bytes for which a byte-level vocabulary has no token are left out.
    ///
    /// # Errors
    /// [`TextError::Unencodable`] for a character that a SentencePiece vocabulary without bytes and without
    /// an unknown token cannot spell.
    pub fn encode(&self, text: &str, special: Special, bos: AddBos) -> Result<Vec<TokenId>, TextError> {
        let matcher = match special {
            Special::Parse => &self.special,
            Special::Text => &self.always,
        };
        let mut ids = Vec::with_capacity(text.len() / 3 + 2);
        let mut start = 0;
        for (at, end, id) in matcher.matches(text) {
            self.encode_plain(text.get(start..at).unwrap_or_default(), &mut ids)?;
            ids.push(id);
            start = end;
        }
        self.encode_plain(text.get(start..).unwrap_or_default(), &mut ids)?;
        let wanted = (bos == AddBos::AsModel && self.vocab.add_bos()).then(|| self.vocab.bos()).flatten();
        if let Some(bos) = wanted
            && ids.first() != Some(&bos)
        {
            ids.insert(0, bos);
        }
        Ok(ids)
    }

    /// What the ids spell, without control tokens; bytes that are no UTF-8 come out as U+FFFD.
    pub fn decode(&self, ids: &[TokenId]) -> String {
        let mut detokenizer = Detokenizer::new(&self.vocab);
        let mut text = String::new();
        for &id in ids {
            text.push_str(detokenizer.push(id));
        }
        text.push_str(detokenizer.finish());
        match text.strip_prefix(' ') {
            Some(rest) if self.vocab.add_space_prefix() => rest.to_owned(),
            _ => text,
        }
    }

    /// Encodes text without special tokens in it. It stands at the beginning or after a special token, so
    /// the space prefix, where the model has one, goes before it.
    fn encode_plain(&self, text: &str, ids: &mut Vec<TokenId>) -> Result<(), TextError> {
        match &self.pieces {
            _ if text.is_empty() => Ok(()),
            Pieces::ByteLevel(pieces) => {
                pieces.encode(&self.vocab, text, ids);
                Ok(())
            }
            Pieces::SentencePiece(pieces) => {
                let prefix = if self.vocab.add_space_prefix() { "▁" } else { "" };
                pieces.encode(&self.vocab, &format!("{prefix}{}", text.replace(' ', "▁")), ids)
            }
        }
    }
}

/// Finds whole tokens in a text: the leftmost, of those the longest.
#[derive(Debug)]
struct Matcher {
    automaton: Option<AhoCorasick>,
    ids: Vec<TokenId>,
}

impl Matcher {
    fn new(vocab: &Vocab, kinds: &[TokenKind]) -> Result<Matcher, TextError> {
        let wanted = |id: &TokenId| vocab.kind(*id).is_some_and(|kind| kinds.contains(&kind));
        let spelled = |id: &TokenId| vocab.bytes(*id).is_some_and(|bytes| !bytes.is_empty());
        let ids: Vec<TokenId> = vocab.ids().filter(wanted).filter(spelled).collect();
        if ids.is_empty() {
            return Ok(Matcher { automaton: None, ids });
        }
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .kind(Some(AhoCorasickKind::ContiguousNFA))
            .build(ids.iter().filter_map(|&id| vocab.bytes(id)))
            .map_err(|error| TextError::Tokenizer(error.to_string()))?;
        Ok(Matcher { automaton: Some(automaton), ids })
    }

    /// Start, end and token of each match.
    fn matches<'t>(&'t self, text: &'t str) -> impl Iterator<Item = (usize, usize, TokenId)> + 't {
        let found = self.automaton.iter().flat_map(move |automaton| automaton.find_iter(text));
        found.filter_map(|at| Some((at.start(), at.end(), *self.ids.get(at.pattern().as_usize())?)))
    }
}

#[cfg(test)]
mod tests;
