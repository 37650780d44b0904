//! Recurrent states: fixed-size per-sequence state of recurrent layers, in slots owned by the backend.
//!
//! A slot holds the states of all layers for one sequence. A step reads one slot and writes another, so the
//! content of a slot never changes while it may still be read. A kept slot is a snapshot; reading it again
//! restores the state.

use std::fmt;
use std::ops::Range;

/// Index of a slot in a backend's state memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StateSlot(pub u32);

impl StateSlot {
    /// The slot as an index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Size of a state memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateLayout {
    /// Elements per slot, in f32.
    pub elements: usize,
    /// Number of slots: 0, or at least 2, because a step reads one slot and writes another.
    pub slots: usize,
}

/// State slots of a sequence in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateSlots {
    /// State before the step's first position; `None` for zeros.
    pub read: Option<StateSlot>,
    /// Destination of the state after the step's last position.
    pub write: StateSlot,
}

/// A layer's part of each slot, `[rows, cols]` in f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// Offset in the slot, in elements.
    pub offset: usize,
    /// Number of rows.
    pub rows: usize,
    /// Elements per row.
    pub cols: usize,
}

impl State {
    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.rows.saturating_mul(self.cols)
    }

    /// Element range within a slot.
    pub fn range(&self) -> Range<usize> {
        self.offset..self.offset.saturating_add(self.elements())
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "state @{} [{}, {}]", self.offset, self.rows, self.cols)
    }
}
