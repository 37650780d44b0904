//! Byte-level byte-pair encoding, as GPT-2, Llama 3 and Qwen want it.
//!
//! A text is cut into words (`pretokenize.rs`), a word is its bytes' tokens, and neighbours are merged by the
//! rules in their order. A rule takes 16 to 24 bytes here, and no string: SmolLM2's 49 thousand are a megabyte.

use std::cmp::Reverse;
use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;

use super::byte_level::char_of;
use super::error::TextError;
use super::index::Index;
use super::merge::{Rules, merge};
use super::pretokenize::{PreTokenizer, WholeWords};
use super::vocab::Vocab;
use crate::TokenId;
use crate::weights::Strings;

/// Byte-level BPE.
#[derive(Debug)]
pub(crate) struct ByteLevel {
    words: PreTokenizer,
    /// Tokens of single bytes, by byte.
    bytes: Box<[Option<TokenId>; 256]>,
    merges: Merges,
    /// The pieces, where a word that is one is not merged.
    whole: Option<Index>,
}

/// The merge rules.
#[derive(Debug)]
struct Merges {
    /// In the order in which they apply.
    rules: Vec<Merge>,
    /// Numbers of rules, by what they join.
    by_pair: HashTable<u32>,
    hasher: RandomState,
}

#[derive(Clone, Copy, Debug)]
struct Merge {
    pair: [TokenId; 2],
    joint: TokenId,
}

impl ByteLevel {
    /// Checks the rules: two pieces of the vocabulary that together are a third.
    pub(crate) fn new(vocab: &Vocab, pre: &str, rules: &Strings) -> Result<ByteLevel, TextError> {
        let words = PreTokenizer::named(pre)?;
        let pieces = Index::new(vocab, |id| !vocab.is_control(id));
        let bytes = std::array::from_fn(|byte| {
            let byte = u8::try_from(byte).ok()?;
            pieces.find(vocab, char_of(byte).encode_utf8(&mut [0; 4]))
        });
        let merges = Merges::new(vocab, &pieces, rules)?;
        let whole = (words.whole_words() == WholeWords::Taken).then_some(pieces);
        Ok(ByteLevel { words, bytes: Box::new(bytes), merges, whole })
    }

    /// Appends the tokens of `text`. Bytes without a token are left out.
    pub(crate) fn encode(&self, vocab: &Vocab, text: &str, out: &mut Vec<TokenId>) {
        let mut spelled = String::new();
        for word in self.words.words(text) {
            if let Some(whole) = &self.whole {
                spelled.clear();
                spelled.extend(word.bytes().map(char_of));
                if let Some(id) = whole.find(vocab, &spelled) {
                    out.push(id);
                    continue;
                }
            }
            let bytes = word.bytes().filter_map(|byte| *self.bytes.get(usize::from(byte))?);
            out.extend(merge(&self.merges, bytes));
        }
    }
}

impl Merges {
    fn new(vocab: &Vocab, pieces: &Index, rules: &Strings) -> Result<Merges, TextError> {
        let (by_pair, hasher) = (HashTable::with_capacity(rules.len()), RandomState::new());
        let mut merges = Merges { rules: Vec::with_capacity(rules.len()), by_pair, hasher };
        let mut joint = String::new();
        for (index, rule) in rules.iter().enumerate() {
            let bad = |reason| TextError::BadMerge { index, merge: rule.to_owned(), reason };
            let (left, right) = rule.split_once(' ').ok_or_else(|| bad("expected two pieces and a space"))?;
            if left.is_empty() || right.is_empty() || right.contains(' ') {
                return Err(bad("expected two pieces and one space"));
            }
            joint.clear();
            joint.extend([left, right]);
            let token = |piece| pieces.find(vocab, piece);
            let (Some(left), Some(right), Some(joint)) = (token(left), token(right), token(&joint)) else {
                return Err(bad("its pieces and what they make must be tokens"));
            };
            merges.push(Merge { pair: [left, right], joint });
        }
        Ok(merges)
    }

    /// Adds the next rule. If its pair has one already, that one counts.
    fn push(&mut self, merge: Merge) {
        let Ok(number) = u32::try_from(self.rules.len()) else { return };
        self.rules.push(merge);
        let (rules, hasher) = (&self.rules, &self.hasher);
        let pair = |number: &u32| rules.get(*number as usize).map(|merge| merge.pair);
        let hash = |number: &u32| hasher.hash_one(pair(number));
        self.by_pair.entry(hash(&number), |other| pair(other) == Some(merge.pair), hash).or_insert(number);
    }
}

impl Rules for Merges {
    type Symbol = TokenId;
    type Rank = Reverse<u32>;

    fn join(&self, left: TokenId, right: TokenId) -> Option<(Reverse<u32>, TokenId)> {
        let pair = Some([left, right]);
        let rule = |number: &u32| self.rules.get(*number as usize);
        let same = |number: &u32| rule(number).map(|merge| merge.pair) == pair;
        let number = self.by_pair.find(self.hasher.hash_one(pair), same)?;
        Some((Reverse(*number), rule(number)?.joint))
    }
}
