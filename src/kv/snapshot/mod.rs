//! One sequence in a file: its tokens and the bytes of its pages, whole or not at all.
//!
//! Little-endian throughout: the magic, 12 numbers of 8 bytes (`format.rs` lists them), the fingerprint, the
//! tokens and page starts (4 bytes each), the state, the pages, and BLAKE3 over all of it. A file is written
//! beside its name, synced and renamed, so that a crash leaves the old file or the new one. A file
//! that is cut, flipped, or of another model gives an error and nothing else: recompute then.
//!
//! What a page's bytes mean is the backend's secret, so the fingerprint must name the model and
//! whatever else the bytes depend on. To restore: `adopt` (or `allocate`, `reserve`, `advance`,
//! which also makes the prefix findable) and import the pages in the order of their starts.

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

/// What a snapshot holds beside the pages' bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotHeader {
    /// Model and backend that the bytes belong to.
    pub fingerprint: [u8; 32],
    /// The pool's layout.
    pub layout: KvLayout,
    /// The window under which the keys and values were computed.
    pub window: Option<Window>,
    /// The sequence's tokens from position 0.
    pub tokens: Vec<TokenId>,
    /// The first position of each page, rising multiples of [`PAGE_TOKENS`](crate::ir::PAGE_TOKENS).
    pub starts: Vec<u32>,
    /// What recurrent layers keep of the tokens that fill pages, as the backend gave it; empty where they fill none, or
    /// there are no such layers.
    pub state: Vec<u8>,
}

/// A snapshot that was read, checked and found whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// All but the pages.
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
    /// The file system refused.
    #[error("snapshot {}: cannot {action}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was attempted.
        action: &'static str,
        /// Its answer.
        source: io::Error,
    },
    /// The bytes of a page could not be had.
    #[error("snapshot: page {page} of the sequence: {source}")]
    Export {
        /// The page's index among the starts.
        page: usize,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The model has recurrent layers, and what they keep of the last whole page is gone.
    #[error("snapshot: the state behind the last whole page of the sequence is not kept")]
    NoState,
    /// Header and pages do not fit each other.
    #[error("snapshot: {0}")]
    Malformed(String),
    /// The file is not a snapshot.
    #[error("snapshot: expected a file that begins with OTTAVAKV")]
    NotASnapshot,
    /// The file is a later or earlier kind of snapshot.
    #[error("snapshot: version {found}, expected {VERSION}")]
    Version {
        /// The file's version.
        found: u64,
    },
    /// The file is shorter or longer than its header says.
    #[error("snapshot: {found} bytes, expected {expected}")]
    Length {
        /// What the header says (0: not even a header).
        expected: u64,
        /// The file's bytes.
        found: u64,
    },
    /// The content is not what was written.
    #[error("snapshot: checksum mismatch in {bytes} bytes")]
    Checksum {
        /// The file's bytes.
        bytes: u64,
    },
    /// The file belongs to another model or backend.
    #[error("snapshot: made by another model or backend")]
    Fingerprint {
        /// What was asked for.
        expected: [u8; 32],
        /// The file's.
        found: [u8; 32],
    },
    /// The file belongs to a pool of another shape.
    #[error("snapshot: layout {found:?}, expected {expected:?}")]
    Layout {
        /// What was asked for.
        expected: KvLayout,
        /// The file's.
        found: KvLayout,
    },
    /// There is no memory for the content.
    #[error("snapshot: no memory for {bytes} bytes")]
    HostMemory {
        /// Bytes asked for.
        bytes: u64,
    },
}

impl SnapshotError {
    /// What to do about it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            SnapshotError::Io { source, .. } => source.into(),
            SnapshotError::Export { .. } => ErrorKind::Internal,
            SnapshotError::HostMemory { .. } => ErrorKind::OutOfMemory,
            _ => ErrorKind::Invalid,
        }
    }
}

/// Writes a snapshot to `path`: all of it, or `path` stays as it was. `export` appends the bytes
/// of the page with the given index to an empty buffer.
///
/// # Errors
/// [`SnapshotError::Malformed`] if the header contradicts itself or a page has a wrong length,
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

/// Reads a snapshot that must belong to `fingerprint` and `layout`. Allocates no more than the
/// file's size, and only after the header has accounted for every byte of it.
///
/// # Errors
/// [`SnapshotError`] says what is wrong with the file; of a damaged file nothing is returned.
pub fn load(path: &Path, fingerprint: &[u8; 32], layout: &KvLayout) -> Result<Snapshot, SnapshotError> {
    Found::open(path, fingerprint, layout)?.read()
}

/// A snapshot of which the beginning has been read, and nothing is believed yet.
pub(crate) struct Found<'a> {
    path: &'a Path,
    layout: KvLayout,
    body: Body<std::fs::File>,
}

impl Found<'_> {
    /// Opens a file whose beginning says that it belongs to `fingerprint` and `layout`.
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

    /// Pages that the file says it has: it is as long as that.
    pub(crate) fn pages(&self) -> usize {
        self.body.pages()
    }

    /// Bytes of state that it has, likewise.
    pub(crate) fn state_bytes(&self) -> usize {
        self.body.state_bytes()
    }

    /// Reads all of it, and checks that it is what was written. What is used is what was checked.
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
    /// As an error of the file at `path`.
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
