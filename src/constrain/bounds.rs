//! How large and how deep a grammar may be: the parser below calls itself for what is nested, and a stack that runs
//! out ends the process.

use serde_json::Value;

/// Most bytes of a grammar.
const BYTES_MAX: usize = 1 << 19;
/// Most values in each other.
const DEPTH_MAX: usize = 128;
/// Most rules and terminals of a grammar: one may use the next.
const RULES_MAX: usize = 4096;

/// Refuses a grammar that is too long.
pub(super) fn bytes(bytes: usize) -> Result<(), String> {
    match bytes {
        0..=BYTES_MAX => Ok(()),
        _ => Err(format!("expected at most {BYTES_MAX} bytes, found {bytes}")),
    }
}

/// Refuses a schema that is too long or too deep.
pub(super) fn json(schema: &Value) -> Result<(), String> {
    let mut open = vec![(schema, 1)];
    while let Some((value, depth)) = open.pop() {
        if depth > DEPTH_MAX {
            return Err(too_deep());
        }
        match value {
            Value::Array(list) => open.extend(list.iter().map(|value| (value, depth + 1))),
            Value::Object(map) => open.extend(map.values().map(|value| (value, depth + 1))),
            _ => {}
        }
    }
    bytes(schema.to_string().len())
}

/// Refuses a grammar that is too long, too deep, or has too many rules.
pub(super) fn lark(text: &str) -> Result<(), String> {
    bytes(text.len())?;
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

fn too_deep() -> String {
    format!("expected at most {DEPTH_MAX} levels in each other, found more")
}
