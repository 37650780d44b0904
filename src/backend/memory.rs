//! What a device's memory does: weights tell their size, values are copied in and out, pages and states move.

use std::fmt;

use super::BackendError;
use crate::ir::{KvLayout, PageId, Place, StateSlot};

/// A weight matrix in a backend's own order.
pub trait PreparedMatrix: fmt::Debug + Send + Sync {
    /// Bytes that it keeps resident.
    fn bytes(&self) -> usize;

    /// Whether its products are of int8 weights and int8 activations: which of a device's peaks they are
    /// held against.
    fn multiplies_int8(&self) -> bool {
        false
    }
}

/// Memory for a plan's intermediate values.
pub trait ArenaMemory: fmt::Debug + Send {
    /// Copies rows of a value in, widened or narrowed as stored: `values` is `[n, place.cols]`,
    /// written from row 0.
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

/// Memory for what is kept of sequences: pages of keys and values, and states on devices that keep them.
pub trait PageMemory: fmt::Debug + Send {
    /// Copies one page onto another, in all layers.
    ///
    /// # Errors
    /// [`BackendError::Shape`] if a page is outside the pool.
    fn copy_page(&mut self, from: PageId, to: PageId) -> Result<(), BackendError>;

    /// Appends a page's [`KvLayout::page_bytes`] bytes, those of each layout,
    /// little-endian, to `out`. The bytes mean something to the same backend and layout only.
    ///
    /// # Errors
    /// [`BackendError::Shape`] if the page is outside the pool.
    fn export_page(&self, page: PageId, out: &mut Vec<u8>) -> Result<(), BackendError>;

    /// Fills a page with what [`PageMemory::export_page`] gave.
    ///
    /// # Errors
    /// [`BackendError::Shape`] if the page is outside the pool or the length is wrong.
    fn import_page(&mut self, page: PageId, bytes: &[u8]) -> Result<(), BackendError>;

    /// Adds layers of other heads, behind those that it has: each page has a part in them, too.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`]; [`BackendError::Unavailable`] on a device whose layers are all alike.
    fn add_layers(&mut self, layout: KvLayout) -> Result<(), BackendError> {
        let what = format!("layers of other keys and values, {layout:?}");
        Err(BackendError::Unavailable { what, reason: "on this device they are all alike".into() })
    }

    /// The states of sequences, if the device keeps any.
    fn states(&self) -> Option<&dyn StateMemory> {
        None
    }

    /// [`PageMemory::states`], to change them.
    fn states_mut(&mut self) -> Option<&mut dyn StateMemory> {
        None
    }
}

/// Slots for the states of recurrent layers.
pub trait StateMemory {
    /// Makes it `slots` slots of `elements` each, zeroed, in place of those that there are.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    fn allocate(&mut self, elements: usize, slots: usize) -> Result<(), BackendError>;

    /// Copies a slot out, rounded to f32 where it is kept wider.
    ///
    /// # Errors
    /// [`BackendError::Shape`] if there is no such slot or `out` is not as long.
    fn read(&self, slot: StateSlot, out: &mut [f32]) -> Result<(), BackendError>;

    /// Fills a slot with what [`StateMemory::read`] gave.
    ///
    /// # Errors
    /// As [`StateMemory::read`].
    fn write(&mut self, slot: StateSlot, values: &[f32]) -> Result<(), BackendError>;
}
