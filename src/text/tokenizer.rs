//! Text to token ids, for the two kinds of tokenizer found in GGUF files.
//!
//! `gpt2` is byte-level BPE, in `bpe.rs`; `llama` is SentencePiece by scores, in `spm.rs`, or by rules, in `pairs.rs`. Here
//! stands what they share: special tokens are cut out of the text first, then BOS and the space prefix are put where the
//! model wants them.

use super::bpe::ByteLevel;
use super::detokenize::Detokenizer;
use super::edges::{Edges, Found};
use super::error::TextError;
#[cfg(feature = "safetensors")]
use super::folder::FolderText;
use super::kind::TokenKind;
use super::limit::Ids;
use super::mend::Mended;
use super::pairs::Pairs;
use super::parts::{Spelling, VocabParts, key};
use super::spm::Spm;
use super::template::ChatPrompt;
use super::vocab::Vocab;
use crate::TokenId;
use crate::checkpoint::{Array, Checkpoint, Metadata, Strings, TextSource, Value};
use aho_corasick::{AhoCorasick, AhoCorasickKind, Anchored, Input, MatchKind, StartKind};
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Arc;

/// Whether the names of control tokens in a text mean those tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// `<|im_end|>` in the text is the control token: for prompts that their author writes whole. A chat
    /// prompt, with the words of others in it, is for [`Tokenizer::encode_prompt`].
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
    edges: Edges,
    pieces: Pieces,
    /// Most bytes of plain text that become one token; none where bytes may become no token.
    longest: Option<NonZeroUsize>,
}

/// What turns plain text into ids.
#[derive(Debug)]
enum Pieces {
    ByteLevel(ByteLevel),
    SentencePiece(Spm),
    Pairs(Pairs),
    /// There are none: see [`TextError::NoTokenizer`].
    None {
        model: String,
        needs: &'static str,
    },
}

impl Tokenizer {
    /// The tokenizer of a model file. What the file says badly is mended, and [`Vocab::warnings`] tells it.
    ///
    /// # Errors
    /// Every [`TextError`] that names a key: missing, of another type, or a pre-tokenizer that is not supported.
    pub fn from_metadata(metadata: &Metadata) -> Result<Tokenizer, TextError> {
        let parts = VocabParts::read(metadata)?;
        match merges(metadata)? {
            None if parts.model == "gpt2" => Err(TextError::MissingKey { key: key::MERGES }),
            None => Tokenizer::from_parts(parts, &Strings::default()),
            Some(rules) => Tokenizer::from_parts(parts, &rules),
        }
    }

    /// The tokenizer of a checkpoint. A folder without `tokenizer.json` has one that encodes no text.
    ///
    /// # Errors
    /// As [`Tokenizer::from_metadata`]; of a folder [`TextError::Metadata`] for a document that is not sound, or
    /// describes a tokenizer that is not supported.
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

    /// Of a model that no file describes: its tokens are numbers, and it encodes no text.
    pub(crate) fn of_numbers(model: &str, count: usize, ends: &[TokenId]) -> Result<Tokenizer, TextError> {
        let mut tokenizer = Tokenizer::from_parts(
            VocabParts::of_numbers(count, ends.iter().map(|id| id.0)),
            &Strings::default(),
        )?;
        let needs = "a tokenizer, which a graph of one's own has not";
        tokenizer.pieces = Pieces::None { model: model.into(), needs };
        Ok(tokenizer)
    }

    fn from_parts(parts: VocabParts, rules: &Strings) -> Result<Tokenizer, TextError> {
        let (edges, by_rules) = (Edges::new(&parts.edges)?, parts.by_rules);
        let mut parts = Mended::new(parts)?;
        let (spelling, pre) = (parts.spelling, std::mem::take(&mut parts.pre));
        let scores = std::mem::take(&mut parts.scores);
        let mut warnings = std::mem::take(&mut parts.warnings);
        let mut vocab = Vocab::new(parts);
        let (pieces, longest) = match (spelling, by_rules) {
            (Spelling::SentencePiece, Some(runs)) => {
                let pairs = Pairs::new(&vocab, rules, runs, &mut warnings);
                let longest = if pairs.has_long_tokens() { 0 } else { vocab.longest().max(4) };
                (Pieces::Pairs(pairs), NonZeroUsize::new(longest))
            }
            (Spelling::SentencePiece, None) => {
                // A character that is no piece is at most four bytes.
                (Pieces::SentencePiece(Spm::new(&vocab, scores)), NonZeroUsize::new(vocab.longest().max(4)))
            }
            (Spelling::ByteLevel | Spelling::Plain, _) => {
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
        Ok(Tokenizer { vocab, always, special, edges, pieces, longest })
    }

    /// What the ids spell.
    pub fn vocab(&self) -> &Arc<Vocab> {
        &self.vocab
    }

    /// The vocabulary, as long as nobody else has it.
    pub(super) fn vocab_mut(&mut self) -> Option<&mut Vocab> {
        Arc::get_mut(&mut self.vocab)
    }

    /// The token ids of a text. Bytes for which a byte-level vocabulary has no token are left out.
    ///
    /// # Errors
    /// [`TextError::Unencodable`] for a character that a SentencePiece vocabulary without bytes and without
    /// an unknown token cannot spell.
    pub fn encode(&self, text: &str, special: Special, bos: AddBos) -> Result<Vec<TokenId>, TextError> {
        self.encode_within(text, special, bos, usize::MAX)
    }

    /// As [`Tokenizer::encode`], of a text that becomes at most `limit` tokens. What cannot be so short is
    /// refused at once, anything else no later than where it passes the limit.
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

    /// The token ids of a chat prompt: control tokens are those that the template wrote. What users wrote is
    /// plain text, whatever it spells; where it spells no control token, the ids are those that
    /// [`Tokenizer::encode`] gives for the whole text with [`Special::Parse`].
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode_prompt(&self, prompt: &ChatPrompt, bos: AddBos) -> Result<Vec<TokenId>, TextError> {
        self.encode_prompt_within(prompt, bos, usize::MAX)
    }

    /// As [`Tokenizer::encode_prompt`], of a prompt that becomes at most `limit` tokens.
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
                // Something shorter may begin here: a control token that the template wrote to its end, or
                // a token that always counts.
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

    /// The ids of the tokens found in a text, and of the plain text between them.
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
            let Some(stretch) = self.edges.stretch(text, Found { id, start, end, before }) else { continue };
            self.encode_plain(text, before..stretch.start, &mut ids)?;
            ids.push(id)?;
            before = stretch.end;
        }
        self.encode_plain(text, before..text.len(), &mut ids)?;
        let wanted = bos == AddBos::AsModel && self.vocab.add_bos();
        ids.after(self.vocab.bos().filter(|_| wanted))
    }

    /// The fewest tokens that any text of so many bytes becomes, BOS not counted.
    pub fn least_tokens(&self, bytes: usize) -> usize {
        match self.longest {
            Some(longest) if !self.edges.may_take_text() => bytes.div_ceil(longest.get()),
            _ => 0,
        }
    }

    /// What the ids spell, without control tokens; bytes that are no UTF-8 come out as U+FFFD.
    pub fn decode(&self, ids: &[TokenId]) -> String {
        self.spelled(Detokenizer::new(&self.vocab), ids)
    }

    /// The same with control tokens (`<|im_end|>`).
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

    /// Encodes a stretch of the text without special tokens in it. It stands at the beginning or after a special
    /// token: where the model puts a space before text it goes there.
    fn encode_plain(&self, text: &str, stretch: Range<usize>, ids: &mut Ids) -> Result<(), TextError> {
        let start = stretch.start;
        let text = text.get(stretch).unwrap_or_default();
        if text.is_empty() {
            return Ok(());
        }
        ids.expect(text.len())?;
        match &self.pieces {
            Pieces::None { model, needs } => Err(TextError::NoTokenizer { model: model.clone(), needs }),
            Pieces::ByteLevel(pieces) => pieces.encode(&self.vocab, text, ids),
            Pieces::SentencePiece(pieces) => {
                self.marked_parts(text, start, |part| pieces.encode(&self.vocab, part, ids))
            }
            Pieces::Pairs(pieces) => {
                self.marked_parts(text, start, |part| pieces.encode(&self.vocab, part, ids))
            }
        }
    }

    /// Each part of plain text with marks for spaces, which begins at `start` of the whole text.
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

/// The merge rules as lines of two pieces and a space. Files have them as such lines, as pairs, or as one list
/// of both.
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

/// A rule of two pieces; a space in a piece is written as the alphabet of bytes writes it.
fn joined(pair: &[&str]) -> String {
    match pair {
        [left, right] => format!("{} {}", left.replace(' ', "Ġ"), right.replace(' ', "Ġ")),
        _ => String::new(),
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
            .start_kind(StartKind::Both)
            .build(ids.iter().filter_map(|&id| vocab.bytes(id)))
            .map_err(|error| TextError::Tokenizer(error.to_string()))?;
        Ok(Matcher { automaton: Some(automaton), ids })
    }

    /// The first match within a range of the text, or the one that begins where the range does.
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
