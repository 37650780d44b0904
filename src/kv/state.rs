//! Slots of recurrent state: which are free, which are held by sequences, and which are kept as snapshots,
//! found by the hash of their prefix.
//!
//! A step reads one slot and writes another, so a slot never changes while it has a reference; a snapshot is
//! one more reference. Snapshots use the slots that sequences leave free; the least recently used one is
//! evicted first.

use std::collections::{HashMap, TryReserveError};

use super::ChainHash;
use super::sequence::Sequence;
use super::with_room;
use crate::ir::StateSlot;

/// Every slot is free (no reference) or has one reference per sequence and per snapshot.
#[derive(Debug, Default)]
pub(super) struct StateSlotTable {
    references: Vec<u32>,
    free: Vec<StateSlot>,
    snapshots: HashMap<ChainHash, Snapshot>,
    /// Counts uses of snapshots, for their eviction order.
    clock: u64,
}

#[derive(Clone, Copy, Debug)]
struct Snapshot {
    slot: StateSlot,
    used: u64,
}

impl StateSlotTable {
    pub(super) fn new(slots: usize) -> Result<StateSlotTable, TryReserveError> {
        let count = u32::try_from(slots).unwrap_or(u32::MAX);
        let (mut references, mut free) = (with_room(count as usize)?, with_room(count as usize)?);
        references.resize(count as usize, 0);
        free.extend((0..count).rev().map(StateSlot));
        let mut snapshots = HashMap::new();
        // Twice the possible entries: the table then clears its tombstones in place and never grows in a
        // step.
        snapshots.try_reserve(2 * count as usize)?;
        Ok(StateSlotTable { references, free, snapshots, clock: 0 })
    }

    /// Whether sequences have recurrent states.
    pub(super) fn is_used(&self) -> bool {
        !self.references.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.references.len()
    }

    /// Number of snapshots.
    pub(super) fn snapshots(&self) -> usize {
        self.snapshots.len()
    }

    /// Number of slots that [`StateSlotTable::take`] can return.
    pub(super) fn available(&self) -> usize {
        self.free.len() + self.idle().count()
    }

    /// Snapshots that no sequence shares.
    fn idle(&self) -> impl Iterator<Item = (&ChainHash, &Snapshot)> {
        self.snapshots.iter().filter(|(_, snapshot)| self.references[snapshot.slot.index()] == 1)
    }

    /// Takes a slot with one reference: a free one, else that of the least recently used snapshot.
    pub(super) fn take(&mut self) -> Option<StateSlot> {
        if self.free.is_empty() {
            let oldest = self.idle().min_by_key(|(_, snapshot)| snapshot.used).map(|(&hash, _)| hash)?;
            self.forget(&oldest);
        }
        let slot = self.free.pop()?;
        self.references[slot.index()] = 1;
        Some(slot)
    }

    pub(super) fn retain(&mut self, slot: Option<StateSlot>) {
        slot.iter().for_each(|slot| self.references[slot.index()] += 1);
    }

    pub(super) fn release(&mut self, slot: Option<StateSlot>) {
        let Some(slot) = slot else { return };
        let references = &mut self.references[slot.index()];
        *references -= 1;
        if *references == 0 {
            self.free.push(slot);
        }
    }

    /// The snapshot of the prefix `past`, if there is one; this counts as a use.
    pub(super) fn find(&mut self, past: &ChainHash) -> Option<StateSlot> {
        self.clock += 1;
        let snapshot = self.snapshots.get_mut(past)?;
        snapshot.used = self.clock;
        Some(snapshot.slot)
    }

    /// Removes the snapshot of the prefix `past`.
    pub(super) fn forget(&mut self, past: &ChainHash) {
        let snapshot = self.snapshots.remove(past);
        self.release(snapshot.map(|snapshot| snapshot.slot));
    }

    /// Keeps a state as the snapshot of `past`, unless there is one already. Returns whether it was added.
    fn keep(&mut self, past: ChainHash, slot: StateSlot) -> bool {
        if self.find(&past).is_some() {
            return false;
        }
        self.retain(Some(slot));
        self.snapshots.insert(past, Snapshot { slot, used: self.clock });
        true
    }

    /// Moves a sequence, which already has its new tokens, on to the state after them. If the tokens end with
    /// a shareable page, the state is kept as a snapshot. After the prompt, only the newest of a sequence's
    /// own snapshots is kept.
    pub(super) fn advance(&mut self, sequence: &mut Sequence, tokens: usize) {
        if sequence.next_state.is_none() || tokens == 0 {
            return;
        }
        self.release(sequence.state);
        sequence.state = sequence.next_state.take();
        let Some((past, slot)) = sequence.whole_past().zip(sequence.state) else { return };
        let behind_prompt = sequence.len() > sequence.prompt;
        if let Some(before) = sequence.last_snapshot.take_if(|_| behind_prompt) {
            self.forget(&before);
        }
        if self.keep(past, slot) && behind_prompt {
            sequence.last_snapshot = Some(past);
        }
    }

    /// For the integrity check: the references by slot, the free slots, and the slots of snapshots.
    pub(super) fn booked(&self) -> (&[u32], &[StateSlot], impl Iterator<Item = StateSlot>) {
        (&self.references, &self.free, self.snapshots.values().map(|snapshot| snapshot.slot))
    }
}
