//! BPE merge rules: pairs of symbols with their result, found by the pair.

use std::cmp::Reverse;
use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;

use super::merge;
use crate::TokenId;

/// Merge rules in order of priority. A rule takes 16 to 24 bytes and no string.
#[derive(Debug, Default)]
pub(crate) struct PairRules {
    rules: Vec<PairRule>,
    /// Index from pairs to rule numbers.
    by_pair: HashTable<u32>,
    hasher: RandomState,
}

/// Two symbols and the symbol that replaces them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PairRule {
    pub(crate) pair: [TokenId; 2],
    pub(crate) joint: TokenId,
}

impl PairRules {
    /// Empty, with capacity for `count` rules.
    pub(crate) fn with_capacity(count: usize) -> PairRules {
        PairRules {
            rules: Vec::with_capacity(count),
            by_pair: HashTable::with_capacity(count),
            hasher: RandomState::new(),
        }
    }

    /// Appends a rule. If its pair has a rule already, the earlier one applies.
    pub(crate) fn push(&mut self, rule: PairRule) {
        let Ok(number) = u32::try_from(self.rules.len()) else { return };
        self.rules.push(rule);
        let (rules, hasher) = (&self.rules, &self.hasher);
        let pair = |number: &u32| rules.get(*number as usize).map(|rule| rule.pair);
        let hash = |number: &u32| hasher.hash_one(pair(number));
        self.by_pair.entry(hash(&number), |other| pair(other) == Some(rule.pair), hash).or_insert(number);
    }
}

impl merge::Rules for PairRules {
    type Symbol = TokenId;
    type Rank = Reverse<u32>;

    fn join(&self, left: TokenId, right: TokenId) -> Option<(Reverse<u32>, TokenId)> {
        let pair = Some([left, right]);
        let rule = |number: &u32| self.rules.get(*number as usize);
        let same = |number: &u32| rule(number).map(|rule| rule.pair) == pair;
        let number = self.by_pair.find(self.hasher.hash_one(pair), same)?;
        Some((Reverse(*number), rule(number)?.joint))
    }
}
