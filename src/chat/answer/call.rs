//! Parser for a block of calls, from after its opening marker to its end.

use super::named::Named;
use super::object::Object;
use super::out::Out;
use super::step::{Found, Literal, Step};
use crate::chat::format::{Call, List, ToolCallFormat};

/// Effect of one character on a block. `again` is read again before further input.
#[derive(Debug)]
pub(super) enum Went {
    /// The block continues.
    On { again: String },
    /// The block has ended.
    Over { again: String },
    /// Not a call, or a malformed one. `text` is the buffered raw text. `counts`: a marker or a name
    /// announced a call, so this is malformed output.
    Broken { text: String, again: String, counts: bool },
}

/// Remainder of a block at the end of input.
#[derive(Debug, Default)]
pub(super) struct Left {
    pub(super) text: String,
    pub(super) arguments: String,
    pub(super) is_broken: bool,
}

/// State of one block.
#[derive(Debug)]
pub(super) struct Block {
    row: &'static ToolCallFormat,
    state: BlockState,
    is_list: bool,
    literal: Literal,
    /// Raw text since the last call, or since the start of the block.
    raw: String,
    has_started: bool,
    /// Whether a marker or a tool's name announced a call.
    is_sure: bool,
}

#[derive(Debug)]
enum BlockState {
    Begin,
    Object(Object),
    Named(Named),
    /// Between calls, or before the block's end.
    After,
    Close,
}

impl Block {
    /// Block with the raw text so far.
    pub(super) fn new(row: &'static ToolCallFormat, raw: String) -> Block {
        let (state, literal, is_sure) = (BlockState::Begin, Literal::default(), !raw.trim().is_empty());
        Block { row, state, is_list: false, literal, raw, has_started: false, is_sure }
    }

    pub(super) fn push(&mut self, c: char, out: &mut Out<'_>) -> Went {
        if !self.has_started {
            self.raw.push(c);
        }
        let step = match &mut self.state {
            BlockState::Begin if c.is_whitespace() => Step::More,
            BlockState::Begin if c == '[' && self.row.list == List::Yes && !self.is_list => {
                self.is_list = true;
                Step::More
            }
            BlockState::Begin => {
                self.begin();
                self.item(c, out)
            }
            BlockState::Object(_) | BlockState::Named(_) => self.item(c, out),
            BlockState::After => return self.after(c, out),
            BlockState::Close => return self.close(c),
        };
        self.went(step)
    }

    /// Whether the current call has a name.
    pub(super) fn has_started(&self) -> bool {
        self.has_started
    }

    /// Ends the block at the end of input.
    pub(super) fn finish(&mut self) -> Left {
        let arguments = match &mut self.state {
            BlockState::Object(object) if self.has_started => object.rest(),
            BlockState::Named(named) if self.has_started => named.rest(),
            BlockState::After | BlockState::Close => {
                // A partial closing marker is dropped.
                let text = if self.row.close.trim().starts_with(self.raw.trim()) { "" } else { &self.raw };
                return Left { text: text.into(), ..Left::default() };
            }
            _ => String::new(),
        };
        let is_complete = matches!(&self.state, BlockState::Named(named) if named.is_complete());
        Left { text: std::mem::take(&mut self.raw), arguments, is_broken: self.is_sure && !is_complete }
    }

    fn begin(&mut self) {
        self.state = match &self.row.call {
            Call::Object { name, arguments } => BlockState::Object(Object::new(name, arguments)),
            Call::Named(row) => BlockState::Named(Named::new(row, self.row.ids)),
        };
    }

    fn item(&mut self, c: char, out: &mut Out<'_>) -> Step {
        let step = match &mut self.state {
            BlockState::Object(object) => object.push(c, out),
            BlockState::Named(named) => named.push(c, out),
            _ => Step::More,
        };
        if out.start.is_some() {
            (self.has_started, self.is_sure) = (true, true);
            self.raw.clear();
        }
        step
    }

    fn went(&mut self, step: Step) -> Went {
        let again = match step {
            Step::More => String::new(),
            Step::Done => self.ended(String::new()),
            Step::Before(again) => self.ended(again),
            Step::Wrong(again) => return self.broken(again),
        };
        Went::On { again }
    }

    /// Splits the raw text into plain text and characters to read again: `again` if the text ends with it,
    /// otherwise its last character if there is one.
    fn broken(&mut self, again: String) -> Went {
        let mut text = std::mem::take(&mut self.raw);
        if text.ends_with(&again) {
            text.truncate(text.len() - again.len());
            return Went::Broken { text, again, counts: self.is_sure };
        }
        let again = text.pop().map_or(again, String::from);
        Went::Broken { text, again, counts: self.is_sure }
    }

    /// Resets the state after a complete call.
    fn ended(&mut self, again: String) -> String {
        (self.state, self.has_started) = (BlockState::After, false);
        self.raw.clear();
        again
    }

    /// First literal of a further call.
    fn item_begin(&self) -> &'static str {
        match &self.row.call {
            Call::Object { .. } => "{",
            Call::Named(row) => row.prefix,
        }
    }

    fn after(&mut self, c: char, out: &mut Out<'_>) -> Went {
        let begin = self.item_begin();
        let comma = if self.is_list || self.row.bare { "," } else { "" };
        let (semicolon, bracket) =
            (if self.row.bare { ";" } else { "" }, if self.is_list { "]" } else { "" });
        let again = match self.literal.push(c, &[begin, comma, semicolon, bracket, self.row.close]) {
            Found::More => String::new(),
            Found::One(0) => {
                self.begin();
                begin.chars().for_each(|c| drop(self.item(c, out)));
                String::new()
            }
            Found::One(1 | 2) => {
                self.state = BlockState::Begin;
                String::new()
            }
            Found::One(3) if !self.row.close.is_empty() => {
                self.state = BlockState::Close;
                self.raw.clear();
                String::new()
            }
            Found::One(_) => return Went::Over { again: String::new() },
            Found::None(_) => return Went::Over { again: std::mem::take(&mut self.raw) },
        };
        Went::On { again }
    }

    fn close(&mut self, c: char) -> Went {
        match self.literal.push(c, &[self.row.close]) {
            Found::More => Went::On { again: String::new() },
            Found::One(_) => Went::Over { again: String::new() },
            Found::None(_) => Went::Over { again: std::mem::take(&mut self.raw) },
        }
    }
}
