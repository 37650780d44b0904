//! Byte-pair encoding of pieces that are written as text, as `tokenizer.json` has it: characters are merged by rules. GGUF
//! has scores in their place (`spm.rs`), which merge neighbours that no rule names.

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

/// Segments text by rules.
#[derive(Debug)]
pub(crate) struct Pairs {
    pieces: Index,
    rules: PairRules,
    bytes: ByteTokens,
    unknown: Option<TokenId>,
    runs: RunsOfUnknown,
}

impl Pairs {
    /// Indexes pieces and rules, which are lines of two pieces and a space.
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

    /// Whether a token may stand for any number of characters.
    pub(crate) fn has_long_tokens(&self) -> bool {
        self.runs == RunsOfUnknown::OneToken && !self.bytes.are_all()
    }

    /// Appends the tokens of `text`, in which spaces are already written `▁`.
    pub(crate) fn encode(&self, vocab: &Vocab, text: &str, out: &mut Ids) -> Result<(), TextError> {
        let symbols = self.symbols(vocab, text)?;
        merge(&self.rules, symbols.into_iter(), |id| out.push(id))
    }

    /// Tokens of characters: their own, or those of their bytes, or the unknown one.
    fn symbols(&self, vocab: &Vocab, text: &str) -> Result<Vec<TokenId>, TextError> {
        let mut symbols = Vec::with_capacity(text.len());
        let mut unknown = None;
        for (offset, character) in text.char_indices() {
            let spelled = text.get(offset..offset + character.len_utf8()).unwrap_or_default();
            if let Some(id) = self.pieces.find(vocab, spelled.as_bytes()) {
                symbols.extend(unknown.take());
                symbols.push(id);
            } else if let Some(ids) = self.bytes.of(spelled) {
                // What is unknown goes on behind them, as in Hugging Face's own.
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

/// A line as a rule. `None` where one of the pieces, or both together, are no token.
fn pair_rule(vocab: &Vocab, pieces: &Index, line: &str) -> Option<PairRule> {
    let (left, right) = line.split_once(' ')?;
    let token = |piece: &str| pieces.find(vocab, piece.as_bytes());
    let joint = token(&format!("{left}{right}"))?;
    Some(PairRule { pair: [token(left)?, token(right)?], joint })
}
