//! Byte sources: memory-mapped, owned or read on demand. The only file of this folder with unsafe code.

use std::fs::{File, Metadata};
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use memmap2::Mmap;

use super::WeightsError;
use crate::file::{ReadAt, open_regular};

/// Larger buffers are freed after use instead of being kept for the next read.
const SPARE_BYTES_MAX: usize = 4 << 20;

/// Options for opening a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// Memory-map files instead of reading them. Default: false. The model file is mapped during loading, a
    /// sidecar of packed weights as long as the weights are in use. Mapped sidecars load faster, and
    /// processes share their memory.
    ///
    /// A mapped file must not be truncated or written: access to a missing page ends the process (SIGBUS),
    /// and overwritten packed weights give wrong text. No program can prevent that. Files that are read are
    /// checked in the same copy that is used; a concurrent change is [`WeightsError::Changed`].
    pub mmap: bool,
}

/// Bytes of a file.
pub(super) enum Source {
    Mapped(MappedFile),
    Owned(Vec<u8>),
    Read(ReadFile),
}

/// A memory-mapped file.
pub(super) struct MappedFile {
    map: Mmap,
    file: File,
    opened: FileStamp,
}

/// A file that is read on demand.
pub(super) struct ReadFile {
    file: ReadAt,
    opened: FileStamp,
    /// Reusable read buffers: one per concurrent reader.
    spare: Mutex<Vec<Vec<u8>>>,
}

/// File attributes that reveal a change.
#[derive(Clone, Copy, PartialEq, Eq)]
struct FileStamp {
    bytes: usize,
    modified: Option<SystemTime>,
}

impl FileStamp {
    fn of(metadata: &Metadata) -> io::Result<FileStamp> {
        let too_large = |_| io::Error::new(io::ErrorKind::FileTooLarge, "beyond this machine");
        let bytes = usize::try_from(metadata.len()).map_err(too_large)?;
        Ok(FileStamp { bytes, modified: metadata.modified().ok() })
    }
}

impl Source {
    /// Opens the file at `path`.
    pub fn open(path: &Path, options: &OpenOptions) -> Result<Source, WeightsError> {
        let io_error = |action| move |source| WeightsError::Io { file: path.to_owned(), action, source };
        let (file, metadata) = open_regular(path).map_err(io_error("open"))?;
        let opened = FileStamp::of(&metadata).map_err(io_error("open"))?;
        if !options.mmap || opened.bytes == 0 {
            return Ok(Source::Read(ReadFile { file: ReadAt::new(file), opened, spare: Mutex::default() }));
        }
        // SAFETY: the mapping is read-only and private to this value. Bytes are only ever copied out and
        // checked, so a file that changes underneath gives wrong values, not undefined behaviour in practice,
        // and `check_unchanged` detects it. A file truncated during a read ends the process with SIGBUS, as
        // in every program that maps files. `OpenOptions::mmap` documents this, and reading is the default.
        let map = unsafe { Mmap::map(&file) }.map_err(io_error("map"))?;
        Ok(Source::Mapped(MappedFile { map, file, opened }))
    }

    /// Modification time when the file was opened, if the system has one.
    pub fn modified(&self) -> Option<SystemTime> {
        self.opened().and_then(|(_, opened)| opened.modified)
    }

    fn opened(&self) -> Option<(&File, &FileStamp)> {
        match self {
            Source::Mapped(mapped) => Some((&mapped.file, &mapped.opened)),
            Source::Read(read) => Some((read.file.file(), &read.opened)),
            Source::Owned(_) => None,
        }
    }

    /// Checks that length and modification time are those at opening.
    pub fn check_unchanged(&self, path: &Path) -> Result<(), WeightsError> {
        let Some((file, opened)) = self.opened() else { return Ok(()) };
        let now = file.metadata().and_then(|metadata| FileStamp::of(&metadata));
        let now = now.map_err(|source| WeightsError::Io { file: path.to_owned(), action: "read", source })?;
        if now == *opened {
            return Ok(());
        }
        let found = match now.bytes == opened.bytes {
            true => "other content".to_owned(),
            false => format!("{} bytes", now.bytes),
        };
        Err(WeightsError::Changed { file: path.to_owned(), expected: opened.bytes as u64, found })
    }

    /// Length of the file in bytes.
    pub fn len(&self) -> usize {
        match self {
            Source::Mapped(mapped) => mapped.map.len(),
            Source::Owned(bytes) => bytes.len(),
            Source::Read(file) => file.opened.bytes,
        }
    }

    /// Calls `use_bytes` with the bytes of `range`.
    pub fn with<T>(&self, range: Range<usize>, use_bytes: impl FnOnce(&[u8]) -> T) -> io::Result<T> {
        let all: &[u8] = match self {
            Source::Mapped(mapped) => mapped.checked(&range)?,
            Source::Owned(bytes) => bytes,
            Source::Read(file) => return file.with(range, use_bytes),
        };
        all.get(range).map(use_bytes).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    /// Prefetches the pages of `range`. This is a hint: failures are ignored.
    #[cfg(unix)]
    pub fn prefetch(&self, range: Range<usize>) {
        match self {
            Source::Mapped(MappedFile { map, .. }) if range.end <= map.len() => {
                let _ = map.advise_range(memmap2::Advice::WillNeed, range.start, range.len());
            }
            Source::Read(read) => read.prefetch(range),
            _ => {}
        }
    }

    /// Releases the pages that lie entirely in `range`, which may extend beyond the end. This is a hint:
    /// failures are ignored.
    #[cfg(unix)]
    pub fn release(&self, range: Range<usize>) {
        let page = page_bytes();
        let (start, end) = (range.start.next_multiple_of(page), range.end / page * page);
        let end = end.min(self.len());
        if let Source::Mapped(MappedFile { map, .. }) = self
            && start < end
        {
            // SAFETY: the mapping is read-only and backed by the file, so a dropped page is read again from
            // the file at the next access; no reference sees other bytes.
            let _ =
                unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, end - start) };
        }
    }

    #[cfg(not(unix))]
    pub fn prefetch(&self, _: Range<usize>) {}

    #[cfg(not(unix))]
    pub fn release(&self, _: Range<usize>) {}
}

impl MappedFile {
    /// All bytes of the mapping, if the file still covers `range`: access beyond its end raises SIGBUS.
    fn checked(&self, range: &Range<usize>) -> io::Result<&[u8]> {
        match self.file.metadata()?.len() < range.end as u64 {
            true => Err(io::ErrorKind::UnexpectedEof.into()),
            false => Ok(&self.map),
        }
    }
}

impl ReadFile {
    fn with<T>(&self, range: Range<usize>, use_bytes: impl FnOnce(&[u8]) -> T) -> io::Result<T> {
        // The range check comes before the allocation.
        if range.end > self.opened.bytes {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut buffer = self.spare().pop().unwrap_or_default();
        let more = range.len().saturating_sub(buffer.len());
        buffer.try_reserve_exact(more).map_err(|_| io::ErrorKind::OutOfMemory)?;
        buffer.resize(range.len(), 0);
        self.file.read(&mut buffer, range.start as u64)?;
        let made = use_bytes(&buffer);
        if buffer.capacity() <= SPARE_BYTES_MAX {
            self.spare().push(buffer);
        }
        Ok(made)
    }

    fn spare(&self) -> MutexGuard<'_, Vec<Vec<u8>>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn prefetch(&self, range: Range<usize>) {
        use std::os::fd::AsRawFd;
        let offsets = libc::off_t::try_from(range.start).ok().zip(libc::off_t::try_from(range.len()).ok());
        if let Some((start, len)) = offsets {
            let file = self.file.file().as_raw_fd();
            // SAFETY: a hint about an open file; it accesses no memory of this process.
            let _ = unsafe { libc::posix_fadvise(file, start, len, libc::POSIX_FADV_WILLNEED) };
        }
    }

    #[cfg(all(unix, not(any(target_os = "linux", target_os = "android"))))]
    fn prefetch(&self, _: Range<usize>) {}
}

#[cfg(unix)]
fn page_bytes() -> usize {
    // SAFETY: sysconf returns a constant of the system and accesses no memory of this process.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    // Fallback: 64 KiB is a multiple of every page size in use.
    usize::try_from(bytes).ok().filter(|&bytes| bytes > 0).unwrap_or(1 << 16)
}
