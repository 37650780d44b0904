//! Limits on the size and nesting of grammars. llguidance is recursive, and a stack overflow ends the
//! process.

use std::ops::Range;

use serde_json::Value;

/// Maximum size in bytes of schemas and of the texts of a choice.
const BYTES_MAX: usize = 1 << 19;
/// Maximum size in bytes of regular expressions, and of a grammar without its schemas. Compile time can grow
/// with the square of this size.
const PATTERN_BYTES_MAX: usize = 1 << 14;
const LARK_BYTES_MAX: usize = 1 << 15;
/// Maximum nesting depth.
const DEPTH_MAX: usize = 128;
/// Maximum number of rules and terminals in a grammar. They can refer to each other in a chain.
const RULES_MAX: usize = 2048;

/// Rejects texts that are too long.
pub(super) fn texts(bytes: usize) -> Result<(), String> {
    within(bytes, BYTES_MAX)
}

/// Rejects a regular expression that is too long.
pub(super) fn pattern(bytes: usize) -> Result<(), String> {
    within(bytes, PATTERN_BYTES_MAX)
}

fn within(bytes: usize, most: usize) -> Result<(), String> {
    if bytes <= most { Ok(()) } else { Err(format!("expected at most {most} bytes, found {bytes}")) }
}

/// Rejects a schema that is too long or too deep, or that has too long regular expressions.
pub(super) fn json(schema: &Value) -> Result<(), String> {
    let (mut open, mut patterns) = (vec![(schema, 1)], 0);
    while let Some((value, depth)) = open.pop() {
        if depth > DEPTH_MAX {
            return Err(too_deep());
        }
        match value {
            Value::Array(list) => open.extend(list.iter().map(|value| (value, depth + 1))),
            Value::Object(map) => {
                patterns += map.iter().map(|(key, value)| pattern_bytes(key, value)).sum::<usize>();
                open.extend(map.values().map(|value| (value, depth + 1)));
            }
            _ => {}
        }
    }
    texts(schema.to_string().len())?;
    pattern(patterns)
}

/// Size in bytes of the regular expressions in a keyword.
fn pattern_bytes(key: &str, value: &Value) -> usize {
    match (key, value) {
        ("pattern" | "whitespace_pattern", Value::String(pattern)) => pattern.len(),
        ("patternProperties", Value::Object(map)) => map.keys().map(String::len).sum(),
        _ => 0,
    }
}

/// Rejects a grammar that is too long, too deep, or has too many rules. Returns the byte ranges of its
/// schemas.
pub(super) fn lark(text: &str) -> Result<Vec<Range<usize>>, String> {
    texts(text.len())?;
    let (mut rest, mut bytes, mut rules, mut depth) = (text, 0, 0, 0_usize);
    let mut schemas = Vec::new();
    while let Some(character) = rest.chars().next() {
        let schema = schema(rest)?;
        let taken = if schema == 0 { token(rest) } else { schema };
        let at = text.len() - rest.len();
        schemas.extend((schema > 0).then(|| at + SCHEMA.len()..at + schema));
        bytes += taken - schema;
        match character {
            ':' => rules += 1,
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > DEPTH_MAX {
            return Err(too_deep());
        }
        rest = rest.get(taken..).unwrap_or_default();
    }
    within(bytes, LARK_BYTES_MAX)?;
    if rules > RULES_MAX {
        return Err(format!("expected at most {RULES_MAX} rules, found {rules}"));
    }
    Ok(schemas)
}

/// Prefix of a JSON schema in a Lark grammar.
pub(super) const SCHEMA: &str = "%json";

/// Length in bytes of the schema at the start of `rest`, 0 for none. Validates it; invalid JSON is left to
/// the parser.
fn schema(rest: &str) -> Result<usize, String> {
    let Some(after) = rest.strip_prefix(SCHEMA) else { return Ok(0) };
    let mut values = serde_json::Deserializer::from_str(after).into_iter::<Value>();
    match values.next() {
        Some(Ok(schema)) => json(&schema).map(|()| SCHEMA.len() + values.byte_offset()),
        _ => Ok(0),
    }
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

fn too_deep() -> String {
    format!("expected at most {DEPTH_MAX} levels in each other, found more")
}
