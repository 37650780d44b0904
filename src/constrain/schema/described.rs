//! The properties that a schema describes, in itself and in the schemas that apply to the same value.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::references::{Base, References};

/// Properties of a schema, its `allOf`, its branches, and the targets of its references.
#[derive(Default)]
pub(super) struct Described {
    /// Names in the order of the document; true if a schema shapes the property's own parts.
    names: Map<String, Value>,
    /// Regular expressions of `patternProperties`.
    patterns: Map<String, Value>,
    /// Names that every object has.
    pub(super) required: HashSet<String>,
    /// Whether a schema has `properties` or `patternProperties`.
    pub(super) has_properties: bool,
    /// Whether a schema has a keyword for the names that it does not describe.
    pub(super) has_additional: bool,
    /// Whether a schema has `unevaluatedProperties`.
    pub(super) has_unevaluated: bool,
    /// Whether some of the schemas apply to some values only.
    pub(super) has_branches: bool,
    /// Whether two schemas shape the parts of one property or item.
    pub(super) is_shared: bool,
    has_items: bool,
    /// Number of schemas, names and references.
    pub(super) size: usize,
}

/// A schema that applies to the value, its base, and whether it applies to every value.
type Part<'x> = (&'x Map<String, Value>, Base, bool);

impl Described {
    /// Collects the properties of a schema.
    ///
    /// # Errors
    /// A reference without a target.
    pub(super) fn by<'x>(
        schema: &'x Map<String, Value>,
        base: Base,
        references: &References<'x>,
    ) -> Result<Described, String> {
        let (mut found, mut open, mut seen) =
            (Described::default(), vec![(schema, base, true)], HashSet::new());
        while let Some((schema, base, always)) = open.pop() {
            if !seen.insert(std::ptr::from_ref(schema)) {
                continue;
            }
            let base = references.base_of(schema, base);
            found.add(schema, always);
            let mut parts = Vec::new();
            for (keyword, value) in schema {
                found.size += 1;
                found.parts(keyword, value, (base, always), &mut parts);
                if let ("$ref" | "$dynamicRef" | "$recursiveRef", Value::String(reference)) =
                    (keyword.as_str(), value)
                {
                    let (target, base) = references.resolve(reference, base)?;
                    parts.extend(target.as_object().map(|target| (target, base, always)));
                }
            }
            open.extend(parts.into_iter().rev());
        }
        Ok(found)
    }

    fn parts<'x>(
        &mut self,
        keyword: &str,
        value: &'x Value,
        (base, always): (Base, bool),
        parts: &mut Vec<Part<'x>>,
    ) {
        let all = keyword == "allOf";
        let schemas: Vec<&Value> = match (keyword, value) {
            ("allOf" | "anyOf" | "oneOf", Value::Array(list)) => list.iter().collect(),
            ("dependentSchemas" | "dependencies", Value::Object(map)) => map.values().collect(),
            ("if" | "then" | "else", schema) => vec![schema],
            _ => return,
        };
        self.has_branches |= !all;
        parts.extend(
            schemas.into_iter().filter_map(|schema| Some((schema.as_object()?, base, always && all))),
        );
    }

    fn add(&mut self, schema: &Map<String, Value>, always: bool) {
        for (keyword, value) in schema {
            match (keyword.as_str(), value) {
                ("properties", Value::Object(properties)) => {
                    self.has_properties = true;
                    properties.iter().for_each(|(name, property)| self.describe(name, shapes(property)));
                }
                ("patternProperties", Value::Object(patterns)) => {
                    self.has_properties = true;
                    self.patterns.extend(patterns.keys().map(|pattern| (pattern.clone(), true.into())));
                }
                ("required", Value::Array(names)) => {
                    for name in names.iter().filter_map(Value::as_str) {
                        self.describe(name, false);
                        if always {
                            self.required.insert(name.to_owned());
                        }
                    }
                }
                ("dependentRequired" | "dependencies" | "dependentSchemas", Value::Object(map)) => {
                    for (name, needed) in map {
                        self.describe(name, false);
                        let needed = needed.as_array().into_iter().flatten().filter_map(Value::as_str);
                        needed.for_each(|name| self.describe(name, false));
                    }
                }
                ("additionalProperties" | "propertyNames", _) => self.has_additional = true,
                ("unevaluatedProperties", _) => self.has_unevaluated = true,
                ("items" | "prefixItems", _) => {
                    self.is_shared |= self.has_items;
                    self.has_items = true;
                }
                _ => {}
            }
        }
    }

    fn describe(&mut self, name: &str, shapes: bool) {
        self.size += 1;
        match self.names.get_mut(name) {
            Some(shaped) => {
                self.is_shared |= shapes && *shaped == true;
                *shaped = (shapes || *shaped == true).into();
            }
            None => _ = self.names.insert(name.to_owned(), shapes.into()),
        }
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &String> {
        self.names.keys()
    }

    pub(super) fn has_patterns(&self) -> bool {
        !self.patterns.is_empty()
    }

    /// The schema that closes an object, unless a keyword is for the properties that it does not describe.
    pub(super) fn closes(&self, schema: &Map<String, Value>) -> Option<Value> {
        let is_exact = schema.get("unevaluatedProperties") == Some(&Value::Bool(false)) && !self.has_branches;
        let least = schema.get("minProperties").and_then(Value::as_u64).unwrap_or(0);
        let is_enough = least <= self.names().count() as u64;
        let closes = self.has_properties && !self.has_unevaluated && is_enough;
        ((closes || is_exact) && !self.has_additional).then(|| self.closure())
    }

    /// Schema of objects with these properties alone.
    fn closure(&self) -> Value {
        let names: Map<String, Value> = self.names().map(|name| (name.clone(), true.into())).collect();
        let mut closure = json!({"properties": names, "additionalProperties": false});
        if !self.patterns.is_empty() {
            closure["patternProperties"] = self.patterns.clone().into();
        }
        closure
    }
}

/// Whether a schema constrains the parts of a value.
fn shapes(schema: &Value) -> bool {
    const KEYWORDS: [&str; 9] =
        ["$ref", "allOf", "anyOf", "items", "not", "oneOf", "patternProperties", "prefixItems", "properties"];
    schema.as_object().is_some_and(|schema| KEYWORDS.iter().any(|keyword| schema.contains_key(*keyword)))
}
