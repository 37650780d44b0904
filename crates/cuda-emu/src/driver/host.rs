//! Pinned host memory: what `cuMemHostAlloc` gives and `cuMemHostRegister` takes.

use std::alloc::{Layout, alloc, dealloc};

use super::report::Report;
use super::state::State;
use super::status::{Answer, Status};
use super::work::Work;
use crate::memory::MemoryError;

/// Alignment of pinned memory: a page.
const PAGE: usize = 4096;
/// What fresh pinned memory holds: NaN in every float type, so that an early read shows.
const POISON: u8 = 0xff;

/// A pinned range.
#[derive(Debug)]
pub(crate) struct Pinned {
    pub(crate) bytes: usize,
    pub(crate) flags: u32,
    /// It was allocated here, and is freed here.
    owned: Option<Layout>,
}

impl State {
    /// Allocates pinned memory.
    pub(crate) fn allocate_host(&mut self, bytes: usize, flags: u32) -> Answer<usize> {
        if bytes == 0 {
            return Err(Status::InvalidValue);
        }
        let layout = Layout::from_size_align(bytes, PAGE).map_err(|_| Status::OutOfMemory)?;
        // SAFETY: the layout's size is not zero.
        let pointer = unsafe { alloc(layout) };
        if pointer.is_null() {
            return Err(Status::OutOfMemory);
        }
        // SAFETY: `pointer` is the start of `bytes` that nobody else has.
        unsafe { pointer.write_bytes(POISON, bytes) };
        let address = pointer as usize;
        // SAFETY: the memory lives until `free_host`, which takes the registration back first.
        unsafe { self.register_host(address, bytes) };
        self.pinned.insert(address, Pinned { bytes, flags, owned: Some(layout) });
        Ok(address)
    }

    /// Lets all devices see host memory, as unified addressing does.
    ///
    /// # Safety
    /// The range must stay readable and writable until [`State::forget_host`].
    unsafe fn register_host(&self, address: usize, bytes: usize) {
        for shown in &self.devices {
            // SAFETY: passed on to the caller.
            unsafe { shown.device.memory().register_host(address as u64, bytes as u64) };
        }
    }

    fn forget_host(&self, address: usize) -> Result<(), MemoryError> {
        self.devices.iter().try_for_each(|shown| shown.device.memory().free(address as u64))
    }

    /// Pins memory of the program.
    ///
    /// # Safety
    /// The range must stay readable and writable until [`State::unpin`] of it.
    pub(crate) unsafe fn pin(&mut self, address: usize, bytes: usize, flags: u32) -> Answer {
        let end = address.checked_add(bytes).ok_or(Status::InvalidValue)?;
        if address == 0 || bytes == 0 {
            return Err(Status::InvalidValue);
        }
        let before = self.pinned.range(..end).next_back();
        if before.is_some_and(|(start, pinned)| start + pinned.bytes > address) {
            return Err(Status::HostMemoryAlreadyRegistered);
        }
        // SAFETY: passed on to the caller.
        unsafe { self.register_host(address, bytes) };
        self.pinned.insert(address, Pinned { bytes, flags, owned: None });
        Ok(())
    }

    /// Takes a pin back. No work must wait that uses the range.
    pub(crate) fn unpin(&mut self, address: usize) -> Answer {
        if self.pinned.get(&address).is_none_or(|pinned| pinned.owned.is_some()) {
            return Err(Status::HostMemoryNotRegistered);
        }
        self.pinned.remove(&address);
        self.forget_host(address).map_err(|_| Status::HostMemoryNotRegistered)
    }

    /// Breaks the device that a copy of a pinned range waits on, as the copy would once the range is gone.
    pub(crate) fn no_copy_needs(&mut self, address: usize) -> Answer {
        let Some((start, pinned)) = self.pinned_at(address) else { return Ok(()) };
        let ends = start + pinned.bytes;
        let queued =
            self.streams.iter().flat_map(|(_, stream)| stream.queue.iter().map(move |at| (stream, at)));
        let needs = |work: &Work| work.pinned().is_some_and(|range| (start..ends).contains(&range.address));
        let Some((stream, entry)) = queued.into_iter().find(|(_, entry)| needs(&entry.work)) else {
            return Ok(());
        };
        let (ordinal, kind) = (self.ordinal_of_context(stream.context), entry.work.kind());
        self.fail(ordinal, Report::freed_early(kind, start));
        Err(Status::IllegalAddress)
    }

    /// Frees pinned memory. No work must wait that uses the range.
    pub(crate) fn free_host(&mut self, address: usize) -> Answer {
        let layout = self.pinned.get(&address).and_then(|pinned| pinned.owned).ok_or(Status::InvalidValue)?;
        self.pinned.remove(&address);
        self.forget_host(address).map_err(|_| Status::InvalidValue)?;
        // SAFETY: `allocate_host` allocated it with this layout, and it was in the table until now.
        unsafe { dealloc(address as *mut u8, layout) };
        Ok(())
    }

    /// Whether all of a host range is pinned.
    pub(crate) fn is_pinned(&self, address: usize, bytes: usize) -> bool {
        let before = self.pinned.range(..=address).next_back();
        let end = address.checked_add(bytes);
        before.is_some_and(|(start, pinned)| end.is_some_and(|end| end <= start + pinned.bytes))
    }

    /// The pinned range that holds an address: its start, and what it is.
    pub(crate) fn pinned_at(&self, address: usize) -> Option<(usize, &Pinned)> {
        let (start, pinned) = self.pinned.range(..=address).next_back()?;
        (address < start + pinned.bytes).then_some((*start, pinned))
    }
}
