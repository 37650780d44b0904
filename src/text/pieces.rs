//! Ids by spelling: a hash table that leaves the spellings where they are, in the vocabulary. Hundreds of
//! thousands of keys with an allocation each took most of the time to load a small model.

use super::vocab::Vocab;
use crate::TokenId;
use hashbrown::hash_table::Entry;
use hashbrown::{DefaultHashBuilder, HashTable};
use std::hash::BuildHasher;

/// Some tokens of a vocabulary by how the file writes them; where two are written alike, the first one.
#[derive(Debug)]
pub(crate) struct Pieces {
    ids: HashTable<TokenId>,
    hasher: DefaultHashBuilder,
}

impl Pieces {
    /// The tokens that `ids` gives, all of this vocabulary.
    pub(crate) fn new(vocab: &Vocab, ids: impl Iterator<Item = TokenId>) -> Pieces {
        let (mut table, hasher) = (HashTable::with_capacity(vocab.len()), DefaultHashBuilder::default());
        let written = |id: TokenId| vocab.piece(id).unwrap_or_default();
        for id in ids {
            let same = |other: &TokenId| written(*other) == written(id);
            let hash = |id: &TokenId| hasher.hash_one(written(*id));
            if let Entry::Vacant(place) = table.entry(hash(&id), same, hash) {
                place.insert(id);
            }
        }
        Pieces { ids: table, hasher }
    }

    /// The token that is written like this.
    pub(crate) fn find(&self, vocab: &Vocab, piece: &str) -> Option<TokenId> {
        let same = |id: &TokenId| vocab.piece(*id) == Some(piece);
        self.ids.find(self.hasher.hash_one(piece), same).copied()
    }
}
