//! The page pool: references, the free list, and the transitions between free, cached and used.

use std::collections::TryReserveError;

use super::ChainHash;
use super::PrefixSharing;
use super::prefix::PrefixIndex;
use super::with_room;
use crate::ir::PageId;

/// Every page of the pool is free (no reference, in `free`), cached (no reference, parked in `prefix`) or
/// used (one reference per sequence that holds it).
#[derive(Debug)]
pub(super) struct PagePool {
    references: Vec<u32>,
    free: Vec<PageId>,
    pub(super) prefix: PrefixIndex,
    pub(super) evictions: u64,
}

impl PagePool {
    pub(super) fn new(pages: usize, sharing: PrefixSharing) -> Result<PagePool, TryReserveError> {
        let count = u32::try_from(pages).unwrap_or(u32::MAX);
        let mut free: Vec<PageId> = with_room(count as usize)?;
        free.extend((0..count).rev().map(PageId));
        let mut references = with_room(count as usize)?;
        references.resize(count as usize, 0);
        Ok(PagePool { references, free, prefix: PrefixIndex::new(sharing, count as usize)?, evictions: 0 })
    }

    pub(super) fn len(&self) -> usize {
        self.references.len()
    }

    /// The free pages.
    pub(super) fn unused(&self) -> &[PageId] {
        &self.free
    }

    /// Number of pages that [`PagePool::take`] can return.
    pub(super) fn available(&self) -> usize {
        self.free.len() + self.prefix.cached()
    }

    pub(super) fn references(&self, page: PageId) -> u32 {
        self.references[page.index()]
    }

    /// Takes a page with one reference: a free one, else the least recently used cached one.
    pub(super) fn take(&mut self) -> Option<PageId> {
        let page = match self.free.pop() {
            Some(page) => page,
            None => {
                let page = self.prefix.evict()?;
                self.evictions += 1;
                page
            }
        };
        self.references[page.index()] = 1;
        Some(page)
    }

    /// Adds a reference to a used or cached page.
    pub(super) fn retain(&mut self, page: PageId) {
        let references = &mut self.references[page.index()];
        if *references == 0 {
            self.prefix.unpark(page);
        }
        *references += 1;
    }

    /// Drops a reference. Without any, the page is cached if it can be found, else free.
    pub(super) fn release(&mut self, page: PageId) {
        let references = &mut self.references[page.index()];
        *references -= 1;
        if *references > 0 {
            return;
        }
        match self.prefix.is_registered(page) {
            true => self.prefix.park(page),
            false => self.free.push(page),
        }
    }

    /// Removes the page under `hash` from the index; it becomes free if no sequence holds it.
    pub(super) fn forget(&mut self, hash: &ChainHash) {
        let Some(page) = self.prefix.find(hash) else { return };
        self.prefix.unregister(page);
        if self.references(page) == 0 {
            self.prefix.unpark(page);
            self.free.push(page);
        }
    }
}
