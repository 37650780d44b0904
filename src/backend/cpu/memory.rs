//! Zeroed memory for weights, arenas, scratch and KV pools: page-aligned, and resident only where it
//! is touched.

use bytemuck::Pod;
use memmap2::{MmapMut, MmapOptions};

use crate::backend::BackendError;

/// Above this a buffer starts on a huge page's boundary and asks for huge pages: a decode step
/// reads all weights once, and with small pages address translation costs more than the reading.
const HUGE: usize = 2 << 20;

/// An anonymous mapping.
#[derive(Debug)]
pub(super) struct Buffer {
    map: MmapMut,
    start: usize,
    bytes: usize,
}

impl Buffer {
    /// `bytes` zeros that will all be used, in huge pages where the system has them.
    pub(super) fn zeroed(bytes: usize, what: &'static str) -> Result<Buffer, BackendError> {
        let slack = if bytes >= HUGE { HUGE } else { 0 };
        let Buffer { map, .. } = Buffer::sparse(bytes.saturating_add(slack), what)
            .map_err(|_| BackendError::OutOfMemory { bytes, what })?;
        let start = if slack == 0 { 0 } else { map.as_ptr().align_offset(HUGE).min(slack) };
        #[cfg(target_os = "linux")]
        if slack != 0 {
            // Advice: a kernel without huge pages refuses, and nothing is lost.
            let _ = map.advise_range(memmap2::Advice::HugePage, start, bytes);
        }
        Ok(Buffer { map, start, bytes })
    }

    /// `bytes` zeros of which only a part may ever be used: small pages, so that no more than that
    /// becomes resident.
    pub(super) fn sparse(bytes: usize, what: &'static str) -> Result<Buffer, BackendError> {
        let map = MmapOptions::new().len(bytes.max(1)).map_anon();
        let map = map.map_err(|_| BackendError::OutOfMemory { bytes, what })?;
        Ok(Buffer { map, start: 0, bytes })
    }

    /// Its length.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Its first byte, aligned to 64.
    pub(super) fn as_ptr(&self) -> *const u8 {
        self.as_slice().as_ptr()
    }

    /// Its first byte, aligned to 64, for writing through `&mut self` or by agreement of threads.
    pub(super) fn as_mut_ptr(&mut self) -> *mut u8 {
        // The mapping is longer than `start`.
        self.map.as_mut_ptr().wrapping_add(self.start)
    }

    /// All of it.
    pub(super) fn as_slice(&self) -> &[u8] {
        &self.map[self.start..self.start + self.bytes]
    }

    /// All of it as elements.
    pub(super) fn elements_mut<T: Pod>(&mut self) -> &mut [T] {
        let bytes = &mut self.map[self.start..self.start + self.bytes];
        let whole = bytes.len() / size_of::<T>() * size_of::<T>();
        bytemuck::cast_slice_mut(&mut bytes[..whole])
    }

    /// All of it as elements.
    pub(super) fn elements<T: Pod>(&self) -> &[T] {
        let bytes = self.as_slice();
        let whole = bytes.len() / size_of::<T>() * size_of::<T>();
        bytemuck::cast_slice(&bytes[..whole])
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
