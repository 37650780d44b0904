//! Index of token ids by spelling.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use super::vocab::Vocab;
use crate::TokenId;

/// Hash table with the keys left in the vocabulary. A separate allocation per key would dominate the load
/// time of small models.
#[derive(Debug)]
pub(crate) struct Index {
    ids: HashTable<TokenId>,
    hasher: RandomState,
    key: Key,
}

/// Key of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    /// Piece as written in the file.
    Piece,
    /// Decoded bytes of the token.
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
    /// Index over these tokens. Of tokens with equal keys, the first is found.
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

    /// Adds a token unless its key is present.
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
