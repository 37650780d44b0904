//! What recurrent layers keep of a sequence: a state of fixed size, in slots that a backend owns.
//!
//! A slot holds the states of all layers for one sequence. A step reads one and writes another, so a slot's content
//! never changes while someone may still read it: keeping a slot is a snapshot, and reading it again restores one.

use std::fmt;
use std::ops::Range;

/// Index of a slot in a backend's memory of states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StateSlot(pub u32);

impl StateSlot {
    /// The id as an index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A memory of states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateLayout {
    /// Elements of a slot, in f32.
    pub elements: usize,
    /// Slots: none, or at least 2, as a step reads one and writes another.
    pub slots: usize,
}

/// The slots of a sequence in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateSlots {
    /// The state of the positions before the step's; zeros if none.
    pub read: Option<StateSlot>,
    /// Where the state behind the step's last position goes.
    pub write: StateSlot,
}

/// One layer's part of each slot, `[rows, cols]` in f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// Elements before it in the slot.
    pub offset: usize,
    /// Its rows.
    pub rows: usize,
    /// Elements in a row.
    pub cols: usize,
}

impl State {
    /// Its elements.
    pub fn elements(&self) -> usize {
        self.rows.saturating_mul(self.cols)
    }

    /// Where they lie in a slot.
    pub fn range(&self) -> Range<usize> {
        self.offset..self.offset.saturating_add(self.elements())
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "state @{} [{}, {}]", self.offset, self.rows, self.cols)
    }
}
