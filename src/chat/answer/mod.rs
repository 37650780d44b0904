//! Streaming parser of model output: text, reasoning and tool calls.
//!
//! The parser takes one character at a time, so the parts do not depend on how the text was split.
//! `call.rs` parses a block of calls, `object.rs` and `named.rs` one call, `value.rs` and `tags.rs` its
//! arguments. `scope.rs` separates calls from text for stop strings.

mod call;
mod convert;
mod named;
mod object;
mod out;
mod scope;
mod step;
mod tags;
mod value;

use std::hash::{BuildHasher as _, Hasher as _, RandomState};

use super::format::{ChatFormat, Ids};
use super::{ChatPart, Tool, ToolChoice, Tools};
use call::{Block, Went};
use out::Out;
pub(crate) use scope::OutsideCalls;
use scope::Stretches;

/// Streaming parser for the text of one answer.
///
/// White space around markers belongs to the markers. A malformed call, or a call of an unknown tool, is
/// text. Arguments are emitted as JSON while they are written; if the output is truncated, they end there.
///
/// ```
/// use ottava::chat::{AnswerParser, ChatFormat, ChatPart, Tool, Tools};
///
/// let format = ChatFormat::of_name("hermes").expect("a format");
/// let tools = Tools::new(vec![Tool::new("add", serde_json::json!({}))]);
/// let mut parser = AnswerParser::new(format, &tools);
/// let mut parts = parser.push("Well.\n<tool_call>{\"name\": \"add\", \"argu");
/// assert_eq!(parts[0], ChatPart::Text("Well.".into()));
/// assert!(matches!(&parts[1], ChatPart::CallStart { index: 0, name, .. } if name == "add"));
/// parts = parser.push("ments\": {\"a\": 1}}</tool_call>");
/// assert_eq!(parts, [ChatPart::CallArguments { index: 0, text: "{\"a\":1}".into() }]);
/// assert!(parser.finish().is_empty());
/// assert_eq!(parser.calls(), 1);
/// ```
#[derive(Debug)]
pub struct AnswerParser {
    format: ChatFormat,
    /// Tools that may be called; empty if the choice is [`ToolChoice::None`].
    tools: Vec<Tool>,
    single: bool,
    state: AnswerState,
    /// White space that is dropped if a marker follows.
    space: String,
    /// Possible prefix of a marker.
    held: String,
    /// Whether the last non-space input was a marker; white space after it is dropped.
    behind_marker: bool,
    /// Whether the answer is at its start or directly after reasoning, where calls need no marker.
    is_fresh: bool,
    /// Characters to read again, as a stack: the next one is last.
    again: Vec<char>,
    parts: Vec<ChatPart>,
    calls: usize,
    malformed: usize,
    seed: u64,
    /// Stretches of text and calls, for a scope of stop strings.
    stretches: Option<Stretches>,
}

#[derive(Debug)]
enum AnswerState {
    Text,
    Reasoning,
    Block(Box<Block>),
}

/// Kind of a marker.
enum Marker {
    Reasoning,
    ReasoningEnd,
    Calls,
    Ignored,
}

impl AnswerParser {
    /// Parser at the start of an answer. Recognises calls of `tools`, unless the choice is
    /// [`ToolChoice::None`].
    pub fn new(format: ChatFormat, tools: &Tools) -> AnswerParser {
        let may_call = tools.choice != ToolChoice::None;
        AnswerParser {
            format,
            tools: if may_call { tools.list.clone() } else { Vec::new() },
            single: tools.single,
            state: AnswerState::Text,
            space: String::new(),
            held: String::new(),
            behind_marker: false,
            is_fresh: true,
            again: Vec::new(),
            parts: Vec::new(),
            calls: 0,
            malformed: 0,
            seed: RandomState::new().build_hasher().finish(),
            stretches: None,
        }
    }

    /// Starts within reasoning that the prompt has opened: [`ChatFormat::begins_reasoning`]. No effect for
    /// formats without reasoning.
    pub fn in_reasoning(mut self) -> AnswerParser {
        if self.format.has_reasoning() {
            (self.state, self.behind_marker) = (AnswerState::Reasoning, true);
        }
        self
    }

    /// Consumes text. Returns the parts that are certain so far.
    pub fn push(&mut self, text: &str) -> Vec<ChatPart> {
        for c in text.chars() {
            self.stretches.iter_mut().for_each(|stretches| stretches.pushed += 1);
            self.again.push(c);
            while let Some(c) = self.again.pop() {
                self.take(c);
            }
        }
        std::mem::take(&mut self.parts)
    }

    /// Ends the text. Returns the parts that were held back.
    pub fn finish(&mut self) -> Vec<ChatPart> {
        if let AnswerState::Block(block) = &mut self.state {
            let left = block.finish();
            self.state = AnswerState::Text;
            self.arguments(&left.arguments);
            self.text(&left.text);
            self.malformed += usize::from(left.is_broken);
            self.behind_marker = false;
        }
        let held = std::mem::take(&mut self.held);
        let space = std::mem::take(&mut self.space);
        self.text(&(space + &held));
        std::mem::take(&mut self.parts)
    }

    /// Number of calls that have started.
    pub fn calls(&self) -> usize {
        self.calls
    }

    /// Number of malformed blocks: no call, an unknown tool, arguments that are not an object, truncated
    /// output.
    pub fn malformed(&self) -> usize {
        self.malformed
    }

    fn take(&mut self, c: char) {
        if let AnswerState::Block(block) = &mut self.state {
            let mut out = Out::new(&self.tools);
            let was_call = block.has_started();
            let went = block.push(c, &mut out);
            let Out { start, arguments, .. } = out;
            let is_call = was_call || start.is_some();
            self.tell(start, &arguments);
            return self.went(went, is_call);
        }
        self.held.push(c);
        while !self.held.is_empty() {
            let found = self.markers().find(|(text, _)| *text == self.held);
            if let Some((_, marker)) = found {
                return self.marked(&marker);
            }
            if self.markers().any(|(text, _)| text.starts_with(&self.held)) {
                return;
            }
            let first = self.held.remove(0);
            self.plain(first);
        }
    }

    /// Markers that are valid in the current state.
    fn markers(&self) -> impl Iterator<Item = (&'static str, Marker)> {
        let in_text = matches!(self.state, AnswerState::Text);
        let may_call = in_text && !self.tools.is_empty() && !(self.single && self.calls > 0);
        let calls = self.format.calls;
        let open = calls.open.iter().filter(move |_| may_call).map(|text| (text.trim(), Marker::Calls));
        let ignored =
            calls.ignored_markers.iter().filter(move |_| in_text).map(|text| (text.trim(), Marker::Ignored));
        let reasoning = self.format.reasoning.map(|row| match in_text {
            true => (row.open.trim(), Marker::Reasoning),
            false => (row.close.trim(), Marker::ReasoningEnd),
        });
        open.chain(reasoning).chain(ignored)
    }

    fn marked(&mut self, marker: &Marker) {
        let raw = std::mem::take(&mut self.space) + &std::mem::take(&mut self.held);
        self.behind_marker = true;
        match marker {
            Marker::Calls => self.state = AnswerState::Block(Box::new(Block::new(self.format.calls, raw))),
            Marker::Reasoning => self.state = AnswerState::Reasoning,
            Marker::ReasoningEnd => (self.state, self.is_fresh) = (AnswerState::Text, true),
            Marker::Ignored => {}
        }
        if !matches!(marker, Marker::Calls) {
            self.stretch(true);
        }
    }

    /// Handles a character outside of markers.
    fn plain(&mut self, c: char) {
        if c.is_whitespace() {
            if !self.behind_marker {
                self.space.push(c);
            }
            return self.stretch(true);
        }
        let may_call = !self.tools.is_empty() && self.format.calls.bare;
        if may_call && self.is_fresh && matches!(self.state, AnswerState::Text) && matches!(c, '{' | '[') {
            let space = std::mem::take(&mut self.space);
            let held = std::mem::take(&mut self.held);
            self.again.extend(held.chars().rev().chain([c]));
            self.state = AnswerState::Block(Box::new(Block::new(self.format.calls, space)));
            return;
        }
        let mut text = std::mem::take(&mut self.space);
        text.push(c);
        self.behind_marker = false;
        self.text(&text);
        self.stretch(true);
    }

    /// `is_call`: the block has a call that has started.
    fn went(&mut self, went: Went, is_call: bool) {
        let counts = match went {
            Went::On { .. } if !is_call => None,
            Went::On { .. } | Went::Over { .. } => Some(false),
            Went::Broken { .. } => Some(true),
        };
        let again = match went {
            Went::On { again } => again,
            Went::Over { again } => {
                (self.state, self.behind_marker, self.is_fresh) = (AnswerState::Text, true, false);
                again
            }
            Went::Broken { text, again, counts } => {
                self.malformed += usize::from(counts);
                (self.state, self.behind_marker, self.is_fresh) = (AnswerState::Text, false, false);
                self.text(&text);
                again
            }
        };
        self.again.extend(again.chars().rev());
        if let Some(counts) = counts {
            self.stretch(counts);
        }
    }

    /// Ends a stretch with the characters that are read and not held.
    fn stretch(&mut self, counts: bool) {
        if let Some(stretches) = &mut self.stretches {
            stretches.end(self.held.chars().count() + self.again.len(), counts);
        }
    }

    fn text(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        let in_reasoning = matches!(self.state, AnswerState::Reasoning);
        self.is_fresh &= in_reasoning;
        match self.parts.last_mut() {
            Some(ChatPart::Reasoning(kept)) if in_reasoning => kept.push_str(text),
            Some(ChatPart::Text(kept)) if !in_reasoning => kept.push_str(text),
            _ if in_reasoning => self.parts.push(ChatPart::Reasoning(text.into())),
            _ => self.parts.push(ChatPart::Text(text.into())),
        }
    }

    fn tell(&mut self, start: Option<(String, Option<String>)>, arguments: &str) {
        if let Some((name, id)) = start {
            let id = id.unwrap_or_else(|| self.id());
            self.parts.push(ChatPart::CallStart { index: self.calls, id, name });
            self.calls += 1;
        }
        self.arguments(arguments);
    }

    fn arguments(&mut self, text: &str) {
        let Some(index) = self.calls.checked_sub(1).filter(|_| !text.is_empty()) else { return };
        match self.parts.last_mut() {
            Some(ChatPart::CallArguments { text: kept, .. }) => kept.push_str(text),
            _ => self.parts.push(ChatPart::CallArguments { index, text: text.into() }),
        }
    }

    /// Random call id. Unique within the answer.
    fn id(&self) -> String {
        let mut number = self.seed.wrapping_add(self.calls as u64);
        let mut character = || {
            const LETTERS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
            // Knuth's MMIX constants.
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            char::from(LETTERS[(number >> 33) as usize % LETTERS.len()])
        };
        match self.format.calls.ids {
            Ids::Short | Ids::After(_) => (0..9).map(|_| character()).collect(),
            Ids::Long | Ids::Numbered(_) => {
                (0..24).fold("call_".into(), |id, _| id + &character().to_string())
            }
        }
    }
}

#[cfg(test)]
mod tests;
