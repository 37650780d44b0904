//! A row and tools as a grammar in Lark's syntax, as `llguidance` reads it: what the parser takes for a call, and with
//! arguments that follow the tool's schema.
//!
//! A marker's control tokens are named by their ids. A text up to a marker is one lexeme that ends with it, so that a
//! call has to follow once its marker is there.

use std::collections::BTreeSet;

use serde_json::Value as Json;

use super::{Arguments, Call, ChatFormat, Ids, List, NamedCall, Tags};
use crate::chat::schema::types;
use crate::chat::{Tool, ToolChoice, Tools};

/// Any text but none.
const TEXT: (&str, &str) = ("TEXT", "/.+/s");
/// What may stand between a marker and what follows.
const SPACE: (&str, &str) = ("SPACE", "/[ \\n]{1,4}/");
const INTEGER: (&str, &str) = ("INTEGER", "/-?(0|[1-9][0-9]{0,15})/");
const NUMBER: (&str, &str) = ("NUMBER", "/-?(0|[1-9][0-9]{0,15})(\\.[0-9]{1,15})?([eE][+-]?[0-9]{1,2})?/");
const KEY: (&str, &str) = ("KEY", "/[A-Za-z_][A-Za-z0-9_]{0,63}/");
/// A text of Python's, with the escapes that all its readers have.
const QUOTED: (&str, &str) =
    ("QUOTED", "/'([^'\\\\\\n]|\\\\[\\\\'nrt])*'|\"([^\"\\\\\\n]|\\\\[\\\\\"nrt])*\"/");

/// What an answer may be made of.
pub(crate) struct Wanted<'w> {
    pub(crate) tools: &'w Tools,
    /// What the text has to be, as a part of a rule.
    pub(crate) says: Option<&'w str>,
    /// Whether the prompt has begun the reasoning.
    pub(crate) in_reasoning: bool,
    /// The control tokens that are part of markers, by their spelling and id.
    pub(crate) control: &'w [(String, u32)],
}

impl ChatFormat {
    /// The answers that are wanted, in Lark's syntax; `None` where any is.
    ///
    /// A required call comes at once, behind reasoning if there is any. Else a call that has begun is one of the tools',
    /// with arguments of its schema, and the text is free unless it has to be something.
    pub(crate) fn grammar(&self, wanted: &Wanted<'_>) -> Option<String> {
        let Wanted { tools, says, in_reasoning, control } = *wanted;
        let must = matches!(tools.choice, ToolChoice::Required | ToolChoice::Named(_));
        let may_call = tools.choice != ToolChoice::None && !tools.list.is_empty();
        let is_strict = tools.list.iter().any(|tool| tool.strict);
        let is_free = !may_call || self.calls.bare && !must && !is_strict;
        if says.is_none() && is_free {
            return None;
        }
        let mut writer =
            Writer { format: *self, control, rules: String::new(), known: BTreeSet::new(), next: 0 };
        if may_call {
            writer.calls(tools);
        }
        let start = match says {
            _ if must => writer.behind_thoughts(in_reasoning, "blocks"),
            Some(says) => {
                let says = format!("{} {says}", writer.literal(self.calls.says));
                let says = if may_call { format!("(blocks | {says})") } else { says };
                writer.behind_thoughts(in_reasoning, &says)
            }
            None => writer.auto(in_reasoning),
        };
        Some(format!("start: {start}\n{}", writer.rules))
    }
}

struct Writer<'c> {
    format: ChatFormat,
    control: &'c [(String, u32)],
    rules: String,
    /// Rules that are there.
    known: BTreeSet<&'static str>,
    /// The number of the next rule that has no name of its own.
    next: usize,
}

impl Writer<'_> {
    /// A rule that others may share.
    fn shared(&mut self, (name, body): (&'static str, &str)) -> &'static str {
        if self.known.insert(name) {
            self.rules.push_str(&format!("{name}: {body}\n"));
        }
        name
    }

    fn rule(&mut self, name: &str, body: &str) {
        self.rules.push_str(&format!("{name}: {body}\n"));
    }

    /// A text as it stands, control tokens by their ids.
    fn literal(&self, text: &str) -> String {
        let first =
            self.control.iter().filter_map(|(piece, id)| Some((text.find(piece.as_str())?, piece, id)));
        match first.min_by_key(|&(at, piece, _)| (at, std::cmp::Reverse(piece.len()))) {
            Some((at, piece, id)) => {
                let rest = self.literal(&text[at + piece.len()..]);
                format!("{} <[{id}]> {rest}", self.literal(&text[..at])).trim().to_owned()
            }
            None if text.is_empty() => String::new(),
            None => Json::from(text).to_string(),
        }
    }

    fn begins_with_control(&self, text: &str) -> bool {
        self.control.iter().any(|(piece, _)| text.starts_with(piece.as_str()))
    }

    /// Any text up to a marker, and the marker.
    fn until(&mut self, end: &str) -> String {
        if self.begins_with_control(end) {
            return format!("{}? {}", self.shared(TEXT), self.literal(end));
        }
        self.next += 1;
        let name = format!("until_{}", self.next);
        let end = self.literal(end);
        self.rule(&format!("{name}[suffix={end}]"), "/.*/s");
        name
    }

    /// `block` and `blocks`: the calls of an answer.
    fn calls(&mut self, tools: &Tools) {
        let row = self.format.calls;
        let named = |tool: &&Tool| !matches!(&tools.choice, ToolChoice::Named(name) if *name != tool.name);
        let mut names = Vec::new();
        for (at, tool) in tools.list.iter().enumerate().filter(|(_, tool)| named(tool)) {
            let body = self.call(tool);
            names.push(format!("call_{at}"));
            self.rule(&format!("call_{at}"), &body);
        }
        self.rule("call", &names.join(" | "));
        let once = tools.single || matches!(tools.choice, ToolChoice::Named(_));
        let items = match (row.list, row.bare) {
            (List::Yes, _) if once => "\"[\" call \"]\"",
            (List::Yes, _) => "\"[\" call (\", \" call)* \"]\"",
            (List::No, true) if !once => "call (\"; \" call)*",
            (List::No, false) if row.several && !once => "call call*",
            (List::No, _) => "call",
        };
        let close = if row.bare { String::new() } else { self.literal(row.close) };
        self.rule("body", &format!("{items} {close}"));
        let open = if row.bare { "" } else { row.open.first().copied().unwrap_or_default() };
        let block = format!("{} body", self.literal(open));
        self.rule("block", &block);
        // A model whose parts are messages ends its answer with a call.
        let repeats = !(once || row.bare || row.several || row.list == List::Yes || row.name == "harmony");
        self.rule("blocks", if repeats { "block (\"\\n\"? block)*" } else { "block" });
    }

    /// What has to come, with any reasoning before it.
    fn behind_thoughts(&mut self, in_reasoning: bool, what: &str) -> String {
        let space = self.shared(SPACE);
        let then = self.format.reasoning.map(|row| self.literal(row.then)).unwrap_or_default();
        let thoughts = match (self.format.reasoning.is_some(), in_reasoning) {
            (true, true) => format!("{} {then} {space}?", self.thoughts_end()),
            (true, false) => format!("({} {then} {space}?)?", self.thoughts()),
            (false, _) => String::new(),
        };
        format!("{thoughts} {what}")
    }

    fn auto(&mut self, in_reasoning: bool) -> String {
        let row = self.format.calls;
        let open = row.open.first().copied().unwrap_or_default();
        let begun = if in_reasoning { self.thoughts_end() } else { String::new() };
        if row.bare {
            self.rule("WORDS", "/\\s*[^\\s{\\[].*/s");
            return format!("{begun} (blocks | WORDS)?");
        }
        if self.begins_with_control(open) {
            let text = self.shared(TEXT);
            let thoughts =
                self.format.reasoning.map(|_| format!("| {}", self.thoughts())).unwrap_or_default();
            let noise = row.noise.iter().map(|text| format!(" | {}", self.literal(text))).collect::<String>();
            return format!("{begun} ({text} {thoughts}{noise})* blocks?");
        }
        let marker = open.trim();
        let (escaped, rest) = (regex(marker), self.literal(&open[marker.len()..]));
        let thoughts = self.format.reasoning.filter(|_| !in_reasoning).map(|row| row.open.trim());
        let not_thoughts = thoughts.map(|open| format!(" & ~/\\s*{}.*/s", regex(open))).unwrap_or_default();
        let marker = self.literal(marker);
        self.rule("BEFORE", &format!("/.*/s{not_thoughts}"));
        self.rule(&format!("before[suffix={marker}]"), "BEFORE");
        self.rule("REST", &format!("/.*/s & ~/.*{escaped}.*/s{not_thoughts}"));
        let thoughts = thoughts.map(|_| format!("({})?", self.thoughts())).unwrap_or_default();
        format!("{begun} {thoughts} (before {rest} body (\"\\n\"? blocks)? | REST)?")
    }

    /// Reasoning with what begins it.
    fn thoughts(&mut self) -> String {
        let open = self.format.reasoning.map_or("", |row| row.open.trim());
        let end = self.thoughts_end();
        if self.begins_with_control(open) {
            return format!("{} {end}", self.literal(open));
        }
        // One lexeme with the space before it, as a longer one of text would win.
        let open = format!("/[ \\n]{{0,4}}{}/", regex(open));
        format!("{} {end}", self.shared(("THOUGHTS", &open)))
    }

    fn thoughts_end(&mut self) -> String {
        let close = self.format.reasoning.map_or("", |row| row.close.trim());
        if close.is_empty() { String::new() } else { self.until(close) }
    }

    fn call(&mut self, tool: &Tool) -> String {
        match &self.format.calls.call {
            Call::Object { name, arguments } => {
                let key = |names: &[&str]| names.first().copied().unwrap_or_default().to_owned();
                let begin = format!("{{\"{}\": \"{}\", \"{}\": ", key(name), tool.name, key(arguments));
                format!("{} {} \"}}\"", self.literal(&begin), json(&tool.parameters))
            }
            Call::Named(row) => self.named(row, tool),
        }
    }

    fn named(&mut self, row: &NamedCall, tool: &Tool) -> String {
        let begin = self.literal(&format!("{}{}", row.prefix, tool.name));
        let id = match self.format.calls.ids {
            Ids::Long | Ids::Short => String::new(),
            Ids::Behind(text) => format!("({} /[a-zA-Z0-9]{{9}}/)?", self.literal(text)),
            Ids::Numbered(text) => format!("{} /[0-9]{{1,3}}/", self.literal(text)),
        };
        let before = self.literal(row.before.first().copied().unwrap_or_default());
        let arguments = match &row.arguments {
            Arguments::Json => json(&tool.parameters),
            Arguments::Tags(tags) => self.tags(tags, &tool.parameters),
            Arguments::Python => format!("{} \")\"", self.fields(&tool.parameters, None)),
            Arguments::Quoted(quote) => {
                format!("\"{{\" {} \"}}\"", self.fields(&tool.parameters, Some(quote)))
            }
        };
        format!("{begin} {id} {before} {arguments} {}", self.literal(row.suffix))
    }

    fn tags(&mut self, row: &Tags, parameters: &Json) -> String {
        let mut arguments = String::new();
        let line = if row.lines { "\n" } else { "" };
        let end = format!("{line}{}", row.value_end);
        for (key, schema, is_required) in properties(parameters) {
            let types = types(parameters, schema);
            let is_text = types.is_empty() || types.contains(&"string");
            let last = if is_text { row.key_end.first() } else { row.key_end.last() };
            let begin = format!("{}{key}{}{}{line}", row.key, last.copied().unwrap_or_default(), row.value);
            let value = match texts(schema) {
                Some(texts) => {
                    let texts: Vec<String> = texts.into_iter().map(|text| self.literal(text)).collect();
                    format!("({}) {}", texts.join(" | "), self.literal(&end))
                }
                None if is_text => {
                    let marker = end.trim_end();
                    format!("{} {}", self.until(marker), self.literal(&end[marker.len()..]))
                }
                None => format!("{} {}", json(&within(parameters, schema)), self.literal(&end)),
            };
            let argument = format!("{} {value}", self.literal(&begin));
            arguments += &if is_required { format!("{argument} ") } else { format!("({argument})? ") };
        }
        arguments
    }

    /// Keys and values with commas between them, those that have to come first.
    fn fields(&mut self, parameters: &Json, quote: Option<&'static str>) -> String {
        let (between, behind_key) = if quote.is_some() { (",", ":") } else { (", ", "=") };
        let mut properties = properties(parameters);
        properties.sort_by_key(|&(_, _, is_required)| !is_required);
        let mut fields = Vec::new();
        for (key, schema, is_required) in properties {
            let value = self.value(parameters, schema, quote);
            fields.push((format!("{} {value}", self.literal(&format!("{key}{behind_key}"))), is_required));
        }
        // Behind each that may be left out, the first that comes has no comma.
        let comma = self.literal(between);
        let optional = |(field, is_required): &(String, bool)| {
            if *is_required { format!("{comma} {field}") } else { format!("({comma} {field})?") }
        };
        let mut ways = Vec::new();
        for (at, (field, is_required)) in fields.iter().enumerate() {
            let rest: Vec<String> = fields[at + 1..].iter().map(optional).collect();
            ways.push(format!("{field} {}", rest.join(" ")));
            if *is_required {
                return ways.join(" | ");
            }
        }
        if ways.is_empty() { String::new() } else { format!("({})?", ways.join(" | ")) }
    }

    /// A value of Python's, or one with marks for quotes.
    fn value(&mut self, root: &Json, schema: &Json, quote: Option<&'static str>) -> String {
        if let Some(texts) = texts(schema) {
            let marks = |text: &str| match quote {
                Some(quote) => self.literal(&format!("{quote}{text}{quote}")),
                None => self.literal(&format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"))),
            };
            return format!("({})", texts.into_iter().map(marks).collect::<Vec<_>>().join(" | "));
        }
        self.values(quote);
        let words = if quote.is_some() { ["true", "false", "null"] } else { ["True", "False", "None"] };
        let types = types(root, schema);
        let way = |name: &&str| match *name {
            "string" => if quote.is_some() { "text" } else { QUOTED.0 }.to_owned(),
            "integer" => INTEGER.0.to_owned(),
            "number" => NUMBER.0.to_owned(),
            "boolean" => format!("\"{}\" | \"{}\"", words[0], words[1]),
            "null" => format!("\"{}\"", words[2]),
            "array" => "list".to_owned(),
            "object" => "dictionary".to_owned(),
            _ => "value".to_owned(),
        };
        let ways: Vec<String> = types.iter().map(way).collect();
        if ways.is_empty() { "value".to_owned() } else { format!("({})", ways.join(" | ")) }
    }

    /// The rules of values.
    fn values(&mut self, quote: Option<&'static str>) {
        self.shared(INTEGER);
        self.shared(NUMBER);
        match quote {
            Some(quote) if !self.known.contains("text") => {
                self.shared(KEY);
                let text = format!("{} {}", self.literal(quote), self.until(quote));
                self.shared(("text", &text));
                self.shared(("value", "text | NUMBER | \"true\" | \"false\" | \"null\" | list | dictionary"));
                self.shared(("list", "\"[\" (value (\",\" value)*)? \"]\""));
                self.shared(("dictionary", "\"{\" (KEY \":\" value (\",\" KEY \":\" value)*)? \"}\""));
            }
            Some(_) => {}
            None => {
                self.shared(QUOTED);
                self.shared((
                    "value",
                    "QUOTED | NUMBER | \"True\" | \"False\" | \"None\" | list | dictionary",
                ));
                self.shared(("list", "\"[\" (value (\", \" value)*)? \"]\""));
                let entries = "\"{\" (QUOTED \": \" value (\", \" QUOTED \": \" value)*)? \"}\"";
                self.shared(("dictionary", entries));
            }
        }
    }
}

/// A schema in the grammar. Arguments are an object, whether it says so or not, and have so much white space at most.
fn json(schema: &Json) -> String {
    const TYPED: [&str; 7] = ["type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const"];
    let mut schema = schema.clone();
    if let Some(fields) = schema.as_object_mut() {
        if !TYPED.iter().any(|key| fields.contains_key(*key)) {
            fields.insert("type".into(), "object".into());
        }
        fields.insert("x-guidance".into(), serde_json::json!({"whitespace_pattern": "[ \\t\\n\\r]{1,40}"}));
    }
    format!("%json {schema}")
}

/// A schema by itself, with what it may refer to.
fn within(root: &Json, schema: &Json) -> Json {
    let mut schema = schema.clone();
    if let (Some(fields), Some(root)) = (schema.as_object_mut(), root.as_object()) {
        for name in ["$defs", "definitions"] {
            if let Some(defined) = root.get(name) {
                fields.entry(name).or_insert_with(|| defined.clone());
            }
        }
    }
    schema
}

/// The properties of an object's schema, and whether each has to be there.
fn properties(parameters: &Json) -> Vec<(&str, &Json, bool)> {
    let required: Vec<&str> =
        parameters["required"].as_array().into_iter().flatten().filter_map(Json::as_str).collect();
    let properties = parameters["properties"].as_object().into_iter().flatten();
    properties.map(|(key, schema)| (key.as_str(), schema, required.contains(&key.as_str()))).collect()
}

/// The texts that a value is one of, if its schema names them.
fn texts(schema: &Json) -> Option<Vec<&str>> {
    let texts = schema["enum"].as_array()?.iter().map(Json::as_str).collect::<Option<Vec<_>>>()?;
    Some(texts).filter(|texts| !texts.is_empty())
}

/// A text as a regular expression between slashes.
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
