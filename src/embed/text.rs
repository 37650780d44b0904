//! [`EmbedText`]: a text as token ids.

use crate::token::TokenId;

/// Token ids of one text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EmbedText {
    /// Token ids.
    pub ids: Vec<TokenId>,
    /// Number of tokens in the first segment. The others have token type 1, in encoders with token types.
    pub first_segment: usize,
}

impl From<Vec<TokenId>> for EmbedText {
    fn from(ids: Vec<TokenId>) -> EmbedText {
        EmbedText { first_segment: ids.len(), ids }
    }
}
