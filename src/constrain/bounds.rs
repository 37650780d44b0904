//! How large and how deep a grammar may be: the parser below calls itself for what is nested, and a stack that runs
//! out ends the process.

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

/// Refuses a grammar that is too long, too deep, or has too many rules.
pub(super) fn lark(text: &str) -> Result<(), String> {
    let text = &without_schemas(text)?;
    within(text.len(), LARK_BYTES_MAX)?;
    let rules = text.lines().filter(|line| line.contains(':')).count();
    if rules > RULES_MAX {
        return Err(format!("expected at most {RULES_MAX} rules, found {rules}"));
    }
    let (mut depth, mut depth_max, mut within) = (0_usize, 0, None);
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        match (character, within) {
            ('\\', Some(_)) => drop(characters.next()),
            // A comment, or what cannot be a text or a regular expression, ends with its line.
            ('\n', _) => within = None,
            (_, Some(end)) if character == end => within = None,
            (_, Some(_)) => {}
            ('/', None) if characters.peek() == Some(&'/') => within = Some('\n'),
            ('"' | '/', None) => within = Some(character),
            ('(' | '[' | '{', None) => depth += 1,
            (')' | ']' | '}', None) => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth_max = depth_max.max(depth);
    }
    if depth_max > DEPTH_MAX { Err(too_deep()) } else { Ok(()) }
}

/// A grammar with its schemas, which are checked, left out.
fn without_schemas(text: &str) -> Result<String, String> {
    const SCHEMA: &str = "%json";
    texts(text.len())?;
    let (mut kept, mut rest) = (String::new(), text);
    while let Some((before, behind)) = rest.split_once(SCHEMA) {
        kept.push_str(before);
        let mut values = serde_json::Deserializer::from_str(behind).into_iter::<Value>();
        // What is no JSON stays, and is refused where it is parsed, unless it stands in a text or a comment.
        let taken = match values.next() {
            Some(Ok(schema)) => json(&schema).map(|()| values.byte_offset())?,
            _ => 0,
        };
        rest = behind.get(taken..).unwrap_or_default();
    }
    kept.push_str(rest);
    Ok(kept)
}

fn too_deep() -> String {
    format!("expected at most {DEPTH_MAX} levels in each other, found more")
}
