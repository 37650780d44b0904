//! Restores a saved prompt into the cache.

use super::Worker;
use crate::engine::EngineError;
use crate::engine::plan::Pages;
use crate::engine::stats::SnapshotBytes;
use crate::engine::store::{import, import_state};
use crate::ir::PAGE_TOKENS;
use crate::kv::{Allocation, SequenceSpec, snapshot::Snapshot};
use crate::model::Decoder;
use crate::token::TokenId;

impl<D: Decoder> Worker<D> {
    /// Puts a checked snapshot's pages where requests with the same beginning find them. Pages that the cache
    /// already has stay. Returns the number of the snapshot's tokens.
    pub(super) fn restore(&mut self, snapshot: &Snapshot) -> Result<usize, EngineError> {
        let (tokens, state) = (&snapshot.header.tokens, &snapshot.header.state);
        let bytes = snapshot.pages().len() * self.runner.decoder.kv_layout().page_bytes() + state.len();
        let _counted = SnapshotBytes::count(&self.counters, bytes);
        let spec = SequenceSpec { tokens_max: tokens.len(), window: None, salt: None };
        // A state belongs to whole pages.
        let found =
            if self.kv.has_states() { tokens.len() / PAGE_TOKENS * PAGE_TOKENS } else { tokens.len() };
        let Some(found) = tokens.get(..found).filter(|found| !found.is_empty()) else {
            return Ok(tokens.len());
        };
        let allocation = self.kv.allocate(found, spec)?;
        let filled = self.fill(allocation, found, snapshot);
        // The accounting has not advanced over unfilled pages, so no prefix is found in them.
        let released = self.kv.release(allocation.seq);
        debug_assert!(released.is_ok(), "the restored sequence is live: {released:?}");
        filled.map(|()| tokens.len())
    }

    /// Fills the pages of `tokens` that the cache did not have.
    fn fill(
        &mut self,
        allocation: Allocation,
        tokens: &[TokenId],
        snapshot: &Snapshot,
    ) -> Result<(), EngineError> {
        let Allocation { seq, cached_tokens } = allocation;
        let rest = tokens.get(cached_tokens..).unwrap_or_default();
        let Worker { table, kv, plan, .. } = self;
        // The plan's step has ended: its secured parts must not keep sequences from giving up a state now.
        plan.clear();
        let reserved = Pages { table, kv, plan }.reserve(seq, rest.len(), None);
        self.count_preempted();
        reserved?;
        self.publish();
        let state = self.kv.states(seq)?.map(|slots| slots.write);
        let Worker { runner, kv, .. } = self;
        let imported = import(&mut runner.decoder, kv.pages(seq)?, cached_tokens, snapshot)
            .and_then(|()| state.map_or(Ok(()), |slot| import_state(&mut runner.decoder, slot, snapshot)));
        imported.map_err(|error| self.fatal(error.into()))?;
        Ok(self.kv.advance(seq, rest)?)
    }
}
