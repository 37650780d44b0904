//! Any text as a model's answer in any format: the same parts however it is cut, and a call that is not counted as
//! malformed has a JSON object as its arguments.

#![no_main]

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use ottava::chat::{AnswerParser, ChatFormat, ChatPart, Tool, Tools};
use serde_json::json;

#[path = "../../src/chat/answer/tests/pieces.rs"]
mod pieces;

#[derive(Arbitrary, Debug)]
enum Piece {
    Known(u8),
    Any(String),
}

impl Piece {
    fn text(&self) -> &str {
        match self {
            Piece::Known(at) => pieces::PIECES[usize::from(*at) % pieces::PIECES.len()],
            Piece::Any(text) => text,
        }
    }
}

#[derive(Arbitrary, Debug)]
struct Answer {
    format: u8,
    in_reasoning: bool,
    single: bool,
    pieces: Vec<Piece>,
}

/// Parts whose texts are joined; ids are random.
#[derive(Debug, Default, PartialEq)]
struct Read {
    text: String,
    reasoning: String,
    calls: Vec<(String, String)>,
    malformed: usize,
}

impl Read {
    fn add(&mut self, part: ChatPart) {
        match part {
            ChatPart::Text(text) => self.text += &text,
            ChatPart::Reasoning(text) => self.reasoning += &text,
            ChatPart::CallStart { index, name, .. } => {
                assert_eq!(index, self.calls.len(), "calls are numbered in order");
                self.calls.push((name, String::new()));
            }
            ChatPart::CallArguments { index, text } => self.calls[index].1 += &text,
            _ => {}
        }
    }
}

impl Answer {
    fn read<'p>(&self, pieces: impl Iterator<Item = &'p str>) -> Read {
        let names = ChatFormat::names();
        let format = ChatFormat::of_name(names[usize::from(self.format) % names.len()]).expect("a format");
        let text =
            json!({"type": "object", "properties": {"text": {"type": "string"}, "n": {"type": "integer"}}});
        let mut tools =
            Tools::new(vec![Tool::new("ping", json!({"type": "object"})), Tool::new("note", text)]);
        tools.single = self.single;
        let mut parser = AnswerParser::new(format, &tools);
        if self.in_reasoning {
            parser = parser.in_reasoning();
        }
        let mut read = Read::default();
        for piece in pieces {
            parser.push(piece).into_iter().for_each(|part| read.add(part));
        }
        parser.finish().into_iter().for_each(|part| read.add(part));
        assert_eq!(parser.calls(), read.calls.len());
        read.malformed = parser.malformed();
        read
    }
}

fuzz_target!(|answer: Answer| {
    let whole: String = answer.pieces.iter().map(Piece::text).collect();
    let in_pieces = answer.read(answer.pieces.iter().map(Piece::text));
    assert_eq!(answer.read(std::iter::once(whole.as_str())), in_pieces);
    let cuts = whole.char_indices().map(|(at, c)| &whole[at..at + c.len_utf8()]);
    assert_eq!(answer.read(cuts), in_pieces);
    if in_pieces.malformed == 0 {
        for (name, arguments) in &in_pieces.calls {
            // Numbers may be beyond any type's range.
            let is_json = serde_json::from_str::<serde::de::IgnoredAny>(arguments).is_ok();
            assert!(is_json && arguments.starts_with('{'), "{name}: {arguments}");
        }
    }
});
