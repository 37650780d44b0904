//! Encoding of a snapshot: writes the head, and decodes and checks a whole file. The layout is described in
//! `mod.rs`, which also handles files and folders.

use std::io::{self, Read};

use super::{SnapshotError, SnapshotHeader};
use crate::ir::{KvDtype, KvLayout, PAGE_TOKENS, Window};
use crate::token::TokenId;

const MAGIC: &[u8; 8] = b"OTTAVAKV";
pub(super) const VERSION: u64 = 2;
/// Version, layers, kv_heads, head_dim, dtype, page tokens, page bytes, window (0: none), sinks,
/// tokens, pages, bytes of state.
const FIELDS: usize = 12;
pub(super) const HEAD_BYTES: usize = MAGIC.len() + 8 * FIELDS + 32;
pub(super) const HASH_BYTES: usize = 32;

/// Checks the tokens and the window, and that page starts rise in whole pages and lie within the tokens.
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

pub(super) fn encode_head(header: &SnapshotHeader) -> Result<Vec<u8>, SnapshotError> {
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
        header.state.len() as u64,
    ];
    let lists = 4 * (header.tokens.len() + header.starts.len()) + header.state.len();
    let mut head = Vec::with_capacity(HEAD_BYTES + lists);
    head.extend_from_slice(MAGIC);
    head.extend(fields.iter().flat_map(|field| field.to_le_bytes()));
    head.extend_from_slice(&header.fingerprint);
    head.extend(header.tokens.iter().flat_map(|token| token.0.to_le_bytes()));
    head.extend(header.starts.iter().flat_map(|start| start.to_le_bytes()));
    head.extend_from_slice(&header.state);
    Ok(head)
}

/// A failure while a file is decoded: an I/O error, or invalid content.
pub(super) enum Fault {
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

/// The content of a whole file with a valid checksum.
pub(super) struct Decoded {
    pub(super) header: SnapshotHeader,
    pub(super) bytes: Vec<u8>,
}

/// A file with its head read. The head's numbers account for every byte of the file, but are not verified
/// yet.
pub(super) struct Body<R> {
    file: R,
    file_bytes: u64,
    head: [u8; HEAD_BYTES],
    fields: Fields,
    lengths: Lengths,
}

impl<R: Read> Body<R> {
    /// Reads magic, version and lengths of a file of `file_bytes` bytes.
    pub(super) fn open(mut file: R, file_bytes: u64) -> Result<Body<R>, Fault> {
        if file_bytes < (HEAD_BYTES + HASH_BYTES) as u64 {
            return Err(SnapshotError::Length { expected: 0, found: file_bytes }.into());
        }
        let mut head = [0; HEAD_BYTES];
        file.read_exact(&mut head)?;
        let fields = Fields::parse(&head)?;
        let lengths = fields.lengths(file_bytes)?;
        Ok(Body { file, file_bytes, head, fields, lengths })
    }

    pub(super) fn fingerprint(&self) -> [u8; 32] {
        fingerprint(&self.head)
    }

    pub(super) fn layout(&self) -> Result<KvLayout, SnapshotError> {
        self.fields.layout()
    }

    pub(super) fn pages(&self) -> usize {
        self.lengths.pages.checked_div(self.lengths.page).unwrap_or(0)
    }

    pub(super) fn page_bytes(&self) -> usize {
        self.lengths.page
    }

    pub(super) fn state_bytes(&self) -> usize {
        self.lengths.state
    }

    /// Reads the rest and the hash; nothing is used before the hash has been checked.
    pub(super) fn read(mut self) -> Result<Decoded, Fault> {
        let mut lists = read_vec(&mut self.file, self.lengths.lists)?;
        let state = read_vec(&mut self.file, self.lengths.state)?;
        let bytes = read_vec(&mut self.file, self.lengths.pages)?;
        let mut hash = [0; HASH_BYTES];
        self.file.read_exact(&mut hash)?;
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.head).update(&lists).update(&state).update(&bytes);
        if hasher.finalize() != hash {
            return Err(SnapshotError::Checksum { bytes: self.file_bytes }.into());
        }
        let starts = lists.split_off(self.lengths.tokens);
        let header = SnapshotHeader { state, ..self.fields.header(&self.head, &lists, &starts)? };
        Ok(Decoded { header, bytes })
    }
}

fn fingerprint(head: &[u8; HEAD_BYTES]) -> [u8; 32] {
    let mut fingerprint = [0; 32];
    fingerprint.copy_from_slice(&head[HEAD_BYTES - 32..]);
    fingerprint
}

/// Reads `len` bytes, which the file's length has to cover.
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

/// The numbers of the head, as stored in the file.
struct Fields([u64; FIELDS]);

/// The lengths of a file's parts in bytes; together with head and hash they add up to the file.
struct Lengths {
    tokens: usize,
    lists: usize,
    state: usize,
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
        let [.., page_bytes, _, _, tokens, pages, state] = self.0;
        let sum = || {
            let lists = tokens.checked_add(pages)?.checked_mul(4)?;
            let content = pages.checked_mul(page_bytes)?.checked_add(lists)?.checked_add(state)?;
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
            state: size(state)?,
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
        let [_, _, _, _, _, _, _, window, sinks, ..] = self.0;
        let layout = self.layout()?;
        let (window, sinks) = (small("window:", window)?, small("sinks:", sinks)?);
        let window = Some(Window { window, sinks }).filter(|w| w.window > 0);
        let tokens = words(tokens).map(TokenId).collect();
        let fingerprint = fingerprint(head);
        let starts = words(starts).collect();
        let header = SnapshotHeader { fingerprint, layout, window, tokens, starts, state: Vec::new() };
        check_header(&header)?;
        Ok(header)
    }

    fn layout(&self) -> Result<KvLayout, SnapshotError> {
        let [_, layers, kv_heads, head_dim, dtype, page_tokens, ..] = self.0;
        if page_tokens != PAGE_TOKENS as u64 {
            return Err(malformed("tokens of a page:", page_tokens));
        }
        let dtype = match dtype {
            0 => KvDtype::F16,
            1 => KvDtype::Int8,
            other => return Err(malformed("unknown dtype", other)),
        };
        Ok(KvLayout {
            layers: small("layers:", layers)? as usize,
            kv_heads: small("kv_heads:", kv_heads)? as usize,
            head_dim: small("head_dim:", head_dim)? as usize,
            dtype,
        })
    }
}

fn malformed(what: &str, found: u64) -> SnapshotError {
    SnapshotError::Malformed(format!("{what} {found}"))
}

/// Converts a number to 32 bits.
fn small(what: &str, found: u64) -> Result<u32, SnapshotError> {
    u32::try_from(found).map_err(|_| malformed(what, found))
}
