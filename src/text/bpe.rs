//! Byte-level BPE, as in GPT-2, Llama 3 and Qwen.
//!
//! Text is split into words (`pretokenize.rs`). A word starts as the tokens of its bytes; adjacent symbols
//! are merged by the rules in order. Pieces are found by their bytes, regardless of how a file spells them.

use std::collections::HashMap;
use std::num::NonZeroUsize;

use super::byte_level::{byte_of, char_of};
use super::error::TextError;
use super::index::{Index, Key};
use super::kind::TokenKind;
use super::limit::Ids;
use super::merge::merge;
use super::parts::key;
use super::pretokenize::{PreTokenizer, WholeWords};
use super::rules::{PairRule, PairRules};
use super::vocab::Vocab;
use super::warnings::Warnings;
use crate::TokenId;
use crate::checkpoint::Strings;

/// Byte-level BPE tokenizer.
#[derive(Debug)]
pub(crate) struct ByteLevel {
    words: PreTokenizer,
    /// Single-byte tokens, by byte.
    bytes: Box<[Option<TokenId>; 256]>,
    /// Initial symbol of each byte: its token, or a symbol that only occurs in rules.
    symbols: Box<[Option<TokenId>; 256]>,
    merges: Merges,
    /// Index of the pieces, if a word that is a token is taken without merging.
    whole: Option<Index>,
}

/// Merge rules.
#[derive(Debug, Default)]
struct Merges {
    rules: PairRules,
    made: Made,
}

/// Symbols of rules that are not tokens, with ids after those of the vocabulary. A later rule may merge them
/// to a token; the rest is spelled by bytes.
#[derive(Debug, Default)]
struct Made {
    first: usize,
    spelled: Vec<Box<[u8]>>,
    by_spelling: HashMap<Box<[u8]>, TokenId>,
}

impl ByteLevel {
    /// Indexes pieces and rules.
    pub(crate) fn new(
        vocab: &Vocab,
        pre: &str,
        rules: &Strings,
        warnings: &mut Warnings,
    ) -> Result<ByteLevel, TextError> {
        let words = PreTokenizer::named(pre)?;
        let pieces = Index::new(vocab, Key::Bytes, from_text(vocab));
        let bytes = byte_tokens(vocab, &pieces);
        let merges = Merges::new(vocab, &pieces, rules, warnings);
        let symbol = |byte: u8| bytes.get(usize::from(byte)).copied().flatten().or(merges.made.find(&[byte]));
        let symbols = Box::new(std::array::from_fn(|byte| symbol(u8::try_from(byte).ok()?)));
        let whole = (words.whole_words() == WholeWords::Taken).then_some(pieces);
        Ok(ByteLevel { words, bytes, symbols, merges, whole })
    }

    /// Maximum bytes per token; `None` if some bytes have no token.
    pub(crate) fn longest(&self, vocab: &Vocab) -> Option<NonZeroUsize> {
        let all = self.bytes.iter().all(Option::is_some);
        all.then(|| NonZeroUsize::new(vocab.longest())).flatten()
    }

    /// Appends the tokens of `text`. Bytes without a token are dropped.
    pub(crate) fn encode(&self, vocab: &Vocab, text: &str, out: &mut Ids) -> Result<(), TextError> {
        self.words.try_words(text, &mut |word| {
            let word = word.as_bytes();
            if let Some(id) = self.whole.as_ref().and_then(|whole| whole.find(vocab, word)) {
                return out.push(id);
            }
            out.expect(word.len())?;
            let symbols = word.iter().filter_map(|&byte| *self.symbols.get(usize::from(byte))?);
            merge(&self.merges.rules, symbols, |symbol| self.emit(symbol, out))
        })
    }

    /// Appends a token, or the byte tokens of a symbol that is not a token.
    fn emit(&self, symbol: TokenId, out: &mut Ids) -> Result<(), TextError> {
        let Some(spelled) = self.merges.made.spelled(symbol) else { return out.push(symbol) };
        let byte = |&byte: &u8| *self.bytes.get(usize::from(byte))?;
        spelled.iter().filter_map(byte).try_for_each(|id| out.push(id))
    }
}

/// Tokens that may come from text, by priority. Rules and words refer to pieces in the byte alphabet.
/// Plain-text pieces and user-defined tokens may have the same bytes and come later.
fn from_text(vocab: &Vocab) -> impl Iterator<Item = TokenId> {
    let rank = move |id: TokenId| match (vocab.kind(id)?, vocab.piece(id)?) {
        (TokenKind::Control | TokenKind::Unknown, _) => None,
        (TokenKind::UserDefined, _) => Some(2),
        (_, piece) => Some(usize::from(piece.chars().any(|c| byte_of(c).is_none()))),
    };
    (0..3).flat_map(move |wanted| vocab.ids().filter(move |&id| rank(id) == Some(wanted)))
}

/// Tokens of single bytes, by their bytes or else by the byte's character in the alphabet, regardless of
/// their kind.
fn byte_tokens(vocab: &Vocab, pieces: &Index) -> Box<[Option<TokenId>; 256]> {
    let mut bytes = Box::new([None; 256]);
    let mut named = HashMap::new();
    for id in vocab.ids().filter(|&id| !vocab.is_control(id)) {
        if let Some(piece) = vocab.piece(id).filter(|piece| piece.len() <= 2) {
            named.entry(piece).or_insert(id);
        }
    }
    for (byte, token) in (0..=255).zip(bytes.iter_mut()) {
        let named = || named.get(char_of(byte).encode_utf8(&mut [0; 4]) as &str).copied();
        *token = pieces.find(vocab, &[byte]).or_else(named);
    }
    bytes
}

impl Merges {
    fn new(vocab: &Vocab, pieces: &Index, rules: &Strings, warnings: &mut Warnings) -> Merges {
        let mut merges = Merges {
            rules: PairRules::with_capacity(rules.len()),
            made: Made { first: vocab.len(), ..Made::default() },
        };
        let (mut split, mut unknown) = (Faults::default(), Faults::default());
        for (index, rule) in rules.iter().enumerate() {
            // Header line of a `merges.txt`.
            if index == 0 && rule.starts_with("#version") {
                continue;
            }
            let (known, first) = sides(vocab, pieces, rule);
            let Some(sides) = known.as_ref().or(first.as_ref()) else {
                split.add(index, rule);
                continue;
            };
            if known.is_none() {
                unknown.add(index, rule);
            }
            merges.add(vocab, pieces, sides);
        }
        split.tell("no two pieces and a space, and left out", warnings);
        unknown.tell(
            "with a piece that is no token; such a piece is merged on or else spelled by bytes",
            warnings,
        );
        merges
    }

    fn add(&mut self, vocab: &Vocab, pieces: &Index, sides: &Sides) {
        let mut token = |piece: &[u8]| pieces.find(vocab, piece).or_else(|| self.made.make(piece));
        let [left, right] = sides.pair();
        let (Some(left), Some(right), Some(joint)) = (token(left), token(right), token(&sides.joint)) else {
            return;
        };
        self.rules.push(PairRule { pair: [left, right], joint });
    }
}

/// Bytes of a rule's two pieces.
struct Sides {
    joint: Vec<u8>,
    left_len: usize,
}

impl Sides {
    fn pair(&self) -> [&[u8]; 2] {
        let (left, right) = self.joint.split_at_checked(self.left_len).unwrap_or_default();
        [left, right]
    }
}

/// Two readings of a rule: split at the space where all three pieces are tokens, and at the first space. A
/// piece may contain a space.
fn sides(vocab: &Vocab, pieces: &Index, rule: &str) -> (Option<Sides>, Option<Sides>) {
    let mut first = None;
    for (at, _) in rule.match_indices(' ') {
        let (Some(left), Some(right)) = (rule.get(..at), rule.get(at + 1..)) else { continue };
        if left.is_empty() || right.is_empty() {
            continue;
        }
        let mut joint = Vec::with_capacity(rule.len());
        vocab.spell(left, &mut joint);
        let left_len = joint.len();
        vocab.spell(right, &mut joint);
        let sides = Sides { joint, left_len };
        let [left, right] = sides.pair();
        if [left, right, &sides.joint].iter().all(|piece| pieces.find(vocab, piece).is_some()) {
            return (Some(sides), None);
        }
        first.get_or_insert(sides);
    }
    (None, first)
}

/// Rules with the same problem.
#[derive(Default)]
struct Faults {
    count: usize,
    first: Option<String>,
}

impl Faults {
    fn add(&mut self, index: usize, rule: &str) {
        self.count += 1;
        self.first.get_or_insert_with(|| format!("[{index}], {rule:?}"));
    }

    fn tell(&self, fault: &str, warnings: &mut Warnings) {
        if let Some(first) = &self.first {
            let key = warnings.name(key::MERGES);
            warnings
                .add(format_args!("`{key}`: rules {fault}: {} of them, the first is {first}", self.count));
        }
    }
}

impl Made {
    fn find(&self, spelled: &[u8]) -> Option<TokenId> {
        self.by_spelling.get(spelled).copied()
    }

    /// The symbol with this spelling, created if necessary. `None` if ids are exhausted.
    fn make(&mut self, spelled: &[u8]) -> Option<TokenId> {
        if let Some(id) = self.find(spelled) {
            return Some(id);
        }
        let id = TokenId(u32::try_from(self.first + self.spelled.len()).ok()?);
        self.spelled.push(spelled.into());
        self.by_spelling.insert(spelled.into(), id);
        Some(id)
    }

    fn spelled(&self, id: TokenId) -> Option<&[u8]> {
        self.spelled.get(id.index().checked_sub(self.first)?).map(|spelled| &**spelled)
    }
}
