//! Token limit of an encoding. Work stops when the limit is passed, not at the end of the text.

use std::num::NonZeroUsize;

use super::error::TextError;
use crate::TokenId;

/// Token ids found so far, up to a limit.
#[derive(Debug)]
pub(crate) struct Ids {
    ids: Vec<TokenId>,
    limit: usize,
    /// Maximum bytes of text per token; `None` if bytes may produce no token.
    longest: Option<NonZeroUsize>,
}

impl Ids {
    pub(crate) fn new(limit: usize, longest: Option<NonZeroUsize>) -> Ids {
        Ids { ids: Vec::new(), limit, longest }
    }

    /// Appends an id.
    pub(crate) fn push(&mut self, id: TokenId) -> Result<(), TextError> {
        self.check(self.ids.len().saturating_add(1))?;
        self.ids.push(id);
        Ok(())
    }

    /// Fails if the next `bytes` of text exceed the limit in any segmentation.
    pub(crate) fn expect(&self, bytes: usize) -> Result<(), TextError> {
        self.expect_least(self.longest.map_or(0, |longest| bytes.div_ceil(longest.get())))
    }

    /// Fails if `least` further tokens exceed the limit.
    pub(crate) fn expect_least(&self, least: usize) -> Result<(), TextError> {
        self.check(self.ids.len().saturating_add(least))
    }

    /// All ids, preceded by `leading` unless they start with its first id.
    pub(crate) fn after(mut self, leading: &[TokenId]) -> Result<Vec<TokenId>, TextError> {
        if leading.first() != self.ids.first() {
            self.check(self.ids.len().saturating_add(leading.len()))?;
            self.ids.splice(..0, leading.iter().copied());
        }
        Ok(self.ids)
    }

    fn check(&self, tokens: usize) -> Result<(), TextError> {
        if tokens <= self.limit {
            return Ok(());
        }
        Err(TextError::TooLong { at_least: tokens, limit: self.limit })
    }
}
