//! [`TextError`]: errors of vocabularies, tokenizers and chat templates.

use thiserror::Error;

use crate::kind::ErrorKind;

/// Error of a vocabulary, tokenizer or chat template.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TextError {
    /// A metadata value has the wrong type.
    #[error(transparent)]
    Metadata(#[from] crate::checkpoint::WeightsError),
    /// A required metadata key is missing.
    #[error("tokenizer: key `{key}` expected, but the file has none")]
    MissingKey {
        /// Metadata key.
        key: &'static str,
    },
    /// A metadata value cannot be used.
    #[error("tokenizer: `{key}`: expected {expected}, found {found}")]
    BadValue {
        /// Metadata key.
        key: &'static str,
        /// Expected value.
        expected: String,
        /// Value in the file.
        found: String,
    },
    /// `tokenizer.ggml.pre` is an unsupported pre-tokenizer.
    #[error("tokenizer: `tokenizer.ggml.pre` is `{name}`; supported are {supported}")]
    UnknownPreTokenizer {
        /// Name in the file.
        name: String,
        /// Supported names.
        supported: String,
    },
    /// `tokenizer.ggml.model` is an unsupported kind of tokenizer.
    #[error("tokenizer: `tokenizer.ggml.model` is `{name}`; supported are `gpt2`, `llama`, `bert` and `t5`")]
    UnknownModel {
        /// Name in the file.
        name: String,
    },
    /// The model has no tokenizer and takes token ids only.
    #[error("{model}: text needs {needs}; the model runs on token ids")]
    NoTokenizer {
        /// The folder, or the name of a user-built graph.
        model: String,
        /// Missing part.
        needs: &'static str,
    },
    /// The text has more tokens than the limit allows.
    #[error("tokenizer: the text has at least {at_least} tokens, the limit is {limit}")]
    TooLong {
        /// Lower bound of the number of tokens: counting stops when the limit is passed.
        at_least: usize,
        /// Maximum number of tokens.
        limit: usize,
    },
    /// A character that is no piece and has no byte tokens, in a vocabulary without unknown token.
    #[error(
        "tokenizer: no token for `{character}` at byte {offset} of the text, and the vocabulary has no unknown token"
    )]
    Unencodable {
        /// The character.
        character: char,
        /// Byte offset in the stretch of text between special tokens.
        offset: usize,
    },
    /// The vocabulary could not be indexed.
    #[error("tokenizer: {0}")]
    Tokenizer(String),
    /// The chat template does not parse, or uses an unsupported feature.
    #[error("chat template: {0}")]
    TemplateSyntax(String),
    /// The chat template failed at run time, including its own `raise_exception`.
    #[error("chat template: {0}")]
    TemplateRender(String),
    /// Not enough memory to run the chat template.
    #[error("chat template: no memory for a stack of {bytes} bytes")]
    TemplateMemory {
        /// Size of the stack in bytes.
        bytes: usize,
    },
    /// The system could not start a thread for the chat template.
    #[error("chat template: expected a thread to run in, found: {0}")]
    TemplateThread(String),
    /// The template engine panicked: a defect, independent of the messages.
    #[error("chat template: the template engine panicked")]
    TemplatePanicked,
    /// The chat template exceeded a resource limit.
    #[error("chat template: over the limit: {0}")]
    TemplateLimit(String),
}

impl TextError {
    /// Category of the error.
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

    /// Invalid field of the request: `prompt` or `messages`.
    pub fn field(&self) -> Option<&'static str> {
        match self {
            TextError::TooLong { .. } | TextError::Unencodable { .. } => Some("prompt"),
            TextError::TemplateRender(_) | TextError::TemplateLimit(_) => Some("messages"),
            _ => None,
        }
    }
}
