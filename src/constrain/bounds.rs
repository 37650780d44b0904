//! Limits on the size and nesting of grammars. llguidance is recursive, and a stack overflow ends the
//! process.

use std::io;

use serde_json::Value;

use super::regex;

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

/// Rejects regular expressions that are too long or have too many nodes together.
pub(super) fn patterns<'p>(patterns: impl IntoIterator<Item = &'p str>) -> Result<(), String> {
    let (mut bytes, mut nodes) = (0, 0);
    for pattern in patterns {
        bytes += pattern.len();
        within(bytes, PATTERN_BYTES_MAX)?;
        nodes += regex::size(pattern);
    }
    regex::within_limit(nodes)
}

fn within(bytes: usize, most: usize) -> Result<(), String> {
    if bytes <= most { Ok(()) } else { Err(format!("expected at most {most} bytes, found {bytes}")) }
}

/// Rejects a schema that is too long or too deep, or that has too long regular expressions. Returns its size
/// as JSON text in bytes.
pub(super) fn json(schema: &Value) -> Result<usize, String> {
    let (mut open, mut found) = (vec![(schema, 1)], Vec::new());
    while let Some((value, level)) = open.pop() {
        depth(level)?;
        match value {
            Value::Array(list) => open.extend(list.iter().map(|value| (value, level + 1))),
            Value::Object(map) => {
                map.iter().for_each(|(key, value)| found.extend(patterns_of(key, value)));
                open.extend(map.values().map(|value| (value, level + 1)));
            }
            _ => {}
        }
    }
    let bytes = json_bytes(schema);
    texts(bytes)?;
    patterns(found)?;
    Ok(bytes)
}

/// Regular expressions in a keyword.
fn patterns_of<'v>(key: &str, value: &'v Value) -> Vec<&'v str> {
    match (key, value) {
        ("pattern" | "whitespace_pattern", Value::String(pattern)) => vec![pattern],
        ("patternProperties", Value::Object(map)) => map.keys().map(String::as_str).collect(),
        _ => Vec::new(),
    }
}

/// Rejects a Lark grammar with too long a text, schemas not counted, or with too many rules.
pub(super) fn lark(bytes: usize, rules: usize) -> Result<(), String> {
    within(bytes, LARK_BYTES_MAX)?;
    if rules <= RULES_MAX {
        Ok(())
    } else {
        Err(format!("expected at most {RULES_MAX} rules, found {rules}"))
    }
}

/// Rejects nesting that is too deep.
pub(super) fn depth(depth: usize) -> Result<(), String> {
    if depth <= DEPTH_MAX {
        Ok(())
    } else {
        Err(format!("expected at most {DEPTH_MAX} levels in each other, found more"))
    }
}

/// Size of a value as JSON text in bytes.
pub(crate) fn json_bytes(value: &Value) -> usize {
    let mut counter = Counter(0);
    // The counter takes every write, and a value's keys are strings.
    let _ = serde_json::to_writer(&mut counter, value);
    counter.0
}

/// Writer that counts bytes.
struct Counter(usize);

impl io::Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
