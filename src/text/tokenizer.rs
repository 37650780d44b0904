//! [`Tokenizer`]: text to token ids, for the kinds of tokenizer in GGUF files.
//!
//! `gpt2` is byte-level BPE (`bpe.rs`). `llama` is SentencePiece with scores (`spm.rs`) or with merge
//! rules (`pairs.rs`). `bert` is WordPiece (`wordpiece.rs`), `t5` Unigram (`unigram.rs`). The common part
//! is here: special tokens are matched first, then BOS and the space prefix are added where the model
//! expects them.

use super::added_tokens::{AddedTokenRules, Found};
use super::bpe::ByteLevel;
use super::detokenize::Detokenizer;
use super::encoder::Encoder;
use super::error::TextError;
#[cfg(feature = "safetensors")]
use super::folder::FolderText;
use super::frames::Frames;
use super::kind::TokenKind;
use super::limit::Ids;
use super::pairs::Pairs;
use super::parts::{Normalization, Spelling, VocabParts, key};
use super::spm::Spm;
use super::template::ChatPrompt;
use super::vocab::Vocab;
use super::vocab_data::VocabData;
use crate::TokenId;
use crate::checkpoint::{Array, Checkpoint, Metadata, Strings, TextSource, Value};
use aho_corasick::{AhoCorasick, AhoCorasickKind, Anchored, Input, MatchKind, StartKind};
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Arc;

/// Treatment of control-token names in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// `<|im_end|>` in the text is the control token: for prompts written entirely by a trusted author. For
    /// chat prompts with user text, use [`Tokenizer::encode_prompt`].
    Parse,
    /// `<|im_end|>` in the text is ten ordinary characters: for user input.
    Text,
}

/// Whether an encoding starts with the BOS token, or with the tokens of [`Vocab::leading`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddBos {
    /// If the model expects it and the text does not start with it.
    AsModel,
    /// Never: the text continues another one.
    No,
}

/// Tokenizer of a model.
#[derive(Debug)]
pub struct Tokenizer {
    vocab: Arc<Vocab>,
    /// Matcher for user-defined tokens, which are matched in any text.
    always: Matcher,
    /// Matcher for user-defined and control tokens.
    special: Matcher,
    added_tokens: AddedTokenRules,
    normalization: Normalization,
    pieces: Pieces,
    frames: Frames<TokenId>,
    /// Maximum bytes of normalised plain text per token; `None` if bytes may produce no token.
    longest: Option<NonZeroUsize>,
}

/// Encoder for plain text.
#[derive(Debug)]
enum Pieces {
    ByteLevel(ByteLevel),
    SentencePiece(Spm),
    Pairs(Pairs),
    Encoder(Encoder),
    /// No encoder: see [`TextError::NoTokenizer`].
    None {
        model: String,
        needs: &'static str,
    },
}

impl Tokenizer {
    /// Tokenizer of a model file. Inconsistent metadata are repaired; [`Vocab::warnings`] lists the repairs.
    ///
    /// # Errors
    /// Any [`TextError`] about a metadata key: missing, of the wrong type, or an unsupported pre-tokenizer.
    pub fn from_metadata(metadata: &Metadata) -> Result<Tokenizer, TextError> {
        let parts = VocabParts::read(metadata)?;
        match merges(metadata)? {
            None if parts.model == "gpt2" => Err(TextError::MissingKey { key: key::MERGES }),
            None => Tokenizer::from_parts(parts, &Strings::default()),
            Some(rules) => Tokenizer::from_parts(parts, &rules),
        }
    }

    /// Tokenizer of a checkpoint. For a folder without `tokenizer.json`, it cannot encode text.
    ///
    /// # Errors
    /// As [`Tokenizer::from_metadata`]; for a folder, [`TextError::Metadata`] for an invalid document or an
    /// unsupported tokenizer.
    pub fn from_checkpoint(checkpoint: &dyn Checkpoint) -> Result<Tokenizer, TextError> {
        match checkpoint.text() {
            TextSource::Metadata(metadata) => Tokenizer::from_metadata(metadata),
            #[cfg(feature = "safetensors")]
            TextSource::Documents(documents) => {
                let FolderText { parts, merges, is_complete } = FolderText::read(documents)?;
                let mut tokenizer = Tokenizer::from_parts(parts, &merges)?;
                if !is_complete {
                    let model = crate::checkpoint::shown_path(documents.folder());
                    tokenizer.pieces = Pieces::None { model, needs: "tokenizer.json, which is not there" };
                }
                Ok(tokenizer)
            }
        }
    }

    /// Tokenizer of a model without files: tokens are ids without text, and text cannot be encoded.
    pub(crate) fn of_numbers(model: &str, count: usize, ends: &[TokenId]) -> Result<Tokenizer, TextError> {
        let mut tokenizer = Tokenizer::from_parts(
            VocabParts::of_numbers(count, ends.iter().map(|id| id.0)),
            &Strings::default(),
        )?;
        let needs = "a tokenizer, which a graph of one's own has not";
        tokenizer.pieces = Pieces::None { model: model.into(), needs };
        Ok(tokenizer)
    }

    fn from_parts(mut parts: VocabParts, rules: &Strings) -> Result<Tokenizer, TextError> {
        let (added_tokens, by_rules) = (AddedTokenRules::new(&parts.added_tokens)?, parts.by_rules);
        let normalization = parts.normalization;
        let pipeline = std::mem::take(&mut parts.pipeline);
        let mut parts = VocabData::new(parts)?;
        let (spelling, pre) = (parts.spelling, std::mem::take(&mut parts.pre));
        let normalization = normalization.unwrap_or_else(|| Normalization::of_pre(&pre));
        let scores = std::mem::take(&mut parts.scores);
        let (encoder, frames) = (parts.encoder.take(), parts.frames.clone());
        let mut warnings = std::mem::take(&mut parts.warnings);
        let mut vocab = Vocab::new(parts);
        let (pieces, longest) = match (encoder, spelling, by_rules) {
            (Some(encoder), ..) => (Pieces::Encoder(Encoder::new(&vocab, encoder, scores, pipeline)?), None),
            (None, Spelling::SentencePiece, Some(runs)) => {
                let pairs = Pairs::new(&vocab, rules, runs, &mut warnings);
                let longest = if pairs.has_long_tokens() { 0 } else { vocab.longest().max(4) };
                (Pieces::Pairs(pairs), NonZeroUsize::new(longest))
            }
            (None, Spelling::SentencePiece, None) => {
                // A character without a piece becomes at most four byte tokens.
                (Pieces::SentencePiece(Spm::new(&vocab, scores)), NonZeroUsize::new(vocab.longest().max(4)))
            }
            (None, ..) => {
                let pieces = ByteLevel::new(&vocab, &pre, rules, &mut warnings)?;
                let longest = pieces.longest(&vocab);
                (Pieces::ByteLevel(pieces), longest)
            }
        };
        vocab.keep_warnings(warnings);
        let vocab = Arc::new(vocab);
        let always = Matcher::new(&vocab, &[TokenKind::UserDefined])?;
        let special =
            Matcher::new(&vocab, &[TokenKind::UserDefined, TokenKind::Control, TokenKind::Unknown])?;
        Ok(Tokenizer { vocab, always, special, added_tokens, normalization, pieces, frames, longest })
    }

    /// The vocabulary.
    pub fn vocab(&self) -> &Arc<Vocab> {
        &self.vocab
    }

    /// Special tokens around a text and around a pair.
    pub(super) fn frames(&self) -> &Frames<TokenId> {
        &self.frames
    }

    /// The vocabulary, if it is not shared.
    pub(super) fn vocab_mut(&mut self) -> Option<&mut Vocab> {
        Arc::get_mut(&mut self.vocab)
    }

    /// Encodes a text, normalised to NFC if the model's own tokenizer does so. Bytes without a token in a
    /// byte-level vocabulary are dropped.
    ///
    /// # Errors
    /// [`TextError::Unencodable`] for a character without a token in a SentencePiece vocabulary that has
    /// neither byte tokens nor an unknown token; [`TextError::NoTokenizer`].
    pub fn encode(&self, text: &str, special: Special, bos: AddBos) -> Result<Vec<TokenId>, TextError> {
        self.encode_within(text, special, bos, usize::MAX)
    }

    /// Like [`Tokenizer::encode`], with at most `limit` tokens. A text that is certainly too long is rejected
    /// at once, any other at the latest when it passes the limit.
    ///
    /// # Errors
    /// [`TextError::TooLong`], and as [`Tokenizer::encode`].
    pub fn encode_within(
        &self,
        text: &str,
        special: Special,
        bos: AddBos,
        limit: usize,
    ) -> Result<Vec<TokenId>, TextError> {
        let matcher = match special {
            Special::Parse => &self.special,
            Special::Text => &self.always,
        };
        self.encode_between(text, matcher.matches(text), bos, limit)
    }

    /// Encodes a chat prompt. Control tokens are recognised only in the template's own text; user text is
    /// plain text. Without control-token names in user text, the ids are those of [`Tokenizer::encode`] for
    /// the whole text with [`Special::Parse`].
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode_prompt(&self, prompt: &ChatPrompt, bos: AddBos) -> Result<Vec<TokenId>, TextError> {
        self.encode_prompt_within(prompt, bos, usize::MAX)
    }

    /// Like [`Tokenizer::encode_prompt`], with at most `limit` tokens.
    ///
    /// # Errors
    /// [`TextError::TooLong`], and as [`Tokenizer::encode`].
    pub fn encode_prompt_within(
        &self,
        prompt: &ChatPrompt,
        bos: AddBos,
        limit: usize,
    ) -> Result<Vec<TokenId>, TextError> {
        let mut found = Vec::new();
        let (text, mut at) = (prompt.text(), 0);
        while let Some((start, end, id)) = self.special.first(text, at..text.len(), Anchored::No) {
            let (mut start, mut end, mut id) = (start, end, id);
            if self.vocab.is_control(id) && prompt.is_users(start..end) {
                // A shorter token may start here: a control token that is entirely the template's, or a
                // user-defined token.
                let own = self.special.first(text, start..prompt.template_end(start), Anchored::Yes);
                let always = self.always.first(text, start..text.len(), Anchored::Yes);
                let other = own.into_iter().chain(always).max_by_key(|&(_, end, _)| end);
                let Some(other) = other else {
                    at = start
                        + text.get(start..).and_then(|rest| rest.chars().next()).map_or(1, char::len_utf8);
                    continue;
                };
                (start, end, id) = other;
            }
            found.push((start, end, id));
            at = end;
        }
        self.encode_between(text, found, bos, limit)
    }

    /// Ids of the matched tokens and of the plain text between them.
    fn encode_between(
        &self,
        text: &str,
        found: impl IntoIterator<Item = (usize, usize, TokenId)>,
        bos: AddBos,
        limit: usize,
    ) -> Result<Vec<TokenId>, TextError> {
        let mut ids = Ids::new(limit, self.longest);
        ids.expect_least(self.least_tokens(text.len()))?;
        let mut before = 0;
        for (start, end, id) in found {
            let Some(span) = self.added_tokens.span(text, Found { id, start, end, before }) else { continue };
            self.encode_plain(text, before..span.start, &mut ids)?;
            ids.push(id)?;
            before = span.end;
        }
        self.encode_plain(text, before..text.len(), &mut ids)?;
        ids.after(match bos {
            AddBos::AsModel => self.vocab.leading(),
            AddBos::No => &[],
        })
    }

    /// Minimum number of tokens of any text with this number of bytes, without BOS.
    pub fn least_tokens(&self, bytes: usize) -> usize {
        match self.longest {
            Some(longest) if !self.added_tokens.may_take_text() => {
                bytes.div_ceil(longest.get().saturating_mul(self.normalization.shrink_max()))
            }
            _ => 0,
        }
    }

    /// Decodes ids to text without control tokens. Invalid UTF-8 becomes U+FFFD.
    pub fn decode(&self, ids: &[TokenId]) -> String {
        self.spelled(Detokenizer::new(&self.vocab), ids)
    }

    /// Decodes ids to text, including control tokens (`<|im_end|>`).
    pub fn decode_with_control(&self, ids: &[TokenId]) -> String {
        self.spelled(Detokenizer::with_control(&self.vocab), ids)
    }

    fn spelled(&self, mut detokenizer: Detokenizer, ids: &[TokenId]) -> String {
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

    /// Encodes a stretch of text without special tokens. It follows a special token or is at the start, so
    /// the space prefix applies.
    fn encode_plain(&self, text: &str, span: Range<usize>, ids: &mut Ids) -> Result<(), TextError> {
        let start = span.start;
        let text = text.get(span).unwrap_or_default();
        if text.is_empty() {
            return Ok(());
        }
        let text = &*self.normalization.apply(text);
        ids.expect(text.len())?;
        match &self.pieces {
            Pieces::None { model, needs } => Err(TextError::NoTokenizer { model: model.clone(), needs }),
            Pieces::ByteLevel(pieces) => pieces.encode(&self.vocab, text, ids),
            Pieces::Encoder(pieces) => pieces.encode(text, start, ids),
            Pieces::SentencePiece(pieces) => {
                self.marked_parts(text, start, |part| pieces.encode(&self.vocab, part, ids))
            }
            Pieces::Pairs(pieces) => {
                self.marked_parts(text, start, |part| pieces.encode(&self.vocab, part, ids))
            }
        }
    }

    /// Passes each part of plain text to `each`, with marks for spaces. `start` is its byte offset in the
    /// whole text.
    fn marked_parts(
        &self,
        plain: &str,
        start: usize,
        each: impl FnMut(&str) -> Result<(), TextError>,
    ) -> Result<(), TextError> {
        let spaces = self.vocab.spaces();
        spaces.parts(&spaces.marked(plain, start)).try_for_each(each)
    }
}

/// Merge rules as lines with two pieces and a space. Files contain such lines, pairs, or a flat list of
/// pieces.
fn merges(metadata: &Metadata) -> Result<Option<Strings>, TextError> {
    match metadata.get(key::MERGES) {
        Some(Value::Array(Array::Nested(pairs))) => {
            let lines = pairs.iter().map(|pair| match pair {
                Array::String(pair) => joined(&pair.iter().collect::<Vec<_>>()),
                _ => String::new(),
            });
            Ok(Some(lines.collect()))
        }
        Some(Value::Array(Array::String(pieces))) if is_list_of_both(pieces) => {
            let pieces: Vec<&str> = pieces.iter().collect();
            Ok(Some(pieces.chunks(2).map(joined).collect()))
        }
        _ => Ok(metadata.strings(key::MERGES)?.cloned()),
    }
}

fn is_list_of_both(pieces: &Strings) -> bool {
    !pieces.is_empty() && pieces.len().is_multiple_of(2) && pieces.iter().all(|piece| !piece.contains(' '))
}

/// Joins the two pieces of a rule. Spaces within a piece are written in the byte alphabet.
fn joined(pair: &[&str]) -> String {
    match pair {
        [left, right] => format!("{} {}", left.replace(' ', "Ġ"), right.replace(' ', "Ġ")),
        _ => String::new(),
    }
}

/// Matcher for whole tokens in a text: leftmost, then longest.
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
            .start_kind(StartKind::Both)
            .build(ids.iter().filter_map(|&id| vocab.bytes(id)))
            .map_err(|error| TextError::Tokenizer(error.to_string()))?;
        Ok(Matcher { automaton: Some(automaton), ids })
    }

    /// First match within a range of the text, or with `anchored` at its start.
    fn first(&self, text: &str, range: Range<usize>, anchored: Anchored) -> Option<(usize, usize, TokenId)> {
        let input = Input::new(text).range(range).anchored(anchored);
        let at = self.automaton.as_ref()?.try_find(input).ok()??;
        Some((at.start(), at.end(), *self.ids.get(at.pattern().as_usize())?))
    }

    /// Start, end and token of each match.
    fn matches<'t>(&'t self, text: &'t str) -> impl Iterator<Item = (usize, usize, TokenId)> + 't {
        let found = self.automaton.iter().flat_map(move |automaton| automaton.find_iter(text));
        found.filter_map(|at| Some((at.start(), at.end(), *self.ids.get(at.pattern().as_usize())?)))
    }
}

#[cfg(test)]
mod tests;
