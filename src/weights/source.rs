//! Where a file's bytes are: mapped, or read into memory. The only file here with unsafe code.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;

use memmap2::Mmap;

use super::{OpenOptions, WeightsError};

/// The bytes of a file.
pub(super) enum Source {
    Mapped(Mmap),
    Owned(Vec<u8>),
}

impl Source {
    pub fn open(path: &Path, options: &OpenOptions) -> Result<Source, WeightsError> {
        let io_error = |action| move |source| WeightsError::Io { file: path.to_owned(), action, source };
        let file = File::open(path).map_err(io_error("open"))?;
        let metadata = file.metadata().map_err(io_error("open"))?;
        if !metadata.is_file() {
            return Err(io_error("open")(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")));
        }
        if !options.mmap || metadata.len() == 0 {
            return std::fs::read(path).map(Source::Owned).map_err(io_error("read"));
        }
        // SAFETY: the mapping is read-only and private to this value. Bytes are only ever copied out,
        // checked, so a file that changes underneath gives wrong values, not undefined behaviour in
        // practice; one that is cut short while it is open ends the process with SIGBUS, as with
        // every program that maps files. `OpenOptions::mmap` says so and offers reading instead.
        unsafe { Mmap::map(&file) }.map(Source::Mapped).map_err(io_error("map"))
    }

    pub fn bytes(&self) -> &[u8] {
        match self {
            Source::Mapped(map) => map,
            Source::Owned(bytes) => bytes,
        }
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

    /// Gives back the pages that lie wholly inside `range`; a hint, so a refusal is no error.
    #[cfg(unix)]
    pub fn release(&self, range: Range<usize>) {
        let page = page_bytes();
        let (start, end) = (range.start.next_multiple_of(page), range.end / page * page);
        if let Source::Mapped(map) = self
            && start < end
            && end <= map.len()
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

#[cfg(unix)]
fn page_bytes() -> usize {
    // SAFETY: sysconf reads a constant of the system and touches no memory of ours.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    // 64 KiB is a multiple of every page size in use, for a system that will not say.
    usize::try_from(bytes).ok().filter(|&bytes| bytes > 0).unwrap_or(1 << 16)
}
