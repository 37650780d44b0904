//! [`EmbedInput`]: a text as a string or as token ids, and its encoding.

use std::collections::BTreeMap;

use super::EmbedOptions;
use crate::Result;
use crate::embed::{EmbedError, EmbedText};
#[cfg(feature = "text")]
use crate::text::{Special, TextError, Texts, Tokenizer, TokensMax};
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

/// A text's place in its call, and its limits.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    pub(super) index: usize,
    pub(super) context_max: usize,
    pub(super) truncate: bool,
}

impl Limits {
    /// Ids of which those from `kept` on may be cut at the end.
    fn fit(self, mut ids: Vec<TokenId>, kept: usize) -> Result<Vec<TokenId>, EmbedError> {
        let Limits { index, context_max, truncate } = self;
        if ids.len() > context_max && !(truncate && kept < context_max) {
            return Err(EmbedError::TooLong { index, tokens: ids.len(), context_max });
        }
        ids.truncate(context_max);
        Ok(ids)
    }
}

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

    /// Token ids of a text with its prefix.
    pub(super) fn text(
        &self,
        text: EmbedInput<'_>,
        #[cfg_attr(not(feature = "text"), allow(unused_variables))] prefix: &str,
        limits: Limits,
    ) -> Result<EmbedText> {
        match text {
            EmbedInput::Tokens(ids) => Ok(limits.fit(ids.to_vec(), 0)?.into()),
            #[cfg(feature = "text")]
            EmbedInput::Text(text) if prefix.is_empty() => self.encode(text, None, limits),
            #[cfg(feature = "text")]
            EmbedInput::Text(text) => self.encode(&[prefix, text].concat(), None, limits),
        }
    }

    /// Token ids of a query and a document: two texts, or ids that are put together as they are.
    pub(super) fn pair(
        &self,
        query: EmbedInput<'_>,
        document: EmbedInput<'_>,
        limits: Limits,
    ) -> Result<EmbedText> {
        match (query, document) {
            (EmbedInput::Tokens(query), EmbedInput::Tokens(document)) => {
                if query.is_empty() || document.is_empty() {
                    return Err(EmbedError::Empty { index: limits.index }.into());
                }
                let ids = limits.fit([query, document].concat(), query.len())?;
                Ok(EmbedText { ids, first_segment: query.len() })
            }
            #[cfg(feature = "text")]
            (EmbedInput::Text(query), EmbedInput::Text(document)) => {
                self.encode(query, Some(document), limits)
            }
            #[cfg(feature = "text")]
            _ => Err(EmbedError::MixedPair { index: limits.index }.into()),
        }
    }

    /// Token ids of a text or a pair of texts, with the model's special tokens.
    #[cfg(feature = "text")]
    fn encode(&self, first: &str, second: Option<&str>, limits: Limits) -> Result<EmbedText> {
        let Limits { index, context_max, truncate } = limits;
        let refused = |error: &TextError| EmbedError::NoTokenizer { reason: error.to_string() };
        let tokenizer = self.tokenizer.as_ref().map_err(refused)?;
        let tokens_max = if truncate { TokensMax::Truncate } else { TokensMax::Refuse };
        let encoding =
            tokenizer.encode_input(Texts { first, second }, Special::Text, tokens_max(context_max));
        let encoding = encoding.map_err(|error| match error {
            TextError::TooLong { at_least, .. } => {
                crate::Error::from(EmbedError::TooLong { index, tokens: at_least, context_max })
            }
            other => other.into(),
        })?;
        let first_segment = encoding.types.iter().position(|&kind| kind == 1).unwrap_or(encoding.ids.len());
        Ok(EmbedText { ids: encoding.ids, first_segment })
    }
}
