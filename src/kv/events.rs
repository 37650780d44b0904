//! Cache events: changes of the findable pages, for routers that send a request to the engine that has its
//! prefix.
//! prefix.

use super::ChainHash;
use crate::ir::PageId;
use crate::token::TokenId;

/// A change of the findable pages.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CacheEvent {
    /// A page can be found from now on.
    Stored(StoredPage),
    /// A page can no longer be found.
    Removed {
        /// The page's hash.
        hash: [u8; 32],
    },
    /// The reader has missed changes. A listing of all findable pages follows.
    Cleared,
}

/// A full page that can be found by its hash.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoredPage {
    /// Hash of the page and all that precedes it: 256 bits over model, salt and tokens.
    pub hash: [u8; 32],
    /// Hash of the page before it; `None` for the first page of a sequence.
    pub parent: Option<[u8; 32]>,
    /// The page's tokens.
    pub tokens: Vec<TokenId>,
}

/// Events that were not taken yet, and the content of each findable page.
#[derive(Debug)]
pub(super) struct EventLog {
    changes: Vec<CacheEvent>,
    /// By page, with the number of pages before it.
    pages: Vec<Option<(usize, StoredPage)>>,
}

impl EventLog {
    pub(super) fn new(pages: usize) -> EventLog {
        EventLog { changes: Vec::new(), pages: vec![None; pages] }
    }

    /// Records that a page can be found, as the next one after `chain`.
    pub(super) fn store(&mut self, page: PageId, hash: ChainHash, chain: &[ChainHash], tokens: &[TokenId]) {
        let stored = StoredPage { hash, parent: chain.last().copied(), tokens: tokens.to_vec() };
        if let Some(place) = self.pages.get_mut(page.index()) {
            *place = Some((chain.len(), stored.clone()));
            self.changes.push(CacheEvent::Stored(stored));
        }
    }

    pub(super) fn remove(&mut self, page: PageId) {
        if let Some((_, stored)) = self.pages.get_mut(page.index()).and_then(Option::take) {
            self.changes.push(CacheEvent::Removed { hash: stored.hash });
        }
    }

    pub(super) fn take(&mut self) -> Vec<CacheEvent> {
        std::mem::take(&mut self.changes)
    }

    /// All findable pages, each after its parent.
    pub(super) fn all(&self) -> Vec<CacheEvent> {
        let mut pages: Vec<_> = self.pages.iter().flatten().collect();
        pages.sort_by_key(|(before, _)| *before);
        pages.into_iter().map(|(_, stored)| CacheEvent::Stored(stored.clone())).collect()
    }
}
