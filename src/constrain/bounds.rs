//! How large and how deep a grammar may be: the parser below calls itself for what is nested, and a stack that runs
//! out ends the process.

use std::ops::Range;

use serde_json::Value;

/// Most bytes of schemas and of texts to choose from.
const BYTES_MAX: usize = 1 << 19;
/// Most bytes of regular expressions, and of a grammar without its schemas: of what may follow what is compiled in a
/// time that grows with its square.
const PATTERN_BYTES_MAX: usize = 1 << 14;
const LARK_BYTES_MAX: usize = 1 << 15;
/// Most values in each other.
const DEPTH_MAX: usize = 128;
/// Most rules and terminals of a grammar: one may use the next.
const RULES_MAX: usize = 2048;

/// Refuses texts that are too long.
pub(super) fn texts(bytes: usize) -> Result<(), String> {
    within(bytes, BYTES_MAX)
}

/// Refuses a regular expression that is too long.
pub(super) fn pattern(bytes: usize) -> Result<(), String> {
    within(bytes, PATTERN_BYTES_MAX)
}

fn within(bytes: usize, most: usize) -> Result<(), String> {
    if bytes <= most { Ok(()) } else { Err(format!("expected at most {most} bytes, found {bytes}")) }
}

/// Refuses a schema that is too long or too deep, or whose regular expressions are too long.
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

/// Bytes of the regular expressions that a key may have.
fn pattern_bytes(key: &str, value: &Value) -> usize {
    match (key, value) {
        ("pattern" | "whitespace_pattern", Value::String(pattern)) => pattern.len(),
        ("patternProperties", Value::Object(map)) => map.keys().map(String::len).sum(),
        _ => 0,
    }
}

/// Refuses a grammar that is too long, too deep, or has too many rules. Returns where its schemas are.
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

/// What a schema in a grammar begins with.
pub(super) const SCHEMA: &str = "%json";

/// Bytes of the schema that a grammar begins with; it is checked. What is no JSON is refused where it is parsed.
fn schema(rest: &str) -> Result<usize, String> {
    let Some(behind) = rest.strip_prefix(SCHEMA) else { return Ok(0) };
    let mut values = serde_json::Deserializer::from_str(behind).into_iter::<Value>();
    match values.next() {
        Some(Ok(schema)) => json(&schema).map(|()| SCHEMA.len() + values.byte_offset()),
        _ => Ok(0),
    }
}

/// Bytes of the text, the regular expression, the control token or the comment that a grammar begins with; of its
/// first character where it is none of these. The parser below refuses one that does not end.
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
