//! One sequence in a file: its tokens and the bytes of its pages, whole or not at all.
//!
//! Little-endian throughout: the magic, then [`FIELDS`] numbers of 8 bytes, the fingerprint, the
//! tokens and page starts (4 bytes each), the pages, and BLAKE3 over all of it. A file is written
//! beside its name, synced and renamed, so that a crash leaves the old file or the new one. A file
//! that is cut, flipped, or of another model gives an error and nothing else: recompute then.
//!
//! What a page's bytes mean is the backend's secret, so the fingerprint must name the model and
//! whatever else the bytes depend on. To restore: `adopt` (or `allocate`, `reserve`, `advance`,
//! which also makes the prefix findable) and import the pages in the order of their starts.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use crate::backend::{KvDtype, KvLayout, PAGE_TOKENS, Window};
use crate::token::TokenId;

const MAGIC: &[u8; 8] = b"OTTAVAKV";
const VERSION: u64 = 1;
/// Version, layers, kv_heads, head_dim, dtype, page tokens, page bytes, window (0: none), sinks,
/// tokens, pages.
const FIELDS: usize = 11;
const HEAD_BYTES: usize = MAGIC.len() + 8 * FIELDS + 32;
const HASH_BYTES: usize = 32;

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
    /// The first position of each page, rising multiples of [`PAGE_TOKENS`].
    pub starts: Vec<u32>,
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
    let temporary = Temporary::beside(path)?;
    let io = |action| move |source| SnapshotError::Io { path: path.to_owned(), action, source };
    let mut out = Hashing { file: BufWriter::new(&temporary.file), hasher: blake3::Hasher::new() };
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
    let io = |source| SnapshotError::Io { path: path.to_owned(), action: "read", source };
    let file = File::open(path).map_err(io)?;
    let bytes = file.metadata().map_err(io)?.len();
    let snapshot = decode(file, bytes).map_err(|fault| match fault {
        Fault::Io(source) => io(source),
        Fault::Content(error) => error,
    })?;
    let header = &snapshot.header;
    if header.fingerprint != *fingerprint {
        return Err(SnapshotError::Fingerprint { expected: *fingerprint, found: header.fingerprint });
    }
    if header.layout != *layout {
        return Err(SnapshotError::Layout { expected: *layout, found: header.layout });
    }
    check_page(0, snapshot.page_bytes, *layout)?;
    Ok(Snapshot { header: snapshot.header, bytes: snapshot.bytes })
}

fn check_page(page: usize, found: usize, layout: KvLayout) -> Result<(), SnapshotError> {
    let expected = layout.page_bytes();
    if found == expected {
        return Ok(());
    }
    Err(SnapshotError::Malformed(format!("page {page} has {found} bytes, expected {expected}")))
}

/// Starts rise in whole pages, none lies behind the tokens, and the last one reaches their end
/// unless a window has left it behind.
fn check_header(header: &SnapshotHeader) -> Result<(), SnapshotError> {
    let fail = |text: String| Err(SnapshotError::Malformed(text));
    let len = header.tokens.len();
    if len == 0 || u32::try_from(len).is_err() {
        return fail(format!("{len} tokens, expected 1 to {}", u32::MAX));
    }
    if header.window.is_some_and(|window| window.window == 0) {
        return fail("an empty window".into());
    }
    if header.starts.windows(2).any(|pair| pair[0] >= pair[1]) {
        return fail("page starts do not rise".into());
    }
    let bad = |&&start: &&u32| start as usize >= len || !(start as usize).is_multiple_of(PAGE_TOKENS);
    match header.starts.iter().find(bad) {
        Some(start) => fail(format!("a page starts at {start} of {len} tokens")),
        None => Ok(()),
    }
}

fn encode_head(header: &SnapshotHeader) -> Result<Vec<u8>, SnapshotError> {
    check_header(header)?;
    let layout = &header.layout;
    let dtype = match layout.dtype {
        KvDtype::F16 => 0,
        KvDtype::Int8 => 1,
    };
    let (window, sinks) = header.window.map_or((0, 0), |w| (w.window, w.sinks));
    let fields: [u64; FIELDS] = [
        VERSION,
        layout.layers as u64,
        layout.kv_heads as u64,
        layout.head_dim as u64,
        dtype,
        PAGE_TOKENS as u64,
        layout.page_bytes() as u64,
        window.into(),
        sinks.into(),
        header.tokens.len() as u64,
        header.starts.len() as u64,
    ];
    let mut head = Vec::with_capacity(HEAD_BYTES + 4 * (header.tokens.len() + header.starts.len()));
    head.extend_from_slice(MAGIC);
    head.extend(fields.iter().flat_map(|field| field.to_le_bytes()));
    head.extend_from_slice(&header.fingerprint);
    head.extend(header.tokens.iter().flat_map(|token| token.0.to_le_bytes()));
    head.extend(header.starts.iter().flat_map(|start| start.to_le_bytes()));
    Ok(head)
}

/// A writer that remembers the hash of what passed.
struct Hashing<'a> {
    file: BufWriter<&'a File>,
    hasher: blake3::Hasher,
}

impl Hashing<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hasher.update(bytes);
        self.file.write_all(bytes)
    }

    fn finish(mut self) -> io::Result<()> {
        let hash = self.hasher.finalize();
        self.file.write_all(hash.as_bytes())?;
        self.file.flush()
    }
}

/// A file in the target's folder that vanishes unless it is renamed.
struct Temporary {
    path: PathBuf,
    file: File,
    folder: PathBuf,
}

impl Temporary {
    fn beside(target: &Path) -> Result<Temporary, SnapshotError> {
        let fail = |source| SnapshotError::Io { path: target.to_owned(), action: "create", source };
        let name = target.file_name().ok_or_else(|| fail(io::ErrorKind::InvalidFilename.into()))?;
        let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty());
        let folder = parent.unwrap_or(Path::new(".")).to_owned();
        for attempt in 0..1000 {
            let mut temporary = std::ffi::OsString::from(".");
            temporary.push(name);
            temporary.push(format!(".{}-{attempt}.tmp", std::process::id()));
            let path = folder.join(temporary);
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(file) => return Ok(Temporary { path, file, folder }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(fail(error)),
            }
        }
        Err(fail(io::ErrorKind::AlreadyExists.into()))
    }

    /// The content is on the disk before the name is, and the name before this returns.
    fn rename_to(self, target: &Path) -> io::Result<()> {
        self.file.sync_all()?;
        std::fs::rename(&self.path, target)?;
        if cfg!(unix) {
            File::open(&self.folder)?.sync_all()?;
        }
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // After a rename there is nothing to remove, and nobody to tell if there is.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// What went wrong inside `decode`: reading, or what was read.
enum Fault {
    Io(io::Error),
    Content(SnapshotError),
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Fault {
        Fault::Io(error)
    }
}

impl From<SnapshotError> for Fault {
    fn from(error: SnapshotError) -> Fault {
        Fault::Content(error)
    }
}

/// A whole file, not yet compared with what was asked for.
struct Decoded {
    header: SnapshotHeader,
    page_bytes: usize,
    bytes: Vec<u8>,
}

/// Reads `file_bytes` bytes: magic, version and lengths first, then all the rest, then the hash,
/// and only then is anything believed.
fn decode(mut file: impl Read, file_bytes: u64) -> Result<Decoded, Fault> {
    if file_bytes < (HEAD_BYTES + HASH_BYTES) as u64 {
        return Err(SnapshotError::Length { expected: 0, found: file_bytes }.into());
    }
    let mut head = [0; HEAD_BYTES];
    file.read_exact(&mut head)?;
    let fields = Fields::parse(&head)?;
    let lengths = fields.lengths(file_bytes)?;
    let mut lists = read_vec(&mut file, lengths.lists)?;
    let bytes = read_vec(&mut file, lengths.pages)?;
    let mut hash = [0; HASH_BYTES];
    file.read_exact(&mut hash)?;
    let mut hasher = blake3::Hasher::new();
    hasher.update(&head).update(&lists).update(&bytes);
    if hasher.finalize() != hash {
        return Err(SnapshotError::Checksum { bytes: file_bytes }.into());
    }
    let starts = lists.split_off(lengths.tokens);
    let header = fields.header(&head, &lists, &starts)?;
    Ok(Decoded { header, page_bytes: lengths.page, bytes })
}

/// `len` bytes, where the file is known to have that many.
fn read_vec(file: &mut impl Read, len: usize) -> Result<Vec<u8>, Fault> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len).map_err(|_| SnapshotError::HostMemory { bytes: len as u64 })?;
    if file.take(len as u64).read_to_end(&mut bytes)? < len {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    }
    Ok(bytes)
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u32> + '_ {
    bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word))
}

/// The numbers of the head, as they stand in the file.
struct Fields([u64; FIELDS]);

/// The lengths of a file's parts in bytes; they sum up to the file.
struct Lengths {
    tokens: usize,
    lists: usize,
    pages: usize,
    page: usize,
}

impl Fields {
    fn parse(head: &[u8; HEAD_BYTES]) -> Result<Fields, SnapshotError> {
        let Some(rest) = head.strip_prefix(MAGIC) else { return Err(SnapshotError::NotASnapshot) };
        let mut fields = [0; FIELDS];
        for (field, bytes) in fields.iter_mut().zip(rest.as_chunks::<8>().0) {
            *field = u64::from_le_bytes(*bytes);
        }
        let [found, ..] = fields;
        if found == VERSION { Ok(Fields(fields)) } else { Err(SnapshotError::Version { found }) }
    }

    fn lengths(&self, file_bytes: u64) -> Result<Lengths, SnapshotError> {
        let [.., page_bytes, _, _, tokens, pages] = self.0;
        let sum = || {
            let lists = tokens.checked_add(pages)?.checked_mul(4)?;
            let content = pages.checked_mul(page_bytes)?.checked_add(lists)?;
            content.checked_add((HEAD_BYTES + HASH_BYTES) as u64)
        };
        let expected = sum().unwrap_or(u64::MAX);
        if expected != file_bytes {
            return Err(SnapshotError::Length { expected, found: file_bytes });
        }
        // Each part is smaller than the file; on a 32-bit host the file may still be too large.
        let size = |bytes: u64| usize::try_from(bytes).map_err(|_| SnapshotError::HostMemory { bytes });
        Ok(Lengths {
            tokens: size(4 * tokens)?,
            lists: size(4 * (tokens + pages))?,
            pages: size(pages * page_bytes)?,
            page: size(page_bytes)?,
        })
    }

    fn header(
        &self,
        head: &[u8; HEAD_BYTES],
        tokens: &[u8],
        starts: &[u8],
    ) -> Result<SnapshotHeader, SnapshotError> {
        let [_, layers, kv_heads, head_dim, dtype, page_tokens, _, window, sinks, ..] = self.0;
        let malformed = |what: &str, found: u64| SnapshotError::Malformed(format!("{what} {found}"));
        let size = |what, found: u64| u32::try_from(found).map_err(|_| malformed(what, found));
        if page_tokens != PAGE_TOKENS as u64 {
            return Err(malformed("tokens of a page:", page_tokens));
        }
        let dtype = match dtype {
            0 => KvDtype::F16,
            1 => KvDtype::Int8,
            other => return Err(malformed("unknown dtype", other)),
        };
        let layout = KvLayout {
            layers: size("layers:", layers)? as usize,
            kv_heads: size("kv_heads:", kv_heads)? as usize,
            head_dim: size("head_dim:", head_dim)? as usize,
            dtype,
        };
        let (window, sinks) = (size("window:", window)?, size("sinks:", sinks)?);
        let window = Some(Window { window, sinks }).filter(|w| w.window > 0);
        let mut fingerprint = [0; 32];
        fingerprint.copy_from_slice(&head[HEAD_BYTES - 32..]);
        let tokens = words(tokens).map(TokenId).collect();
        let header = SnapshotHeader { fingerprint, layout, window, tokens, starts: words(starts).collect() };
        check_header(&header)?;
        Ok(header)
    }
}

#[cfg(test)]
#[path = "snapshot_tests.rs"]
mod tests;
