//! Saving a prompt's keys and values, and putting saved ones back into the cache. Files are read
//! and written on the caller's thread; the engine's thread only copies pages.

use std::sync::mpsc::SyncSender;

use super::generation::GenerationError;
use super::sequence::Outcome;
use crate::backend::{PAGE_TOKENS, PageRef};
use crate::kv::snapshot::{Snapshot, SnapshotHeader};
use crate::kv::{KvCacheManager, KvError, SeqId, SequenceSpec};
use crate::model::{Decoder, ModelError};
use crate::token::TokenId;

/// Why a snapshot that was read could not be put into the cache. The cache is as it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// Keys and values that were computed under a window are of no use to others.
    #[error("the snapshot was made with a sliding window")]
    Window,
    /// It has a token that the model has not.
    #[error("the snapshot has token {token}, outside the vocabulary of {vocab_size}")]
    Token {
        /// The token.
        token: TokenId,
        /// Tokens of the vocabulary.
        vocab_size: usize,
    },
    /// It does not have all pages of its tokens.
    #[error("the snapshot has {found} pages, expected {expected}")]
    Pages {
        /// Pages of its tokens.
        expected: usize,
        /// Pages in the file.
        found: usize,
    },
    /// The engine does not reuse prefixes, so nothing would find what is restored.
    #[error("prefix reuse is off: nothing would use the snapshot")]
    ReuseOff,
    /// The KV cache has no room, or refused otherwise.
    #[error("KV cache: {0}")]
    Kv(#[from] KvError),
    /// The model refused a page.
    #[error("page not restored: {0}")]
    Model(#[from] ModelError),
}

/// A sequence's content, on its way to a file.
#[derive(Debug)]
pub(super) struct Saved {
    pub(super) header: SnapshotHeader,
    /// The pages, one behind the other.
    pub(super) bytes: Vec<u8>,
}

/// What the caller waits for.
pub(super) type SaveReply = Result<Saved, GenerationError>;

#[derive(Debug)]
pub(super) struct SaveTask {
    saved: Option<Saved>,
    reply: SyncSender<SaveReply>,
}

impl SaveTask {
    pub(super) fn new(reply: SyncSender<SaveReply>) -> SaveTask {
        SaveTask { saved: None, reply }
    }

    /// Copies the pages of a sequence that is computed to its end.
    pub(super) fn take(
        &mut self,
        tokens: &[TokenId],
        pages: &[PageRef],
        decoder: &impl Decoder,
    ) -> Result<(), ModelError> {
        let layout = decoder.kv_layout();
        let mut bytes = Vec::with_capacity(pages.len() * layout.page_bytes());
        for entry in pages {
            decoder.export_page(entry.page, &mut bytes)?;
        }
        let header = SnapshotHeader {
            fingerprint: decoder.fingerprint(),
            layout,
            window: None,
            tokens: tokens.to_vec(),
            starts: pages.iter().map(|entry| entry.start).collect(),
        };
        self.saved = Some(Saved { header, bytes });
        Ok(())
    }

    /// Answers the caller. One that waits no more needs no answer.
    pub(super) fn conclude(self, outcome: Outcome) {
        let answer = match (outcome, self.saved) {
            (Outcome::Finished(_), Some(saved)) => Ok(saved),
            (Outcome::Failed(error), _) => Err(error),
            (Outcome::Finished(_), None) => Err(GenerationError::Stopped),
        };
        let _ = self.reply.send(answer);
    }
}

/// Checks what the file's own checksum cannot: that the snapshot makes sense to this engine.
pub(super) fn check(snapshot: &Snapshot, vocab_size: usize) -> Result<(), RestoreError> {
    let header = &snapshot.header;
    if header.window.is_some() {
        return Err(RestoreError::Window);
    }
    if let Some(&token) = header.tokens.iter().find(|token| token.index() >= vocab_size) {
        return Err(RestoreError::Token { token, vocab_size });
    }
    let expected = header.tokens.len().div_ceil(PAGE_TOKENS);
    let found = snapshot.pages().len();
    if header.starts.len() != expected || found != expected {
        return Err(RestoreError::Pages { expected, found });
    }
    Ok(())
}

/// Puts the full pages of a checked snapshot into the cache, where the next request with the same
/// beginning finds them. Returns the tokens that they hold.
pub(super) fn restore(
    snapshot: &Snapshot,
    kv: &mut KvCacheManager,
    decoder: &mut impl Decoder,
) -> Result<usize, RestoreError> {
    let tokens = &snapshot.header.tokens;
    let full = tokens.len() / PAGE_TOKENS * PAGE_TOKENS;
    let Some(tokens) = tokens.get(..full).filter(|tokens| !tokens.is_empty()) else { return Ok(0) };
    let allocation = kv.allocate(tokens, SequenceSpec { tokens_max: full, window: None })?;
    let seq = allocation.seq;
    let filled = fill(snapshot, allocation.cached_tokens, seq, kv, decoder);
    match filled.and_then(|()| Ok(kv.advance(seq, &tokens[allocation.cached_tokens..])?)) {
        Ok(()) => {
            kv.release(seq)?;
            Ok(full)
        }
        Err(error) => {
            // Only pages behind `cached_tokens` were touched, and those were never advanced over.
            kv.release(seq)?;
            Err(error)
        }
    }
}

/// Imports all full pages behind `cached_tokens`.
fn fill(
    snapshot: &Snapshot,
    cached_tokens: usize,
    seq: SeqId,
    kv: &mut KvCacheManager,
    decoder: &mut impl Decoder,
) -> Result<(), RestoreError> {
    let full = kv.tokens_max(seq)?;
    for copy in kv.reserve(seq, full - cached_tokens)? {
        decoder.copy_page(copy.from, copy.to)?;
    }
    let cached_pages = cached_tokens / PAGE_TOKENS;
    for (entry, bytes) in kv.pages(seq)?.iter().zip(snapshot.pages()).skip(cached_pages) {
        decoder.import_page(entry.page, bytes)?;
    }
    Ok(())
}
