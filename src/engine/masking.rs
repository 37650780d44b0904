//! A request's mask at work. It is the caller's code: what it does wrong is its own request's failure.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::sample::{SampleError, TokenMask, TokenSet};
use crate::token::TokenId;

/// A mask and its set.
pub(super) struct Masking {
    /// None once it is dropped.
    mask: Option<Box<dyn TokenMask>>,
    allowed: TokenSet,
}

impl Masking {
    pub(super) fn new(mask: Box<dyn TokenMask>) -> Masking {
        Masking { mask: Some(mask), allowed: TokenSet::default() }
    }

    /// What may come behind an answer.
    pub(super) fn allowed(&mut self, answer: &[TokenId], vocab: usize) -> Result<&TokenSet, SampleError> {
        if self.allowed.vocab() == vocab {
            self.allowed.clear();
        } else {
            self.allowed = TokenSet::new(vocab);
        }
        if let Some(mask) = &mut self.mask {
            guard(|| mask.allowed(answer, &mut self.allowed))?;
        }
        self.allowed.check()?;
        Ok(&self.allowed)
    }

    /// What must come behind an answer, `most` tokens of it.
    pub(super) fn forced(
        &mut self,
        answer: &[TokenId],
        most: usize,
        vocab: usize,
    ) -> Result<&[TokenId], SampleError> {
        let Some(mask) = &mut self.mask else { return Ok(&[]) };
        let forced = guard(|| mask.forced(answer))?;
        let forced = forced.get(..most).unwrap_or(forced);
        match forced.iter().find(|token| token.index() >= vocab) {
            Some(&token) => Err(SampleError::MaskToken { token, vocab }),
            None => Ok(forced),
        }
    }

    pub(super) fn is_finished(&self, answer: &[TokenId]) -> Result<bool, SampleError> {
        self.mask.as_ref().map_or(Ok(false), |mask| guard(|| mask.is_finished(answer)))
    }
}

/// Makes an error of a panic; a mask that has panicked is not called again.
fn guard<T>(call: impl FnOnce() -> T) -> Result<T, SampleError> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|_| SampleError::MaskPanicked)
}

impl std::fmt::Debug for Masking {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Masking").field("allowed", &self.allowed).finish_non_exhaustive()
    }
}

impl Drop for Masking {
    fn drop(&mut self) {
        let mask = self.mask.take();
        // Its request has ended already, so nobody is left to tell.
        let _ = guard(|| drop(mask));
    }
}
