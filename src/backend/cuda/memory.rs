//! Owned device memory and page-locked host memory, and copies between them.

use std::sync::Arc;

use cudarc::driver::result;
use cudarc::driver::sys::CUresult;

use super::driver::Context;
use super::params::Address;
use crate::backend::BackendError;

/// Device memory, freed on drop.
#[derive(Debug)]
pub(super) struct DeviceBuffer {
    context: Arc<Context>,
    address: Address,
    bytes: usize,
}

impl DeviceBuffer {
    /// `bytes` zeroed bytes, for `what`; 0 bytes allocate nothing.
    pub(super) fn zeroed(
        context: &Arc<Context>,
        bytes: usize,
        what: &'static str,
    ) -> Result<DeviceBuffer, BackendError> {
        let buffer = DeviceBuffer::uninitialised(context, bytes, what)?;
        if bytes > 0 {
            // SAFETY: the buffer has that many bytes.
            let set = unsafe { result::memset_d8_async(buffer.address, 0, bytes, context.stream()) };
            context.done("cuMemsetD8Async", set)?;
        }
        Ok(buffer)
    }

    fn uninitialised(
        context: &Arc<Context>,
        bytes: usize,
        what: &'static str,
    ) -> Result<DeviceBuffer, BackendError> {
        context.enter()?;
        let address = match bytes {
            0 => 0,
            // SAFETY: freed by `Drop`.
            _ => match unsafe { result::malloc_sync(bytes) } {
                Err(error) if error.0 == CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                    return Err(BackendError::OutOfMemory { bytes, what });
                }
                result => context.done("cuMemAlloc", result)?,
            },
        };
        Ok(DeviceBuffer { context: Arc::clone(context), address, bytes })
    }

    /// A copy of `values`.
    pub(super) fn of<T: bytemuck::NoUninit>(
        context: &Arc<Context>,
        values: &[T],
        what: &'static str,
    ) -> Result<DeviceBuffer, BackendError> {
        let buffer = DeviceBuffer::uninitialised(context, size_of_val(values), what)?;
        buffer.upload(0, values)?;
        Ok(buffer)
    }

    /// A copy of all bytes, started after all work so far.
    #[cfg(feature = "_bench")]
    pub(super) fn duplicate(&self, what: &'static str) -> Result<DeviceBuffer, BackendError> {
        let copy = DeviceBuffer::uninitialised(&self.context, self.bytes, what)?;
        if self.bytes > 0 {
            // SAFETY: both buffers have that many bytes, and freeing waits for the copy.
            let copied = unsafe {
                result::memcpy_dtod_async(copy.address, self.address, self.bytes, self.context.stream())
            };
            self.context.done("cuMemcpyDtoDAsync", copied)?;
        }
        Ok(copy)
    }

    pub(super) fn address(&self) -> Address {
        self.address
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether this memory belongs to `context`, and so to its stream.
    pub(super) fn is_of(&self, context: &Arc<Context>) -> bool {
        Arc::ptr_eq(&self.context, context)
    }

    fn check(&self, offset: usize, bytes: usize) -> Result<Address, BackendError> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes => Ok(self.address + offset as u64),
            _ => Err(BackendError::Shape {
                op: "copy",
                expected: format!("a range within {} bytes", self.bytes),
                found: format!("{bytes} bytes from {offset}"),
            }),
        }
    }

    /// Copies `values` to byte `offset`, after all work so far; returns when the copy is done.
    pub(super) fn upload<T: bytemuck::NoUninit>(
        &self,
        offset: usize,
        values: &[T],
    ) -> Result<(), BackendError> {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        let address = self.check(offset, bytes.len())?;
        if bytes.is_empty() {
            return Ok(());
        }
        self.context.enter()?;
        // SAFETY: the range is inside; the source is not modified before the copy is waited for.
        let copied = unsafe { result::memcpy_htod_async(address, bytes, self.context.stream()) };
        self.context.done("cuMemcpyHtoDAsync", copied)?;
        self.context.wait()
    }

    /// Starts the copy of a page-locked buffer's first `bytes` to the device.
    pub(super) fn upload_pinned(&self, host: &HostBuffer, bytes: usize) -> Result<(), BackendError> {
        let address = self.check(0, bytes)?;
        let source = &host.words()[..bytes / 4];
        // SAFETY: the range is inside; the source's owner waits before it writes or frees it.
        let copied = unsafe { result::memcpy_htod_async(address, source, self.context.stream()) };
        self.context.done("cuMemcpyHtoDAsync", copied)
    }

    /// Starts the copy of `bytes` bytes at `offset` to the start of a page-locked buffer.
    pub(super) fn download_pinned(
        &self,
        offset: usize,
        host: &mut HostBuffer,
        bytes: usize,
    ) -> Result<(), BackendError> {
        let address = self.check(offset, bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        let out = &mut host.words_mut()[..bytes / 4];
        // SAFETY: the range is inside; the target's owner waits before it reads, writes or frees it.
        let copied = unsafe { result::memcpy_dtoh_async(out, address, self.context.stream()) };
        self.context.done("cuMemcpyDtoHAsync", copied)
    }

    /// Copies bytes from `offset` on to `out`, after all work so far; returns when the copy is done.
    pub(super) fn download<T: bytemuck::AnyBitPattern + bytemuck::NoUninit>(
        &self,
        offset: usize,
        out: &mut [T],
    ) -> Result<(), BackendError> {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(out);
        let address = self.check(offset, bytes.len())?;
        if bytes.is_empty() {
            return self.context.wait();
        }
        self.context.enter()?;
        // SAFETY: the range is inside, and as long as the slice to fill.
        let copied = unsafe { result::memcpy_dtoh_async(bytes, address, self.context.stream()) };
        self.context.done("cuMemcpyDtoHAsync", copied)?;
        self.context.wait()
    }

    /// Starts a copy of `bytes` within the buffer; the ranges must not overlap.
    pub(super) fn copy_within(&self, from: usize, to: usize, bytes: usize) -> Result<(), BackendError> {
        let (from, to) = (self.check(from, bytes)?, self.check(to, bytes)?);
        self.context.enter()?;
        // SAFETY: both ranges are inside.
        let copied = unsafe { result::memcpy_dtod_async(to, from, bytes, self.context.stream()) };
        self.context.done("cuMemcpyDtoDAsync", copied)
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        // Freeing waits for work that may still use the memory. On a lost device it fails, and the memory is
        // freed with the process.
        if self.bytes > 0 && self.context.enter().is_ok() {
            // SAFETY: allocated by `uninitialised`, freed nowhere else.
            let freed = unsafe { result::free_sync(self.address) };
            let _ = self.context.done("cuMemFree", freed);
        }
    }
}

/// Page-locked host memory of 32-bit words. Copies from and to it need no staging.
#[derive(Debug)]
pub(super) struct HostBuffer {
    context: Arc<Context>,
    start: *mut u32,
    words: usize,
}

// SAFETY: owned memory; code that shares it takes care of copies under way.
unsafe impl Send for HostBuffer {}

impl HostBuffer {
    /// `words` words of zeros.
    pub(super) fn zeroed(context: &Arc<Context>, words: usize) -> Result<HostBuffer, BackendError> {
        context.enter()?;
        let bytes = words.saturating_mul(4).max(4);
        // SAFETY: freed by `Drop`. No flags: the memory is cached, so the host may read it.
        let start = match unsafe { result::malloc_host(bytes, 0) } {
            Err(error) if error.0 == CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                return Err(BackendError::OutOfMemory { bytes, what: "page-locked memory" });
            }
            result => context.done("cuMemHostAlloc", result)?,
        };
        let start = start.cast::<u32>();
        // SAFETY: that many bytes were allocated.
        unsafe { start.write_bytes(0, bytes / 4) };
        Ok(HostBuffer { context: Arc::clone(context), start, words })
    }

    pub(super) fn words(&self) -> &[u32] {
        // SAFETY: allocated with this size and zeroed.
        unsafe { std::slice::from_raw_parts(self.start, self.words) }
    }

    /// The words, writable while no copy of them is in flight.
    pub(super) fn words_mut(&mut self) -> &mut [u32] {
        // SAFETY: as above, and borrowed uniquely.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.words) }
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        // A copy may still be using it; on a lost device, none is.
        let _ = self.context.wait();
        // SAFETY: allocated by `zeroed`, freed nowhere else.
        let _ = unsafe { result::free_host(self.start.cast()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_locked_memory_goes_after_its_copies_have_run() {
        cuda_emu::install(&cuda_emu::InstallOptions::skipped_by("OTTAVA_TEST_GPU")).unwrap();
        let context = Context::new(0).unwrap();
        let buffer = DeviceBuffer::of(&context, &[7_u32; 64], "a test").unwrap();
        let mut host = HostBuffer::zeroed(&context, 64).unwrap();
        buffer.download_pinned(0, &mut host, 256).unwrap();
        drop(host);
        let mut host = HostBuffer::zeroed(&context, 64).unwrap();
        host.words_mut().fill(9);
        buffer.upload_pinned(&host, 256).unwrap();
        drop(host);
        let mut found = [0_u32; 64];
        buffer.download(0, &mut found).unwrap();
        assert_eq!((found, cuda_emu::last_fault()), ([9; 64], None));
    }
}
