//! Lark rules for arguments that are not JSON: tags, Python literals, and values with custom string
//! delimiters.

use std::collections::BTreeSet;

use serde_json::Value as Json;

use super::{Writer, quoted};
use crate::chat::format::Tags;
use crate::chat::schema::types;
use crate::constrain::Lark;

const INTEGER: (&str, &str) = ("INTEGER", "/-?(0|[1-9][0-9]{0,15})/");
const NUMBER: (&str, &str) = ("NUMBER", "/-?(0|[1-9][0-9]{0,15})(\\.[0-9]{1,15})?([eE][+-]?[0-9]{1,2})?/");
const KEY: (&str, &str) = ("KEY", "/[A-Za-z_][A-Za-z0-9_]{0,63}/");
/// Python string literal, limited to the escapes that every reader of the format supports.
const QUOTED: (&str, &str) =
    ("QUOTED", "/'([^'\\\\\\n]|\\\\[\\\\'nrt])*'|\"([^\"\\\\\\n]|\\\\[\\\\\"nrt])*\"/");

impl Writer<'_> {
    pub(super) fn tags(&mut self, row: &Tags, parameters: &Json) -> Lark {
        let mut arguments = Lark::default();
        let line = if row.lines { "\n" } else { "" };
        let end = format!("{line}{}", row.value_end);
        for (key, schema, is_required) in properties(parameters) {
            if self.left == 0 {
                break;
            }
            let types = types(parameters, schema);
            let is_text = types.is_empty() || types.contains("string");
            let last = if is_text { row.key_end.first() } else { row.key_end.last() };
            let after = format!("{}{}{line}", last.copied().unwrap_or_default(), row.value);
            let begin = format!("{} {} {}", self.literal(row.key), quoted(key), self.literal(&after));
            let value = match texts(schema) {
                Some(texts) => Lark::from(one_of(texts.into_iter().map(quoted))) + " " + self.literal(&end),
                None if is_text => {
                    let marker = end.trim_end();
                    Lark::from(self.until(marker)) + " " + self.literal(&end[marker.len()..])
                }
                None => self.json(&within(parameters, schema)) + " " + self.literal(&end),
            };
            let argument = Lark::from(begin) + " " + value;
            arguments.append(if is_required { argument + " " } else { Lark::from("(") + argument + ")? " });
        }
        arguments
    }

    /// Comma-separated key-value pairs, required ones first. Each tail (the fields after a given one) is a
    /// rule, so that every value is written once.
    pub(super) fn fields(&mut self, parameters: &Json, quote: Option<&'static str>) -> String {
        let (between, behind_key) = if quote.is_some() { (",", ":") } else { (", ", "=") };
        let mut properties = properties(parameters);
        properties.sort_by_key(|&(_, _, is_required)| !is_required);
        // Built from the last field to the first: `rest` is the tail after a field, `ways` are the possible
        // first fields.
        let (mut rest, mut ways, mut must) = (String::new(), Vec::new(), false);
        for (key, schema, is_required) in properties.into_iter().rev() {
            if self.left == 0 {
                break;
            }
            let field = self.name("field");
            let value = self.value(parameters, schema, quote);
            self.rule(&field, format!("{} {} {value}", quoted(key), self.literal(behind_key)));
            if is_required {
                (ways, must) = (Vec::new(), true);
            }
            ways.push(format!("{field} {rest}"));
            let further = format!("{} {field}", self.literal(between));
            let further = if is_required { further } else { format!("({further})?") };
            let name = self.name("rest");
            self.rule(&name, format!("{further} {rest}"));
            rest = name;
        }
        match ways.is_empty() {
            true => String::new(),
            false if must => ways.join(" | "),
            false => format!("({})?", ways.join(" | ")),
        }
    }

    /// Rule body for a Python literal, or for a value with a custom string delimiter.
    fn value(&mut self, root: &Json, schema: &Json, quote: Option<&'static str>) -> String {
        if let Some(texts) = texts(schema) {
            let Some(quote) = quote else {
                let escaped = |text: &str| text.replace('\\', "\\\\").replace('\'', "\\'");
                return one_of(texts.into_iter().map(|text| quoted(&format!("'{}'", escaped(text)))));
            };
            let mark = self.literal(quote);
            return format!("{mark} {} {mark}", one_of(texts.into_iter().map(quoted)));
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
        if types.is_empty() { "value".to_owned() } else { one_of(types.iter().map(way)) }
    }

    /// Defines the shared rules for values.
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

/// A standalone schema: includes the root's definitions if it has references.
fn within(root: &Json, schema: &Json) -> Json {
    const REFERENCE: &str = "\"$ref\":";
    let mut schema = schema.clone();
    if !schema.to_string().contains(REFERENCE) {
        return schema;
    }
    if let (Some(fields), Some(root)) = (schema.as_object_mut(), root.as_object()) {
        for name in ["$defs", "definitions"] {
            if let Some(defined) = root.get(name) {
                fields.entry(name).or_insert_with(|| defined.clone());
            }
        }
    }
    schema
}

/// The properties of an object schema with their required flags.
fn properties(parameters: &Json) -> Vec<(&str, &Json, bool)> {
    let required: BTreeSet<&str> =
        parameters["required"].as_array().into_iter().flatten().filter_map(Json::as_str).collect();
    let properties = parameters["properties"].as_object().into_iter().flatten();
    properties.map(|(key, schema)| (key.as_str(), schema, required.contains(key.as_str()))).collect()
}

/// Alternation of rule bodies.
fn one_of(ways: impl Iterator<Item = String>) -> String {
    format!("({})", ways.collect::<Vec<_>>().join(" | "))
}

/// The strings of an `enum` schema, if it lists only strings.
fn texts(schema: &Json) -> Option<Vec<&str>> {
    let texts = schema["enum"].as_array()?.iter().map(Json::as_str).collect::<Option<Vec<_>>>()?;
    Some(texts).filter(|texts| !texts.is_empty())
}
