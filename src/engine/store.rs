//! Prompts saved to files and restored from them. The caller's thread reads and writes the file;
//! the engine's thread copies pages to and from memory and nothing else, so that a slow disk
//! stalls no step. The format and its checks are in `kv::snapshot`.

use std::path::Path;
use std::sync::Arc;

use super::failure::Failure;
use super::stats::{Counters, SnapshotBytes};
use super::{EngineConfig, RestoreError};
use crate::ir::{KvLayout, PAGE_TOKENS, PageRef};
use crate::kv::snapshot::{self, Snapshot, SnapshotError, SnapshotHeader};
use crate::model::{Decoder, ModelError};
use crate::token::TokenId;

/// Where a snapshot has to fit: what the callers' threads know of the decoder.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) fingerprint: [u8; 32],
    pub(super) layout: KvLayout,
    pub(super) pages: usize,
    vocab: usize,
    share_prefixes: bool,
}

impl Place {
    pub(super) fn of(decoder: &impl Decoder, config: &EngineConfig) -> Place {
        Place {
            fingerprint: decoder.fingerprint(),
            layout: decoder.kv_layout(),
            pages: decoder.pages(),
            vocab: decoder.vocab_size(),
            share_prefixes: config.share_prefixes,
        }
    }

    /// What the file's own checksum cannot tell: whether the snapshot makes sense here.
    pub(super) fn check(&self, snapshot: &Snapshot) -> Result<(), RestoreError> {
        let header = &snapshot.header;
        if !self.share_prefixes {
            return Err(RestoreError::SharingOff);
        }
        if header.window.is_some() {
            return Err(RestoreError::Window);
        }
        if let Some(&token) = header.tokens.iter().find(|token| token.index() >= self.vocab) {
            return Err(RestoreError::Token { token, vocab: self.vocab });
        }
        let (expected, found) = (header.tokens.len().div_ceil(PAGE_TOKENS), header.starts.len());
        if found != expected {
            return Err(RestoreError::Pages { expected, found });
        }
        self.check_pages(found)
    }

    /// Whether `needed` pages have room in the cache: known before they are read.
    pub(super) fn check_pages(&self, needed: usize) -> Result<(), RestoreError> {
        let pages = self.pages;
        if needed > pages { Err(RestoreError::TooLarge { needed, pages }) } else { Ok(()) }
    }
}

/// A sequence's pages in memory, on their way to a file.
#[derive(Debug)]
pub(super) struct Exported {
    header: SnapshotHeader,
    /// The pages, one behind the other.
    bytes: Vec<u8>,
    _counted: SnapshotBytes,
}

impl Exported {
    /// Copies out the pages that hold `tokens`.
    ///
    /// # Errors
    /// [`Failure::HostMemory`], [`Failure::Step`].
    pub(super) fn copy(
        decoder: &impl Decoder,
        pages: &[PageRef],
        tokens: &[TokenId],
        counters: &Arc<Counters>,
    ) -> Result<Exported, Failure> {
        let layout = decoder.kv_layout();
        let size = pages.len().saturating_mul(layout.page_bytes());
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(size).map_err(|_| Failure::HostMemory(size))?;
        let _counted = SnapshotBytes::count(counters, size);
        for entry in pages {
            decoder.export_page(entry.page, &mut bytes)?;
        }
        let (fingerprint, tokens) = (decoder.fingerprint(), tokens.to_vec());
        let starts = pages.iter().map(|entry| entry.start).collect();
        let header = SnapshotHeader { fingerprint, layout, window: None, tokens, starts };
        Ok(Exported { header, bytes, _counted })
    }

    /// Writes the file: all of it, or `path` stays as it was.
    pub(super) fn write(&self, path: &Path) -> Result<(), SnapshotError> {
        let page_bytes = self.header.layout.page_bytes();
        snapshot::save(path, &self.header, |index, out| {
            // A page that were not there would be too short, which `save` refuses.
            out.extend(self.bytes.chunks(page_bytes).nth(index).unwrap_or_default());
            Ok(())
        })
    }
}

/// Fills the pages behind the first `cached` tokens, which are whole pages.
///
/// # Errors
/// Those of [`Decoder::import_page`].
pub(super) fn import(
    decoder: &mut impl Decoder,
    pages: &[PageRef],
    cached: usize,
    snapshot: &Snapshot,
) -> Result<(), ModelError> {
    let mut filled = pages.iter().zip(snapshot.pages()).skip(cached / PAGE_TOKENS);
    filled.try_for_each(|(entry, bytes)| decoder.import_page(entry.page, bytes))
}
