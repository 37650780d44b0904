//! Where a file's bytes are: mapped, in memory, or read where they are asked for. The only file here with
//! unsafe code.

use std::fs::{File, Metadata};
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use memmap2::Mmap;

use super::WeightsError;
use crate::file::{ReadAt, open_regular};

/// Buffers above this are not kept for the next read.
const SPARE_BYTES_MAX: usize = 4 << 20;

/// How a file is opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// Map files; without it they are read, which is the default. The model's file is mapped while it is loaded,
    /// a file of packed weights for as long as these are used. That loads packed weights faster, and processes share their memory.
    ///
    /// Nothing must cut a mapped file short or write into it: bytes that are gone when they are touched end the
    /// process (SIGBUS), and packed weights that are written over give wrong text. No program can prevent that.
    /// Of files that are read, what is used is what was checked: one that changes meanwhile is
    /// [`WeightsError::Changed`].
    pub mmap: bool,
}

/// The bytes of a file.
pub(super) enum Source {
    Mapped(MappedFile),
    Owned(Vec<u8>),
    Read(ReadFile),
}

/// A file that is mapped.
pub(super) struct MappedFile {
    map: Mmap,
    file: File,
    opened: State,
}

/// A file that is read where it is asked for.
pub(super) struct ReadFile {
    file: ReadAt,
    opened: State,
    /// Buffers of earlier reads: as many as threads have read at once.
    spare: Mutex<Vec<Vec<u8>>>,
}

/// What shows that a file has changed.
#[derive(Clone, Copy, PartialEq, Eq)]
struct State {
    bytes: usize,
    modified: Option<SystemTime>,
}

impl State {
    fn of(metadata: &Metadata) -> io::Result<State> {
        let too_large = |_| io::Error::new(io::ErrorKind::FileTooLarge, "beyond this machine");
        let bytes = usize::try_from(metadata.len()).map_err(too_large)?;
        Ok(State { bytes, modified: metadata.modified().ok() })
    }
}

impl Source {
    /// The file at `path`.
    pub fn open(path: &Path, options: &OpenOptions) -> Result<Source, WeightsError> {
        let io_error = |action| move |source| WeightsError::Io { file: path.to_owned(), action, source };
        let (file, metadata) = open_regular(path).map_err(io_error("open"))?;
        let opened = State::of(&metadata).map_err(io_error("open"))?;
        if !options.mmap || opened.bytes == 0 {
            return Ok(Source::Read(ReadFile { file: ReadAt::new(file), opened, spare: Mutex::default() }));
        }
        // SAFETY: the mapping is read-only and private to this value. Bytes are only ever copied out,
        // checked, so a file that changes underneath gives wrong values, not undefined behaviour in
        // practice, and `check_unchanged` tells; one that is cut short in the moment in which it is read
        // ends the process with SIGBUS, as with every program that maps files. `OpenOptions::mmap` says
        // so, and reading is the default.
        let map = unsafe { Mmap::map(&file) }.map_err(io_error("map"))?;
        Ok(Source::Mapped(MappedFile { map, file, opened }))
    }

    /// When the file had last been changed when it was opened, if the system says.
    pub fn modified(&self) -> Option<SystemTime> {
        self.opened().and_then(|(_, opened)| opened.modified)
    }

    fn opened(&self) -> Option<(&File, &State)> {
        match self {
            Source::Mapped(mapped) => Some((&mapped.file, &mapped.opened)),
            Source::Read(read) => Some((read.file.file(), &read.opened)),
            Source::Owned(_) => None,
        }
    }

    /// Whether the file is as long as when it was opened, and was not written since.
    pub fn check_unchanged(&self, path: &Path) -> Result<(), WeightsError> {
        let Some((file, opened)) = self.opened() else { return Ok(()) };
        let now = file.metadata().and_then(|metadata| State::of(&metadata));
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

    /// Bytes of the file.
    pub fn len(&self) -> usize {
        match self {
            Source::Mapped(mapped) => mapped.map.len(),
            Source::Owned(bytes) => bytes.len(),
            Source::Read(file) => file.opened.bytes,
        }
    }

    /// What `use_bytes` makes of the bytes of `range`.
    pub fn with<T>(&self, range: Range<usize>, use_bytes: impl FnOnce(&[u8]) -> T) -> io::Result<T> {
        let all: &[u8] = match self {
            Source::Mapped(mapped) => mapped.checked(&range)?,
            Source::Owned(bytes) => bytes,
            Source::Read(file) => return file.with(range, use_bytes),
        };
        all.get(range).map(use_bytes).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    /// Asks for the pages of `range`; a hint, so a refusal is no error.
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

    /// Gives back the pages that lie wholly inside `range`, which may go beyond the end; a hint, so a refusal
    /// is no error.
    #[cfg(unix)]
    pub fn release(&self, range: Range<usize>) {
        let page = page_bytes();
        let (start, end) = (range.start.next_multiple_of(page), range.end / page * page);
        let end = end.min(self.len());
        if let Source::Mapped(MappedFile { map, .. }) = self
            && start < end
        {
            // SAFETY: the mapping is read-only and backed by the file, so a dropped page is read
            // again from the file when it is next touched; no reference sees other bytes.
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
    /// All bytes, where those of `range` are still there: touching others would end the process.
    fn checked(&self, range: &Range<usize>) -> io::Result<&[u8]> {
        match self.file.metadata()?.len() < range.end as u64 {
            true => Err(io::ErrorKind::UnexpectedEof.into()),
            false => Ok(&self.map),
        }
    }
}

impl ReadFile {
    fn with<T>(&self, range: Range<usize>, use_bytes: impl FnOnce(&[u8]) -> T) -> io::Result<T> {
        // Checked before a buffer is made for it.
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
            // SAFETY: a hint about an open file; it touches no memory of ours.
            let _ = unsafe { libc::posix_fadvise(file, start, len, libc::POSIX_FADV_WILLNEED) };
        }
    }

    #[cfg(all(unix, not(any(target_os = "linux", target_os = "android"))))]
    fn prefetch(&self, _: Range<usize>) {}
}

#[cfg(unix)]
fn page_bytes() -> usize {
    // SAFETY: sysconf reads a constant of the system and touches no memory of ours.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    // 64 KiB is a multiple of every page size in use, for a system that will not say.
    usize::try_from(bytes).ok().filter(|&bytes| bytes > 0).unwrap_or(1 << 16)
}
