//! Structured assistant output: text, reasoning and tool calls. `format` describes as data how models write
//! them; `answer` parses it; `texts` writes tools and calls for templates that have no place for them.

mod answer;
mod format;
mod schema;
pub(crate) mod texts;
mod tool;

pub use answer::AnswerParser;
pub(crate) use answer::OutsideCalls;
pub use format::ChatFormat;
pub(crate) use format::ReasoningState;
#[cfg(feature = "constraints")]
pub(crate) use format::Wanted;
pub use tool::{Tool, ToolChoice, ToolError, Tools};

/// A piece of an assistant's answer. Pieces come in the order of the answer; consecutive pieces of one kind
/// are joined by concatenation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChatPart {
    /// Visible text of the answer.
    Text(String),
    /// Reasoning that precedes the answer.
    Reasoning(String),
    /// Start of a tool call. Its arguments follow as [`ChatPart::CallArguments`].
    CallStart {
        /// Index of the call in the answer, from 0.
        index: usize,
        /// Id of the call in the conversation; the message with the tool's result refers to it.
        id: String,
        /// Name of the tool.
        name: String,
    },
    /// Next characters of a call's arguments, which form a JSON object.
    CallArguments {
        /// Index of the call in the answer.
        index: usize,
        /// Characters to append.
        text: String,
    },
}
