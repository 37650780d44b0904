//! Ids by spelling.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use super::vocab::Vocab;
use crate::TokenId;

/// A hash table that leaves the spellings where they are, in the vocabulary: hundreds of thousands of keys
/// with an allocation each took most of the time to load a small model.
#[derive(Debug)]
pub(crate) struct Index {
    ids: HashTable<TokenId>,
    hasher: RandomState,
    key: Key,
}

/// What a token is found by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    /// The piece as the file writes it.
    Piece,
    /// The bytes that it spells, however the file writes them.
    Bytes,
}

impl Key {
    fn of(self, vocab: &Vocab, id: TokenId) -> &[u8] {
        match self {
            Key::Piece => vocab.piece(id).map(str::as_bytes),
            Key::Bytes => vocab.bytes(id),
        }
        .unwrap_or_default()
    }
}

impl Index {
    /// Of these tokens. Where two are spelled alike, the first counts.
    pub(crate) fn new(vocab: &Vocab, key: Key, ids: impl Iterator<Item = TokenId>) -> Index {
        let table = HashTable::with_capacity(vocab.len());
        let mut index = Index { ids: table, hasher: RandomState::new(), key };
        for id in ids {
            index.insert(vocab, id);
        }
        index
    }

    pub(crate) fn find(&self, vocab: &Vocab, spelled: &[u8]) -> Option<TokenId> {
        let same = |id: &TokenId| self.key.of(vocab, *id) == spelled;
        self.ids.find(self.hasher.hash_one(spelled), same).copied()
    }

    /// Adds a token if none is spelled like it.
    fn insert(&mut self, vocab: &Vocab, id: TokenId) {
        let (key, hasher) = (self.key, &self.hasher);
        let spelled = key.of(vocab, id);
        let same = |other: &TokenId| key.of(vocab, *other) == spelled;
        let hash = |other: &TokenId| hasher.hash_one(key.of(vocab, *other));
        if let Entry::Vacant(place) = self.ids.entry(hasher.hash_one(spelled), same, hash) {
            place.insert(id);
        }
    }
}
