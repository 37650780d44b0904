//! One sequence: its tokens, its page table, its reservation; and the slots that sequences live in.
//!
//! References and free pages are not handled here; `manager` moves pages between sequences and the pool.

use super::ChainHash;
use super::{KvError, SeqId, SequenceSpec, window, with_room};
use crate::ir::{PAGE_TOKENS, PageRef, StateSlot};
use crate::token::TokenId;

/// The positions that `advance` may move over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reservation {
    /// None: `reserve` must come first.
    None,
    /// Positions up to this one.
    Open(usize),
    /// None: `advance` has spent the reservation.
    Spent,
}

/// The pages of a sequence: those of the sinks, then the recent ones, by rising start.
#[derive(Debug)]
pub(super) struct PageTable {
    /// The entries from `head` on are live.
    entries: Vec<PageRef>,
    head: usize,
    sink_pages: usize,
    /// Position after the last page.
    pub(super) end: usize,
    /// End of the dropped region after the sinks; 0 if nothing was dropped.
    pub(super) dropped: usize,
}

impl PageTable {
    pub(super) fn live(&self) -> &[PageRef] {
        &self.entries[self.head..]
    }

    /// Index of the page that holds `position`, among the live ones.
    pub(super) fn index_of(&self, position: usize) -> Option<usize> {
        let start = (position / PAGE_TOKENS * PAGE_TOKENS) as u32;
        self.live().binary_search_by_key(&start, |entry| entry.start).ok()
    }

    pub(super) fn entry_mut(&mut self, index: usize) -> &mut PageRef {
        &mut self.entries[self.head + index]
    }

    /// Appends the page for positions `end ..`.
    pub(super) fn push(&mut self, page: crate::ir::PageId) {
        if self.entries.len() == self.entries.capacity() && self.head > 0 {
            // At most half of the entries are live (see `Sequence::new`), so at most one move is made per
            // dropped page.
            self.entries.drain(..self.head);
            self.head = 0;
        }
        self.entries.push(PageRef { page, start: self.end as u32 });
        self.end += PAGE_TOKENS;
    }

    /// Removes the last page if it starts at `len` or later.
    pub(super) fn pop_from(&mut self, len: usize) -> Option<PageRef> {
        let last = *self.live().last().filter(|entry| entry.start as usize >= len)?;
        self.entries.pop();
        self.end = last.start as usize;
        Some(last)
    }

    /// Whether all positions below `len` are in pages that are never dropped.
    pub(super) fn is_within_sinks(&self, len: usize) -> bool {
        len <= self.sink_pages * PAGE_TOKENS
    }

    /// Forgets a drop that lies entirely after `len`: only the sinks are left.
    pub(super) fn close_gap(&mut self, len: usize) {
        if self.dropped > 0 && self.is_within_sinks(len) {
            self.dropped = 0;
            self.end = self.live().len() * PAGE_TOKENS;
        }
    }

    /// Removes the oldest page after the sinks if it ends at `dropped_to` or before. Moves the sinks' entries
    /// up by one, which is cheaper than moving the rest down.
    pub(super) fn drop_oldest(&mut self, dropped_to: usize) -> Option<PageRef> {
        let oldest = self.head + self.sink_pages;
        let entry = *self.entries.get(oldest)?;
        if entry.start as usize + PAGE_TOKENS > dropped_to {
            return None;
        }
        self.entries.copy_within(self.head..oldest, self.head + 1);
        self.head += 1;
        self.dropped = entry.start as usize + PAGE_TOKENS;
        Some(entry)
    }

    /// Skips the pages that a window has dropped: all from here to `dropped` (0: none).
    pub(super) fn skip_to(&mut self, dropped: usize) {
        self.end = self.end.max(dropped);
        self.dropped = dropped;
    }
}

/// A sequence's accounting. All vectors have their final capacity from the start.
#[derive(Debug)]
pub(super) struct Sequence {
    /// The tokens of positions `0 .. len`.
    pub(super) tokens: Vec<TokenId>,
    /// Hashes of the full pages that may be shared.
    pub(super) chain: Vec<ChainHash>,
    pub(super) table: PageTable,
    pub(super) spec: SequenceSpec,
    pub(super) reservation: Reservation,
    /// The state after the tokens; `None` before the first token or without recurrent states.
    pub(super) state: Option<StateSlot>,
    /// The slot that the next step writes; reserved with the pages.
    pub(super) next_state: Option<StateSlot>,
    /// Prefix of the last snapshot taken after the prompt.
    pub(super) last_snapshot: Option<ChainHash>,
    /// Number of tokens at allocation.
    pub(super) prompt: usize,
}

impl Sequence {
    /// An empty sequence with room for `spec` in a pool of `pages` pages.
    pub(super) fn new(spec: SequenceSpec, pages: usize) -> Result<Sequence, KvError> {
        let tokens_max = spec.tokens_max;
        if u32::try_from(tokens_max).is_err() {
            return Err(KvError::PositionRange { tokens_max });
        }
        if spec.window.is_some_and(|window| window.window == 0) {
            return Err(KvError::EmptyWindow);
        }
        // Without a window a sequence cannot outgrow the pool, whatever its `tokens_max`.
        let pool = pages.saturating_mul(PAGE_TOKENS);
        let tokens = if spec.window.is_some() { tokens_max } else { tokens_max.min(pool) };
        let chain = tokens.min(pool).min(window::unclipped(spec.window)) / PAGE_TOKENS;
        let table = tokens.div_ceil(PAGE_TOKENS).min(2 * pages + 1);
        let no_memory = |_| KvError::HostMemory { tokens_max };
        Ok(Sequence {
            tokens: with_room(tokens).map_err(no_memory)?,
            chain: with_room(chain).map_err(no_memory)?,
            table: PageTable {
                entries: with_room(table).map_err(no_memory)?,
                head: 0,
                sink_pages: window::sink_pages(spec.window),
                end: 0,
                dropped: 0,
            },
            spec,
            reservation: Reservation::None,
            state: None,
            next_state: None,
            last_snapshot: None,
            prompt: 0,
        })
    }

    /// A copy with the same capacity, without the pages after the length.
    pub(super) fn fork(&self, pages: usize) -> Result<Sequence, KvError> {
        let mut fork = Sequence::new(self.spec, pages)?;
        fork.tokens.extend_from_slice(&self.tokens);
        fork.chain.extend_from_slice(&self.chain);
        let written = self.table.live().iter().filter(|entry| (entry.start as usize) < self.len());
        fork.table.entries.extend(written.copied());
        fork.table.dropped = self.table.dropped;
        fork.state = self.state;
        fork.prompt = self.prompt;
        fork.table.end = self.len().next_multiple_of(PAGE_TOKENS).min(self.table.end);
        Ok(fork)
    }

    pub(super) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// The hash of all its tokens, if they fill shareable pages.
    pub(super) fn whole_past(&self) -> Option<ChainHash> {
        self.chain.last().copied().filter(|_| self.chain.len() * PAGE_TOKENS == self.len())
    }

    /// The length after `tokens` more.
    pub(super) fn end_after(&self, tokens: usize) -> Result<usize, KvError> {
        let (len, tokens_max) = (self.len(), self.spec.tokens_max);
        let end = len.checked_add(tokens).filter(|&end| end <= tokens_max);
        end.ok_or(KvError::TooLong { len, tokens, tokens_max })
    }

    /// Checks that `advance` may move over `tokens` tokens.
    pub(super) fn check_advance(&self, tokens: usize) -> Result<(), KvError> {
        let (len, end) = (self.len(), self.end_after(tokens)?);
        match self.reservation {
            Reservation::Open(reserved) if end <= reserved => Ok(()),
            Reservation::Open(reserved) => {
                Err(KvError::NotReserved { len, tokens, reserved: reserved - len })
            }
            Reservation::None => Err(KvError::NotReserved { len, tokens, reserved: 0 }),
            Reservation::Spent => Err(KvError::AdvancedTwice { len, tokens }),
        }
    }

    /// Checks that a sequence cut to `target` tokens still has every position that its window sees.
    pub(super) fn check_truncate(&self, target: usize) -> Result<(), KvError> {
        if target > self.len() {
            return Err(KvError::TruncateBeyond { len: self.len(), target });
        }
        let dropped = self.table.dropped;
        let in_sight = window::horizon(self.spec.window, target) >= dropped;
        if !in_sight && !self.table.is_within_sinks(target) {
            return Err(KvError::WindowGone { target, dropped });
        }
        Ok(())
    }
}

/// A slot of the table of sequences.
#[derive(Debug)]
struct SequenceSlot {
    generation: u64,
    sequence: Option<Sequence>,
}

/// All sequences, by id.
#[derive(Debug, Default)]
pub(super) struct Sequences {
    slots: Vec<SequenceSlot>,
    vacant: Vec<usize>,
}

impl Sequences {
    pub(super) fn insert(&mut self, sequence: Sequence) -> SeqId {
        let index = self.vacant.pop().unwrap_or_else(|| {
            self.slots.push(SequenceSlot { generation: 0, sequence: None });
            self.slots.len() - 1
        });
        let slot = &mut self.slots[index];
        slot.sequence = Some(sequence);
        SeqId { index, generation: slot.generation }
    }

    pub(super) fn get(&self, id: SeqId) -> Result<&Sequence, KvError> {
        let slot = self.slots.get(id.index).filter(|slot| slot.generation == id.generation);
        slot.and_then(|slot| slot.sequence.as_ref()).ok_or(stale(id))
    }

    pub(super) fn get_mut(&mut self, id: SeqId) -> Result<&mut Sequence, KvError> {
        let slot = self.slots.get_mut(id.index).filter(|slot| slot.generation == id.generation);
        slot.and_then(|slot| slot.sequence.as_mut()).ok_or(stale(id))
    }

    pub(super) fn remove(&mut self, id: SeqId) -> Result<Sequence, KvError> {
        let slot = self.slots.get_mut(id.index).filter(|slot| slot.generation == id.generation);
        let slot = slot.ok_or(stale(id))?;
        let sequence = slot.sequence.take().ok_or(stale(id))?;
        slot.generation += 1;
        self.vacant.push(id.index);
        Ok(sequence)
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.vacant.len()
    }

    /// Number of slots, and the vacant ones.
    pub(super) fn slots(&self) -> (usize, &[usize]) {
        (self.slots.len(), &self.vacant)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &Sequence)> {
        let slots = self.slots.iter().enumerate();
        slots.filter_map(|(index, slot)| slot.sequence.as_ref().map(|sequence| (index, sequence)))
    }
}

fn stale(id: SeqId) -> KvError {
    KvError::StaleSequence { index: id.index, generation: id.generation }
}
