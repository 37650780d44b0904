//! BPE with merge rules on SentencePiece-style pieces, as in `tokenizer.json`. GGUF has scores instead of
//! rules (`spm.rs`); scores also merge neighbours without a rule.

use super::error::TextError;
use super::index::{Index, Key};
use super::kind::TokenKind;
use super::limit::Ids;
use super::merge::merge;
use super::parts::{RunsOfUnknown, key};
use super::rules::{PairRule, PairRules};
use super::spm::ByteTokens;
use super::vocab::Vocab;
use super::warnings::{Pieces, Warnings};
use crate::TokenId;
use crate::checkpoint::Strings;

/// SentencePiece-style tokenizer with merge rules.
#[derive(Debug)]
pub(crate) struct Pairs {
    pieces: Index,
    rules: PairRules,
    bytes: ByteTokens,
    unknown: Option<TokenId>,
    runs: RunsOfUnknown,
}

impl Pairs {
    /// Indexes pieces and rules. A rule is a line with two pieces and a space.
    pub(crate) fn new(vocab: &Vocab, rules: &Strings, runs: RunsOfUnknown, warnings: &mut Warnings) -> Pairs {
        let from_text = |id: &TokenId| {
            !matches!(vocab.kind(*id), Some(TokenKind::Control | TokenKind::Unknown | TokenKind::Byte))
        };
        let pieces = Index::new(vocab, Key::Piece, vocab.ids().filter(from_text));
        let mut pairs = PairRules::with_capacity(rules.len());
        let mut faults = Pieces::default();
        for rule in rules.iter() {
            match pair_rule(vocab, &pieces, rule) {
                Some(pair) => pairs.push(pair),
                None => faults.add(rule),
            }
        }
        if let Some(shown) = faults.shown() {
            let key = warnings.name(key::MERGES);
            warnings.add(format_args!(
                "`{key}`: rules with a piece that is no token, which are left out: {shown}"
            ));
        }
        Pairs { pieces, rules: pairs, bytes: ByteTokens::new(vocab), unknown: vocab.unknown(), runs }
    }

    /// Whether one token may cover any number of characters.
    pub(crate) fn has_long_tokens(&self) -> bool {
        self.runs == RunsOfUnknown::OneToken && !self.bytes.are_all()
    }

    /// Appends the tokens of `text`. Spaces are already replaced by `▁`.
    pub(crate) fn encode(&self, vocab: &Vocab, text: &str, out: &mut Ids) -> Result<(), TextError> {
        let symbols = self.symbols(vocab, text)?;
        merge(&self.rules, symbols.into_iter(), |id| out.push(id))
    }

    /// Initial symbols: the token of each character, otherwise its byte tokens, otherwise the unknown token.
    fn symbols(&self, vocab: &Vocab, text: &str) -> Result<Vec<TokenId>, TextError> {
        let mut symbols = Vec::with_capacity(text.len());
        let mut unknown = None;
        for (offset, character) in text.char_indices() {
            let spelled = text.get(offset..offset + character.len_utf8()).unwrap_or_default();
            if let Some(id) = self.pieces.find(vocab, spelled.as_bytes()) {
                symbols.extend(unknown.take());
                symbols.push(id);
            } else if let Some(ids) = self.bytes.of(spelled) {
                // A pending unknown token is emitted after the byte tokens, as in Hugging Face's
                // implementation.
                symbols.extend(ids);
            } else {
                if self.runs == RunsOfUnknown::EachCharacter {
                    symbols.extend(unknown.take());
                }
                unknown = Some(self.unknown.ok_or(TextError::Unencodable { character, offset })?);
            }
        }
        symbols.extend(unknown);
        Ok(symbols)
    }
}

/// Parses a rule; `None` if a piece or the merged piece is not a token.
fn pair_rule(vocab: &Vocab, pieces: &Index, line: &str) -> Option<PairRule> {
    let (left, right) = line.split_once(' ')?;
    let token = |piece: &str| pieces.find(vocab, piece.as_bytes());
    let joint = token(&format!("{left}{right}"))?;
    Some(PairRule { pair: [token(left)?, token(right)?], joint })
}
