//! Answers of each format: whole, split at any position, and truncated at any position.

use serde_json::{Value as Json, json};

use super::*;
use crate::text::StopScope;

/// Joined parts of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Whole {
    reasoning: String,
    text: String,
    /// Names and arguments.
    calls: Vec<(String, String)>,
}

/// Joins parts and checks the invariants of every stream of parts.
fn joined(parts: Vec<ChatPart>) -> Whole {
    let mut whole = Whole::default();
    for part in parts {
        match part {
            ChatPart::Text(text) => whole.text += &text,
            ChatPart::Reasoning(text) => whole.reasoning += &text,
            ChatPart::CallStart { index, id, name } => {
                assert_eq!(index, whole.calls.len(), "calls are numbered as they come");
                assert!(!id.is_empty());
                whole.calls.push((name, String::new()));
            }
            ChatPart::CallArguments { index, text } => {
                assert_eq!(index + 1, whole.calls.len(), "arguments are of the last call");
                assert!(!text.is_empty());
                whole.calls[index].1 += &text;
            }
        }
    }
    whole
}

fn tools() -> Tools {
    let weather = json!({"type": "object", "properties": {
        "city": {"type": "string"}, "days": {"type": "integer"}, "metric": {"type": "boolean"},
        "tags": {"type": "array"}, "where": {"type": "object"}, "zip": {"type": ["string", "null"]},
    }});
    let note = json!({"type": "object", "properties": {"text": {"$ref": "#/$defs/line"}},
        "$defs": {"line": {"type": "string"}}});
    Tools::new(vec![
        Tool::new("get_weather", weather),
        Tool::new("note", note),
        Tool::new("ping", json!({"type": "object", "properties": {}})),
    ])
}

fn parser(format: &str) -> AnswerParser {
    AnswerParser::new(ChatFormat::of_name(format).expect("a format"), &tools())
}

/// Parses pieces. Returns the joined parts and the number of malformed blocks.
fn read<'p>(format: &str, pieces: impl IntoIterator<Item = &'p str>) -> (Whole, usize) {
    let mut parser = parser(format);
    let mut parts: Vec<_> = pieces.into_iter().flat_map(|piece| parser.push(piece)).collect();
    parts.extend(parser.finish());
    let whole = joined(parts);
    assert_eq!(parser.calls(), whole.calls.len());
    (whole, parser.malformed())
}

/// An answer in a format, with the expected parts.
struct Case {
    format: &'static str,
    written: &'static str,
    reasoning: &'static str,
    text: &'static str,
    calls: &'static [(&'static str, &'static str)],
}

const NO_CALL: Case = Case { format: "", written: "", reasoning: "", text: "", calls: &[] };

mod pieces;
mod recorded;
use pieces::PIECES;
use recorded::CASES;

impl Case {
    fn whole(&self) -> Whole {
        let calls = self.calls.iter().map(|&(name, arguments)| (name.to_owned(), arguments.to_owned()));
        Whole { reasoning: self.reasoning.into(), text: self.text.into(), calls: calls.collect() }
    }
}

#[test]
fn every_answer_comes_to_what_it_says() {
    for case in CASES {
        let (whole, malformed) = read(case.format, [case.written]);
        assert_eq!(whole, case.whole(), "{}: {}", case.format, case.written);
        assert_eq!(malformed, 0, "{}: {}", case.format, case.written);
        for (name, arguments) in &whole.calls {
            let arguments: Json = serde_json::from_str(arguments).expect("JSON");
            assert!(arguments.is_object(), "{name}");
        }
    }
}

#[test]
fn every_format_has_answers_with_calls_and_text() {
    for name in ChatFormat::names() {
        let of = |case: &&Case| case.format == name;
        let calls: Vec<usize> = CASES.iter().filter(of).map(|case| case.calls.len()).collect();
        assert!(calls.contains(&0), "{name}: an answer without a call");
        assert!(calls.iter().any(|&calls| calls > 0), "{name}: an answer with a call");
        assert!(CASES.iter().filter(of).any(|case| case.calls.iter().any(|call| call.1 == "{}")), "{name}");
    }
}

#[test]
fn stop_strings_count_in_text_and_reasoning_only() {
    let squeezed = |text: &str| text.split_whitespace().collect::<String>();
    for case in CASES {
        let mut chars = case.written.chars();
        let stretches = OutsideCalls::new(parser(case.format)).push(case.written);
        let stretches: Vec<(String, bool)> = stretches
            .iter()
            .map(|found| (chars.by_ref().take(found.chars).collect(), found.counts))
            .collect();
        let counted: String =
            stretches.iter().filter(|(_, counts)| *counts).map(|(text, _)| text.as_str()).collect();
        let (whole, _) = read(case.format, [counted.as_str()]);
        let found = (squeezed(&whole.text), squeezed(&whole.reasoning), whole.calls.len());
        let expected = (squeezed(case.text), squeezed(case.reasoning), 0);
        assert_eq!(found, expected, "{}: {} as {stretches:?}", case.format, case.written);
    }
}

#[test]
fn cuts_change_nothing() {
    for case in CASES {
        let written = case.written;
        let ends = written.char_indices().map(|(at, _)| at);
        for at in ends.clone() {
            let (first, second) = written.split_at(at);
            assert_eq!(read(case.format, [first, second]).0, case.whole(), "{first:?} | {second:?}");
        }
        let singles = written.char_indices().map(|(at, c)| &written[at..at + c.len_utf8()]);
        assert_eq!(read(case.format, singles).0, case.whole(), "{}: {written}", case.format);
    }
}

/// The text with its format's markers replaced by spaces.
fn unmarked(format: &str, text: &str) -> String {
    let format = ChatFormat::of_name(format).expect("a format");
    let reasoning = format.reasoning.iter().flat_map(|row| [row.open, row.close]);
    let markers =
        reasoning.chain(format.calls.literals()).chain(format.calls.ignored_markers.iter().copied());
    let mut markers: Vec<&str> = markers.map(str::trim).filter(|marker| marker.len() > 1).collect();
    markers.sort_by_key(|marker| std::cmp::Reverse(marker.len()));
    markers.iter().fold(text.into(), |text, marker| text.replace(marker, " "))
}

fn words(text: &str) -> Vec<String> {
    let words = text.split(|c: char| !c.is_alphanumeric());
    words.filter(|word| !word.is_empty()).map(str::to_lowercase).collect()
}

#[test]
fn an_answer_that_breaks_off_anywhere_loses_nothing() {
    for case in CASES {
        let all = words(&format!("{} {} {:?}", case.text, case.reasoning, case.calls));
        for (at, _) in case.written.char_indices() {
            let before = &case.written[..at];
            let (whole, _) = read(case.format, [before]);
            let found = format!("{whole:?}").to_lowercase();
            // The last word may be cut. Keys of a JSON call are in no part.
            let mut came = words(&unmarked(case.format, before));
            came.pop();
            let lost = came.iter().find(|word| all.contains(word) && !found.contains(word.as_str()));
            assert_eq!(lost, None, "{}: {before:?} gave {whole:?}", case.format);
        }
    }
}

#[test]
fn an_answer_without_one_of_its_characters_loses_no_other() {
    for case in CASES {
        let all = words(&format!("{} {} {:?}", case.text, case.reasoning, case.calls));
        for (at, c) in case.written.char_indices() {
            let broken = format!("{}{}", &case.written[..at], &case.written[at + c.len_utf8()..]);
            let (whole, _) = read(case.format, [broken.as_str()]);
            let found = format!("{whole:?}").to_lowercase();
            let came = words(&unmarked(case.format, &broken));
            let lost = came.iter().find(|word| all.contains(word) && !found.contains(word.as_str()));
            assert_eq!(lost, None, "{}: {broken:?} gave {whole:?}", case.format);
        }
    }
}

#[test]
fn what_breaks_a_call_that_has_begun_is_text() {
    let cases = [
        (
            "hermes",
            "<tool_call>{\"name\":\"note\",\"text\":\"hi\"}</tool_call>",
            "\"text\":\"hi\"}</tool_call>",
        ),
        (
            "glm",
            "<tool_call>note\n<arg_key>city</arg_key>\nOslo\n</tool_call>",
            "<arg_key>city</arg_key>Oslo\n</tool_call>",
        ),
    ];
    for (format, written, text) in cases {
        let (whole, malformed) = read(format, [written]);
        let calls = vec![("note".to_owned(), String::new())];
        assert_eq!((whole.text.as_str(), whole.calls, malformed), (text, calls, 1), "{format}");
    }
}

#[test]
fn parts_grow_with_the_text_and_are_never_taken_back() {
    for case in CASES {
        for (at, _) in case.written.char_indices() {
            let mut parser = parser(case.format);
            let so_far = joined(parser.push(&case.written[..at]));
            let whole = case.whole();
            assert!(whole.text.starts_with(&so_far.text), "{}: {so_far:?}", case.format);
            assert!(whole.reasoning.starts_with(&so_far.reasoning), "{}: {so_far:?}", case.format);
            for (call, known) in so_far.calls.iter().zip(&whole.calls) {
                assert_eq!(call.0, known.0);
                assert!(known.1.starts_with(&call.1), "{}: {so_far:?}", case.format);
            }
        }
    }
}

#[test]
fn arguments_come_while_they_are_written() {
    let mut parser = parser("hermes");
    parser.push("<tool_call>{\"name\": \"note\", \"arguments\": {\"text\": \"one ");
    let next = parser.push("two ");
    assert_eq!(next, [ChatPart::CallArguments { index: 0, text: "two ".into() }]);
    let mut parser = self::parser("qwen-coder");
    parser.push("<tool_call>\n<function=note>\n<parameter=text>\none ");
    assert_eq!(parser.push("two "), [ChatPart::CallArguments { index: 0, text: "two ".into() }]);
}

#[test]
fn what_is_no_call_is_text_as_it_stood() {
    let cases = [
        ("hermes", "See <tool_call>{\"name\": \"rm\", \"arguments\": {}}</tool_call> there"),
        ("hermes", "<tool_call>{\"answer\": 1}</tool_call>"),
        ("hermes", "a <tool_call> is a tag"),
        ("hermes", "<tool_call>{\"arguments\": {}}</tool_call>"),
        ("json", "{\"city\": \"Oslo\", \"days\": 3}"),
        ("json", "[1, 2, 3]"),
        ("llama3", "<|python_tag|>print(1)"),
        ("pythonic", "[see below](ping)"),
        ("pythonic", "[unknown(a=1)]"),
        ("mistral", "[TOOL_CALLS]unknown[ARGS]{\"a\": 1}"),
        ("mistral-list", "[TOOL_CALLS] and [TOOL_CALLS][{\"name\": \"unknown\"}]"),
        ("qwen-coder", "<tool_call>\n<function=unknown>\n</function>\n</tool_call>"),
        ("glm", "<tool_call>unknown\n</tool_call>"),
        ("deepseek", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>unknown<｜tool▁sep｜>{}"),
        ("gemma", "<|tool_call>call:unknown{}<tool_call|>"),
        ("kimi", "<|tool_calls_section_begin|><|tool_call_begin|>unknown:0"),
    ];
    for (format, written) in cases {
        let (whole, malformed) = read(format, [written]);
        assert_eq!(whole, Whole { text: written.into(), ..Whole::default() }, "{format}");
        assert_eq!(malformed > 0, !["json", "pythonic"].contains(&format), "{format}: {written}");
    }
}

#[test]
fn a_call_behind_one_that_is_none_is_found() {
    let written = "<tool_call><tool_call>{\"name\": \"ping\"}</tool_call>";
    let (whole, malformed) = read("hermes", [written]);
    assert_eq!((whole.text.as_str(), whole.calls.len(), malformed), ("<tool_call>", 1, 1));
}

#[test]
fn broken_arguments_end_where_they_break() {
    let (whole, malformed) = read(
        "hermes",
        ["<tool_call>{\"name\": \"note\", \"arguments\": {\"text\": \"a\", \"days\": oops}}</tool_call> b"],
    );
    assert_eq!(whole.calls, [("note".into(), "{\"text\":\"a\",\"days\":".into())]);
    assert_eq!((whole.text.as_str(), malformed), ("oops}}</tool_call> b", 1));
}

#[test]
fn without_tools_calls_are_text_and_reasoning_is_not() {
    let written = "<think>\nHm.\n</think>\n\n<tool_call>{\"name\": \"ping\"}</tool_call>";
    let format = ChatFormat::of_name("hermes").expect("a format");
    let without = [Tools::default(), tools().choice(ToolChoice::None)];
    for tools in without {
        let mut parser = AnswerParser::new(format, &tools);
        let mut parts = parser.push(written);
        parts.extend(parser.finish());
        let text = "<tool_call>{\"name\": \"ping\"}</tool_call>".to_owned();
        assert_eq!(joined(parts), Whole { reasoning: "Hm.".into(), text, calls: Vec::new() });
    }
}

#[test]
fn one_call_is_enough_where_only_one_may_come() {
    let call = "<tool_call>{\"name\": \"ping\"}</tool_call>";
    let mut parser = AnswerParser::new(ChatFormat::of_name("hermes").expect("a format"), &tools().single());
    let mut parts = parser.push(call);
    parts.extend(parser.push(call));
    parts.extend(parser.finish());
    let whole = joined(parts);
    assert_eq!((whole.calls.len(), whole.text.as_str()), (1, call));
}

#[test]
fn reasoning_that_the_prompt_began_ends_with_its_mark() {
    let format = ChatFormat::of_name("hermes").expect("a format");
    assert!(format.begins_reasoning("<|im_start|>assistant\n<think>\n"));
    assert!(!format.begins_reasoning("<think>\n\n</think>\n\n"));
    let mut parser = AnswerParser::new(format, &tools()).in_reasoning();
    let mut parts = parser.push("I see.\n</think>\n\nYes.");
    parts.extend(parser.finish());
    assert_eq!(joined(parts), Whole { reasoning: "I see.".into(), text: "Yes.".into(), ..Whole::default() });
}

#[test]
fn ids_are_what_templates_insist_on() {
    let id = |format: &str, written: &str| {
        let parts = parser(format).push(written);
        let id = |part| if let ChatPart::CallStart { id, .. } = part { Some(id) } else { None };
        parts.into_iter().find_map(id).expect("a call")
    };
    assert_eq!(id("mistral", "[TOOL_CALLS]ping[CALL_ID]abc123XYZ[ARGS]{}"), "abc123XYZ");
    assert_eq!(id("mistral", "[TOOL_CALLS]ping[ARGS]{}").len(), 9);
    let section =
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.ping:3<|tool_call_argument_begin|>{}";
    assert_eq!(id("kimi", section), "functions.ping:3");
    let made = |_| id("hermes", "<tool_call>{\"name\": \"ping\"}</tool_call>");
    let ids: std::collections::BTreeSet<String> = (0..20).map(made).collect();
    assert_eq!(ids.len(), 20);
    assert!(ids.iter().all(|id| id.len() == 29 && id.starts_with("call_")));
}

proptest::proptest! {
    /// Arbitrary input: no panic, and the result does not depend on how the text is split.
    #[test]
    fn anything_is_read_the_same_in_pieces(
        format in proptest::sample::select(ChatFormat::names()),
        pieces in proptest::collection::vec(proptest::sample::select(PIECES.to_vec()), 0..24),
    ) {
        let whole = pieces.concat();
        let (in_one, _) = read(format, [whole.as_str()]);
        let (in_pieces, _) = read(format, pieces.iter().copied());
        proptest::prop_assert_eq!(&in_one, &in_pieces);
        let singles: Vec<String> = whole.chars().map(String::from).collect();
        let (in_singles, _) = read(format, singles.iter().map(String::as_str));
        proptest::prop_assert_eq!(&in_one, &in_singles);
    }
}
