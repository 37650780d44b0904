//! What an assistant's answer is made of: text, reasoning, calls of tools. How models write them is in `format`, as data;
//! `answer` reads it.

mod answer;
mod format;
mod schema;
mod tool;

pub use answer::AnswerParser;
pub use format::ChatFormat;
pub(crate) use format::Thoughts;
#[cfg(feature = "constraints")]
pub(crate) use format::Wanted;
pub use tool::{Tool, ToolChoice, ToolError, Tools};

/// A piece of an assistant's answer. Pieces come in the order of the answer; those of one kind are joined by putting
/// their texts behind each other.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChatPart {
    /// What the user reads.
    Text(String),
    /// What the model thinks before it answers.
    Reasoning(String),
    /// A call of a tool begins. Its arguments follow.
    CallStart {
        /// The call's number in the answer, from 0.
        index: usize,
        /// The call's name in the conversation: a tool's result refers to it.
        id: String,
        /// The tool's name.
        name: String,
    },
    /// The next characters of a call's arguments, a JSON object as text.
    CallArguments {
        /// The call's number in the answer.
        index: usize,
        /// The characters.
        text: String,
    },
}
