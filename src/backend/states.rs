//! Slots of recurrent state in host memory, for backends that compute on the host.

use std::ops::Range;

use super::{BackendError, StateMemory, shape_error};
use crate::headroom;
use crate::ir::{State, StateSlot, StateSlots, StepInput};

/// Slots of `elements` values each, stored contiguously.
#[derive(Debug, Default)]
pub(super) struct States<T> {
    slots: usize,
    elements: usize,
    values: Vec<T>,
}

impl<T> States<T> {
    /// Checks that the step's slots and rows are in range, and the operation's part of a slot.
    /// [`StepInput::check_states`] guarantees that no sequence writes a slot that another one uses.
    pub(super) fn check(
        &self,
        op: &'static str,
        state: &State,
        step: &StepInput,
    ) -> Result<(), BackendError> {
        if state.range().end > self.elements {
            let expected = format!("a state within {} elements", self.elements);
            return Err(shape_error(op, expected, state.to_string()));
        }
        if step.states.len() != step.sequences.len() {
            let expected = format!("states of {} sequences", step.sequences.len());
            return Err(shape_error(op, expected, step.states.len().to_string()));
        }
        for (sequence, slots) in step.sequences.iter().zip(&step.states) {
            let rows = &sequence.rows;
            let in_range = |slot: StateSlot| slot.index() < self.slots;
            let fits =
                in_range(slots.write) && slots.read.is_none_or(in_range) && slots.read != Some(slots.write);
            if !fits || rows.start > rows.end || rows.end as usize > step.tokens.len() {
                let expected =
                    format!("two of {} slots, and rows of {} tokens", self.slots, step.tokens.len());
                return Err(shape_error(op, expected, format!("{slots:?}, {rows:?}")));
            }
        }
        Ok(())
    }

    /// An operation's part of a sequence's slots: the old state, if any, and the new one. `check` has
    /// accepted both.
    pub(super) fn parts(&mut self, state: &State, slots: StateSlots) -> (Option<&[T]>, &mut [T]) {
        let of = |slot: StateSlot| {
            let start = slot.index() * self.elements;
            start + state.range().start..start + state.range().end
        };
        let write = of(slots.write);
        let Some(read) = slots.read.map(of) else { return (None, &mut self.values[write]) };
        // The lower one ends before the upper one starts.
        let (low, high) = self.values.split_at_mut(read.start.max(write.start));
        if read.start < write.start {
            (Some(&low[read]), &mut high[..state.elements()])
        } else {
            (Some(&high[..state.elements()]), &mut low[write])
        }
    }

    /// Pointer to the first element, and elements per slot, for kernels that have called [`States::check`].
    pub(super) fn base(&mut self) -> (*mut T, usize) {
        (self.values.as_mut_ptr(), self.elements)
    }

    /// Range of a slot, which must be `elements` long.
    fn whole(&self, slot: StateSlot, elements: usize) -> Result<Range<usize>, BackendError> {
        if slot.index() < self.slots && elements == self.elements {
            return Ok(slot.index() * elements..(slot.index() + 1) * elements);
        }
        let expected = format!("{} elements of a slot below {}", self.elements, self.slots);
        Err(shape_error("state", expected, format!("{elements} of slot {}", slot.0)))
    }
}

impl<T: Copy + Default + From<f32> + Into<f64>> StateMemory for States<T> {
    fn allocate(&mut self, elements: usize, slots: usize) -> Result<(), BackendError> {
        let count = elements.saturating_mul(slots);
        let bytes = count.saturating_mul(size_of::<T>());
        let no_memory = BackendError::OutOfMemory { bytes, what: "the states of sequences" };
        let mut values = Vec::new();
        // Without states nothing is allocated, so the memory check is skipped.
        let has_room = count == 0 || headroom::has(bytes.saturating_add(headroom::SMALL_BYTES));
        if !has_room || values.try_reserve_exact(count).is_err() {
            return Err(no_memory);
        }
        values.resize(count, T::default());
        *self = States { slots, elements, values };
        Ok(())
    }

    fn read(&self, slot: StateSlot, out: &mut [f32]) -> Result<(), BackendError> {
        let range = self.whole(slot, out.len())?;
        out.iter_mut().zip(&self.values[range]).for_each(|(out, &value)| *out = value.into() as f32);
        Ok(())
    }

    fn write(&mut self, slot: StateSlot, values: &[f32]) -> Result<(), BackendError> {
        let range = self.whole(slot, values.len())?;
        self.values[range].iter_mut().zip(values).for_each(|(to, &value)| *to = value.into());
        Ok(())
    }
}
