//! The device's global memory: allocate, free, register, copy.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::allocation::{Allocation, Region, View};

/// Freed memory that is kept, so that its addresses are not given out again at once.
const QUARANTINE_BYTES_MAX: u64 = 64 << 20;
/// Freed ranges that are remembered for reports.
const FREED_MAX: usize = 4096;

/// Why an operation on global memory failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// No room (`CUDA_ERROR_OUT_OF_MEMORY`).
    #[error("out of memory: {wanted} bytes wanted, {free} free")]
    OutOfMemory {
        /// Bytes wanted.
        wanted: u64,
        /// Bytes free.
        free: u64,
    },
    /// A range that no live allocation holds (`CUDA_ERROR_INVALID_VALUE`).
    #[error("{bytes} bytes at {address:#x} are not in one allocation: {nearest}")]
    NotAllocated {
        /// Start of the range.
        address: u64,
        /// Its length.
        bytes: u64,
        /// The nearest allocation, in words.
        nearest: String,
    },
    /// An address to free or unregister that is no start of what can be freed or unregistered.
    #[error("{address:#x} is no start of an allocation or registered range")]
    NotAStart {
        /// The address.
        address: u64,
    },
}

/// Global memory of a device. Cloning gives another handle to the same memory.
#[derive(Clone, Debug)]
pub struct Memory {
    table: Arc<Mutex<Table>>,
}

#[derive(Debug)]
struct Entry {
    allocation: Arc<Allocation>,
    /// Registered parts, start to end; where there are any, kernels may use only these.
    parts: BTreeMap<u64, u64>,
}

#[derive(Debug)]
struct Table {
    entries: BTreeMap<u64, Entry>,
    capacity: u64,
    used: u64,
    freed: VecDeque<(u64, u64)>,
    quarantine: VecDeque<Arc<Allocation>>,
    quarantine_bytes: u64,
    view: Option<Arc<View>>,
}

impl Memory {
    /// Memory of so many bytes; host memory is taken as it is allocated.
    pub(crate) fn new(capacity: u64) -> Self {
        let table = Table {
            entries: BTreeMap::new(),
            capacity,
            used: 0,
            freed: VecDeque::new(),
            quarantine: VecDeque::new(),
            quarantine_bytes: 0,
            view: None,
        };
        Self { table: Arc::new(Mutex::new(table)) }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates bytes at a multiple of 256. Their content is undefined: reading it is reported.
    ///
    /// # Errors
    /// The device's memory, or the host's, is used up.
    pub fn alloc(&self, bytes: u64) -> Result<u64, MemoryError> {
        let mut table = self.lock();
        let free = table.capacity - table.used;
        let none = MemoryError::OutOfMemory { wanted: bytes, free };
        if bytes > free {
            return Err(none);
        }
        let allocation = Allocation::new(bytes).ok_or(none)?;
        table.used += bytes;
        Ok(table.insert(allocation))
    }

    /// Makes host memory usable by kernels and copies, at its own address. It counts as initialised.
    ///
    /// # Safety
    /// The bytes must stay readable and writable until [`Memory::free`] of the address has returned
    /// and no launch runs.
    pub unsafe fn register_host(&self, address: u64, bytes: u64) {
        // SAFETY: passed on to the caller.
        let allocation = unsafe { Allocation::host(address, bytes) };
        self.lock().insert(allocation);
    }

    /// Frees an allocation, or forgets registered host memory.
    ///
    /// # Errors
    /// The address is not what [`Memory::alloc`] gave, or was freed before.
    pub fn free(&self, address: u64) -> Result<(), MemoryError> {
        let mut table = self.lock();
        let entry = table.entries.remove(&address).ok_or(MemoryError::NotAStart { address })?;
        table.view = None;
        table.bury(entry.allocation);
        Ok(())
    }

    /// Registers a part of an allocation as a unit of its own. As soon as an allocation has parts,
    /// kernels may use only the parts: so bounds are checked inside of pools and arenas.
    ///
    /// # Errors
    /// The range is not inside of one allocation.
    pub fn register_part(&self, address: u64, bytes: u64) -> Result<(), MemoryError> {
        let mut table = self.lock();
        table.entry_at(address, bytes)?.parts.insert(address, address + bytes);
        table.view = None;
        Ok(())
    }

    /// Takes a part's registration back.
    ///
    /// # Errors
    /// No part starts there.
    pub fn unregister_part(&self, address: u64) -> Result<(), MemoryError> {
        let mut table = self.lock();
        table.view = None;
        let gone = table.entry_at(address, 0)?.parts.remove(&address);
        gone.map(drop).ok_or(MemoryError::NotAStart { address })
    }

    /// Start and length of the allocation that holds an address.
    pub fn allocation_at(&self, address: u64) -> Option<(u64, u64)> {
        let mut table = self.lock();
        let entry = table.entry_at(address, 0).ok()?;
        Some((entry.allocation.base(), entry.allocation.bytes()))
    }

    /// Bytes free and in total.
    pub fn info(&self) -> (u64, u64) {
        let table = self.lock();
        (table.capacity - table.used, table.capacity)
    }

    /// Copies host bytes into global memory.
    ///
    /// # Errors
    /// The range is not inside of one allocation.
    pub fn copy_in(&self, address: u64, bytes: &[u8]) -> Result<(), MemoryError> {
        let length = bytes.len() as u64;
        let allocation = self.lock().entry_at(address, length)?.allocation.clone();
        // SAFETY: the range lies in a live allocation, which is held here; `bytes` is a borrow, and
        // if it is the same (registered) memory, `copy` allows the overlap.
        unsafe { std::ptr::copy(bytes.as_ptr(), address as *mut u8, bytes.len()) };
        allocation.mark_valid(address - allocation.base(), length);
        Ok(())
    }

    /// Copies global memory to host bytes.
    ///
    /// # Errors
    /// The range is not inside of one allocation.
    pub fn copy_out(&self, address: u64, bytes: &mut [u8]) -> Result<(), MemoryError> {
        let _held = self.lock().entry_at(address, bytes.len() as u64)?.allocation.clone();
        // SAFETY: as in `copy_in`.
        unsafe { std::ptr::copy(address as *const u8, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    /// Copies inside of global memory; what was not initialised is not initialised there either.
    ///
    /// # Errors
    /// A range is not inside of one allocation.
    pub fn copy(&self, to: u64, from: u64, bytes: u64) -> Result<(), MemoryError> {
        let mut table = self.lock();
        let source = table.entry_at(from, bytes)?.allocation.clone();
        let target = table.entry_at(to, bytes)?.allocation.clone();
        // SAFETY: both ranges lie in live allocations, which are held here.
        unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes as usize) };
        target.copy_valid(to - target.base(), &source, from - source.base(), bytes);
        Ok(())
    }

    /// Fills `count` times with a pattern of 1, 2 or 4 bytes.
    ///
    /// # Errors
    /// The range is not inside of one allocation.
    pub fn fill(&self, address: u64, pattern: &[u8], count: u64) -> Result<(), MemoryError> {
        let length = pattern.len() as u64 * count;
        let allocation = self.lock().entry_at(address, length)?.allocation.clone();
        // SAFETY: the range lies in a live allocation, which is held here.
        let target = unsafe { std::slice::from_raw_parts_mut(address as *mut u8, length as usize) };
        match pattern {
            [byte] => target.fill(*byte),
            _ => target.chunks_exact_mut(pattern.len()).for_each(|chunk| chunk.copy_from_slice(pattern)),
        }
        allocation.mark_valid(address - allocation.base(), length);
        Ok(())
    }

    /// Whether all bytes of a range inside of one allocation were written by someone.
    pub fn is_initialised(&self, address: u64, bytes: u64) -> bool {
        let mut table = self.lock();
        let Ok(entry) = table.entry_at(address, bytes) else { return false };
        entry.allocation.is_valid(address - entry.allocation.base(), bytes)
    }

    /// The regions as they are now.
    pub(crate) fn view(&self) -> Arc<View> {
        let mut table = self.lock();
        for entry in table.entries.values() {
            entry.allocation.settle();
        }
        if let Some(view) = &table.view {
            return view.clone();
        }
        let mut view = View { regions: Vec::new(), freed: table.freed.iter().copied().collect() };
        for Entry { allocation, parts } in table.entries.values() {
            let whole = (allocation.base(), allocation.base() + allocation.bytes());
            let mut push =
                |(start, end)| view.regions.push(Region { start, end, allocation: allocation.clone() });
            if parts.is_empty() {
                push(whole);
            } else {
                parts.iter().for_each(|(start, end)| push((*start, *end)));
            }
        }
        let view = Arc::new(view);
        table.view = Some(view.clone());
        view
    }
}

impl Table {
    fn insert(&mut self, allocation: Allocation) -> u64 {
        let (base, end) = (allocation.base(), allocation.base() + allocation.bytes());
        self.freed.retain(|(start, bytes)| start + bytes <= base || *start >= end);
        self.entries.insert(base, Entry { allocation: Arc::new(allocation), parts: BTreeMap::new() });
        self.view = None;
        base
    }

    fn bury(&mut self, allocation: Arc<Allocation>) {
        self.freed.push_back((allocation.base(), allocation.bytes()));
        if self.freed.len() > FREED_MAX {
            self.freed.pop_front();
        }
        if allocation.is_host() {
            return;
        }
        self.used -= allocation.bytes();
        self.quarantine_bytes += allocation.bytes();
        self.quarantine.push_back(allocation);
        while self.quarantine_bytes > QUARANTINE_BYTES_MAX {
            let Some(oldest) = self.quarantine.pop_front() else { break };
            self.quarantine_bytes -= oldest.bytes();
        }
    }

    fn entry_at(&mut self, address: u64, bytes: u64) -> Result<&mut Entry, MemoryError> {
        let end = address.checked_add(bytes);
        let inside =
            |entry: &Entry| end.is_some_and(|end| end <= entry.allocation.base() + entry.allocation.bytes());
        if !self.entries.range(..=address).next_back().is_some_and(|(_, entry)| inside(entry)) {
            let regions = self.entries.values().map(|e| {
                let start = e.allocation.base();
                Region { start, end: start + e.allocation.bytes(), allocation: e.allocation.clone() }
            });
            let view = View { regions: regions.collect(), freed: Vec::new() };
            return Err(MemoryError::NotAllocated { address, bytes, nearest: view.nearest(address) });
        }
        let (_, entry) = self.entries.range_mut(..=address).next_back().expect("found above");
        Ok(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_count_as_written_when_they_are() {
        let memory = Memory::new(1 << 20);
        let a = memory.alloc(1000).unwrap();
        let b = memory.alloc(1000).unwrap();
        assert!(!memory.is_initialised(a, 1));
        memory.copy_in(a + 3, &[1; 130]).unwrap();
        assert!(memory.is_initialised(a + 3, 130));
        assert!(!memory.is_initialised(a + 2, 131));
        memory.fill(b, &[1, 2], 500).unwrap();
        memory.copy(b + 10, a, 5).unwrap();
        assert!(
            memory.is_initialised(b, 10)
                && !memory.is_initialised(b + 12, 1)
                && memory.is_initialised(b + 13, 2)
        );
    }

    #[test]
    fn what_is_full_or_freed_is_refused() {
        let memory = Memory::new(4096);
        let a = memory.alloc(4000).unwrap();
        assert!(matches!(memory.alloc(97), Err(MemoryError::OutOfMemory { wanted: 97, free: 96 })));
        memory.free(a).unwrap();
        assert_eq!(memory.free(a), Err(MemoryError::NotAStart { address: a }));
        assert!(memory.view().freed_at(a + 5).is_some());
        assert!(memory.copy_in(a, &[0]).is_err());
        assert_ne!(memory.alloc(4000).unwrap(), a, "whoever still has the address is told");
    }

    #[test]
    fn what_is_allocated_again_is_no_longer_freed() {
        let memory = Memory::new(4096);
        let base = memory.alloc(256).unwrap();
        let registered = |bytes| {
            // SAFETY: the bytes are of the room behind a live allocation, and nothing is launched.
            unsafe { memory.register_host(base + 1024, bytes) };
            memory.free(base + 1024).unwrap();
        };
        registered(256);
        assert!(memory.view().freed_at(base + 1124).is_some());
        registered(64);
        assert!(memory.view().freed_at(base + 1124).is_none());
    }

    #[test]
    fn parts_take_the_place_of_their_allocation() {
        let memory = Memory::new(4096);
        let a = memory.alloc(1024).unwrap();
        memory.register_part(a, 100).unwrap();
        memory.register_part(a + 100, 100).unwrap();
        let view = memory.view();
        assert!(
            view.find(a + 96, 4).is_some()
                && view.find(a + 98, 4).is_none()
                && view.find(a + 200, 1).is_none()
        );
        memory.unregister_part(a).unwrap();
        assert!(memory.view().find(a + 96, 4).is_none());
        memory.unregister_part(a + 100).unwrap();
        assert!(memory.view().find(a + 1020, 4).is_some());
    }
}
