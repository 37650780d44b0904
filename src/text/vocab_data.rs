//! Vocabulary data of a file, with inconsistent metadata repaired.
//!
//! Other engines run models with such metadata, so they are not rejected. Where the right value can be
//! inferred, it is used; a guess or a dropped value adds a warning. The result is consistent: every list has
//! one value per token, and every id belongs to a token.

use super::encoder_parts::EncoderParts;
use super::error::TextError;
use super::frames::{FrameTokens, Frames};
use super::kind::{TokenKind, byte_token};
use super::known;
use super::parts::{Spelling, VocabParts, key};
use super::spaces::Spaces;
use super::warnings::{Outside, Pieces, Warnings};
use super::word_marks::WordMarks;
use crate::TokenId;
use crate::checkpoint::Strings;

/// Score of tokens beyond the end of a short score list, as written by converters.
const ADDED_SCORE: f32 = -1000.0;

/// Score of runs of spaces, which SentencePiece merges last.
const SPACES_SCORE: f32 = -1e9;

/// Consistent parts of a vocabulary.
#[derive(Debug)]
pub(crate) struct VocabData {
    pub(crate) tokens: Strings,
    pub(crate) spelling: Spelling,
    /// Name of the pre-tokenizer.
    #[cfg_attr(not(any(feature = "text", test)), expect(dead_code, reason = "for text to ids"))]
    pub(crate) pre: String,
    pub(crate) kinds: Vec<TokenKind>,
    /// Empty for byte-level vocabularies.
    #[cfg_attr(not(any(feature = "text", test)), expect(dead_code, reason = "for text to ids"))]
    pub(crate) scores: Vec<f32>,
    pub(crate) bos: Option<TokenId>,
    /// Special tokens between BOS and a text.
    pub(crate) after_bos: Vec<TokenId>,
    pub(crate) eos: Option<TokenId>,
    pub(crate) unknown: Option<TokenId>,
    /// End-of-turn, end-of-message and end-of-sequence tokens.
    pub(crate) ends: Vec<TokenId>,
    pub(crate) add_bos: bool,
    pub(crate) spaces: Spaces,
    /// Marks of WordPiece pieces.
    pub(crate) marks: WordMarks,
    #[cfg_attr(not(feature = "text"), expect(dead_code, reason = "for text to ids"))]
    pub(crate) encoder: Option<EncoderParts>,
    /// Special tokens around a text and around a pair.
    #[cfg_attr(not(feature = "text"), expect(dead_code, reason = "for text to ids"))]
    pub(crate) frames: Frames<TokenId>,
    pub(crate) warnings: Warnings,
}

impl VocabData {
    /// Repairs the parts of a file.
    ///
    /// # Errors
    /// A vocabulary without tokens, or an unsupported kind of tokenizer.
    pub(crate) fn new(mut parts: VocabParts) -> Result<VocabData, TextError> {
        let mut spelling = parts.spelling()?;
        let count = parts.tokens.len();
        if count == 0 || u32::try_from(count).is_err() {
            return Err(TextError::BadValue {
                key: parts.warnings.name(key::TOKENS),
                expected: "between 1 and 2^32 - 1 tokens".to_owned(),
                found: count.to_string(),
            });
        }
        let mut warnings = std::mem::take(&mut parts.warnings);
        let mut kinds = kinds(&parts, &mut warnings);
        let scores = match spelling {
            Spelling::SentencePiece if has_scores(&parts) => scores(&parts, &kinds, &mut warnings),
            _ => Vec::new(),
        };
        if spelling == Spelling::SentencePiece && parts.encoder.is_none() {
            repair_bytes(&parts.tokens, &mut kinds, &mut warnings);
        } else if spelling == Spelling::ByteLevel && is_plain(&parts.tokens, &kinds) {
            spelling = Spelling::Plain;
            warnings
                .add("the pieces are plain text, not GPT-2's alphabet of bytes; they are taken as they are");
        }
        repair_markers(&parts.tokens, &mut kinds, &mut warnings);
        let ids = Ids::new(&parts, &mut kinds, &mut warnings);
        let pre = match spelling {
            Spelling::SentencePiece | Spelling::WordPiece => String::new(),
            _ => pre(&parts, &kinds, &mut warnings),
        };
        let add_bos = parts.add_bos.unwrap_or_else(|| match (spelling, &parts.encoder) {
            (_, Some(EncoderParts::Unigram { .. })) => false,
            (Spelling::SentencePiece | Spelling::WordPiece, _) => true,
            _ => known::BEGINS_WITH_BOS.contains(&pre.as_str()),
        });
        let bos = ids.bos.or_else(|| add_bos.then(|| ids.guess_bos(&parts, &mut warnings)).flatten());
        let frames = ids.frames(&mut parts, spelling, bos.filter(|_| add_bos));
        Ok(VocabData {
            spelling,
            pre,
            kinds,
            scores,
            bos,
            after_bos: ids.after_bos,
            eos: ids.eos,
            unknown: ids.unknown,
            ends: ids.ends,
            add_bos,
            spaces: parts.spaces.unwrap_or(Spaces::before_each(begins_with_space(spelling))),
            marks: marks(parts.encoder.as_ref()),
            encoder: parts.encoder,
            frames,
            warnings,
            tokens: parts.tokens,
        })
    }
}

/// Whether the first token of a text is spelled with a space.
fn begins_with_space(spelling: Spelling) -> bool {
    matches!(spelling, Spelling::SentencePiece | Spelling::WordPiece)
}

/// Whether the file's scores count: without rules, and without scores of their own.
fn has_scores(parts: &VocabParts) -> bool {
    parts.by_rules.is_none() && !parts.encoder.as_ref().is_some_and(EncoderParts::has_scores)
}

fn marks(encoder: Option<&EncoderParts>) -> WordMarks {
    match encoder {
        Some(EncoderParts::WordPiece { marks, .. }) => marks.clone(),
        _ => WordMarks::Starts,
    }
}

/// Kind of each token.
fn kinds(parts: &VocabParts, warnings: &mut Warnings) -> Vec<TokenKind> {
    let count = parts.tokens.len();
    let codes = parts.types.as_deref().unwrap_or_default();
    let name = warnings.name(key::TYPES);
    match &parts.types {
        None => warnings.add(format_args!("`{name}` is missing: kinds are guessed by the spelling")),
        Some(codes) if codes.len() != count => warnings.add(format_args!(
            "`{name}` has {} values, the vocabulary {count} tokens: what is too much is left out, what is missing is \
             guessed by the spelling",
            codes.len()
        )),
        Some(_) => {}
    }
    let bad = |code: &u32| TokenKind::from_code(*code).is_none();
    if let Some(index) = codes.iter().take(count).position(bad) {
        let found = codes.iter().take(count).filter(|code| bad(code)).count();
        warnings.add(format_args!(
            "`{name}`: expected 0 to 6, found {found} other values, the first at index {index}: taken for text"
        ));
    }
    let kind =
        |index| codes.get(index).and_then(|&code| TokenKind::from_code(code)).unwrap_or(TokenKind::Normal);
    (0..count).map(kind).collect()
}

/// Score of each token. Trained pieces are ordered by score, so missing scores follow from the order.
fn scores(parts: &VocabParts, kinds: &[TokenKind], warnings: &mut Warnings) -> Vec<f32> {
    let count = parts.tokens.len();
    let found = parts.scores.as_deref().unwrap_or_default();
    let name = warnings.name(key::SCORES);
    if found.is_empty() || are_alike(parts, kinds, found) {
        let what = if found.is_empty() { "is missing" } else { "is the same for all pieces" };
        warnings.add(format_args!("`{name}` {what}: pieces are taken to stand in the order of their scores"));
        return parts.tokens.iter().enumerate().map(score_by_order).collect();
    }
    if found.len() != count {
        warnings.add(format_args!(
            "`{name}` has {} values, the vocabulary {count} tokens: what is too much is left out, what is missing has \
             the lowest score",
            found.len()
        ));
    }
    if let Some(index) = found.iter().take(count).position(|score| score.is_nan()) {
        let number = found.iter().take(count).filter(|score| score.is_nan()).count();
        warnings.add(format_args!(
            "`{name}`: {number} values are no numbers, the first at index {index}: they count as the lowest score"
        ));
    }
    let lowest = found.iter().copied().fold(ADDED_SCORE, f32::min);
    let score = |index| found.get(index).copied().filter(|score: &f32| !score.is_nan()).unwrap_or(lowest);
    (0..count).map(score).collect()
}

/// Score by position. Runs of spaces come last regardless of position, as in models with such vocabularies.
fn score_by_order((index, piece): (usize, &str)) -> f32 {
    if piece.chars().all(|c| c == '▁') { SPACES_SCORE } else { -(index as f32) }
}

/// Whether all pieces with more than one character have the same score.
fn are_alike(parts: &VocabParts, kinds: &[TokenKind], scores: &[f32]) -> bool {
    let merged =
        |(piece, kind): &(&str, &TokenKind)| **kind == TokenKind::Normal && piece.chars().nth(1).is_some();
    let mut merged =
        parts.tokens.iter().zip(kinds).zip(scores).filter(|(token, _)| merged(token)).map(|(_, score)| score);
    let Some(first) = merged.next() else { return false };
    let mut others = 0;
    let alike = merged.inspect(|_| others += 1).all(|score| score == first);
    alike && others > 0
}

/// Marks `<0xNN>` as the byte token unless the byte has one already.
fn repair_bytes(tokens: &Strings, kinds: &mut [TokenKind], warnings: &mut Warnings) {
    let mut known = [false; 256];
    for (piece, kind) in tokens.iter().zip(kinds.iter()) {
        if let (TokenKind::Byte, Some(byte)) = (kind, byte_token(piece))
            && let Some(known) = known.get_mut(usize::from(byte))
        {
            *known = true;
        }
    }
    let mut changed = Pieces::default();
    for (piece, kind) in tokens.iter().zip(kinds.iter_mut()) {
        let Some(known) = byte_token(piece).and_then(|byte| known.get_mut(usize::from(byte))) else {
            continue;
        };
        if !*known && matches!(kind, TokenKind::Normal | TokenKind::UserDefined) {
            *known = true;
            *kind = TokenKind::Byte;
            changed.add(piece);
        }
    }
    tell(&changed, "a byte", warnings);
}

/// Whether a byte-level vocabulary is written as plain text: it contains spaces but not their substitutes.
fn is_plain(tokens: &Strings, kinds: &[TokenKind]) -> bool {
    let mut pieces = tokens.iter().zip(kinds).filter(|(_, kind)| **kind == TokenKind::Normal);
    let mut spaces = false;
    let alphabet = pieces.any(|(piece, _)| {
        spaces |= piece.starts_with([' ', '\n']);
        piece.starts_with(['Ġ', 'Ċ'])
    });
    spaces && !alphabet
}

/// Marks pieces that occur only in chat formats as control tokens, regardless of the file.
fn repair_markers(tokens: &Strings, kinds: &mut [TokenKind], warnings: &mut Warnings) {
    let mut changed = Pieces::default();
    for (piece, kind) in tokens.iter().zip(kinds.iter_mut()) {
        let wrong = match kind {
            TokenKind::Control | TokenKind::Unknown | TokenKind::Byte => false,
            // User-defined tokens may be markers as well: some documents list `<｜User｜>` as not special.
            TokenKind::Normal | TokenKind::UserDefined => {
                known::is_marker(piece) || known::looks_like_a_marker(piece)
            }
            TokenKind::Unused => known::is_marker(piece),
        };
        if wrong {
            *kind = TokenKind::Control;
            changed.add(piece);
        }
    }
    tell(&changed, "a control token", warnings);
}

/// Adds a warning about tokens with a corrected kind.
fn tell(changed: &Pieces, kind: &str, warnings: &mut Warnings) {
    if let Some(shown) = changed.shown() {
        let key = warnings.name(key::TYPES);
        warnings.add(format_args!("`{key}`: {shown} is taken for {kind}, not for text"));
    }
}

/// Special tokens.
struct Ids {
    bos: Option<TokenId>,
    after_bos: Vec<TokenId>,
    eos: Option<TokenId>,
    unknown: Option<TokenId>,
    separator: Option<TokenId>,
    ends: Vec<TokenId>,
}

impl Ids {
    fn new(parts: &VocabParts, kinds: &mut [TokenKind], warnings: &mut Warnings) -> Ids {
        let count = parts.tokens.len();
        let mut outside = Outside::default();
        let mut id = |id: Option<i64>, key| checked(id, key, count, &mut outside);
        let (bos, mut eos, mut unknown) =
            (id(parts.bos, key::BOS), id(parts.eos, key::EOS), id(parts.unknown, key::UNKNOWN));
        let padding = id(parts.padding, key::PADDING);
        let (separator, mask) = (id(parts.separator, key::SEPARATOR), id(parts.mask, key::MASK));
        let after_bos: Vec<TokenId> =
            parts.after_bos.iter().filter_map(|&after| id(Some(after), key::BOS)).collect();
        let more = parts.ends.iter().map(|&end| (Some(end), key::EOS));
        let ends = [(parts.eot, key::EOT), (parts.eom, key::EOM)].into_iter().chain(more);
        let mut ends: Vec<TokenId> = ends.filter_map(|(end, key)| id(end, key)).collect();
        outside.tell(count, warnings);
        let spelled = |id: TokenId| parts.tokens.get(id.index()).unwrap_or_default();
        let is_text = |kind: &&mut TokenKind| matches!(**kind, TokenKind::Normal | TokenKind::UserDefined);
        let others = after_bos.iter().chain(&ends).copied();
        for id in [bos, eos, padding, separator, mask].into_iter().flatten().chain(others) {
            if let Some(kind) = kinds.get_mut(id.index()).filter(is_text)
                && known::is_bracketed(spelled(id))
            {
                *kind = TokenKind::Control;
            }
        }
        if let Some(kind) =
            unknown.and_then(|id| kinds.get_mut(id.index())).filter(|kind| **kind == TokenKind::Normal)
        {
            *kind = TokenKind::Unknown;
        }
        if parts.unknown.is_none() {
            unknown = kinds.iter().position(|kind| *kind == TokenKind::Unknown).and_then(token_id);
        }
        if parts.eos.is_none() {
            eos = guess(&parts.tokens, &known::EOS, key::EOS, warnings);
            if let Some(kind) = eos.and_then(|id| kinds.get_mut(id.index())) {
                *kind = TokenKind::Control;
            }
        }
        if let Some(id) = eos.filter(|id| kinds.get(id.index()) == Some(&TokenKind::Normal)) {
            let (piece, name) = (spelled(id), warnings.name(key::EOS));
            warnings.add(format_args!("`{name}` is {}, the text {piece:?}: answers end there", id.0));
        }
        ends.extend(eos);
        Ids { bos, after_bos, eos, unknown, separator, ends }
    }

    /// Special tokens around a text and around a pair, those of the file or the usual ones of the kind.
    fn frames(&self, parts: &mut VocabParts, spelling: Spelling, bos: Option<TokenId>) -> Frames<TokenId> {
        if let Some(frames) = parts.frames.take() {
            let count = parts.tokens.len();
            return frames
                .map(&mut |id| usize::try_from(id).ok().filter(|&id| id < count).and_then(token_id));
        }
        let adds_separator = parts.add_separator.unwrap_or(parts.encoder.is_some());
        let separator = self.separator.filter(|_| adds_separator);
        let is_bert = spelling == Spelling::WordPiece;
        let eos = self.eos.filter(|_| parts.add_eos.unwrap_or(parts.encoder.is_some() && !is_bert));
        let leading = bos.into_iter().chain(self.after_bos.iter().copied().filter(|_| bos.is_some()));
        Frames::of_tokens(&FrameTokens {
            leading: leading.collect(),
            end: if is_bert { separator } else { eos.or(separator) },
            separator: separator.filter(|_| !is_bert && eos.is_some()),
            second_kind: u32::from(is_bert && parts.token_types.unwrap_or(2) > 1),
        })
    }

    fn guess_bos(&self, parts: &VocabParts, warnings: &mut Warnings) -> Option<TokenId> {
        if parts.bos.is_none() {
            return guess(&parts.tokens, &known::BOS, key::BOS, warnings);
        }
        None
    }
}

/// The first of these names that is a token.
fn guess(tokens: &Strings, names: &[&str], key: &'static str, warnings: &mut Warnings) -> Option<TokenId> {
    let mut found: Option<(usize, usize)> = None;
    for (index, piece) in tokens.iter().enumerate() {
        if let Some(rank) = names.iter().position(|name| *name == piece)
            && found.is_none_or(|(best, _)| rank < best)
        {
            found = Some((rank, index));
        }
    }
    let (rank, index) = found?;
    let (name, key) = (names.get(rank)?, warnings.name(key));
    warnings.add(format_args!("`{key}` is missing: `{name}`, token {index}, is taken"));
    token_id(index)
}

fn token_id(index: usize) -> Option<TokenId> {
    u32::try_from(index).ok().map(TokenId)
}

fn checked(id: Option<i64>, key: &'static str, tokens: usize, outside: &mut Outside) -> Option<TokenId> {
    let id = id?;
    let found = u32::try_from(id).ok().filter(|&id| (id as usize) < tokens).map(TokenId);
    if found.is_none() {
        outside.add(key, id);
    }
    found
}

/// Name of the pre-tokenizer, detected from the vocabulary if the file does not specify it.
fn pre(parts: &VocabParts, kinds: &[TokenKind], warnings: &mut Warnings) -> String {
    if !matches!(parts.pre.as_str(), "" | "default") {
        return parts.pre.clone();
    }
    let said = if parts.pre.is_empty() { "is missing" } else { "is `default`" };
    let (name, why) = match known::pre_tokenizer(parts.tokens.iter().zip(kinds)) {
        Some(name) => (name, "as the vocabulary looks like it"),
        None => ("gpt-2", "which is a guess"),
    };
    let key = warnings.name(key::PRE);
    warnings.add(format_args!("`{key}` {said}: the rule `{name}` is used, {why}"));
    name.to_owned()
}

#[cfg(test)]
mod tests;
