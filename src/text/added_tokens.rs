//! Added-token options of Hugging Face: `lstrip`/`rstrip` absorb adjacent white space, `single_word` forbids
//! a match inside a word.

use std::collections::HashMap;
use std::ops::Range;

use regex::Regex;

use super::error::TextError;
use super::parts::AddedTokenRule;
use crate::TokenId;

/// Added tokens with such options.
#[derive(Debug)]
pub(crate) struct AddedTokenRules {
    by_id: HashMap<TokenId, AddedTokenRule>,
    /// Word character at the start of a text, for `single_word`. `None` if no token has this option.
    word: Option<Regex>,
}

/// An added token found in a text, and the end of the previous one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(crate) id: TokenId,
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) before: usize,
}

impl AddedTokenRules {
    pub(crate) fn new(rules: &[(TokenId, AddedTokenRule)]) -> Result<AddedTokenRules, TextError> {
        let word = rules.iter().any(|(_, rule)| rule.single_word).then(|| Regex::new(r"^\w")).transpose();
        let word = word.map_err(|error| TextError::Tokenizer(error.to_string()))?;
        Ok(AddedTokenRules { by_id: rules.iter().copied().collect(), word })
    }

    /// Whether white space may be absorbed, so that text may produce no token.
    pub(crate) fn may_take_text(&self) -> bool {
        self.by_id.values().any(|rule| rule.lstrip || rule.rstrip)
    }

    /// Byte range of the text that the token covers; `None` if `single_word` forbids the match.
    pub(crate) fn span(&self, text: &str, found: Found) -> Option<Range<usize>> {
        let Found { id, mut start, mut end, before } = found;
        let Some(rule) = self.by_id.get(&id) else { return Some(start..end) };
        if rule.single_word && self.is_within_word(text, start..end) {
            return None;
        }
        if rule.lstrip
            && let Some(left) = text.get(before..start)
        {
            start = before + left.trim_end().len();
        }
        // White space already absorbed by the previous token is skipped.
        if rule.rstrip
            && let Some(right) = text.get(end.max(before)..)
        {
            end = text.len() - right.trim_start().len();
        }
        Some(start..end)
    }

    fn is_within_word(&self, text: &str, Range { start, end }: Range<usize>) -> bool {
        let before = text.get(..start).and_then(|before| before.char_indices().next_back());
        let last = before.and_then(|(at, _)| text.get(at..start)).unwrap_or_default();
        let next = text.get(end..).unwrap_or_default();
        self.word.as_ref().is_some_and(|word| word.is_match(last) || word.is_match(next))
    }
}
