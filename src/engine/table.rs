//! The table of sequences at work. Each has its own slot until it ends: nothing is renumbered.

use std::time::{Duration, Instant};

use super::event::FinishReason;
use super::sequence::Sequence;

/// Poll interval for overdue masks while the engine is idle.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// The id of a sequence in a [`SequenceTable`]. The generation tag invalidates the id when its sequence ends,
/// even if the slot is reused: a step's results for it are then dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotId {
    index: usize,
    generation: u64,
}

#[cfg(test)]
impl SlotId {
    /// An id for tests that only compare ids.
    pub(super) fn new(index: usize, generation: u64) -> SlotId {
        SlotId { index, generation }
    }

    pub(super) fn index(self) -> usize {
        self.index
    }
}

/// All sequences that have not ended.
#[derive(Debug, Default)]
pub(super) struct SequenceTable {
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// By priority, highest first, then by age, oldest first. A job precedes all, so it can preempt any
    /// sequence and is never preempted.
    in_order: Vec<SlotId>,
}

#[derive(Debug, Default)]
struct Slot {
    generation: u64,
    sequence: Option<Sequence>,
}

impl SequenceTable {
    pub(super) fn insert(&mut self, sequence: Sequence) -> SlotId {
        let index = self.free.pop().unwrap_or(self.slots.len());
        if index == self.slots.len() {
            self.slots.push(Slot::default());
        }
        let slot = &mut self.slots[index];
        let id = SlotId { index, generation: slot.generation };
        let priority = sequence.priority();
        slot.sequence = Some(sequence);
        let place = self.iter().position(|(_, other)| other.priority() < priority);
        self.in_order.insert(place.unwrap_or(self.in_order.len()), id);
        id
    }

    pub(super) fn remove(&mut self, id: SlotId) -> Option<Sequence> {
        let slot = self.slots.get_mut(id.index).filter(|slot| slot.generation == id.generation)?;
        let sequence = slot.sequence.take()?;
        slot.generation += 1;
        self.free.push(id.index);
        self.in_order.retain(|&other| other != id);
        Some(sequence)
    }

    pub(super) fn get(&self, id: SlotId) -> Option<&Sequence> {
        let slot = self.slots.get(id.index).filter(|slot| slot.generation == id.generation)?;
        slot.sequence.as_ref()
    }

    pub(super) fn get_mut(&mut self, id: SlotId) -> Option<&mut Sequence> {
        let slot = self.slots.get_mut(id.index).filter(|slot| slot.generation == id.generation)?;
        slot.sequence.as_mut()
    }

    /// All sequences by priority, highest first, then by age, oldest first.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = (SlotId, &Sequence)> {
        self.in_order.iter().filter_map(|&id| Some((id, self.get(id)?)))
    }

    /// Consumes the table.
    pub(super) fn into_sequences(self) -> impl Iterator<Item = Sequence> {
        self.slots.into_iter().filter_map(|slot| slot.sequence)
    }

    /// Sequences that were cancelled or are past their deadline, with the reason.
    pub(super) fn given_up(&self, now: Instant) -> Vec<(SlotId, FinishReason)> {
        self.iter().filter_map(|(slot, sequence)| Some((slot, sequence.given_up(now)?))).collect()
    }

    /// Sequences with late masks.
    pub(super) fn pending_masks(&self) -> impl Iterator<Item = SlotId> {
        let is_pending =
            |sequence: &Sequence| sequence.answer().is_some_and(|answer| answer.pending_mask.is_some());
        self.iter().filter(move |(_, sequence)| is_pending(sequence)).map(|(slot, _)| slot)
    }

    /// When an idle engine has to check again: at the earliest deadline, or soon if a mask is late.
    pub(super) fn wake_at(&self, now: Instant) -> Option<Instant> {
        let deadlines = self.iter().filter_map(|(_, sequence)| sequence.answer()?.request.deadline);
        deadlines.chain(self.pending_masks().next().map(|_| now + LOOK_AGAIN)).min()
    }

    /// Whether a job is at work: there is one at a time.
    pub(super) fn has_job(&self) -> bool {
        self.iter().next().is_some_and(|(_, sequence)| sequence.is_job())
    }
}
