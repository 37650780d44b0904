//! [`Lark`]: a grammar in Lark's syntax that holds its JSON schemas as values.

use std::ops::Add;

use serde_json::Value;

use super::bounds;
use super::schema::Schema;
use super::terminals::Terminals;

/// Prefix of a JSON schema in a Lark grammar.
const SCHEMA: &str = "%json";

/// A grammar in Lark's syntax, or a part of one. Its schemas are values; [`Lark::print`] makes the text.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Lark {
    pieces: Vec<Piece>,
    /// Number of rules and terminals that it defines.
    rules: usize,
}

#[derive(Clone, Debug, PartialEq)]
enum Piece {
    Text(String),
    Schema(Schema, Layout),
}

/// Shape of a schema's original text. Printing keeps it, so that errors after the schema have the line and
/// column of the original.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Layout {
    /// Number of line ends.
    lines: usize,
    /// Length of the last line in bytes.
    columns: usize,
}

impl Lark {
    /// Parses a grammar. Invalid JSON after `%json` stays text, for which llguidance has the error.
    ///
    /// # Errors
    /// A grammar that is too long or too deep, has too large terminals, and the errors of its schemas.
    pub(super) fn parse(text: &str) -> Result<Lark, String> {
        bounds::texts(text.len())?;
        let (mut lark, mut rest, mut depth) = (Lark::default(), text, 0_usize);
        let mut terminals = Terminals::default();
        while let Some(character) = rest.chars().next() {
            let schema = schema(rest);
            let taken = schema.as_ref().map_or_else(|| token(rest), |&(_, taken)| taken);
            let (piece, behind) = rest.split_at_checked(taken).unwrap_or((rest, ""));
            match schema {
                Some((value, _)) => lark.pieces.push(Piece::Schema(Schema::new(value)?, Layout::of(piece))),
                None => {
                    terminals.add(piece)?;
                    lark.push_text(piece);
                }
            }
            match character {
                ':' => lark.rules += 1,
                '(' | '[' | '{' => depth += 1,
                ')' | ']' | '}' => depth = depth.saturating_sub(1),
                _ => {}
            }
            bounds::depth(depth)?;
            rest = behind;
        }
        terminals.within_limits()?;
        Ok(lark)
    }

    /// A schema as an element of a rule.
    pub(crate) fn schema(schema: Schema) -> Lark {
        Lark { pieces: vec![Piece::Schema(schema, Layout::default())], rules: 0 }
    }

    /// The whole grammar as an element of another grammar's rule.
    pub(super) fn nested(self) -> Lark {
        Lark::from("%lark {\n") + self + "\n}"
    }

    /// Defines a rule or a terminal.
    pub(crate) fn define(&mut self, name: &str, body: impl Into<Lark>) {
        self.append(Lark::from(format!("{name}: ")) + body + "\n");
        self.rules += 1;
    }

    pub(crate) fn append(&mut self, more: Lark) {
        for piece in more.pieces {
            match piece {
                Piece::Text(text) => self.push_text(&text),
                schema => self.pieces.push(schema),
            }
        }
        self.rules += more.rules;
    }

    fn push_text(&mut self, more: &str) {
        match self.pieces.last_mut() {
            Some(Piece::Text(text)) => text.push_str(more),
            _ => self.pieces.push(Piece::Text(more.into())),
        }
    }

    /// Refuses a grammar that is too long or has too many rules.
    ///
    /// # Errors
    /// The exceeded limit.
    pub(super) fn within_limits(self) -> Result<Lark, String> {
        bounds::texts(self.bytes())?;
        let texts =
            self.pieces.iter().map(|piece| if let Piece::Text(text) = piece { text.len() } else { 0 });
        bounds::lark(texts.sum(), self.rules)?;
        Ok(self)
    }

    /// Size in bytes, with the schemas as JSON.
    pub(crate) fn bytes(&self) -> usize {
        let bytes = |piece: &Piece| match piece {
            Piece::Text(text) => text.len(),
            Piece::Schema(schema, _) => SCHEMA.len() + 1 + schema.bytes(),
        };
        self.pieces.iter().map(bytes).sum()
    }

    pub(super) fn has_schema(&self) -> bool {
        self.pieces.iter().any(|piece| matches!(piece, Piece::Schema(..)))
    }

    /// The text of the grammar.
    pub(crate) fn print(&self) -> String {
        let mut printed = String::with_capacity(self.bytes());
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => printed.push_str(text),
                Piece::Schema(schema, layout) => {
                    let json = schema.value().to_string();
                    let columns = layout.columns.saturating_sub(json.len()).max(1);
                    printed.push_str(SCHEMA);
                    printed.extend(std::iter::repeat_n('\n', layout.lines));
                    printed.extend(std::iter::repeat_n(' ', columns));
                    printed.push_str(&json);
                }
            }
        }
        printed
    }
}

impl From<String> for Lark {
    fn from(text: String) -> Lark {
        Lark { pieces: vec![Piece::Text(text)], rules: 0 }
    }
}

impl From<&str> for Lark {
    fn from(text: &str) -> Lark {
        text.to_owned().into()
    }
}

impl<M: Into<Lark>> Add<M> for Lark {
    type Output = Lark;

    fn add(mut self, more: M) -> Lark {
        self.append(more.into());
        self
    }
}

impl Layout {
    /// The layout of a schema's text with its prefix.
    fn of(text: &str) -> Layout {
        let json = text.strip_prefix(SCHEMA).unwrap_or(text);
        let last = json.rsplit('\n').next();
        Layout { lines: json.matches('\n').count(), columns: last.map_or(0, str::len) }
    }
}

/// The schema at the start of `rest`, and its length in bytes with the prefix. `None` if there is none or if
/// it is no JSON.
fn schema(rest: &str) -> Option<(Value, usize)> {
    let mut values = serde_json::Deserializer::from_str(rest.strip_prefix(SCHEMA)?).into_iter::<Value>();
    let schema = values.next()?.ok()?;
    Some((schema, SCHEMA.len() + values.byte_offset()))
}

/// Length in bytes of the first token of a grammar: a string, regular expression, control token or comment,
/// else one character. Unterminated tokens are rejected by the parser.
fn token(rest: &str) -> usize {
    let mut characters = rest.char_indices();
    let end = match characters.next() {
        Some((_, '"')) => '"',
        Some((_, '<')) => '>',
        Some((_, '/')) if !rest.starts_with("//") => '/',
        Some((_, '/' | '#')) => '\n',
        Some((_, other)) => return other.len_utf8(),
        None => return 0,
    };
    let escapes = matches!(end, '"' | '/');
    while let Some((at, character)) = characters.next() {
        if character == end {
            return at + 1;
        }
        if escapes && character == '\\' {
            characters.next();
        }
    }
    rest.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemas_in_a_grammar_are_found_and_all_else_stays() {
        let text = r#"start: "%json {}" a b
a: %json {"type": "string", "format": "path"} | %json {"const": {"format": "path"}}
b: %json {"format": "uuid", "items": {"format": "int32"}} "x""#;
        let expected = r#"start: "%json {}" a b
a: %json                    {"type":"string"} | %json   {"const":{"format":"path"}}
b: %json                     {"format":"uuid","items":{}} "x""#;
        let printed = Lark::parse(text).unwrap().print();
        assert_eq!(printed, expected);
        assert_eq!(printed.len(), text.len(), "errors have their column");
        let lines = Lark::parse("start: %json {\n  \"const\":\n 1 } \"x\"").unwrap().print();
        assert_eq!(lines, "start: %json\n\n {\"const\":1} \"x\"");
        assert_eq!(Lark::parse("start: %json {\"a").unwrap().print(), "start: %json {\"a");
    }

    #[test]
    fn a_grammar_within_another_counts_its_rules_and_not_its_schemas() {
        let schema = || Schema::of_arguments(serde_json::json!({"const": "x".repeat(40_000)})).unwrap();
        let mut inner = Lark::default();
        inner.define("start", Lark::schema(schema()));
        let mut outer = Lark::default();
        outer.define("start", Lark::from("\"a\" ") + inner.nested());
        assert_eq!((outer.rules, outer.has_schema()), (2, true));
        assert!(outer.print().starts_with("start: \"a\" %lark {\nstart: %json {\"const\""));
        let long = Lark::from("x".repeat(40_000));
        assert!(outer.clone().within_limits().is_ok() && (outer + long).within_limits().is_err());
    }
}
