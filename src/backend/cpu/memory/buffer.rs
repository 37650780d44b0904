//! Zeroed memory for arenas, scratch and KV pools: page-aligned, and resident only where touched.

use bytemuck::Pod;
use memmap2::{MmapOptions, MmapRaw};

use crate::backend::BackendError;
use crate::headroom;

/// Minimum size for huge pages; such a buffer starts on a huge page boundary. A decode step reads all weights
/// once, and with small pages address translation costs more than the reads.
const HUGE: usize = 2 << 20;

/// An anonymous mapping.
///
/// Its pointers remain valid while other pointers into it are in use, because none is derived from a
/// reference to the whole mapping.
#[derive(Debug)]
pub(crate) struct Buffer {
    map: MmapRaw,
    start: usize,
    bytes: usize,
}

impl Buffer {
    /// `bytes` zeros that will all be used, in huge pages if available.
    pub(crate) fn zeroed(bytes: usize, what: &'static str) -> Result<Buffer, BackendError> {
        let buffer = Buffer::aligned(bytes, what)?;
        buffer.advise_huge_pages();
        Ok(buffer)
    }

    /// `bytes` zeros that may all be used later; huge pages can be requested at that point.
    pub(crate) fn aligned(bytes: usize, what: &'static str) -> Result<Buffer, BackendError> {
        let slack = if bytes >= HUGE { HUGE } else { 0 };
        let Buffer { map, .. } = Buffer::sparse(bytes.saturating_add(slack), what)
            .map_err(|_| BackendError::OutOfMemory { bytes, what })?;
        let start = if slack == 0 { 0 } else { map.as_ptr().align_offset(HUGE).min(slack) };
        Ok(Buffer { map, start, bytes })
    }

    /// Requests huge pages for pages not touched yet.
    pub(crate) fn advise_huge_pages(&self) {
        #[cfg(target_os = "linux")]
        if self.bytes >= HUGE {
            // Advice only: on a kernel without huge pages it fails, which is harmless.
            let _ = self.map.advise_range(memmap2::Advice::HugePage, self.start, self.bytes);
        }
    }

    /// `bytes` zeros of which possibly only a part is used. Pages are small, so only that part becomes
    /// resident.
    pub(crate) fn sparse(bytes: usize, what: &'static str) -> Result<Buffer, BackendError> {
        let no_memory = BackendError::OutOfMemory { bytes, what };
        if bytes >= HUGE && !headroom::has(bytes.saturating_add(headroom::SMALL_BYTES)) {
            return Err(no_memory);
        }
        let map = MmapOptions::new().len(bytes.max(1)).map_anon().map_err(|_| no_memory)?;
        Ok(Buffer { map: map.into(), start: 0, bytes })
    }

    /// Length in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The address of the first byte, aligned to 64.
    pub(crate) fn as_ptr(&self) -> *const u8 {
        // The mapping is longer than `start`.
        self.map.as_ptr().wrapping_add(self.start)
    }

    /// [`Buffer::as_ptr`] for writing: through `&mut self`, or with synchronised threads.
    pub(crate) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.map.as_mut_ptr().wrapping_add(self.start)
    }

    /// The whole buffer.
    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: the mapping is of `bytes` initialised bytes from `start` on, at least, and lives as long.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.bytes) }
    }

    /// The whole buffer as elements.
    pub(crate) fn elements_mut<T: Pod>(&mut self) -> &mut [T] {
        let whole = self.bytes / size_of::<T>() * size_of::<T>();
        // SAFETY: as in `as_slice`; it is borrowed as a whole.
        bytemuck::cast_slice_mut(unsafe { std::slice::from_raw_parts_mut(self.as_mut_ptr(), whole) })
    }

    /// The whole buffer as elements.
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
