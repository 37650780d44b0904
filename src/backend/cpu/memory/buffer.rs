//! Zeroed memory for arenas, scratch and KV pools: page-aligned, and resident only where it is touched.

use bytemuck::Pod;
use memmap2::{MmapOptions, MmapRaw};

use crate::backend::BackendError;
use crate::room;

/// From this size on, a buffer starts on a huge page's boundary and asks for huge pages. A decode step reads
/// all weights once, and with small pages address translation costs more than the reading.
const HUGE: usize = 2 << 20;

/// An anonymous mapping.
///
/// Its pointers stay valid while others of it are in use, since none comes from a reference to the whole.
#[derive(Debug)]
pub(crate) struct Buffer {
    map: MmapRaw,
    start: usize,
    bytes: usize,
}

impl Buffer {
    /// `bytes` zeros that will all be used, in huge pages where the system has them.
    pub(crate) fn zeroed(bytes: usize, what: &'static str) -> Result<Buffer, BackendError> {
        let buffer = Buffer::aligned(bytes, what)?;
        buffer.ask_for_huge_pages();
        Ok(buffer)
    }

    /// `bytes` zeros that may all be used later; huge pages can be asked for then.
    pub(crate) fn aligned(bytes: usize, what: &'static str) -> Result<Buffer, BackendError> {
        let slack = if bytes >= HUGE { HUGE } else { 0 };
        let Buffer { map, .. } = Buffer::sparse(bytes.saturating_add(slack), what)
            .map_err(|_| BackendError::OutOfMemory { bytes, what })?;
        let start = if slack == 0 { 0 } else { map.as_ptr().align_offset(HUGE).min(slack) };
        Ok(Buffer { map, start, bytes })
    }

    /// Asks the system for huge pages where no page has been touched yet.
    pub(crate) fn ask_for_huge_pages(&self) {
        #[cfg(target_os = "linux")]
        if self.bytes >= HUGE {
            // Advice: a kernel without huge pages refuses, and nothing is lost.
            let _ = self.map.advise_range(memmap2::Advice::HugePage, self.start, self.bytes);
        }
    }

    /// `bytes` zeros of which only a part may ever be used. Pages are small, so only that part becomes
    /// resident.
    pub(crate) fn sparse(bytes: usize, what: &'static str) -> Result<Buffer, BackendError> {
        let no_memory = BackendError::OutOfMemory { bytes, what };
        if bytes >= HUGE && !room::has(bytes.saturating_add(room::SMALL_BYTES)) {
            return Err(no_memory);
        }
        let map = MmapOptions::new().len(bytes.max(1)).map_anon().map_err(|_| no_memory)?;
        Ok(Buffer { map: map.into(), start: 0, bytes })
    }

    /// Its length.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The address of its first byte, aligned to 64.
    pub(crate) fn as_ptr(&self) -> *const u8 {
        // The mapping is longer than `start`.
        self.map.as_ptr().wrapping_add(self.start)
    }

    /// The same, for writing: through `&mut self`, or by agreement of threads.
    pub(crate) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.map.as_mut_ptr().wrapping_add(self.start)
    }

    /// All of it.
    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: the mapping is of `bytes` initialised bytes from `start` on, at least, and lives as long.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.bytes) }
    }

    /// All of it as elements.
    pub(crate) fn elements_mut<T: Pod>(&mut self) -> &mut [T] {
        let whole = self.bytes / size_of::<T>() * size_of::<T>();
        // SAFETY: as in `as_slice`; it is borrowed as a whole.
        bytemuck::cast_slice_mut(unsafe { std::slice::from_raw_parts_mut(self.as_mut_ptr(), whole) })
    }

    /// All of it as elements.
    pub(crate) fn elements<T: Pod>(&self) -> &[T] {
        let whole = self.bytes / size_of::<T>() * size_of::<T>();
        bytemuck::cast_slice(&self.as_slice()[..whole])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_zeroed_and_aligned() {
        for bytes in [0, 1, 4096, HUGE - 64, HUGE, 3 * HUGE + 64] {
            let mut buffer = Buffer::zeroed(bytes, "test").unwrap();
            assert_eq!(buffer.bytes(), bytes);
            assert_eq!(buffer.as_ptr().align_offset(64), 0);
            assert_eq!(buffer.as_mut_ptr().cast_const(), buffer.as_ptr());
            assert!(buffer.as_slice().iter().all(|&byte| byte == 0));
            assert_eq!(buffer.elements::<f32>().len(), bytes / 4);
        }
    }

    #[test]
    fn an_impossible_size_is_refused() {
        for bytes in [usize::MAX, usize::MAX / 2] {
            let refused = Buffer::zeroed(bytes, "weights").unwrap_err();
            assert_eq!(refused, BackendError::OutOfMemory { bytes, what: "weights" });
        }
    }
}
