//! Traits of a device's memory: prepared matrices, the arena, pages and states.

use std::fmt;

use super::BackendError;
use crate::ir::{KvLayout, PageId, Place, StateSlot};

/// A weight matrix in a backend's own order.
pub trait PreparedMatrix: fmt::Debug + Send + Sync {
    /// Resident size in bytes.
    fn bytes(&self) -> usize;

    /// Whether products use int8 weights and int8 activations. Decides which peak of the device they are
    /// compared with.
    fn multiplies_int8(&self) -> bool {
        false
    }
}

/// Memory for a plan's intermediate values.
pub trait ArenaMemory: fmt::Debug + Send {
    /// Copies rows of a value in, converted to the stored precision: `values` is `[n, place.cols]`, written
    /// from row 0.
    ///
    /// # Errors
    /// [`BackendError::Shape`] if the rows do not fit the arena.
    fn write(&mut self, place: &Place, values: &[f32]) -> Result<(), BackendError>;

    /// Copies rows of a value out: `out` is `[n, place.cols]`, read from row `first_row`.
    ///
    /// # Errors
    /// [`BackendError::Shape`] if the rows are outside the arena.
    fn read(&self, place: &Place, first_row: usize, out: &mut [f32]) -> Result<(), BackendError>;
}

/// Memory for sequences: pages of keys and values, and recurrent states on devices that support them.
pub trait PageMemory: fmt::Debug + Send {
    /// Copies one page onto another, in all layers.
    ///
    /// # Errors
    /// [`BackendError::Shape`] if a page is outside the pool.
    fn copy_page(&mut self, from: PageId, to: PageId) -> Result<(), BackendError>;

    /// Appends a page's [`KvLayout::page_bytes`] bytes, for each layout in turn, to `out`; little-endian. The
    /// bytes are valid for the same backend and layout only.
    ///
    /// # Errors
    /// [`BackendError::Shape`] if the page is outside the pool.
    fn export_page(&self, page: PageId, out: &mut Vec<u8>) -> Result<(), BackendError>;

    /// Fills a page with the bytes of [`PageMemory::export_page`].
    ///
    /// # Errors
    /// [`BackendError::Shape`] if the page is outside the pool or the length is wrong.
    fn import_page(&mut self, page: PageId, bytes: &[u8]) -> Result<(), BackendError>;

    /// Appends layers with other heads to the existing ones. Every page covers them, too.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`]; [`BackendError::Unavailable`] on a device with uniform layers only.
    fn add_layers(&mut self, layout: KvLayout) -> Result<(), BackendError> {
        let what = format!("layers of other keys and values, {layout:?}");
        Err(BackendError::Unavailable { what, reason: "on this device they are all alike".into() })
    }

    /// Recurrent states of sequences, if the device supports them.
    fn states(&self) -> Option<&dyn StateMemory> {
        None
    }

    /// Mutable access to [`PageMemory::states`].
    fn states_mut(&mut self) -> Option<&mut dyn StateMemory> {
        None
    }
}

/// Slots for the states of recurrent layers.
pub trait StateMemory {
    /// Replaces all slots by `slots` zeroed slots of `elements` each.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    fn allocate(&mut self, elements: usize, slots: usize) -> Result<(), BackendError>;

    /// Copies a slot out, rounded to f32 if it is stored wider.
    ///
    /// # Errors
    /// [`BackendError::Shape`] if the slot does not exist or `out` has another length.
    fn read(&self, slot: StateSlot, out: &mut [f32]) -> Result<(), BackendError>;

    /// Fills a slot with the values of [`StateMemory::read`].
    ///
    /// # Errors
    /// As [`StateMemory::read`].
    fn write(&mut self, slot: StateSlot, values: &[f32]) -> Result<(), BackendError>;
}
