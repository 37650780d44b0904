//! How many tokens a text may become: work ends where the limit is passed, not where the text ends.

use std::num::NonZeroUsize;

use super::error::TextError;
use crate::TokenId;

/// The ids of a text as they are found, up to a limit.
#[derive(Debug)]
pub(crate) struct Ids {
    ids: Vec<TokenId>,
    limit: usize,
    /// Most bytes of a text that become one token; none where bytes may become no token at all.
    longest: Option<NonZeroUsize>,
}

impl Ids {
    pub(crate) fn new(limit: usize, longest: Option<NonZeroUsize>) -> Ids {
        Ids { ids: Vec::new(), limit, longest }
    }

    /// Adds the next id.
    pub(crate) fn push(&mut self, id: TokenId) -> Result<(), TextError> {
        self.check(self.ids.len().saturating_add(1))?;
        self.ids.push(id);
        Ok(())
    }

    /// Refuses the next `bytes` of the text if they take more tokens than there is room for, however they are cut.
    pub(crate) fn expect(&self, bytes: usize) -> Result<(), TextError> {
        self.expect_least(self.longest.map_or(0, |longest| bytes.div_ceil(longest.get())))
    }

    /// Refuses what becomes at least so many further tokens if there is no room for them.
    pub(crate) fn expect_least(&self, least: usize) -> Result<(), TextError> {
        self.check(self.ids.len().saturating_add(least))
    }

    /// All ids, after `first` where they do not begin with it already.
    pub(crate) fn after(mut self, first: Option<TokenId>) -> Result<Vec<TokenId>, TextError> {
        if let Some(first) = first.filter(|first| self.ids.first() != Some(first)) {
            self.check(self.ids.len().saturating_add(1))?;
            self.ids.insert(0, first);
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
