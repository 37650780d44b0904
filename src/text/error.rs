//! What can go wrong between text and token ids: the vocabulary of a file, a prompt, a chat template.

use thiserror::Error;

use crate::kind::ErrorKind;

/// An error of the text side: vocabulary, tokenizer or chat template.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TextError {
    /// A metadata value has another type than the tokenizer needs.
    #[error(transparent)]
    Metadata(#[from] crate::checkpoint::WeightsError),
    /// The file lacks a key that the tokenizer needs.
    #[error("tokenizer: key `{key}` expected, but the file has none")]
    MissingKey {
        /// The metadata key.
        key: &'static str,
    },
    /// A key holds something that the tokenizer cannot use.
    #[error("tokenizer: `{key}`: expected {expected}, found {found}")]
    BadValue {
        /// The metadata key.
        key: &'static str,
        /// What would have been right.
        expected: String,
        /// What the file says.
        found: String,
    },
    /// `tokenizer.ggml.pre` names a pre-tokenizer that this crate does not know.
    #[error("tokenizer: `tokenizer.ggml.pre` is `{name}`; supported are {supported}")]
    UnknownPreTokenizer {
        /// The name in the file.
        name: String,
        /// The names that would have been understood.
        supported: String,
    },
    /// `tokenizer.ggml.model` names a kind of tokenizer that this crate does not have.
    #[error("tokenizer: `tokenizer.ggml.model` is `{name}`; supported are `gpt2` and `llama`")]
    UnknownModel {
        /// The name in the file.
        name: String,
    },
    /// The model came without a tokenizer, so it takes token ids alone.
    #[error("{model}: text needs {needs}; the model runs on token ids")]
    NoTokenizer {
        /// The folder, or the name of a graph of one's own.
        model: String,
        /// What is missing.
        needs: &'static str,
    },
    /// The text becomes more tokens than the limit allows.
    #[error("tokenizer: the text has at least {at_least} tokens, the limit is {limit}")]
    TooLong {
        /// So many tokens it has, if not more: counting stops where the limit is passed.
        at_least: usize,
        /// Most tokens that it may have.
        limit: usize,
    },
    /// A character for which the vocabulary has no token: neither a piece, nor bytes, nor an unknown token.
    #[error(
        "tokenizer: no token for `{character}` at byte {offset} of the text, and the vocabulary has no unknown token"
    )]
    Unencodable {
        /// The character.
        character: char,
        /// Its offset in the piece of text between special tokens, in bytes.
        offset: usize,
    },
    /// No search for special tokens could be made of the vocabulary.
    #[error("tokenizer: {0}")]
    Tokenizer(String),
    /// The chat template does not parse, or uses something that is not supported.
    #[error("chat template: {0}")]
    TemplateSyntax(String),
    /// The chat template failed while it ran (its own `raise_exception` included).
    #[error("chat template: {0}")]
    TemplateRender(String),
    /// The host has no memory for what runs the chat template.
    #[error("chat template: no memory for a stack of {bytes} bytes")]
    TemplateMemory {
        /// Bytes of the stack.
        bytes: usize,
    },
    /// The system gave no thread to run the chat template.
    #[error("chat template: expected a thread to run in, found: {0}")]
    TemplateThread(String),
    /// The template engine panicked: a defect, not the messages'.
    #[error("chat template: the template engine panicked")]
    TemplatePanicked,
    /// The chat template wanted more than it is allowed.
    #[error("chat template: over the limit: {0}")]
    TemplateLimit(String),
}

impl TextError {
    /// What to do about it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            TextError::Metadata(error) => error.kind(),
            TextError::TooLong { .. } => ErrorKind::TooLong,
            TextError::NoTokenizer { .. }
            | TextError::UnknownModel { .. }
            | TextError::UnknownPreTokenizer { .. } => ErrorKind::Unsupported,
            TextError::Unencodable { .. } | TextError::TemplateRender(_) | TextError::TemplateLimit(_) => {
                ErrorKind::Invalid
            }
            TextError::TemplateMemory { .. } | TextError::TemplateThread(_) => ErrorKind::OutOfMemory,
            TextError::TemplatePanicked => ErrorKind::Internal,
            _ => ErrorKind::BadModel,
        }
    }

    /// The field of the request that is at fault.
    pub fn field(&self) -> Option<&'static str> {
        match self {
            TextError::TooLong { .. } | TextError::Unencodable { .. } => Some("prompt"),
            TextError::TemplateRender(_) | TextError::TemplateLimit(_) => Some("messages"),
            _ => None,
        }
    }
}
