//! The prefix index: a hash chain over full pages, and the LRU list of cached pages, which no sequence holds.
//!
//! A page's hash covers its own tokens and its parent's hash; the first parent is the salt, together with the
//! sequence's own salt. So an equal hash means an equal prefix under the same model: with 256 bits,
//! collisions are infeasible. The manager decides which pages are registered.

use std::collections::{HashMap, TryReserveError};

use super::events::EventLog;
use super::{ChainHash, PrefixSharing, with_room};
use crate::ir::PageId;
use crate::token::TokenId;

/// No neighbour.
const NONE: u32 = u32::MAX;

/// A page's links in the list of cached pages.
#[derive(Clone, Copy, Debug)]
struct Link {
    older: u32,
    newer: u32,
}

/// The index from hashes to pages, and the eviction order of cached pages.
#[derive(Debug)]
pub(super) struct PrefixIndex {
    salt: Option<ChainHash>,
    pages: HashMap<ChainHash, PageId>,
    hashes: Vec<Option<ChainHash>>,
    links: Vec<Link>,
    oldest: u32,
    newest: u32,
    cached: usize,
    /// Event log, if changes are recorded.
    pub(super) log: Option<EventLog>,
}

impl PrefixIndex {
    pub(super) fn new(sharing: PrefixSharing, pages: usize) -> Result<PrefixIndex, TryReserveError> {
        let (mut by_hash, mut salt) = (HashMap::new(), None);
        if let PrefixSharing::On { salt: given } = sharing {
            // Twice the possible entries: the table then clears its tombstones in place and never grows in a
            // step.
            by_hash.try_reserve(pages.saturating_mul(2))?;
            salt = Some(given);
        }
        let (mut hashes, mut links) = (with_room(pages)?, with_room(pages)?);
        hashes.resize(pages, None);
        links.resize(pages, Link { older: NONE, newer: NONE });
        Ok(PrefixIndex {
            salt,
            pages: by_hash,
            hashes,
            links,
            oldest: NONE,
            newest: NONE,
            cached: 0,
            log: None,
        })
    }

    /// Whether prefix sharing is on.
    pub(super) fn shares(&self) -> bool {
        self.salt.is_some()
    }

    /// The hash of a full page after `parent` (`None`: the first page of a sequence with salt `own`). `None`
    /// without prefix sharing.
    pub(super) fn hash(
        &self,
        parent: Option<&ChainHash>,
        own: Option<&[u8; 32]>,
        tokens: &[TokenId],
    ) -> Option<ChainHash> {
        let salt = self.salt.as_ref()?;
        let mut hasher = blake3::Hasher::new();
        hasher.update(parent.unwrap_or(salt));
        // A page has a fixed number of tokens, so an additional salt is unambiguous by its length.
        if let (None, Some(own)) = (parent, own) {
            hasher.update(own);
        }
        for token in tokens {
            hasher.update(&token.0.to_le_bytes());
        }
        Some(hasher.finalize().into())
    }

    pub(super) fn find(&self, hash: &ChainHash) -> Option<PageId> {
        self.pages.get(hash).copied()
    }

    /// Registers `page` under `hash`, unless another page is registered there. It holds `tokens` and follows
    /// `chain`.
    pub(super) fn register(
        &mut self,
        page: PageId,
        hash: ChainHash,
        chain: &[ChainHash],
        tokens: &[TokenId],
    ) {
        if let std::collections::hash_map::Entry::Vacant(entry) = self.pages.entry(hash) {
            entry.insert(page);
            self.hashes[page.index()] = Some(hash);
            if let Some(log) = &mut self.log {
                log.store(page, hash, chain, tokens);
            }
        }
    }

    /// Removes a page from the index, so that it can no longer be found.
    pub(super) fn unregister(&mut self, page: PageId) {
        if let Some(hash) = self.hashes[page.index()].take() {
            self.pages.remove(&hash);
            if let Some(log) = &mut self.log {
                log.remove(page);
            }
        }
    }

    pub(super) fn is_registered(&self, page: PageId) -> bool {
        self.hashes[page.index()].is_some()
    }

    pub(super) fn hash_of(&self, page: PageId) -> Option<&ChainHash> {
        self.hashes[page.index()].as_ref()
    }

    /// Number of registered hashes.
    pub(super) fn registered(&self) -> usize {
        self.pages.len()
    }

    /// Number of cached pages.
    pub(super) fn cached(&self) -> usize {
        self.cached
    }

    /// Appends a page that no sequence holds any more at the list's newest end.
    pub(super) fn park(&mut self, page: PageId) {
        self.links[page.index()] = Link { older: self.newest, newer: NONE };
        match self.newest {
            NONE => self.oldest = page.0,
            newest => self.links[newest as usize].newer = page.0,
        }
        self.newest = page.0;
        self.cached += 1;
    }

    /// Removes a page from the list.
    pub(super) fn unpark(&mut self, page: PageId) {
        let Link { older, newer } = self.links[page.index()];
        match older {
            NONE => self.oldest = newer,
            older => self.links[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.links[newer as usize].older = older,
        }
        self.links[page.index()] = Link { older: NONE, newer: NONE };
        self.cached -= 1;
    }

    /// Evicts the least recently used cached page.
    pub(super) fn evict(&mut self) -> Option<PageId> {
        let page = Some(self.oldest).filter(|&page| page != NONE).map(PageId)?;
        self.unpark(page);
        self.unregister(page);
        Some(page)
    }

    /// The cached pages, oldest first. The iterator ends after at most as many steps as there are pages and
    /// one more, even if the links are broken.
    pub(super) fn parked(&self) -> impl Iterator<Item = PageId> + '_ {
        let some = |page: u32| Some(page).filter(|&page| page != NONE);
        std::iter::successors(some(self.oldest), move |&page| some(self.links[page as usize].newer))
            .take(self.links.len() + 1)
            .map(PageId)
    }
}
