//! Where a file's bytes are: mapped, in memory, or read where they are asked for. The only file here with
//! unsafe code.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use memmap2::Mmap;

use super::{OpenOptions, WeightsError};

/// Buffers above this are not kept for the next read.
const SPARE_BYTES_MAX: usize = 4 << 20;

/// The bytes of a file.
pub(super) enum Source {
    Mapped(Mmap),
    Owned(Vec<u8>),
    Read(ReadFile),
}

/// A file that is read where it is asked for.
pub(super) struct ReadFile {
    file: File,
    bytes: usize,
    /// Buffers of earlier reads: as many as threads have read at once.
    spare: Mutex<Vec<Vec<u8>>>,
}

impl Source {
    /// The file at `path`, and when it was last changed, if the system says.
    pub fn open(path: &Path, options: &OpenOptions) -> Result<(Source, Option<SystemTime>), WeightsError> {
        let io_error = |action| move |source| WeightsError::Io { file: path.to_owned(), action, source };
        let file = File::open(path).map_err(io_error("open"))?;
        let metadata = file.metadata().map_err(io_error("open"))?;
        if !metadata.is_file() {
            return Err(io_error("open")(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")));
        }
        let bytes = usize::try_from(metadata.len()).map_err(|_| {
            io_error("open")(io::Error::new(io::ErrorKind::FileTooLarge, "beyond this machine"))
        })?;
        let modified = metadata.modified().ok();
        if !options.mmap || bytes == 0 {
            return Ok((Source::Read(ReadFile { file, bytes, spare: Mutex::default() }), modified));
        }
        // SAFETY: the mapping is read-only and private to this value. Bytes are only ever copied out,
        // checked, so a file that changes underneath gives wrong values, not undefined behaviour in
        // practice; one that is cut short while it is open ends the process with SIGBUS, as with
        // every program that maps files. `OpenOptions::mmap` says so and offers reading instead.
        let map = unsafe { Mmap::map(&file) }.map_err(io_error("map"))?;
        Ok((Source::Mapped(map), modified))
    }

    /// Bytes of the file.
    pub fn len(&self) -> usize {
        match self {
            Source::Mapped(map) => map.len(),
            Source::Owned(bytes) => bytes.len(),
            Source::Read(file) => file.bytes,
        }
    }

    /// What `use_bytes` makes of the bytes of `range`.
    pub fn with<T>(&self, range: Range<usize>, use_bytes: impl FnOnce(&[u8]) -> T) -> io::Result<T> {
        let all: &[u8] = match self {
            Source::Mapped(map) => map,
            Source::Owned(bytes) => bytes,
            Source::Read(file) => return file.with(range, use_bytes),
        };
        all.get(range).map(use_bytes).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    /// Asks for the pages of `range`; a hint, so a refusal is no error.
    #[cfg(unix)]
    pub fn prefetch(&self, range: Range<usize>) {
        if let Source::Mapped(map) = self
            && range.end <= map.len()
        {
            let _ = map.advise_range(memmap2::Advice::WillNeed, range.start, range.len());
        }
    }

    /// Gives back the pages that lie wholly inside `range`, which may go beyond the end; a hint, so a refusal
    /// is no error.
    #[cfg(unix)]
    pub fn release(&self, range: Range<usize>) {
        let page = page_bytes();
        let (start, end) = (range.start.next_multiple_of(page), range.end / page * page);
        let end = end.min(self.len());
        if let Source::Mapped(map) = self
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

impl ReadFile {
    fn with<T>(&self, range: Range<usize>, use_bytes: impl FnOnce(&[u8]) -> T) -> io::Result<T> {
        // Checked before a buffer is made for it.
        if range.end > self.bytes {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut buffer = self.spare().pop().unwrap_or_default();
        buffer.resize(range.len(), 0);
        self.read(&mut buffer, range.start as u64)?;
        let made = use_bytes(&buffer);
        if buffer.capacity() <= SPARE_BYTES_MAX {
            self.spare().push(buffer);
        }
        Ok(made)
    }

    fn spare(&self) -> MutexGuard<'_, Vec<Vec<u8>>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(unix)]
    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(&self.file, buffer, offset)
    }

    #[cfg(not(unix))]
    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        use std::io::{Read, Seek, SeekFrom};
        // One thread at a time: the file has one position.
        let _alone = self.spare();
        let mut file = &self.file;
        file.seek(SeekFrom::Start(offset))?;
        file.read_exact(buffer)
    }
}

#[cfg(unix)]
fn page_bytes() -> usize {
    // SAFETY: sysconf reads a constant of the system and touches no memory of ours.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    // 64 KiB is a multiple of every page size in use, for a system that will not say.
    usize::try_from(bytes).ok().filter(|&bytes| bytes > 0).unwrap_or(1 << 16)
}
