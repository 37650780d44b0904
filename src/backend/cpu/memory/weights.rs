//! Memory for weights. Matrices share mappings ([`WeightArena`]), or are slices of a mapped file.

use std::any::Any;
use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use memmap2::Mmap;

use super::buffer::Buffer;
use crate::backend::BackendError;

/// Maximum size of a mapping that several weight matrices share.
const ARENA_BYTES_MAX: usize = 64 << 20;

/// An arena for weight matrices, which are allocated contiguously. A mapping per matrix would leave part of a
/// huge page unused, or be too small for one.
#[derive(Debug, Default)]
pub(crate) struct WeightArena(Mutex<Room>);

#[derive(Debug, Default)]
struct Room {
    /// The unused rest of the last mapping.
    left: Option<WeightSlice>,
    /// Bytes of all mappings.
    mapped: usize,
}

/// A slice of a mapping with one owner. It is read-only if the mapping is a file's.
#[derive(Debug)]
pub(crate) struct WeightSlice {
    /// Keeps the mapping alive.
    mapping: Arc<dyn Any + Send + Sync>,
    ptr: *mut u8,
    bytes: usize,
}

// SAFETY: a slice owns its bytes of the mapping and is no more tied to a thread than a `Vec`.
unsafe impl Send for WeightSlice {}
// SAFETY: as above; through `&WeightSlice` they are only read.
unsafe impl Sync for WeightSlice {}

impl WeightArena {
    /// `bytes` zeros that will all be used, aligned to 64.
    pub(crate) fn take(&self, bytes: usize, what: &'static str) -> Result<WeightSlice, BackendError> {
        let mut room = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slice) = room.left.as_mut().and_then(|left| left.split(bytes)) {
            return Ok(slice);
        }
        let no_memory = BackendError::OutOfMemory { bytes, what };
        let lines = bytes.checked_next_multiple_of(64).ok_or(no_memory.clone())?;
        // At least as much as is mapped already (up to the maximum), so that small models do not map much.
        let ahead = room.mapped.min(ARENA_BYTES_MAX);
        let buffer = Buffer::zeroed(lines.max(ahead), what).or_else(|_| Buffer::zeroed(lines, what));
        let mut mapping = WeightSlice::of(buffer.map_err(|_| no_memory.clone())?);
        room.mapped += mapping.bytes;
        let slice = mapping.split(bytes).ok_or(no_memory);
        room.left = Some(mapping);
        slice
    }
}

impl WeightSlice {
    /// `bytes` zeros in a mapping of their own that will all be used.
    pub(crate) fn zeroed(bytes: usize, what: &'static str) -> Result<WeightSlice, BackendError> {
        Buffer::zeroed(bytes, what).map(WeightSlice::of)
    }

    /// The whole buffer as one slice.
    fn of(mut buffer: Buffer) -> WeightSlice {
        let (ptr, bytes) = (buffer.as_mut_ptr(), buffer.bytes());
        WeightSlice { mapping: Arc::new(buffer), ptr, bytes }
    }

    /// A whole file, read-only.
    pub(crate) fn of_file(file: &File) -> io::Result<WeightSlice> {
        // SAFETY: the mapping is read-only. The file is only ever replaced as a whole (see `sidecar`), which
        // leaves the old bytes to this mapping. A process that writes into the file changes weights; one that
        // truncates it ends this process, as with every mapped file. It is mapped only with
        // `OpenOptions::mmap`, and its documentation has this warning.
        let map = unsafe { Mmap::map(file) }?;
        #[cfg(unix)]
        {
            // Advice only: a system that refuses reads the pages on access.
            let _ = map.advise(memmap2::Advice::WillNeed);
        }
        let (ptr, bytes) = (map.as_ptr().cast_mut(), map.len());
        Ok(WeightSlice { mapping: Arc::new(map), ptr, bytes })
    }

    /// Splits off the first `bytes` bytes, rounded up to a whole cache line.
    pub(crate) fn split(&mut self, bytes: usize) -> Option<WeightSlice> {
        let taken = bytes.checked_next_multiple_of(64)?;
        self.bytes = self.bytes.checked_sub(taken)?;
        let ptr = self.ptr;
        // Within the mapping, or at its end.
        self.ptr = ptr.wrapping_add(taken);
        Some(WeightSlice { mapping: Arc::clone(&self.mapping), ptr, bytes })
    }

    /// Length in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Pointer to the first byte, aligned to 64.
    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.ptr
    }

    /// [`WeightSlice::as_ptr`] for writing: through `&mut self`, or with synchronised threads.
    pub(crate) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.ptr
    }

    /// The whole slice, for writing; not for a file's mapping.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`; it is borrowed as a whole.
        unsafe { std::slice::from_raw_parts_mut(self.ptr, self.bytes) }
    }

    /// The whole slice.
    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: the mapping lives as long as `mapping` is held, its pages are initialised (zeroed, or a
        // file's), and no other slice has these bytes.
        unsafe { std::slice::from_raw_parts(self.ptr, self.bytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The size of a huge page.
    const HUGE: usize = 2 << 20;

    #[test]
    fn an_impossible_size_is_refused() {
        for bytes in [usize::MAX, usize::MAX / 2] {
            let refused = WeightArena::default().take(bytes, "weights").unwrap_err();
            assert_eq!(refused, BackendError::OutOfMemory { bytes, what: "weights" });
        }
    }

    #[test]
    fn parts_of_a_shelf_are_zeroed_aligned_and_apart() {
        let arena = WeightArena::default();
        let sizes = [100, 0, 64, 1, HUGE, 3 * HUGE + 17, 5, 4096, HUGE - 1, 7];
        let mut slices: Vec<WeightSlice> =
            sizes.iter().map(|&bytes| arena.take(bytes, "test").unwrap()).collect();
        for (index, slice) in slices.iter_mut().enumerate() {
            assert_eq!((slice.bytes(), slice.as_ptr().align_offset(64)), (sizes[index], 0));
            assert!(slice.as_slice().iter().all(|&byte| byte == 0), "part {index} has other bytes");
            // SAFETY: the slice's own bytes.
            unsafe { slice.as_mut_ptr().write_bytes(index as u8 + 1, slice.bytes()) };
        }
        drop(arena);
        for (index, slice) in slices.iter().enumerate() {
            assert!(slice.as_slice().iter().all(|&byte| byte == index as u8 + 1), "part {index} was written");
        }
    }

    #[test]
    fn little_weights_map_little_and_many_share_a_mapping() {
        let arena = WeightArena::default();
        let slices: Vec<WeightSlice> = (0..1000).map(|_| arena.take(1000, "test").unwrap()).collect();
        let mapped = arena.0.lock().unwrap().mapped;
        assert!(mapped <= 2 * 1000 * 1024, "{mapped} bytes are mapped");
        let mut mappings: Vec<_> =
            slices.iter().map(|slice| Arc::as_ptr(&slice.mapping).cast::<()>()).collect();
        mappings.dedup();
        assert!(mappings.len() <= 16, "{} mappings", mappings.len());
    }
}
