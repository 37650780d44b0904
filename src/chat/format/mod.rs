//! How a model writes reasoning and calls of tools: a row of data per format.
//!
//! A row is all that a format is. The parser (`src/chat/answer`) and the grammar are made of it, so that they cannot
//! disagree. The rows are in `rows.rs`. Literals have the line breaks that a model was taught to write; the parser
//! takes any white space around them.

#[cfg(feature = "constraints")]
mod grammar;
mod rows;

#[cfg(feature = "constraints")]
pub(crate) use grammar::Wanted;

/// How a model writes what is not text for its reader.
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
    pub(super) calls: &'static Calls,
}

/// What stands around reasoning.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Reasoning {
    pub(super) open: &'static str,
    pub(super) close: &'static str,
    /// What has to stand between reasoning and a call.
    pub(super) then: &'static str,
}

/// How calls are written: blocks of one call or several.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Calls {
    pub(super) name: &'static str,
    /// What begins a block, the usual one first.
    pub(super) open: &'static [&'static str],
    /// Whether an answer may begin with a block that has no such beginning.
    pub(super) bare: bool,
    pub(super) list: List,
    /// Whether a block that is no list has several calls.
    pub(super) several: bool,
    /// Whether a block ends the answer, as where parts are messages.
    pub(super) is_last: bool,
    pub(super) call: Call,
    pub(super) close: &'static str,
    /// What stands before a text, where something does.
    pub(super) says: &'static str,
    /// Markers that stand between parts and mean nothing to a reader.
    pub(super) noise: &'static [&'static str],
    pub(super) ids: Ids,
    /// Where this row has a form of reasoning of its own.
    pub(super) reasoning: Option<&'static Reasoning>,
}

/// Whether the calls of a block stand in brackets, with commas between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum List {
    No,
    Yes,
}

/// A call.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Call {
    /// A JSON object whose fields are the name and the arguments; the usual names of those come first.
    Object { name: &'static [&'static str], arguments: &'static [&'static str] },
    /// A name among literals, and the arguments.
    Named(NamedCall),
}

/// A call whose name stands before its arguments.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NamedCall {
    pub(super) prefix: &'static str,
    /// What stands between the name and the arguments, the usual one first.
    pub(super) before: &'static [&'static str],
    pub(super) arguments: Arguments,
    pub(super) suffix: &'static str,
}

/// How arguments are written.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Arguments {
    Json,
    /// `key=value` with Python's literals, up to a parenthesis.
    Python,
    /// JSON without quotes around keys, and with this in place of quotes around texts.
    Quoted(&'static str),
    Tags(Tags),
}

/// Arguments as a pair of tags each.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Tags {
    pub(super) key: &'static str,
    pub(super) key_end: &'static [&'static str],
    pub(super) value: &'static str,
    pub(super) value_end: &'static str,
    /// Whether a value has lines of its own.
    pub(super) lines: bool,
}

/// Where the ids of calls come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ids {
    /// They are made: `call_` and 24 characters.
    Long,
    /// They are made, of the 9 characters that the templates of some models insist on.
    Short,
    /// Made, or written by the model behind this.
    Behind(&'static str),
    /// The call's whole name with the number that the model writes behind this.
    Numbered(&'static str),
}

/// Where a prompt leaves the model's reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Thoughts {
    /// The model may think first.
    Open,
    /// It has begun to.
    Begun,
    /// It has thought, or is not to.
    Ended,
}

impl ChatFormat {
    /// The format that a template's source shows. A template that shows none gives the generic one: a JSON object
    /// with a name and arguments.
    pub fn of_template(source: &str) -> ChatFormat {
        let shown = |marks: &[&str]| marks.iter().all(|mark| source.contains(mark));
        let calls = rows::CALLS.iter().find(|(marks, _)| shown(marks)).map_or(&rows::GENERIC, |row| row.1);
        let reasoning = rows::REASONING.iter().find(|(marks, _)| shown(marks)).map(|row| row.1);
        ChatFormat { reasoning: calls.reasoning.or(reasoning), calls }
    }

    /// The format of this name, with reasoning in the usual tags where it has no form of its own.
    pub fn of_name(name: &str) -> Option<ChatFormat> {
        let calls = rows::all().find(|calls| calls.name == name)?;
        Some(ChatFormat { reasoning: calls.reasoning.or(Some(&rows::THINK)), calls })
    }

    /// The names of all formats.
    pub fn names() -> Vec<&'static str> {
        let mut names: Vec<_> = rows::all().map(|calls| calls.name).collect();
        names.dedup();
        names
    }

    /// The name of how calls are written.
    pub fn name(&self) -> &'static str {
        self.calls.name
    }

    /// Whether the model may think before it answers.
    pub fn has_reasoning(&self) -> bool {
        self.reasoning.is_some()
    }

    /// Whether a prompt that ends like this has begun the reasoning already.
    pub fn begins_reasoning(&self, prompt: &str) -> bool {
        self.thoughts_behind(prompt) == Thoughts::Begun
    }

    /// Where a prompt that ends like this leaves the reasoning. A template that is told not to let the model think
    /// writes the reasoning's end itself.
    pub(crate) fn thoughts_behind(&self, prompt: &str) -> Thoughts {
        let (Some(row), prompt) = (self.reasoning, prompt.trim_end()) else { return Thoughts::Open };
        // What ends any message says nothing of reasoning.
        let close = if row.then.is_empty() { row.close.trim() } else { "" };
        if prompt.ends_with(row.open.trim_end()) {
            Thoughts::Begun
        } else if !close.is_empty() && prompt.ends_with(close) {
            Thoughts::Ended
        } else {
            Thoughts::Open
        }
    }

    /// Whether this piece of a vocabulary is part of a marker: a control token of this spelling has to be shown.
    /// Those of calls count `with_calls` only.
    pub fn has_marker_with(&self, piece: &str, with_calls: bool) -> bool {
        let reasoning = self.reasoning.iter().flat_map(|row| [row.open, row.close]);
        let mut markers = reasoning.chain(self.calls.noise.iter().copied());
        let found = markers.any(|marker| marker.contains(piece));
        !piece.is_empty() && (found || with_calls && self.calls.literals().any(|text| text.contains(piece)))
    }
}

impl Calls {
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
        if let Ids::Behind(text) | Ids::Numbered(text) = self.ids {
            literals.push(text);
        }
        literals.into_iter()
    }
}

#[cfg(test)]
mod tests;
