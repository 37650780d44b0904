//! Negation of a schema, for `not`, `if` and `oneOf`. A keyword is refused if its complement is no JSON
//! schema that llguidance compiles.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::references::{Base, References};
use super::types::{Types, is_integer};

/// Maximum depth of negated schemas within each other, references included.
const DEPTH_MAX: usize = 16;
/// Maximum number of negated subschemas.
const SCHEMAS_MAX: usize = 512;
/// Maximum length of a negated text in characters. Each is a group in the next, and groups have a limit.
const TEXT_MAX: usize = 100;
/// Maximum size in bytes of the regular expression for all texts but some.
const PATTERN_MAX: usize = 4096;

/// Assertions that are dropped together with `not`, as they constrain no value.
const ANNOTATIONS: [&str; 12] = [
    "$anchor",
    "$comment",
    "$defs",
    "$id",
    "$schema",
    "default",
    "definitions",
    "description",
    "examples",
    "readOnly",
    "title",
    "writeOnly",
];

/// Negates schemas of a document.
pub(super) struct Negation<'a, 'r> {
    references: &'r References<'a>,
    left: usize,
}

impl<'a, 'r> Negation<'a, 'r> {
    pub(super) fn of(references: &'r References<'a>) -> Negation<'a, 'r> {
        Negation { references, left: SCHEMAS_MAX }
    }

    /// A schema that accepts exactly the values of these types that `schema` rejects.
    ///
    /// # Errors
    /// The keyword that has no complement.
    pub(super) fn schema(&mut self, schema: &Value, base: Base, types: Types) -> Result<Value, String> {
        self.within(schema, base, types, DEPTH_MAX)
    }

    fn within(&mut self, schema: &Value, base: Base, types: Types, depth: usize) -> Result<Value, String> {
        let (Some(depth), Some(left)) = (depth.checked_sub(1), self.left.checked_sub(1)) else {
            return Err("too many schemas".into());
        };
        self.left = left;
        let schema = match schema {
            Value::Bool(all) => return Ok((!all).into()),
            Value::Object(schema) => schema,
            _ => return Err("expected a schema".into()),
        };
        let base = self.references.base_of(schema, base);
        let mut any = Vec::new();
        for (keyword, value) in schema {
            match (keyword.as_str(), value) {
                (keyword, _) if ANNOTATIONS.contains(&keyword) => {}
                ("$ref", Value::String(reference)) => {
                    let (target, its) = self.references.resolve(reference, base)?;
                    if its != base {
                        return Err("$ref to another resource".into());
                    }
                    any.push(self.within(target, base, types, depth)?);
                }
                ("not", value) => any.push(value.clone()),
                ("allOf", Value::Array(parts)) => any.extend(self.each(parts, base, types, depth)?),
                ("anyOf", Value::Array(parts)) => {
                    any.push(json!({"allOf": self.each(parts, base, types, depth)?}));
                }
                ("properties", Value::Object(properties)) => {
                    for (name, property) in properties {
                        let property = self.within(property, base, Types::ALL, depth)?;
                        if property != false {
                            any.push(
                                json!({"type": "object", "properties": {name: property}, "required": [name]}),
                            );
                        }
                    }
                }
                (keyword, value) => any.extend(assertion(keyword, value, schema, types)?),
            }
        }
        any.retain(|schema| *schema != false);
        Ok(match any.len() {
            0 => false.into(),
            1 => any.swap_remove(0),
            _ => json!({"anyOf": any}),
        })
    }

    fn each(
        &mut self,
        parts: &[Value],
        base: Base,
        types: Types,
        depth: usize,
    ) -> Result<Vec<Value>, String> {
        parts.iter().map(|part| self.within(part, base, types, depth)).collect()
    }
}

/// Alternatives of the negation of a keyword without subschemas.
fn assertion(
    keyword: &str,
    value: &Value,
    schema: &Map<String, Value>,
    types: Types,
) -> Result<Vec<Value>, String> {
    let unsupported = || Err(keyword.to_owned());
    let count = |kind: &str, bound: &str, least: bool| match value.as_u64() {
        Some(0) if least => Ok(vec![]),
        Some(number) if least => Ok(vec![json!({"type": kind, bound: number - 1})]),
        Some(number) => Ok(vec![json!({"type": kind, bound: number.saturating_add(1)})]),
        None => unsupported(),
    };
    let number = |bound: &str| match value {
        Value::Number(_) => Ok(vec![json!({"type": "number", bound: value})]),
        _ => unsupported(),
    };
    match (keyword, value) {
        ("type", _) if is_integer(schema) && types.has("number") => Err("type integer".into()),
        ("type", _) => Ok(vec![Types::ALL.without(Types::of(schema)).schema()]),
        ("const", value) => all_but(std::slice::from_ref(value), types),
        ("enum", Value::Array(values)) => all_but(values, types),
        ("required", Value::Array(names)) => Ok(absent(names)),
        ("minLength", _) => count("string", "maxLength", true),
        ("maxLength", _) => count("string", "minLength", false),
        ("minItems", _) => count("array", "maxItems", true),
        ("maxItems", _) => count("array", "minItems", false),
        ("minProperties", _) => count("object", "maxProperties", true),
        ("maxProperties", _) => count("object", "minProperties", false),
        ("minimum", _) => number("exclusiveMaximum"),
        ("maximum", _) => number("exclusiveMinimum"),
        ("exclusiveMinimum", _) => number("maximum"),
        ("exclusiveMaximum", _) => number("minimum"),
        _ => unsupported(),
    }
}

/// Objects without at least one of these properties. The alternatives exclude each other.
fn absent(names: &[Value]) -> Vec<Value> {
    let one = |(at, name): (usize, &Value)| {
        let name = name.as_str()?;
        Some(json!({"type": "object", "required": names.get(..at)?, "properties": {name: false}}))
    };
    names.iter().enumerate().filter_map(one).collect()
}

/// Values of some types other than these constants, as alternatives.
fn all_but(values: &[Value], types: Types) -> Result<Vec<Value>, String> {
    let mut any = Vec::new();
    if types.has("null") && !values.contains(&Value::Null) {
        any.push(json!({"type": "null"}));
    }
    if types.has("boolean") {
        let others: Vec<Value> =
            [true.into(), false.into()].into_iter().filter(|value| !values.contains(value)).collect();
        any.extend((!others.is_empty()).then(|| json!({"enum": others})));
    }
    if types.has("number") {
        any.extend(numbers_but(values.iter().filter_map(Value::as_f64).collect()));
    }
    if types.has("string") {
        let texts: Vec<&str> = values.iter().filter_map(Value::as_str).collect();
        any.push(match texts.is_empty() {
            true => json!({"type": "string"}),
            false => json!({"type": "string", "pattern": texts_but(&texts)?}),
        });
    }
    for (kind, count) in [("array", "minItems"), ("object", "minProperties")] {
        if !types.has(kind) {
            continue;
        }
        let constants: Vec<&Value> = values.iter().filter(|value| Types::of_value(value).has(kind)).collect();
        any.push(match constants.iter().all(|value| **value == json!([]) || **value == json!({})) {
            true if constants.is_empty() => json!({"type": kind}),
            true => json!({"type": kind, count: 1}),
            false => return Err(format!("a constant of type {kind}")),
        });
    }
    Ok(any)
}

/// The intervals between numbers.
fn numbers_but(mut numbers: Vec<f64>) -> Vec<Value> {
    if numbers.is_empty() {
        return vec![json!({"type": "number"})];
    }
    numbers.sort_by(f64::total_cmp);
    numbers.dedup();
    let first = numbers.first().map(|first| json!({"type": "number", "exclusiveMaximum": first}));
    let last = numbers.last().map(|last| json!({"type": "number", "exclusiveMinimum": last}));
    let between = |pair: &[f64]| match pair {
        [low, high] => Some(json!({"type": "number", "exclusiveMinimum": low, "exclusiveMaximum": high})),
        _ => None,
    };
    let between: Vec<Value> = numbers.windows(2).filter_map(between).collect();
    first.into_iter().chain(between).chain(last).collect()
}

/// Texts by their first character.
#[derive(Default)]
struct Trie {
    is_text: bool,
    next: BTreeMap<char, Trie>,
}

/// Regular expression for all texts but these.
fn texts_but(texts: &[&str]) -> Result<String, String> {
    let mut root = Trie::default();
    for text in texts {
        if text.chars().count() > TEXT_MAX {
            return Err(format!("a text of more than {TEXT_MAX} characters"));
        }
        let end = text.chars().fold(&mut root, |node, c| node.next.entry(c).or_default());
        end.is_text = true;
    }
    let mut pattern = String::from("^");
    root.write_others(&mut pattern)?;
    pattern.push('$');
    Ok(pattern)
}

impl Trie {
    /// Writes the texts that end elsewhere than at a text of the trie.
    fn write_others(&self, pattern: &mut String) -> Result<(), String> {
        if pattern.len() > PATTERN_MAX {
            return Err(format!("texts of more than {PATTERN_MAX} bytes"));
        }
        pattern.push_str("(?:");
        match self.next.is_empty() {
            true => pattern.push_str("(?s:.+)"),
            false => {
                pattern.push_str("[^");
                self.next.keys().for_each(|&c| push_escaped(pattern, c));
                pattern.push_str("](?s:.*)");
            }
        }
        for (&c, rest) in &self.next {
            pattern.push('|');
            push_escaped(pattern, c);
            rest.write_others(pattern)?;
        }
        pattern.push_str(if self.is_text { ")" } else { ")?" });
        Ok(())
    }
}

fn push_escaped(pattern: &mut String, c: char) {
    match c.is_ascii_alphanumeric() {
        true => pattern.push(c),
        false => pattern.push_str(&format!("\\x{{{:x}}}", u32::from(c))),
    }
}
