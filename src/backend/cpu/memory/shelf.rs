//! Memory for weights. Matrices share mappings ([`Shelf`]), or are parts of a mapped file.

use std::any::Any;
use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use memmap2::Mmap;

use super::buffer::Buffer;
use crate::backend::BackendError;

/// Maximum size of a mapping that several weight matrices share.
const SHELF_BYTES_MAX: usize = 64 << 20;

/// An arena for weight matrices, which are allocated contiguously. A mapping per matrix would leave part of a
/// huge page unused, or be too small for one.
#[derive(Debug, Default)]
pub(crate) struct Shelf(Mutex<Room>);

#[derive(Debug, Default)]
struct Room {
    /// The unused rest of the last mapping.
    left: Option<Part>,
    /// Bytes of all mappings.
    mapped: usize,
}

/// A part of a mapping with one owner. It is read-only if the mapping is a file's.
#[derive(Debug)]
pub(crate) struct Part {
    /// Keeps the mapping alive.
    mapping: Arc<dyn Any + Send + Sync>,
    ptr: *mut u8,
    bytes: usize,
}

// SAFETY: a part owns its bytes of the mapping and is no more tied to a thread than a `Vec`.
unsafe impl Send for Part {}
// SAFETY: as above; through `&Part` they are only read.
unsafe impl Sync for Part {}

impl Shelf {
    /// `bytes` zeros that will all be used, aligned to 64.
    pub(crate) fn take(&self, bytes: usize, what: &'static str) -> Result<Part, BackendError> {
        let mut room = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(part) = room.left.as_mut().and_then(|left| left.split(bytes)) {
            return Ok(part);
        }
        let no_memory = BackendError::OutOfMemory { bytes, what };
        let lines = bytes.checked_next_multiple_of(64).ok_or(no_memory.clone())?;
        // At least as much as is mapped already (up to the maximum), so that small models do not map much.
        let ahead = room.mapped.min(SHELF_BYTES_MAX);
        let buffer = Buffer::zeroed(lines.max(ahead), what).or_else(|_| Buffer::zeroed(lines, what));
        let mut mapping = Part::of(buffer.map_err(|_| no_memory.clone())?);
        room.mapped += mapping.bytes;
        let part = mapping.split(bytes).ok_or(no_memory);
        room.left = Some(mapping);
        part
    }
}

impl Part {
    /// `bytes` zeros in a mapping of their own that will all be used.
    pub(crate) fn zeroed(bytes: usize, what: &'static str) -> Result<Part, BackendError> {
        Buffer::zeroed(bytes, what).map(Part::of)
    }

    /// The whole buffer as a part.
    fn of(mut buffer: Buffer) -> Part {
        let (ptr, bytes) = (buffer.as_mut_ptr(), buffer.bytes());
        Part { mapping: Arc::new(buffer), ptr, bytes }
    }

    /// A whole file, read-only.
    pub(crate) fn of_file(file: &File) -> io::Result<Part> {
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
        Ok(Part { mapping: Arc::new(map), ptr, bytes })
    }

    /// Splits off the first `bytes` bytes, rounded up to a whole cache line.
    pub(crate) fn split(&mut self, bytes: usize) -> Option<Part> {
        let taken = bytes.checked_next_multiple_of(64)?;
        self.bytes = self.bytes.checked_sub(taken)?;
        let ptr = self.ptr;
        // Within the mapping, or at its end.
        self.ptr = ptr.wrapping_add(taken);
        Some(Part { mapping: Arc::clone(&self.mapping), ptr, bytes })
    }

    /// Length in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Pointer to the first byte, aligned to 64.
    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.ptr
    }

    /// [`Part::as_ptr`] for writing: through `&mut self`, or with synchronised threads.
    pub(crate) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.ptr
    }

    /// The whole part, for writing; not for a file's mapping.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`; it is borrowed as a whole.
        unsafe { std::slice::from_raw_parts_mut(self.ptr, self.bytes) }
    }

    /// The whole part.
    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: the mapping lives as long as `mapping` is held, its pages are initialised (zeroed, or a
        // file's), and no other part has these bytes.
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
            let refused = Shelf::default().take(bytes, "weights").unwrap_err();
            assert_eq!(refused, BackendError::OutOfMemory { bytes, what: "weights" });
        }
    }

    #[test]
    fn parts_of_a_shelf_are_zeroed_aligned_and_apart() {
        let shelf = Shelf::default();
        let sizes = [100, 0, 64, 1, HUGE, 3 * HUGE + 17, 5, 4096, HUGE - 1, 7];
        let mut parts: Vec<Part> = sizes.iter().map(|&bytes| shelf.take(bytes, "test").unwrap()).collect();
        for (index, part) in parts.iter_mut().enumerate() {
            assert_eq!((part.bytes(), part.as_ptr().align_offset(64)), (sizes[index], 0));
            assert!(part.as_slice().iter().all(|&byte| byte == 0), "part {index} has other bytes");
            // SAFETY: the part's own bytes.
            unsafe { part.as_mut_ptr().write_bytes(index as u8 + 1, part.bytes()) };
        }
        drop(shelf);
        for (index, part) in parts.iter().enumerate() {
            assert!(part.as_slice().iter().all(|&byte| byte == index as u8 + 1), "part {index} was written");
        }
    }

    #[test]
    fn little_weights_map_little_and_many_share_a_mapping() {
        let shelf = Shelf::default();
        let parts: Vec<Part> = (0..1000).map(|_| shelf.take(1000, "test").unwrap()).collect();
        let mapped = shelf.0.lock().unwrap().mapped;
        assert!(mapped <= 2 * 1000 * 1024, "{mapped} bytes are mapped");
        let mut mappings: Vec<_> = parts.iter().map(|part| Arc::as_ptr(&part.mapping).cast::<()>()).collect();
        mappings.dedup();
        assert!(mappings.len() <= 16, "{} mappings", mappings.len());
    }
}
