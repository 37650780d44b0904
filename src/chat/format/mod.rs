//! Tool-call and reasoning formats: one row of data per format.
//!
//! The parser (`src/chat/answer`) and the grammar are derived from the same row, so they cannot disagree.
//! The rows are in `rows.rs`. Literals include the line breaks that models were trained to write; the
//! parser accepts any white space around them.

#[cfg(feature = "constraints")]
mod grammar;
mod rows;

#[cfg(feature = "constraints")]
pub(crate) use grammar::Wanted;

/// Format in which a model writes reasoning and tool calls.
///
/// ```
/// use ottava::chat::ChatFormat;
///
/// let template = "{% if tools %}<tool_call>{\"name\": …}</tool_call>{% endif %}<think></think>";
/// let format = ChatFormat::of_template(template);
/// assert_eq!(format.name(), "hermes");
/// assert!(format.has_reasoning());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChatFormat {
    pub(super) reasoning: Option<&'static Reasoning>,
    pub(super) calls: &'static ToolCallFormat,
}

/// Delimiters of reasoning.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Reasoning {
    pub(super) open: &'static str,
    pub(super) close: &'static str,
    /// Literal between reasoning and a call.
    pub(super) then: &'static str,
}

/// Format of tool calls: blocks with one or more calls.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ToolCallFormat {
    pub(super) name: &'static str,
    /// Opening markers of a block, the usual one first.
    pub(super) open: &'static [&'static str],
    /// Whether an answer may start with a block without opening marker.
    pub(super) bare: bool,
    pub(super) list: List,
    /// Whether a block may contain several calls without being a list.
    pub(super) several: bool,
    /// Whether a block ends the answer. True where each part is a message of its own.
    pub(super) is_last: bool,
    pub(super) call: Call,
    pub(super) close: &'static str,
    /// Prefix of visible text; empty for most formats.
    pub(super) text_prefix: &'static str,
    /// Markers between parts that carry no information; the parser drops them.
    pub(super) ignored_markers: &'static [&'static str],
    pub(super) ids: Ids,
    /// Reasoning delimiters specific to this format.
    pub(super) reasoning: Option<&'static Reasoning>,
}

/// Whether the calls of a block form a list in brackets, separated by commas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum List {
    No,
    Yes,
}

/// Layout of a call.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Call {
    /// JSON object with fields for the name and the arguments. Each slice lists the accepted keys, the
    /// usual one first.
    Object { name: &'static [&'static str], arguments: &'static [&'static str] },
    /// The name between literals, followed by the arguments.
    Named(NamedCall),
}

/// Layout of a call with the name before the arguments.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NamedCall {
    pub(super) prefix: &'static str,
    /// Literals between the name and the arguments, the usual one first.
    pub(super) before: &'static [&'static str],
    pub(super) arguments: Arguments,
    pub(super) suffix: &'static str,
}

/// Syntax of arguments.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Arguments {
    Json,
    /// `key=value` pairs with Python literals, up to a closing parenthesis.
    Python,
    /// JSON with unquoted keys and this delimiter instead of quotes around strings.
    Quoted(&'static str),
    Tags(Tags),
}

/// Arguments with an opening and a closing tag each.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Tags {
    pub(super) key: &'static str,
    pub(super) key_end: &'static [&'static str],
    pub(super) value: &'static str,
    pub(super) value_end: &'static str,
    /// Whether a value is on lines of its own.
    pub(super) lines: bool,
}

/// Source of call ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ids {
    /// Generated: `call_` and 24 characters.
    Long,
    /// Generated: 9 characters, which the templates of some models require.
    Short,
    /// Written by the model after this literal, otherwise generated with 9 characters.
    After(&'static str),
    /// The call's full name, this literal and the number that the model writes after it.
    Numbered(&'static str),
}

/// State of the reasoning at the end of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReasoningState {
    /// Not started: the model may reason first.
    NotStarted,
    /// Open: the prompt ends within reasoning.
    Open,
    /// Closed: reasoning is over or disabled.
    Closed,
}

impl ChatFormat {
    /// Detects the format from the source of a chat template. Falls back to the generic format, a JSON object
    /// with a name and arguments; for a template without tools to that between `<tool_call>` tags, in which
    /// the engine describes calls.
    pub fn of_template(source: &str) -> ChatFormat {
        let shown = |marks: &[&str]| marks.iter().all(|mark| source.contains(mark));
        let unmarked = if source.contains("tools") { &rows::GENERIC } else { &rows::HERMES };
        let calls = rows::CALLS.iter().find(|(marks, _)| shown(marks)).map_or(unmarked, |row| row.1);
        let reasoning = rows::REASONING.iter().find(|(marks, _)| shown(marks)).map(|row| row.1);
        ChatFormat { reasoning: calls.reasoning.or(reasoning), calls }
    }

    /// Format by name, with `<think>` tags for reasoning unless the format defines its own.
    pub fn of_name(name: &str) -> Option<ChatFormat> {
        let calls = rows::all().find(|calls| calls.name == name)?;
        Some(ChatFormat { reasoning: calls.reasoning.or(Some(&rows::THINK)), calls })
    }

    /// Names of all formats.
    pub fn names() -> Vec<&'static str> {
        let mut names: Vec<_> = rows::all().map(|calls| calls.name).collect();
        names.dedup();
        names
    }

    /// Name of the tool-call format.
    pub fn name(&self) -> &'static str {
        self.calls.name
    }

    /// Whether calls have the form that the engine describes if the template has no tools.
    pub(crate) fn is_instructed(&self) -> bool {
        *self.calls == rows::HERMES
    }

    /// Whether the format has reasoning.
    pub fn has_reasoning(&self) -> bool {
        self.reasoning.is_some()
    }

    /// Whether a prompt with this end has opened the reasoning.
    pub fn begins_reasoning(&self, prompt: &str) -> bool {
        self.reasoning_after(prompt) == ReasoningState::Open
    }

    /// State of the reasoning after a prompt with this end. With reasoning disabled, templates write the
    /// closing marker themselves.
    pub(crate) fn reasoning_after(&self, prompt: &str) -> ReasoningState {
        let (Some(row), prompt) = (self.reasoning, prompt.trim_end()) else {
            return ReasoningState::NotStarted;
        };
        // A close marker that ends every message (`then` is set) carries no information about reasoning.
        let close = if row.then.is_empty() { row.close.trim() } else { "" };
        if prompt.ends_with(row.open.trim_end()) {
            ReasoningState::Open
        } else if !close.is_empty() && prompt.ends_with(close) {
            ReasoningState::Closed
        } else {
            ReasoningState::NotStarted
        }
    }

    /// State of the reasoning in an answer that begins with `text`, after a prompt with this end.
    pub(crate) fn reasoning_within(&self, text: &str, prompt: &str) -> ReasoningState {
        let last = |marker: &str| text.rfind(marker.trim());
        match self.reasoning {
            Some(row) if last(row.open) > last(row.close) => ReasoningState::Open,
            Some(_) if !text.trim().is_empty() => ReasoningState::Closed,
            _ => self.reasoning_after(prompt),
        }
    }

    /// Whether a vocabulary entry is part of a marker, so that a control token of this spelling has to be
    /// decoded as text. Markers of calls count only `with_calls`.
    pub fn has_marker_with(&self, piece: &str, with_calls: bool) -> bool {
        let reasoning = self.reasoning.iter().flat_map(|row| [row.open, row.close]);
        let mut markers = reasoning.chain(self.calls.ignored_markers.iter().copied());
        let found = markers.any(|marker| marker.contains(piece));
        !piece.is_empty() && (found || with_calls && self.calls.literals().any(|text| text.contains(piece)))
    }
}

impl ToolCallFormat {
    /// Every literal of a call.
    pub(super) fn literals(&self) -> impl Iterator<Item = &'static str> {
        let mut literals = vec![self.close];
        literals.extend(self.open);
        if let Call::Named(call) = &self.call {
            literals.extend([call.prefix, call.suffix]);
            literals.extend(call.before);
            match &call.arguments {
                Arguments::Quoted(quote) => literals.push(quote),
                Arguments::Tags(tags) => {
                    literals.extend([tags.key, tags.value, tags.value_end]);
                    literals.extend(tags.key_end);
                }
                Arguments::Json | Arguments::Python => {}
            }
        }
        if let Ids::After(text) | Ids::Numbered(text) = self.ids {
            literals.push(text);
        }
        literals.into_iter()
    }
}

#[cfg(test)]
mod tests;
