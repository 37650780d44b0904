//! Snapshots: one sequence in a file, with its tokens and the bytes of its pages, written atomically.
//!
//! Little-endian throughout: the magic, 12 numbers of 8 bytes (listed in `format.rs`), the fingerprint, the
//! tokens and page starts (4 bytes each), the state, the pages, and BLAKE3 over all of it. A file is written
//! next to its target, synced and renamed, so that a crash leaves the old file or the new one. A file that is
//! truncated, corrupted, or of another model gives an error and no content: recompute then.
//!
//! The meaning of a page's bytes is private to the backend, so the fingerprint must identify the model and
//! all else that the bytes depend on. To restore: `adopt` (or `allocate`, `reserve`, `advance`, which also
//! makes the prefix findable) and import the pages in the order of their starts.

mod format;
mod hashing;
#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};

use crate::file::{Temporary, open_regular};
use crate::ir::{KvLayout, Window};
use crate::kind::ErrorKind;
use crate::token::TokenId;
use format::{Body, Fault, VERSION, encode_head};
use hashing::Hashing;

/// The content of a snapshot except the pages' bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotHeader {
    /// Fingerprint of the model and backend that the bytes belong to.
    pub fingerprint: [u8; 32],
    /// The pool's layout.
    pub layout: KvLayout,
    /// The window under which the keys and values were computed, if any.
    pub window: Option<Window>,
    /// The sequence's tokens from position 0.
    pub tokens: Vec<TokenId>,
    /// The first position of each page, rising multiples of [`PAGE_TOKENS`](crate::ir::PAGE_TOKENS).
    pub starts: Vec<u32>,
    /// State of the recurrent layers after the tokens that fill pages, in the backend's format. Empty if they
    /// fill none, or without such layers.
    pub state: Vec<u8>,
}

/// A snapshot that was read and passed all checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Everything except the pages.
    pub header: SnapshotHeader,
    bytes: Vec<u8>,
}

impl Snapshot {
    /// Each page's bytes, in the order of [`SnapshotHeader::starts`].
    pub fn pages(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.bytes.chunks_exact(self.header.layout.page_bytes().max(1))
    }
}

/// Why a snapshot was not written or not read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// A file operation failed.
    #[error("snapshot {}: cannot {action}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The attempted action.
        action: &'static str,
        /// The operating system's error.
        source: io::Error,
    },
    /// The bytes of a page could not be exported.
    #[error("snapshot: page {page} of the sequence: {source}")]
    Export {
        /// The page's index among the starts.
        page: usize,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The model has recurrent layers, and their state after the last whole page is gone.
    #[error("snapshot: the state behind the last whole page of the sequence is not kept")]
    NoState,
    /// Header and pages are inconsistent.
    #[error("snapshot: {0}")]
    Malformed(String),
    /// The file is not a snapshot.
    #[error("snapshot: expected a file that begins with OTTAVAKV")]
    NotASnapshot,
    /// The file has another version of the format.
    #[error("snapshot: version {found}, expected {VERSION}")]
    Version {
        /// The file's version.
        found: u64,
    },
    /// The file's length differs from the length by its header.
    #[error("snapshot: {found} bytes, expected {expected}")]
    Length {
        /// Length by the header; 0 if the file is too short for a header.
        expected: u64,
        /// The file's length in bytes.
        found: u64,
    },
    /// The checksum does not match the content.
    #[error("snapshot: checksum mismatch in {bytes} bytes")]
    Checksum {
        /// The file's length in bytes.
        bytes: u64,
    },
    /// The file belongs to another model or backend.
    #[error("snapshot: made by another model or backend")]
    Fingerprint {
        /// The expected fingerprint.
        expected: [u8; 32],
        /// The file's fingerprint.
        found: [u8; 32],
    },
    /// The file belongs to a pool with another layout.
    #[error("snapshot: layout {found:?}, expected {expected:?}")]
    Layout {
        /// The expected layout.
        expected: KvLayout,
        /// The file's layout.
        found: KvLayout,
    },
    /// The host is out of memory for the content.
    #[error("snapshot: no memory for {bytes} bytes")]
    HostMemory {
        /// Bytes needed.
        bytes: u64,
    },
}

impl SnapshotError {
    /// The error's kind, which a service can map to a status.
    pub fn kind(&self) -> ErrorKind {
        match self {
            SnapshotError::Io { source, .. } => source.into(),
            SnapshotError::Export { .. } => ErrorKind::Internal,
            SnapshotError::HostMemory { .. } => ErrorKind::OutOfMemory,
            _ => ErrorKind::Invalid,
        }
    }
}

/// Writes a snapshot to `path` atomically: after an error `path` is unchanged. `export` appends the bytes of
/// the page with the given index to an empty buffer.
///
/// # Errors
/// [`SnapshotError::Malformed`] if the header is inconsistent or a page has a wrong length,
/// [`SnapshotError::Export`], [`SnapshotError::Io`].
pub fn save(
    path: &Path,
    header: &SnapshotHeader,
    mut export: impl FnMut(usize, &mut Vec<u8>) -> Result<(), Box<dyn std::error::Error + Send + Sync>>,
) -> Result<(), SnapshotError> {
    let head = encode_head(header)?;
    let io = |action| move |source| SnapshotError::Io { path: path.to_owned(), action, source };
    let temporary = Temporary::beside(path).map_err(io("create"))?;
    let mut out = Hashing::new(temporary.file());
    out.write(&head).map_err(io("write"))?;
    let mut page = Vec::new();
    for index in 0..header.starts.len() {
        page.clear();
        export(index, &mut page).map_err(|source| SnapshotError::Export { page: index, source })?;
        check_page(index, page.len(), header.layout)?;
        out.write(&page).map_err(io("write"))?;
    }
    out.finish().map_err(io("write"))?;
    temporary.rename_to(path).map_err(io("put in place"))
}

/// Reads a snapshot that must match `fingerprint` and `layout`. Allocates no more than the file's size, and
/// only after the header has accounted for every byte of it.
///
/// # Errors
/// [`SnapshotError`] with the file's defect; a damaged file returns no content.
pub fn load(path: &Path, fingerprint: &[u8; 32], layout: &KvLayout) -> Result<Snapshot, SnapshotError> {
    Found::open(path, fingerprint, layout)?.read()
}

/// A snapshot with its head read and nothing verified yet.
pub(crate) struct Found<'a> {
    path: &'a Path,
    layout: KvLayout,
    body: Body<std::fs::File>,
}

impl Found<'_> {
    /// Opens a file with a head that matches `fingerprint` and `layout`.
    pub(crate) fn open<'a>(
        path: &'a Path,
        fingerprint: &[u8; 32],
        layout: &KvLayout,
    ) -> Result<Found<'a>, SnapshotError> {
        let (file, metadata) = open_regular(path).map_err(|source| io_error(path, "read", source))?;
        let body = Body::open(file, metadata.len()).map_err(|fault| fault.of(path))?;
        let (found, expected) = (body.fingerprint(), *fingerprint);
        if found != expected {
            return Err(SnapshotError::Fingerprint { expected, found });
        }
        let (found, expected) = (body.layout()?, *layout);
        if found != expected {
            return Err(SnapshotError::Layout { expected, found });
        }
        check_page(0, body.page_bytes(), expected)?;
        Ok(Found { path, layout: expected, body })
    }

    /// Number of pages by the head, which accounts for the file's length.
    pub(crate) fn pages(&self) -> usize {
        self.body.pages()
    }

    /// Bytes of state by the head, likewise.
    pub(crate) fn state_bytes(&self) -> usize {
        self.body.state_bytes()
    }

    /// Reads the whole file and verifies its content. The bytes used are the bytes checked.
    pub(crate) fn read(self) -> Result<Snapshot, SnapshotError> {
        let decoded = self.body.read().map_err(|fault| fault.of(self.path))?;
        debug_assert_eq!(decoded.header.layout, self.layout, "read from the same head");
        Ok(Snapshot { header: decoded.header, bytes: decoded.bytes })
    }
}

pub(crate) fn io_error(path: &Path, action: &'static str, source: io::Error) -> SnapshotError {
    SnapshotError::Io { path: path.to_owned(), action, source }
}

impl Fault {
    /// Converts the fault into an error of the file at `path`.
    fn of(self, path: &Path) -> SnapshotError {
        match self {
            Fault::Io(source) if source.kind() == io::ErrorKind::UnexpectedEof => {
                let cut = "it was cut short while it was read";
                io_error(path, "read", io::Error::new(source.kind(), cut))
            }
            Fault::Io(source) => io_error(path, "read", source),
            Fault::Content(error) => error,
        }
    }
}

fn check_page(page: usize, found: usize, layout: KvLayout) -> Result<(), SnapshotError> {
    let expected = layout.page_bytes();
    if found == expected {
        return Ok(());
    }
    Err(SnapshotError::Malformed(format!("page {page} has {found} bytes, expected {expected}")))
}
