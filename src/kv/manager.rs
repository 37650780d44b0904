//! [`KvCacheManager`]: the calls that an engine makes, in terms of the pool and the page tables.

use super::ChainHash;
use super::page::PagePool;
use super::sequence::{Reservation, Sequence, Sequences};
use super::state::StateSlotTable;
use super::{Allocation, CopyPage, KvConfig, KvError, KvStats, SeqId, SequenceSpec, window};
use crate::ir::{PAGE_TOKENS, PageId, StateSlot};
use crate::token::TokenId;

/// The accounting of a KV pool; the backend owns the memory. See the [module](super).
#[derive(Debug)]
pub struct KvCacheManager {
    pub(super) pool: PagePool,
    pub(super) sequences: Sequences,
    pub(super) states: StateSlotTable,
    /// The copies that the last `reserve` requires: at most one, of the last page.
    copies: Vec<CopyPage>,
    copied: u64,
    prefix_tokens: u64,
}

impl KvCacheManager {
    /// The accounting of an empty pool.
    ///
    /// # Errors
    /// [`KvError::MetadataMemory`].
    pub fn new(config: KvConfig) -> Result<KvCacheManager, KvError> {
        let no_memory = |_| KvError::MetadataMemory { pages: config.pages };
        Ok(KvCacheManager {
            pool: PagePool::new(config.pages, config.prefix).map_err(no_memory)?,
            sequences: Sequences::default(),
            states: StateSlotTable::default(),
            copies: Vec::with_capacity(1),
            copied: 0,
            prefix_tokens: 0,
        })
    }

    /// Adds `slots` slots of recurrent state. Each sequence holds one from its first step on, and a step
    /// takes another. The rest keep snapshots.
    ///
    /// # Errors
    /// [`KvError::StateSlots`] for a single one, [`KvError::MetadataMemory`].
    pub fn with_states(self, slots: usize) -> Result<KvCacheManager, KvError> {
        if slots == 1 {
            return Err(KvError::StateSlots { found: slots });
        }
        let no_memory = |_| KvError::MetadataMemory { pages: slots };
        Ok(KvCacheManager { states: StateSlotTable::new(slots).map_err(no_memory)?, ..self })
    }

    /// Whether sequences have recurrent states.
    pub fn has_states(&self) -> bool {
        self.states.is_used()
    }

    /// Starts a sequence for `prompt` with the longest run of full pages that an earlier sequence with the
    /// same beginning has left. At least one prompt token remains to be computed. No free page is taken, so a
    /// full pool is no hindrance. With recurrent states, the run ends at a page with a kept state.
    ///
    /// # Errors
    /// [`KvError::EmptyPrompt`], [`KvError::TooLong`] if the prompt is longer than `tokens_max`,
    /// [`KvError::EmptyWindow`], [`KvError::PositionRange`], [`KvError::HostMemory`].
    pub fn allocate(&mut self, prompt: &[TokenId], spec: SequenceSpec) -> Result<Allocation, KvError> {
        let mut sequence = self.sequence_for(prompt, spec)?;
        let shareable = prompt.len().saturating_sub(1).min(window::unclipped(spec.window));
        for tokens in prompt[..shareable].chunks_exact(PAGE_TOKENS) {
            let found = self.find(sequence.chain.last(), &spec, tokens);
            let Some((hash, page)) = found else { break };
            self.pool.retain(page);
            sequence.table.push(page);
            sequence.chain.push(hash);
            sequence.tokens.extend_from_slice(tokens);
        }
        self.start_at_a_state(&mut sequence);
        let cached_tokens = sequence.len();
        self.prefix_tokens += cached_tokens as u64;
        Ok(Allocation { seq: self.sequences.insert(sequence), cached_tokens })
    }

    /// The page that holds `tokens` after the prefix `past`, if one can be found.
    pub(super) fn find(
        &self,
        past: Option<&ChainHash>,
        spec: &SequenceSpec,
        tokens: &[TokenId],
    ) -> Option<(ChainHash, PageId)> {
        let hash = self.pool.prefix.hash(past, spec.salt.as_ref(), tokens)?;
        Some((hash, self.pool.prefix.find(&hash)?))
    }

    /// Starts a sequence that has `tokens` already, to be filled from a [snapshot](super::snapshot). Every
    /// page that such a sequence still keeps is its own, empty, and not findable by others; so is its state.
    /// Fill all of [`KvCacheManager::pages`], and the slot that the next [`KvCacheManager::states`] reads,
    /// before anything else.
    ///
    /// # Errors
    /// As [`KvCacheManager::allocate`], [`KvError::OutOfPages`] and [`KvError::OutOfStates`].
    pub fn adopt(&mut self, tokens: &[TokenId], spec: SequenceSpec) -> Result<SeqId, KvError> {
        let mut sequence = self.sequence_for(tokens, spec)?;
        let dropped = window::dropped_to(spec.window, tokens.len());
        let sinks = if dropped > 0 { window::sink_pages(spec.window) } else { 0 };
        let needed = sinks + (tokens.len() - dropped).div_ceil(PAGE_TOKENS);
        self.check_available(needed)?;
        if self.states.is_used() {
            sequence.state = Some(self.take_state()?);
        }
        for _ in 0..sinks {
            sequence.table.push(self.take_page(needed)?);
        }
        sequence.table.skip_to(dropped);
        for _ in sinks..needed {
            sequence.table.push(self.take_page(needed)?);
        }
        sequence.tokens.extend_from_slice(tokens);
        while let Some(hash) = next_hash(&self.pool, &sequence) {
            sequence.chain.push(hash);
        }
        Ok(self.sequences.insert(sequence))
    }

    /// Reserves writable pages for the next `tokens` positions, and evicts cached pages if needed. A shared
    /// last page is replaced by the sequence's own: the backend must do the returned copies before any other
    /// call here. With recurrent states, the slot that the step writes is reserved, too. Allocates no memory,
    /// except for [`KvCacheManager::keep_events`].
    ///
    /// # Errors
    /// [`KvError::StaleSequence`], [`KvError::TooLong`], [`KvError::OutOfPages`], [`KvError::OutOfStates`].
    pub fn reserve(&mut self, seq: SeqId, tokens: usize) -> Result<&[CopyPage], KvError> {
        self.copies.clear();
        let sequence = self.sequences.get(seq)?;
        let (len, end) = (sequence.len(), sequence.end_after(tokens)?);
        let tail = if tokens > 0 { sequence.table.index_of(len) } else { None };
        let tail = tail.map(|index| (index, sequence.table.live()[index].page));
        let shared = tail.filter(|&(_, page)| self.pool.references(page) > 1);
        let new_pages = end.saturating_sub(sequence.table.end).div_ceil(PAGE_TOKENS);
        let needed = new_pages + usize::from(shared.is_some());
        self.check_available(needed)?;
        if self.states.is_used() && tokens > 0 && sequence.next_state.is_none() {
            let slot = self.take_state()?;
            self.sequences.get_mut(seq)?.next_state = Some(slot);
        }
        if let Some((index, from)) = shared {
            let to = self.take_page(needed)?;
            self.pool.release(from);
            self.sequences.get_mut(seq)?.table.entry_mut(index).page = to;
            self.copies.push(CopyPage { from, to });
            self.copied += 1;
        } else if let Some((_, page)) = tail {
            self.pool.prefix.unregister(page);
        }
        for _ in 0..new_pages {
            let page = self.take_page(needed)?;
            self.sequences.get_mut(seq)?.table.push(page);
        }
        self.sequences.get_mut(seq)?.reservation = Reservation::Open(end);
        Ok(&self.copies)
    }

    /// Advances the length over `tokens`, after all layers have written their keys and values, and spends the
    /// reservation. Pages that became full can be found from now on; pages that no query can see any more are
    /// released. Allocates no memory, except for [`KvCacheManager::keep_events`].
    ///
    /// # Errors
    /// [`KvError::StaleSequence`], [`KvError::TooLong`], [`KvError::NotReserved`],
    /// [`KvError::AdvancedTwice`].
    pub fn advance(&mut self, seq: SeqId, tokens: &[TokenId]) -> Result<(), KvError> {
        let sequence = self.sequences.get_mut(seq)?;
        sequence.check_advance(tokens.len())?;
        sequence.tokens.extend_from_slice(tokens);
        sequence.reservation = Reservation::Spent;
        register_full_pages(&mut self.pool, sequence);
        self.states.advance(sequence, tokens.len());
        drop_unseen_pages(&mut self.pool, sequence);
        Ok(())
    }

    /// Truncates the sequence to its first `len` tokens and releases every page after them, including
    /// reserved ones. A `reserve` must follow before the next `advance`.
    ///
    /// # Errors
    /// [`KvError::StaleSequence`], [`KvError::TruncateBeyond`], [`KvError::WindowGone`] if the window at that
    /// length reaches back into dropped pages, [`KvError::StateGone`] if no state of that length is kept.
    pub fn truncate(&mut self, seq: SeqId, len: usize) -> Result<(), KvError> {
        let sequence = self.sequences.get_mut(seq)?;
        sequence.check_truncate(len)?;
        if self.states.is_used() && len < sequence.len() {
            let past = len
                .is_multiple_of(PAGE_TOKENS)
                .then(|| sequence.chain.get((len / PAGE_TOKENS).wrapping_sub(1)));
            let state = past.flatten().and_then(|past| self.states.find(past));
            if state.is_none() && len > 0 {
                return Err(KvError::StateGone { target: len });
            }
            self.states.retain(state);
            self.states.release(std::mem::replace(&mut sequence.state, state));
        }
        self.states.release(sequence.next_state.take());
        sequence.tokens.truncate(len);
        sequence.chain.truncate(len / PAGE_TOKENS);
        sequence.reservation = Reservation::None;
        while let Some(entry) = sequence.table.pop_from(len) {
            self.pool.release(entry.page);
        }
        sequence.table.close_gap(len);
        Ok(())
    }

    /// Forks a sequence: both share all pages until one of the two writes. Invalidates an open reservation of
    /// `seq`: reserve again.
    ///
    /// # Errors
    /// [`KvError::StaleSequence`], [`KvError::HostMemory`].
    pub fn fork(&mut self, seq: SeqId) -> Result<SeqId, KvError> {
        let pages = self.pool.len();
        let sequence = self.sequences.get_mut(seq)?;
        let fork = sequence.fork(pages)?;
        sequence.reservation = Reservation::None;
        for entry in fork.table.live() {
            self.pool.retain(entry.page);
        }
        self.states.retain(fork.state);
        Ok(self.sequences.insert(fork))
    }

    /// Ends the sequence. Pages with a findable prefix stay cached until they are evicted.
    ///
    /// # Errors
    /// [`KvError::StaleSequence`].
    pub fn release(&mut self, seq: SeqId) -> Result<(), KvError> {
        let sequence = self.sequences.remove(seq)?;
        self.states.release(sequence.state);
        self.states.release(sequence.next_state);
        // The end is released first: a prefix without its end is still of use, an end without its prefix is
        // not.
        for entry in sequence.table.live().iter().rev() {
            self.pool.release(entry.page);
        }
        Ok(())
    }

    /// Ends a sequence with untrusted keys and values (NaN, a failed step): no later sequence finds any of
    /// its pages, including those that its window has dropped. Pages that [`KvCacheManager::truncate`] has
    /// removed are no longer its own. Sequences that already share such a page keep it.
    ///
    /// # Errors
    /// [`KvError::StaleSequence`].
    pub fn release_unshared(&mut self, seq: SeqId) -> Result<(), KvError> {
        let sequence = self.sequences.get(seq)?;
        for entry in sequence.table.live() {
            self.pool.prefix.unregister(entry.page);
        }
        // Pages that the window has dropped may be cached.
        let left = window::sink_pages(sequence.spec.window)..sequence.table.dropped / PAGE_TOKENS;
        let left = left.start..left.end.min(sequence.chain.len());
        for hash in sequence.chain.get(left).unwrap_or_default() {
            self.pool.forget(hash);
        }
        sequence.chain.iter().for_each(|past| self.states.forget(past));
        self.release(seq)
    }

    /// Pages that can be taken: free ones, and cached ones, which would be evicted.
    pub fn free_pages(&self) -> usize {
        self.pool.available()
    }

    /// Pages held by sequences.
    pub fn used_pages(&self) -> usize {
        self.pool.len() - self.pool.available()
    }

    /// Counters since the start, and the pages as they are now.
    pub fn stats(&self) -> KvStats {
        KvStats {
            pages: self.pool.len(),
            used: self.used_pages(),
            cached: self.pool.prefix.cached(),
            free: self.pool.unused().len(),
            sequences: self.sequences.len(),
            prefix_tokens: self.prefix_tokens,
            evictions: self.pool.evictions,
            copies: self.copied,
            states: self.states.len() - self.states.available(),
            snapshots: self.states.snapshots(),
        }
    }

    fn sequence_for(&self, tokens: &[TokenId], spec: SequenceSpec) -> Result<Sequence, KvError> {
        if tokens.is_empty() {
            return Err(KvError::EmptyPrompt);
        }
        let mut sequence = Sequence::new(spec, self.pool.len())?;
        sequence.prompt = tokens.len();
        sequence.end_after(tokens.len())?;
        Ok(sequence)
    }

    /// Cuts a new sequence back to its longest prefix with a kept state.
    fn start_at_a_state(&mut self, sequence: &mut Sequence) {
        while self.states.is_used() {
            let Some(past) = sequence.chain.last() else { return };
            sequence.state = self.states.find(past);
            if sequence.state.is_some() {
                return self.states.retain(sequence.state);
            }
            sequence.chain.pop();
            let start = sequence.chain.len() * PAGE_TOKENS;
            sequence.tokens.truncate(start);
            if let Some(entry) = sequence.table.pop_from(start) {
                self.pool.release(entry.page);
            }
        }
    }

    fn take_state(&mut self) -> Result<StateSlot, KvError> {
        self.states.take().ok_or(KvError::OutOfStates { slots: self.states.len() })
    }

    fn check_available(&self, needed: usize) -> Result<(), KvError> {
        let free = self.pool.available();
        if needed > free { Err(KvError::OutOfPages { needed, free }) } else { Ok(()) }
    }

    /// Takes one of `needed` pages, after `check_available` has accepted that number.
    fn take_page(&mut self, needed: usize) -> Result<PageId, KvError> {
        self.pool.take().ok_or(KvError::OutOfPages { needed, free: 0 })
    }
}

/// The hash of the first full page after the chain, if it may be shared.
fn next_hash(pool: &PagePool, sequence: &Sequence) -> Option<ChainHash> {
    let page = sequence.chain.len() * PAGE_TOKENS..(sequence.chain.len() + 1) * PAGE_TOKENS;
    if page.end > window::unclipped(sequence.spec.window) {
        return None;
    }
    let salt = sequence.spec.salt.as_ref();
    pool.prefix.hash(sequence.chain.last(), salt, sequence.tokens.get(page)?)
}

/// Makes pages that have become full findable. If another page with the same prefix is registered already,
/// that one stays registered.
fn register_full_pages(pool: &mut PagePool, sequence: &mut Sequence) {
    while let Some(hash) = next_hash(pool, sequence) {
        let index = sequence.table.index_of(sequence.chain.len() * PAGE_TOKENS);
        if let Some(entry) = index.and_then(|index| sequence.table.live().get(index)) {
            let tokens = &sequence.tokens[sequence.chain.len() * PAGE_TOKENS..][..PAGE_TOKENS];
            pool.prefix.register(entry.page, hash, &sequence.chain, tokens);
        }
        sequence.chain.push(hash);
    }
}

/// Releases the pages that the window has passed.
fn drop_unseen_pages(pool: &mut PagePool, sequence: &mut Sequence) {
    let dropped_to = window::dropped_to(sequence.spec.window, sequence.len());
    while let Some(entry) = sequence.table.drop_oldest(dropped_to) {
        pool.release(entry.page);
    }
}
