//! Ids by spelling.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;

use super::vocab::Vocab;
use crate::TokenId;

/// A hash table that leaves the spellings where they are, in the vocabulary: hundreds of thousands of keys
/// with an allocation each took most of the time to load a small model.
#[derive(Debug)]
pub(crate) struct Index {
    ids: HashTable<TokenId>,
    hasher: RandomState,
}

impl Index {
    /// Of the tokens that may come from text. Where two are spelled alike, the lower id counts.
    pub(crate) fn new(vocab: &Vocab, from_text: impl Fn(TokenId) -> bool) -> Index {
        let mut index = Index { ids: HashTable::with_capacity(vocab.len()), hasher: RandomState::new() };
        for id in vocab.ids().filter(|&id| from_text(id)) {
            if let Some(piece) = vocab.piece(id) {
                index.insert(vocab, piece, id);
            }
        }
        index
    }

    pub(crate) fn find(&self, vocab: &Vocab, piece: &str) -> Option<TokenId> {
        let spelled = |id: &TokenId| vocab.piece(*id) == Some(piece);
        self.ids.find(self.hasher.hash_one(piece), spelled).copied()
    }

    /// Adds a piece that is not there yet.
    fn insert(&mut self, vocab: &Vocab, piece: &str, id: TokenId) {
        let spelled = |id: &TokenId| vocab.piece(*id) == Some(piece);
        let hash = |id: &TokenId| self.hasher.hash_one(vocab.piece(*id).unwrap_or_default());
        self.ids.entry(self.hasher.hash_one(piece), spelled, hash).or_insert(id);
    }
}
