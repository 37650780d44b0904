//! [`EmbedInput`]: a text as a string or as token ids, and its encoding.

use std::collections::BTreeMap;

use super::EmbedOptions;
use crate::Result;
use crate::embed::{EmbedError, EmbedText};
#[cfg(feature = "text")]
use crate::text::{AddBos, Special, TextError, Tokenizer};
use crate::token::TokenId;

/// A text to embed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EmbedInput<'a> {
    /// A text for the model's tokenizer, which adds the model's special tokens. Names of special tokens in it
    /// are plain text.
    #[cfg(feature = "text")]
    Text(&'a str),
    /// Token ids, with all special tokens that the model expects.
    Tokens(&'a [TokenId]),
}

#[cfg(feature = "text")]
impl<'a> From<&'a str> for EmbedInput<'a> {
    fn from(text: &'a str) -> EmbedInput<'a> {
        EmbedInput::Text(text)
    }
}

#[cfg(feature = "text")]
impl<'a> From<&'a String> for EmbedInput<'a> {
    fn from(text: &'a String) -> EmbedInput<'a> {
        EmbedInput::Text(text)
    }
}

impl<'a> From<&'a [TokenId]> for EmbedInput<'a> {
    fn from(ids: &'a [TokenId]) -> EmbedInput<'a> {
        EmbedInput::Tokens(ids)
    }
}

impl<'a> From<&'a Vec<TokenId>> for EmbedInput<'a> {
    fn from(ids: &'a Vec<TokenId>) -> EmbedInput<'a> {
        EmbedInput::Tokens(ids)
    }
}

/// Maximum length of a text, and whether longer ones are cut.
pub(super) type Limits = (usize, bool);

/// Tokenizer and prompts of a model.
pub(super) struct Encoding {
    /// Prompts by name.
    pub(super) prompts: BTreeMap<String, String>,
    /// The tokenizer, or the reason why the model's tokenizer is not supported. Token ids need none.
    #[cfg(feature = "text")]
    pub(super) tokenizer: Result<Tokenizer, TextError>,
}

impl Encoding {
    /// Prefix of texts by the options.
    pub(super) fn prefix<'p>(&'p self, options: &'p EmbedOptions) -> Result<&'p str, EmbedError> {
        match (&options.prefix, &options.prompt) {
            (Some(prefix), _) => Ok(prefix),
            (None, None) => Ok(""),
            (None, Some(name)) => self.prompts.get(name).map(String::as_str).ok_or_else(|| {
                let names: Vec<&str> = self.prompts.keys().map(String::as_str).collect();
                let known = if names.is_empty() { "none".into() } else { names.join(", ") };
                EmbedError::Prompt { name: name.clone(), known }
            }),
        }
    }

    /// Token ids of a text with its prefix, within the limits.
    pub(super) fn text(
        &self,
        index: usize,
        text: &EmbedInput<'_>,
        prefix: &str,
        (context_max, truncate): Limits,
    ) -> Result<EmbedText> {
        let ids = self.ids(text, prefix)?;
        if ids.len() <= context_max || !truncate {
            return Ok(fitting(index, ids, context_max)?.into());
        }
        Ok(self.cut(text, ids, context_max).into())
    }

    /// Token ids of a query and a document. Truncation shortens the document.
    pub(super) fn pair(
        &self,
        index: usize,
        query: &EmbedInput<'_>,
        document: &EmbedInput<'_>,
        (context_max, truncate): Limits,
    ) -> Result<EmbedText> {
        let first = self.ids(query, "")?;
        let second = self.second(document)?;
        if first.is_empty() || second.is_empty() {
            return Err(EmbedError::Empty { index }.into());
        }
        let (tokens, left) = (first.len() + second.len(), context_max.saturating_sub(first.len()));
        let second = if tokens <= context_max {
            second
        } else if truncate && left > 0 {
            self.cut(document, second, left)
        } else {
            return Err(EmbedError::TooLong { index, tokens, context_max }.into());
        };
        Ok(EmbedText { first_segment: first.len(), ids: [first, second].concat() })
    }

    /// Cuts the ids of a text to `len`. The special token at the end of a tokenized text stays.
    fn cut(&self, text: &EmbedInput<'_>, mut ids: Vec<TokenId>, len: usize) -> Vec<TokenId> {
        let last = ids.last().copied().filter(|&last| self.is_closing(text, last));
        ids.truncate(len);
        if let (Some(last), Some(end)) = (last, ids.last_mut()) {
            *end = last;
        }
        ids
    }
}

/// The ids, if they fit the context.
fn fitting(index: usize, ids: Vec<TokenId>, context_max: usize) -> Result<Vec<TokenId>, EmbedError> {
    let tokens = ids.len();
    if tokens > context_max {
        return Err(EmbedError::TooLong { index, tokens, context_max });
    }
    Ok(ids)
}

#[cfg(feature = "text")]
impl Encoding {
    fn ids(&self, text: &EmbedInput<'_>, prefix: &str) -> Result<Vec<TokenId>> {
        match text {
            EmbedInput::Tokens(ids) => Ok(ids.to_vec()),
            EmbedInput::Text(text) if prefix.is_empty() => self.encode(text),
            EmbedInput::Text(text) => self.encode(&[prefix, text].concat()),
        }
    }

    /// Ids of the second text of a pair.
    fn second(&self, text: &EmbedInput<'_>) -> Result<Vec<TokenId>> {
        match text {
            EmbedInput::Tokens(ids) => Ok(ids.to_vec()),
            EmbedInput::Text(text) => {
                let (mut ids, opening) = (self.encode(text)?, self.tokenizer()?.vocab().leading().len());
                ids.drain(..opening.min(ids.len()));
                Ok(ids)
            }
        }
    }

    /// Ids of a text with the model's special tokens.
    fn encode(&self, text: &str) -> Result<Vec<TokenId>> {
        Ok(self.tokenizer()?.encode(text, Special::Text, AddBos::AsModel)?)
    }

    fn tokenizer(&self) -> Result<&Tokenizer> {
        let refused = |error: &TextError| EmbedError::NoTokenizer { reason: error.to_string() };
        Ok(self.tokenizer.as_ref().map_err(refused)?)
    }

    fn is_closing(&self, text: &EmbedInput<'_>, id: TokenId) -> bool {
        let control = || self.tokenizer().is_ok_and(|tokenizer| tokenizer.vocab().is_control(id));
        matches!(text, EmbedInput::Text(_)) && control()
    }
}

#[cfg(not(feature = "text"))]
impl Encoding {
    fn ids(&self, EmbedInput::Tokens(ids): &EmbedInput<'_>, _prefix: &str) -> Result<Vec<TokenId>> {
        Ok(ids.to_vec())
    }

    fn second(&self, text: &EmbedInput<'_>) -> Result<Vec<TokenId>> {
        self.ids(text, "")
    }

    fn is_closing(&self, _text: &EmbedInput<'_>, _id: TokenId) -> bool {
        false
    }
}
