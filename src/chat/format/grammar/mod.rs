//! Lark grammar for a format and tools, in the dialect of `llguidance`: calls that the parser accepts, with
//! arguments that follow the tool's schema.
//!
//! Control tokens of markers are referenced by id. Text up to a marker is one lexeme that ends with the
//! marker, so a call has to follow once its marker is complete. `arguments.rs` generates the arguments that
//! are not JSON.

mod arguments;

use std::collections::BTreeSet;

use serde_json::Value as Json;

use super::{Arguments, Call, ChatFormat, Ids, List, NamedCall, ReasoningState};
use crate::chat::{Tool, ToolChoice, ToolError, Tools};
use crate::constrain::{Grammar, Lark, Schema, Source, json_bytes};

/// Size limit in bytes of the rules generated from tools. The compiler would reject a larger grammar.
const BYTES_MAX: usize = 1 << 19;
/// Any non-empty text.
const TEXT: (&str, &str) = ("TEXT", "/.+/s");
/// White space between a marker and the next element.
const SPACE: (&str, &str) = ("SPACE", "/[ \\n]{1,4}/");

/// Answers that the grammar accepts.
pub(crate) struct Wanted<'w> {
    pub(crate) tools: &'w Tools,
    /// Required form of the visible text.
    pub(crate) text_grammar: Option<&'w Source>,
    /// State of the reasoning at the end of the prompt.
    pub(crate) reasoning: ReasoningState,
    /// Control tokens that are part of markers: spelling and id.
    pub(crate) control: &'w [(String, u32)],
}

impl ChatFormat {
    /// Grammar of the accepted answers; `None` if any answer is accepted.
    ///
    /// A required call comes first, after optional reasoning. With a free choice, the text is free unless
    /// `text_grammar` restricts it. A call that has started must name one of the tools and follow its schema.
    ///
    /// # Errors
    /// [`ToolError`] if the tools' rules exceed the size limit.
    pub(crate) fn grammar(&self, wanted: &Wanted<'_>) -> Result<Option<Grammar>, ToolError> {
        let Wanted { tools, text_grammar, reasoning, control } = *wanted;
        let must = matches!(tools.choice, ToolChoice::Required | ToolChoice::Named(_));
        let may_call = tools.choice != ToolChoice::None && !tools.list.is_empty();
        let is_strict = tools.list.iter().any(|tool| tool.strict);
        let is_free = !may_call || self.calls.bare && !must && !is_strict;
        if text_grammar.is_none() && is_free {
            return Ok(None);
        }
        let mut writer = Writer {
            format: *self,
            control,
            rules: Lark::default(),
            known: BTreeSet::new(),
            next: 0,
            left: BYTES_MAX,
            refused: None,
        };
        if may_call {
            writer.calls(tools);
        }
        let start = match text_grammar {
            _ if must => Lark::from(writer.reasoning_prefix(reasoning)) + " blocks",
            Some(text_grammar) => {
                let text = Lark::from(writer.literal(self.calls.text_prefix)) + " " + text_grammar.nested();
                let text = if may_call { Lark::from("(blocks | ") + text + ")" } else { text };
                Lark::from(writer.reasoning_prefix(reasoning)) + " " + text
            }
            None => writer.auto(reasoning, tools.single).into(),
        };
        if writer.left == 0 {
            let message =
                format!("expected schemas that make a grammar of at most {BYTES_MAX} bytes, found more");
            return Err(ToolError::new("tools", message));
        }
        let mut grammar = Lark::default();
        grammar.define("start", start);
        grammar.append(writer.rules);
        Ok(Some(Grammar::built(writer.refused.map_or(Ok(grammar), Err))))
    }
}

struct Writer<'c> {
    format: ChatFormat,
    control: &'c [(String, u32)],
    rules: Lark,
    /// Shared rules already written.
    known: BTreeSet<&'static str>,
    /// Counter for generated rule names.
    next: usize,
    /// Remaining size in bytes. At 0, no more tools are written and the grammar is rejected.
    left: usize,
    /// Why a schema makes no grammar; the first reason.
    refused: Option<String>,
}

impl Writer<'_> {
    /// Defines a shared rule once. Returns its name.
    fn shared(&mut self, (name, body): (&'static str, &str)) -> &'static str {
        if self.known.insert(name) {
            self.rules.define(name, body);
        }
        name
    }

    fn rule(&mut self, name: &str, body: impl Into<Lark>) {
        let body = body.into();
        self.left = self.left.saturating_sub(body.bytes());
        self.rules.define(name, body);
    }

    /// Generates a unique rule name.
    fn name(&mut self, of: &str) -> String {
        self.next += 1;
        format!("{of}_{}", self.next)
    }

    /// A literal of the format, with control tokens by id. Text of a request goes through [`quoted`] instead.
    fn literal(&self, text: &str) -> String {
        let (mut parts, mut rest) = (Vec::new(), text);
        let found = |rest: &str| {
            let all =
                self.control.iter().filter_map(|(piece, id)| Some((rest.find(piece)?, piece.len(), *id)));
            all.min_by_key(|&(at, bytes, _)| (at, std::cmp::Reverse(bytes)))
        };
        while let Some((at, bytes, id)) = found(rest) {
            let (before, after) = rest.split_at(at);
            parts.extend((!before.is_empty()).then(|| quoted(before)));
            parts.push(format!("<[{id}]>"));
            rest = &after[bytes..];
        }
        parts.extend((!rest.is_empty()).then(|| quoted(rest)));
        parts.join(" ")
    }

    fn begins_with_control(&self, text: &str) -> bool {
        self.control.iter().any(|(piece, _)| text.starts_with(piece.as_str()))
    }

    /// Any text up to a marker, including the marker.
    fn until(&mut self, end: &str) -> String {
        if self.begins_with_control(end) {
            return format!("{}? {}", self.shared(TEXT), self.literal(end));
        }
        let name = self.name("until");
        let end = self.literal(end);
        self.rule(&format!("{name}[suffix={end}]"), "/.*/s");
        name
    }

    /// Defines the rules `block` and `blocks`: the calls of an answer.
    fn calls(&mut self, tools: &Tools) {
        let row = self.format.calls;
        let named = |tool: &&Tool| !matches!(&tools.choice, ToolChoice::Named(name) if *name != tool.name);
        let mut names = Vec::new();
        for (at, tool) in tools.list.iter().enumerate().filter(|(_, tool)| named(tool)) {
            if self.left == 0 {
                break;
            }
            let body = self.call(tool);
            names.push(format!("call_{at}"));
            self.rule(&format!("call_{at}"), body);
        }
        self.rule("call", names.join(" | "));
        let once = tools.single || matches!(tools.choice, ToolChoice::Named(_));
        let items = match (row.list, row.bare) {
            (List::Yes, _) if once => "\"[\" call \"]\"",
            (List::Yes, _) => "\"[\" call (\", \" call)* \"]\"",
            (List::No, true) if !once => "call (\"; \" call)*",
            (List::No, false) if row.several && !once => "call call*",
            (List::No, _) => "call",
        };
        let close = if row.bare { String::new() } else { self.literal(row.close) };
        self.rule("body", format!("{items} {close}"));
        let open = if row.bare { "" } else { row.open.first().copied().unwrap_or_default() };
        let block = format!("{} body", self.literal(open));
        self.rule("block", block);
        let repeats = !(once || row.bare || row.several || row.list == List::Yes || row.is_last);
        self.rule("blocks", if repeats { "block (\"\\n\"? block)*" } else { "block" });
    }

    /// Optional or open reasoning that precedes a required element.
    fn reasoning_prefix(&mut self, reasoning: ReasoningState) -> String {
        let space = self.shared(SPACE);
        let then = self.format.reasoning.map(|row| self.literal(row.then)).unwrap_or_default();
        match (self.format.reasoning.is_some(), reasoning) {
            (true, ReasoningState::Open) => format!("{} {then} {space}?", self.reasoning_end()),
            (true, ReasoningState::NotStarted) => format!("({} {then} {space}?)?", self.reasoning()),
            (true, ReasoningState::Closed) | (false, _) => String::new(),
        }
    }

    /// Rule for a free choice: any text, with optional calls.
    fn auto(&mut self, reasoning: ReasoningState, once: bool) -> String {
        let row = self.format.calls;
        let open = row.open.first().copied().unwrap_or_default();
        if !row.bare && self.begins_with_control(open) {
            let end = if reasoning == ReasoningState::Open { self.reasoning_end() } else { String::new() };
            return format!("{end} {}", self.control_auto(reasoning));
        }
        let before = match reasoning {
            ReasoningState::Open => self.reasoning_end(),
            ReasoningState::NotStarted => self.optional_reasoning(),
            ReasoningState::Closed => String::new(),
        };
        if row.bare {
            return format!("{before} {}", self.bare_auto());
        }
        let marker = open.trim();
        let rest = self.literal(&open[marker.len()..]);
        let others = self.without(row.open.iter().copied().skip(1));
        let no_call = self.without(row.open.iter().copied());
        let opens =
            self.format.reasoning.filter(|_| reasoning != ReasoningState::Open).map(|row| row.open.trim());
        let not_reasoning = opens.map(|open| format!(" & ~/\\s*{}.*/s", regex(open))).unwrap_or_default();
        let marker = self.literal(marker);
        self.rule("BEFORE", format!("/.*/s{others}{not_reasoning}"));
        self.rule(&format!("before[suffix={marker}]"), "BEFORE");
        self.rule("REST", format!("/.*/s{no_call}{not_reasoning}"));
        let more = if once { "" } else { "(\"\\n\"? blocks)?" };
        format!("{before} (before {rest} body {more} | REST)?")
    }

    /// Rule for a free choice where a call needs no marker. After reasoning, the parser looks for a marker
    /// again.
    fn bare_auto(&mut self) -> String {
        let calls = self.format.calls.open.iter().copied();
        let none = self.without(calls.chain(self.format.reasoning.map(|row| row.open)));
        self.rule("WORDS", format!("/\\s*[^\\s{{\\[].*/s{none}"));
        format!("({}? blocks | WORDS)?", self.shared(SPACE))
    }

    /// Rule for a free choice where a control token opens calls. Two texts are never adjacent, because a
    /// marker could be split between them.
    fn control_auto(&mut self, reasoning: ReasoningState) -> String {
        let row = self.format.calls;
        let none = self.without(row.open.iter().copied());
        self.rule("WORDS", format!("{}{none}", TEXT.1));
        let mut between: Vec<String> = row.ignored_markers.iter().map(|text| self.literal(text)).collect();
        let may_think = self.format.reasoning.filter(|_| reasoning != ReasoningState::Closed);
        between.extend(may_think.map(|_| self.reasoning()));
        if between.is_empty() {
            return "WORDS? blocks?".into();
        }
        format!("WORDS? (({}) WORDS?)* blocks?", between.join(" | "))
    }

    /// Lark terms that exclude texts with any of these markers. Control tokens cannot occur in text, so
    /// they are skipped.
    fn without(&self, markers: impl Iterator<Item = &'static str>) -> String {
        let markers = markers.map(str::trim).filter(|marker| !self.begins_with_control(marker));
        markers.map(|marker| format!(" & ~/.*{}.*/s", regex(marker))).collect()
    }

    /// Optional reasoning; empty for formats without reasoning.
    fn optional_reasoning(&mut self) -> String {
        self.format.reasoning.map(|_| format!("({})?", self.reasoning())).unwrap_or_default()
    }

    /// Reasoning, including its opening marker.
    fn reasoning(&mut self) -> String {
        let open = self.format.reasoning.map_or("", |row| row.open.trim());
        let end = self.reasoning_end();
        if self.begins_with_control(open) {
            return format!("{} {end}", self.literal(open));
        }
        // One lexeme with the preceding space: otherwise a longer lexeme of text would win.
        let open = format!("/[ \\n]{{0,4}}{}/", regex(open));
        format!("{} {end}", self.shared(("THOUGHTS", &open)))
    }

    fn reasoning_end(&mut self) -> String {
        let close = self.format.reasoning.map_or("", |row| row.close.trim());
        if close.is_empty() { String::new() } else { self.until(close) }
    }

    fn call(&mut self, tool: &Tool) -> Lark {
        match &self.format.calls.call {
            Call::Object { name, arguments } => {
                let key = |names: &[&'static str]| names.first().copied().unwrap_or_default();
                let begin = self.literal(&format!("{{\"{}\": \"", key(name)));
                let before = self.literal(&format!("\", \"{}\": ", key(arguments)));
                let before = format!("{begin} {} {before} ", quoted(&tool.name));
                Lark::from(before) + self.json(&tool.parameters) + " \"}\""
            }
            Call::Named(row) => self.named(row, tool),
        }
    }

    /// A JSON schema in the grammar. Arguments are always an object, even if the schema has no type.
    fn json(&mut self, schema: &Json) -> Lark {
        const TYPED: [&str; 7] = ["type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const"];
        let mut schema = schema.clone();
        if let Some(fields) = schema.as_object_mut()
            && !TYPED.iter().any(|key| fields.contains_key(*key))
        {
            fields.insert("type".into(), "object".into());
        }
        self.left = self.left.saturating_sub(json_bytes(&schema));
        match Schema::of_arguments(schema) {
            Ok(schema) => Lark::schema(schema),
            Err(message) => {
                self.refused.get_or_insert(message);
                Lark::default()
            }
        }
    }

    fn named(&mut self, row: &NamedCall, tool: &Tool) -> Lark {
        let begin = format!("{} {}", self.literal(row.prefix), quoted(&tool.name));
        let id = match self.format.calls.ids {
            Ids::Long | Ids::Short => String::new(),
            Ids::After(text) => format!("({} /[a-zA-Z0-9]{{9}}/)?", self.literal(text)),
            Ids::Numbered(text) => format!("{} /[0-9]{{1,3}}/", self.literal(text)),
        };
        let before = self.literal(row.before.first().copied().unwrap_or_default());
        let arguments = match &row.arguments {
            Arguments::Json => self.json(&tool.parameters),
            Arguments::Tags(tags) => self.tags(tags, &tool.parameters),
            Arguments::Python => format!("{} \")\"", self.fields(&tool.parameters, None)).into(),
            Arguments::Quoted(quote) => {
                format!("\"{{\" {} \"}}\"", self.fields(&tool.parameters, Some(quote))).into()
            }
        };
        Lark::from(format!("{begin} {id} {before} ")) + arguments + " " + self.literal(row.suffix)
    }
}

/// Lark string literal: JSON syntax, with DEL escaped.
fn quoted(text: &str) -> String {
    Json::from(text).to_string().replace('\u{7f}', "\\u007f")
}

/// Escapes text for a regular expression between slashes.
fn regex(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        if !c.is_alphanumeric() && c.is_ascii() && c != ' ' && c != '<' && c != '>' && c != '_' {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

#[cfg(all(test, feature = "constraints"))]
mod tests;
