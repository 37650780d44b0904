//! Prompt snapshots: copies pages between decoder and memory, and checks that a snapshot fits this engine.
//! The caller's thread reads and writes the file; the engine's thread only copies, so that a slow disk stalls
//! no step. The format and its checks are in `kv::snapshot`.

use std::path::Path;
use std::sync::Arc;

use super::failure::Failure;
use super::stats::{Counters, SnapshotBytes};
use super::{EngineConfig, RestoreError};
use crate::ir::{KvLayout, PAGE_TOKENS, PageRef, StateSlot};
use crate::kv::snapshot::{self, Found, Snapshot, SnapshotError, SnapshotHeader};
use crate::model::{Decoder, ModelError, no_such_slot};
use crate::token::TokenId;

/// Properties of the decoder that a snapshot must match, for the callers' threads.
#[derive(Clone, Copy, Debug)]
pub(super) struct SnapshotSpec {
    pub(super) fingerprint: [u8; 32],
    pub(super) layout: KvLayout,
    pub(super) pages: usize,
    vocab: usize,
    share_prefixes: bool,
    /// Bytes of a state.
    state_bytes: usize,
}

impl SnapshotSpec {
    pub(super) fn of(decoder: &impl Decoder, config: &EngineConfig) -> SnapshotSpec {
        SnapshotSpec {
            fingerprint: decoder.fingerprint(),
            layout: decoder.kv_layout(),
            pages: decoder.pages(),
            vocab: decoder.vocab_size(),
            share_prefixes: config.share_prefixes,
            state_bytes: decoder.states().elements.saturating_mul(size_of::<f32>()),
        }
    }

    /// Checks that a snapshot fits this engine, beyond the file's own checksum.
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
        let expected = if header.tokens.len() < PAGE_TOKENS { 0 } else { self.state_bytes };
        let found = header.state.len();
        if found != expected {
            return Err(RestoreError::State { expected, found });
        }
        let (expected, found) = (header.tokens.len().div_ceil(PAGE_TOKENS), header.starts.len());
        if found != expected {
            return Err(RestoreError::Pages { expected, found });
        }
        self.check_pages(found)
    }

    /// Checks, before the pages are read, that they fit in the cache and that the state is not too long.
    pub(super) fn check_size(&self, found: &Found<'_>) -> Result<(), RestoreError> {
        let (expected, state) = (self.state_bytes, found.state_bytes());
        if state > expected {
            return Err(RestoreError::State { expected, found: state });
        }
        self.check_pages(found.pages())
    }

    fn check_pages(&self, needed: usize) -> Result<(), RestoreError> {
        let pages = self.pages;
        if needed > pages { Err(RestoreError::TooLarge { needed, pages }) } else { Ok(()) }
    }
}

/// A sequence's pages in memory, on their way to a file.
#[derive(Debug)]
pub(super) struct Exported {
    header: SnapshotHeader,
    /// The pages, concatenated.
    bytes: Vec<u8>,
    _counted: SnapshotBytes,
}

impl Exported {
    /// Copies out the pages that hold `tokens`, and the state after the whole pages.
    ///
    /// # Errors
    /// [`Failure::HostMemory`], [`Failure::Step`].
    pub(super) fn copy(
        decoder: &impl Decoder,
        (pages, state): (&[PageRef], Option<StateSlot>),
        tokens: &[TokenId],
        counters: &Arc<Counters>,
    ) -> Result<Exported, Failure> {
        let layout = decoder.kv_layout();
        let state = state.map_or(Ok(Vec::new()), |slot| export_state(decoder, slot))?;
        let size = pages.len().saturating_mul(layout.page_bytes()).saturating_add(state.len());
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(size).map_err(|_| Failure::HostMemory(size))?;
        let _counted = SnapshotBytes::count(counters, size);
        for entry in pages {
            decoder.kv().export_page(entry.page, &mut bytes).map_err(ModelError::from)?;
        }
        let (fingerprint, tokens) = (decoder.fingerprint(), tokens.to_vec());
        let starts = pages.iter().map(|entry| entry.start).collect();
        let header = SnapshotHeader { fingerprint, layout, window: None, tokens, starts, state };
        Ok(Exported { header, bytes, _counted })
    }

    /// Writes the file atomically: after an error `path` is unchanged.
    pub(super) fn write(&self, path: &Path) -> Result<(), SnapshotError> {
        let page_bytes = self.header.layout.page_bytes();
        snapshot::save(path, &self.header, |index, out| {
            // A missing page would be too short, which `save` refuses.
            out.extend(self.bytes.chunks(page_bytes).nth(index).unwrap_or_default());
            Ok(())
        })
    }
}

/// Fills the pages after the first `cached` tokens, which are whole pages.
///
/// # Errors
/// Those of [`PageMemory::import_page`](crate::model::PageMemory::import_page).
pub(super) fn import(
    decoder: &mut impl Decoder,
    pages: &[PageRef],
    cached: usize,
    snapshot: &Snapshot,
) -> Result<(), ModelError> {
    let mut filled = pages.iter().zip(snapshot.pages()).skip(cached / PAGE_TOKENS);
    let kv = decoder.kv_mut();
    Ok(filled.try_for_each(|(entry, bytes)| kv.import_page(entry.page, bytes))?)
}

/// A state in the file's form: f32, little-endian.
fn export_state(decoder: &impl Decoder, slot: StateSlot) -> Result<Vec<u8>, Failure> {
    let (mut values, elements) = (Vec::new(), decoder.states().elements);
    let no_memory = |_| Failure::HostMemory(elements.saturating_mul(size_of::<f32>()));
    values.try_reserve_exact(elements).map_err(no_memory)?;
    values.resize(elements, 0.0);
    let states = decoder.kv().states().ok_or_else(|| no_such_slot(slot))?;
    states.read(slot, &mut values).map_err(ModelError::from)?;
    Ok(values.iter().flat_map(|value| value.to_le_bytes()).collect())
}

/// Fills a slot with a snapshot's state.
///
/// # Errors
/// Those of [`StateMemory::write`](crate::model::StateMemory::write).
pub(super) fn import_state(
    decoder: &mut impl Decoder,
    slot: StateSlot,
    snapshot: &Snapshot,
) -> Result<(), ModelError> {
    let words = snapshot.header.state.as_chunks::<4>().0;
    let values: Vec<f32> = words.iter().map(|word| f32::from_le_bytes(*word)).collect();
    let states = decoder.kv_mut().states_mut().ok_or_else(|| no_such_slot(slot))?;
    Ok(states.write(slot, &values)?)
}
