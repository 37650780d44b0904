//! Read-only queries of the accounting: about a sequence, and about one that could be started.

use super::{KvCacheManager, KvError, SeqId, SequenceSpec, window};
use crate::ir::{PAGE_TOKENS, PageRef, StateSlot, StateSlots, Window};
use crate::token::TokenId;

impl KvCacheManager {
    /// Number of tokens of `prompt` that a new sequence would find cached, as in
    /// [`KvCacheManager::allocate`]. With recurrent states, that may find fewer. Nothing is reserved, so a
    /// later call may find others.
    pub fn cached_tokens(&self, prompt: &[TokenId], spec: &SequenceSpec) -> usize {
        let shareable = prompt.len().saturating_sub(1).min(window::unclipped(spec.window));
        let prompt = prompt.get(..shareable).unwrap_or_default();
        let pages = prompt.chunks_exact(PAGE_TOKENS).scan(None, |past, tokens| {
            let (hash, _) = self.find(past.as_ref(), spec, tokens)?;
            *past = Some(hash);
            Some(())
        });
        PAGE_TOKENS * pages.count()
    }

    /// Number of tokens with written keys and values.
    ///
    /// # Errors
    /// [`KvError::StaleSequence`].
    pub fn len(&self, seq: SeqId) -> Result<usize, KvError> {
        Ok(self.sequences.get(seq)?.len())
    }

    /// Most tokens that the sequence may have.
    ///
    /// # Errors
    /// [`KvError::StaleSequence`].
    pub fn tokens_max(&self, seq: SeqId) -> Result<usize, KvError> {
        Ok(self.sequences.get(seq)?.spec.tokens_max)
    }

    /// The sequence's window.
    ///
    /// # Errors
    /// [`KvError::StaleSequence`].
    pub fn window(&self, seq: SeqId) -> Result<Option<Window>, KvError> {
        Ok(self.sequences.get(seq)?.spec.window)
    }

    /// The tokens of positions `0 .. len`.
    ///
    /// # Errors
    /// [`KvError::StaleSequence`].
    pub fn tokens(&self, seq: SeqId) -> Result<&[TokenId], KvError> {
        Ok(&self.sequences.get(seq)?.tokens)
    }

    /// The sequence's pages by rising start, including reserved ones, as required by
    /// [`StepInput::pages`](crate::ir::StepInput).
    ///
    /// # Errors
    /// [`KvError::StaleSequence`].
    pub fn pages(&self, seq: SeqId) -> Result<&[PageRef], KvError> {
        Ok(self.sequences.get(seq)?.table.live())
    }

    /// The slots of state that the next step reads and writes; `None` without recurrent states or a
    /// reservation.
    ///
    /// # Errors
    /// [`KvError::StaleSequence`].
    pub fn states(&self, seq: SeqId) -> Result<Option<StateSlots>, KvError> {
        let sequence = self.sequences.get(seq)?;
        Ok(sequence.next_state.map(|write| StateSlots { read: sequence.state, write }))
    }

    /// The slot with the state after the last page that `len` tokens fill. These tokens are those of the
    /// sequence now, or after the step in flight. `None` if they fill no page, or if the state is gone.
    ///
    /// # Errors
    /// [`KvError::StaleSequence`].
    pub fn state_of_whole_pages(&self, seq: SeqId, len: usize) -> Result<Option<StateSlot>, KvError> {
        let sequence = self.sequences.get(seq)?;
        let whole = len / PAGE_TOKENS * PAGE_TOKENS;
        Ok(match sequence.len() {
            own if whole == own => sequence.state,
            _ if whole == len => sequence.next_state,
            _ => None,
        })
    }

    /// How many of the next `tokens` a step should compute, so that the state after them can be kept. If
    /// states can be shared, these are the tokens up to the last full page, if there are any; else all.
    ///
    /// # Errors
    /// [`KvError::StaleSequence`].
    pub fn to_a_whole_page(&self, seq: SeqId, tokens: usize) -> Result<usize, KvError> {
        let sequence = self.sequences.get(seq)?;
        let end = sequence.len().saturating_add(tokens).min(window::unclipped(sequence.spec.window));
        let whole = (end / PAGE_TOKENS * PAGE_TOKENS).saturating_sub(sequence.len());
        let keeps = self.states.is_used() && self.pool.prefix.shares();
        Ok(if keeps && whole > 0 { whole } else { tokens })
    }
}
