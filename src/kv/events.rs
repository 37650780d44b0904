//! What changes in the prefixes that can be found: for routers, which send a request to where its beginning is.

use super::ChainHash;
use crate::ir::PageId;
use crate::token::TokenId;

/// A change of what can be found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CacheEvent {
    /// A page can be found.
    Stored(StoredPage),
    /// A page can no longer be found.
    Removed {
        /// Its name.
        hash: [u8; 32],
    },
    /// A reader has missed changes. All that can be found follows.
    Cleared,
}

/// A full page that can be found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoredPage {
    /// Names the page with all that precedes it: 256 bits over model, salt and tokens.
    pub hash: [u8; 32],
    /// The page before it; none for the first of a sequence.
    pub parent: Option<[u8; 32]>,
    /// Its tokens.
    pub tokens: Vec<TokenId>,
}

/// Changes that nobody has taken yet, and what each page that can be found holds.
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

    /// A page can be found: the next behind `chain`.
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

    /// All that can be found, the beginnings first.
    pub(super) fn all(&self) -> Vec<CacheEvent> {
        let mut pages: Vec<_> = self.pages.iter().flatten().collect();
        pages.sort_by_key(|(before, _)| *before);
        pages.into_iter().map(|(_, stored)| CacheEvent::Stored(stored.clone())).collect()
    }
}
