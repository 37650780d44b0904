//! The sequences at work, each in a slot that stays its own until it ends: nothing is renumbered.

use std::time::{Duration, Instant};

use super::event::FinishReason;
use super::sequence::Sequence;

/// How often an engine with nothing else to do asks for masks that are late.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// A sequence of a [`SequenceTable`]. The generation tag makes an id useless after its sequence has ended, even
/// when the slot is taken again: what a step has computed for it is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotId {
    index: usize,
    generation: u64,
}

#[cfg(test)]
impl SlotId {
    /// An id for tests of what only compares ids.
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
    /// Those of the highest priority first, among equals the oldest. A job is before all, so it takes pages from
    /// anyone and loses none.
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
        let behind = self.iter().position(|(_, other)| other.priority() < priority);
        self.in_order.insert(behind.unwrap_or(self.in_order.len()), id);
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

    /// All sequences, those of the highest priority first, among equals the oldest.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = (SlotId, &Sequence)> {
        self.in_order.iter().filter_map(|&id| Some((id, self.get(id)?)))
    }

    /// Takes the table apart.
    pub(super) fn into_sequences(self) -> impl Iterator<Item = Sequence> {
        self.slots.into_iter().filter_map(|slot| slot.sequence)
    }

    /// Those of whom nobody wants more, and why.
    pub(super) fn given_up(&self, now: Instant) -> Vec<(SlotId, FinishReason)> {
        self.iter().filter_map(|(slot, sequence)| Some((slot, sequence.given_up(now)?))).collect()
    }

    /// Those whose masks are late.
    pub(super) fn owed(&self) -> impl Iterator<Item = SlotId> {
        let is_owed = |sequence: &Sequence| sequence.answer().is_some_and(|answer| answer.owed.is_some());
        self.iter().filter(move |(_, sequence)| is_owed(sequence)).map(|(slot, _)| slot)
    }

    /// When an engine with nothing to do has to look again: when the first of them is late, or a mask may have come.
    pub(super) fn wake_at(&self, now: Instant) -> Option<Instant> {
        let deadlines = self.iter().filter_map(|(_, sequence)| sequence.answer()?.request.deadline);
        deadlines.chain(self.owed().next().map(|_| now + LOOK_AGAIN)).min()
    }

    /// Whether a job is at work: there is one at a time.
    pub(super) fn has_job(&self) -> bool {
        self.iter().next().is_some_and(|(_, sequence)| sequence.is_job())
    }
}
