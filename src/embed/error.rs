//! [`EmbedError`]: errors of embedding texts.

use std::sync::Arc;

use crate::kind::ErrorKind;
use crate::model::ModelError;

/// Error of an embedding call. A failing call fails alone. `index` is the text's place in the call.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EmbedError {
    /// A text without tokens.
    #[error("text {index}: expected at least 1 token, found none")]
    Empty {
        /// Place of the text.
        index: usize,
    },
    /// A text beyond the context, without truncation.
    #[error(
        "text {index}: {tokens} tokens or more exceed the context of {context_max}; truncation is an option"
    )]
    TooLong {
        /// Place of the text.
        index: usize,
        /// Number of tokens, or a lower bound.
        tokens: usize,
        /// Maximum length of a text, in tokens.
        context_max: usize,
    },
    /// A token id outside the vocabulary.
    #[error("text {index}: token {token} is outside the vocabulary of {vocab_size}")]
    Token {
        /// Place of the text.
        index: usize,
        /// Token id.
        token: u32,
        /// Vocabulary size.
        vocab_size: usize,
    },
    /// A pair of a text and token ids.
    #[error("pair {index}: expected two texts, or token ids of both")]
    MixedPair {
        /// Place of the document.
        index: usize,
    },
    /// A number of dimensions of 0 or beyond the model's.
    #[error("dimensions: expected 1 to {width}, found {found}")]
    Dimensions {
        /// Requested dimensions.
        found: usize,
        /// Dimensions of the model.
        width: usize,
    },
    /// The model has no prompt with this name.
    #[error("no prompt {name:?}; the model has {known}")]
    Prompt {
        /// Requested name.
        name: String,
        /// Names of the model's prompts.
        known: String,
    },
    /// A text for a model without a supported tokenizer. Token ids need none.
    #[error("texts cannot be embedded, only token ids: {reason}")]
    NoTokenizer {
        /// Error of the tokenizer.
        reason: String,
    },
    /// A language model without a declared pooling.
    #[error("{model} is no embedding model, as its file declares no pooling; choose one to embed with it")]
    NoPooling {
        /// Name of the model.
        model: String,
    },
    /// A reranker instead of an embedding model, or the other way around.
    #[error("{model} has pooling {found}: expected {expected}")]
    Pooling {
        /// Name of the model.
        model: String,
        /// Expected kind of model.
        expected: &'static str,
        /// Pooling of the model.
        found: String,
    },
    /// A row with a value that is not finite.
    #[error("text {index}: the model's output is not finite")]
    NotFinite {
        /// Place of the text.
        index: usize,
    },
    /// The step failed.
    #[error("embedding: {0}")]
    Step(#[source] Arc<ModelError>),
    /// The embedder's thread could not start.
    #[error("embedding: the thread could not start: {0}")]
    Thread(#[source] Arc<std::io::Error>),
    /// The embedder's thread has ended.
    #[error("embedding: the embedder has stopped")]
    Stopped,
}

impl EmbedError {
    /// Category of the error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            EmbedError::TooLong { .. } => ErrorKind::TooLong,
            EmbedError::Empty { .. }
            | EmbedError::MixedPair { .. }
            | EmbedError::Token { .. }
            | EmbedError::Dimensions { .. }
            | EmbedError::Prompt { .. } => ErrorKind::Invalid,
            EmbedError::NoTokenizer { .. } | EmbedError::NoPooling { .. } | EmbedError::Pooling { .. } => {
                ErrorKind::Unsupported
            }
            EmbedError::NotFinite { .. } => ErrorKind::Internal,
            EmbedError::Step(error) => error.kind(),
            EmbedError::Thread(_) => ErrorKind::OutOfMemory,
            EmbedError::Stopped => ErrorKind::Stopped,
        }
    }

    /// The option at fault.
    pub fn field(&self) -> Option<&'static str> {
        match self {
            EmbedError::Empty { .. } | EmbedError::TooLong { .. } | EmbedError::Token { .. } => Some("input"),
            EmbedError::Dimensions { .. } => Some("dimensions"),
            EmbedError::Prompt { .. } => Some("prompt_name"),
            EmbedError::NoPooling { .. } => Some("pooling"),
            _ => None,
        }
    }
}
