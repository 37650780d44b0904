//! Rewrites a JSON schema into one that llguidance compiles exactly: references, closed objects, and the
//! keywords that it lacks. Annotations and definitions without a reference are dropped.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::constants::{distinct, exact, listed};
use super::described::Described;
use super::disjoint::are_disjoint;
use super::negate::Negation;
use super::numbers;
use super::references::{Base, ROOT, References};
use super::types::Types;
use super::vacuous::{KEYWORDS, has_only, is_vacuous};
use crate::constrain::bounds::json_bytes;
use crate::constrain::error::OVERLAP;
use crate::constrain::regex;

/// Maximum number of schemas and names that are written for keywords of others.
const ROOM: usize = 200_000;
/// Size of a small schema as JSON text in bytes.
const BYTES_OF_SCHEMA: usize = 16;
/// Maximum number of branches of a `oneOf`, which are compared in pairs, and of those that are negated.
const BRANCHES_MAX: usize = 256;
const NEGATED_MAX: usize = 8;
/// Maximum number of names with dependencies in a schema. Each doubles the alternatives.
const DEPENDENCIES_MAX: usize = 8;

/// How a schema treats the properties that it does not describe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Mode {
    /// The schema of a value: an object with `properties` has no others, unless a keyword allows them.
    Closed,
    /// A part of a composition, which closes objects as a whole. The schemas of its properties are closed.
    Part,
    /// A part of a composition that describes a property more than once; all its objects are open.
    Open,
}

impl Mode {
    /// Mode of the schemas of properties and items.
    fn of_values(self) -> Mode {
        if self == Mode::Open { Mode::Open } else { Mode::Closed }
    }
}

/// Rewrites a schema.
///
/// # Errors
/// A keyword that cannot be enforced, by its name.
pub(super) fn lower(document: &Value) -> Result<Value, String> {
    let references = References::of(document)?;
    let mut lowering =
        Lowering { references: &references, names: HashMap::new(), open: Vec::new(), room: ROOM };
    let mut lowered = lowering.schema(document, ROOT, Mode::Closed)?;
    let mut definitions = Map::new();
    while let Some((name, target, base, mode)) = lowering.open.pop() {
        definitions.insert(name, lowering.schema(target, base, mode)?);
    }
    if !definitions.is_empty() {
        lowered.as_object_mut().map(|lowered| lowered.insert("$defs".into(), definitions.into()));
    }
    Ok(lowered)
}

pub(super) struct Lowering<'a, 'r> {
    pub(super) references: &'r References<'a>,
    /// Names of the definitions so far, by target and mode.
    names: HashMap<(*const Value, Mode), String>,
    /// Definitions that are not written yet.
    open: Vec<(String, &'a Value, Base, Mode)>,
    room: usize,
}

/// A schema that is being rewritten.
pub(super) struct Site<'s> {
    pub(super) schema: &'s Map<String, Value>,
    pub(super) base: Base,
    /// Modes of the schemas that apply to the same value, and of those of properties and items.
    parts: Mode,
    values: Mode,
    pub(super) types: Types,
    /// Whether the branches of `oneOf` exclude each other.
    is_choice: bool,
}

/// A rewritten schema, and the schemas that apply in addition.
#[derive(Default)]
pub(super) struct Lowered {
    pub(super) schema: Map<String, Value>,
    pub(super) also: Vec<Value>,
}

impl<'a> Lowering<'a, '_> {
    fn schema(&mut self, schema: &Value, base: Base, mode: Mode) -> Result<Value, String> {
        match schema {
            Value::Object(map) => self.object(map, base, mode),
            other => Ok(other.clone()),
        }
    }

    fn object(&mut self, schema: &Map<String, Value>, base: Base, mode: Mode) -> Result<Value, String> {
        let base = self.references.base_of(schema, base);
        let is_choice = match schema.get("oneOf") {
            Some(Value::Array(branches)) if branches.len() <= BRANCHES_MAX => {
                are_disjoint(branches, base, self.references)
            }
            other => other.is_none(),
        };
        let described = match mode {
            Mode::Closed if !is_choice || !is_one_of_others(schema) => {
                Some(Described::by(schema, base, self.references)?)
            }
            _ => None,
        };
        self.pay(described.as_ref().map_or(0, |described| described.size))?;
        let parts = match &described {
            Some(described) if described.is_shared => Mode::Open,
            Some(_) => Mode::Part,
            None => mode,
        };
        let site =
            Site { schema, base, parts, values: parts.of_values(), types: Types::of(schema), is_choice };
        let mut lowered = Lowered::default();
        for (keyword, value) in schema {
            if !is_vacuous(schema, keyword, value) {
                self.keyword(&site, keyword, value, &mut lowered)?;
            }
        }
        numbers::bounds(&mut lowered.schema)?;
        self.unique(&site, &mut lowered)?;
        self.names(&site, &mut lowered)?;
        let closure = described.as_ref().and_then(|described| described.closes(schema));
        self.counts(&site, described, closure.is_some(), &mut lowered)?;
        Ok(lowered.finished(closure))
    }

    /// Takes the cost of work and output from the limit.
    ///
    /// # Errors
    /// The limit is exceeded.
    pub(super) fn pay(&mut self, cost: usize) -> Result<(), String> {
        self.room = self.room.checked_sub(cost).ok_or("it is too complex")?;
        Ok(())
    }

    fn keyword(
        &mut self,
        site: &Site,
        keyword: &str,
        value: &Value,
        lowered: &mut Lowered,
    ) -> Result<(), String> {
        let value = match (keyword, value) {
            ("$ref" | "$dynamicRef" | "$recursiveRef", Value::String(reference)) => {
                let name = self.define(reference, site.base, site.parts)?;
                lowered.schema.insert("$ref".into(), format!("#/$defs/{name}").into());
                return Ok(());
            }
            ("properties" | "patternProperties", Value::Object(map)) => {
                if keyword == "patternProperties" {
                    map.keys()
                        .try_for_each(|pattern| regex::check(pattern))
                        .map_err(|problem| format!("{keyword}: {problem}"))?;
                }
                let each = map
                    .iter()
                    .map(|(name, schema)| Ok((name.clone(), self.schema(schema, site.base, site.values)?)));
                Value::Object(each.collect::<Result<_, String>>()?)
            }
            ("items" | "prefixItems", Value::Array(list)) => self.each(list, site.base, site.values)?,
            ("additionalProperties" | "items" | "additionalItems", schema) => {
                self.schema(schema, site.base, site.values)?
            }
            ("allOf" | "anyOf", Value::Array(list)) => self.each(list, site.base, site.parts)?,
            ("oneOf", Value::Array(list)) => return self.one_of(site, list, lowered),
            ("const", value) => exact(keyword, value)?,
            ("enum", Value::Array(list)) => {
                list.iter().map(|value| exact(keyword, value)).collect::<Result<_, _>>()?
            }
            ("not", schema) => {
                let others = self.negated(site, schema, keyword)?;
                lowered.also.push(self.schema(&others, site.base, Mode::Open)?);
                return Ok(());
            }
            ("if", condition) => return self.condition(site, condition, lowered),
            ("dependentRequired" | "dependentSchemas" | "dependencies", Value::Object(map)) => {
                return self.dependencies(site, keyword, map, lowered);
            }
            ("pattern", Value::String(pattern)) => {
                regex::check(pattern).map_err(|problem| format!("pattern: {problem}"))?;
                value.clone()
            }
            // These follow once all other keywords are there.
            ("then" | "else" | "propertyNames" | "uniqueItems", _) => return Ok(()),
            (keyword, value) if KEYWORDS.contains(&keyword) => value.clone(),
            _ => return Ok(()),
        };
        lowered.schema.insert(keyword.into(), value);
        Ok(())
    }

    fn each(&mut self, list: &[Value], base: Base, mode: Mode) -> Result<Value, String> {
        list.iter().map(|schema| self.schema(schema, base, mode)).collect()
    }

    /// Name of the definition that a reference leads to.
    fn define(&mut self, reference: &str, base: Base, mode: Mode) -> Result<String, String> {
        let (target, base) = self.references.resolve(reference, base)?;
        let key = (std::ptr::from_ref(target), mode);
        if let Some(name) = self.names.get(&key) {
            return Ok(name.clone());
        }
        let name = self.names.len().to_string();
        self.names.insert(key, name.clone());
        self.open.push((name.clone(), target, base, mode));
        Ok(name)
    }

    /// The complement of a schema, not rewritten.
    fn negated(&mut self, site: &Site, schema: &Value, keyword: &str) -> Result<Value, String> {
        let negated = Negation::of(self.references).schema(schema, site.base, site.types);
        let negated =
            negated.map_err(|problem| format!("{keyword}: its complement is not supported ({problem})"))?;
        self.pay(json_bytes(&negated) / BYTES_OF_SCHEMA)?;
        Ok(negated)
    }

    /// A `oneOf` of constants is an `enum`. Of branches that name properties, each excludes the others. Any
    /// other gets the keyword `discriminator`, unknown to llguidance: with it, references are resolved when
    /// branches are checked for overlap.
    fn one_of(&mut self, site: &Site, branches: &[Value], lowered: &mut Lowered) -> Result<(), String> {
        let constants: Option<Vec<Value>> = branches.iter().map(constant).collect();
        if let Some(constants) = constants.filter(|_| !site.schema.contains_key("enum")) {
            if distinct(constants.iter().cloned()).len() < branches.len() {
                return Err(OVERLAP.into());
            }
            return self.keyword(site, "enum", &constants.into(), lowered);
        }
        if branches.len() > BRANCHES_MAX {
            let (most, count) = (BRANCHES_MAX, branches.len());
            return Err(format!("oneOf: expected constants or at most {most} branches, found {count}"));
        }
        if branches.len() <= NEGATED_MAX && branches.iter().all(names_properties) {
            let others = branches
                .iter()
                .map(|branch| self.negated(site, branch, "oneOf"))
                .collect::<Result<Vec<_>, _>>()?;
            let only = |(at, branch): (usize, &Value)| {
                let others = others
                    .iter()
                    .enumerate()
                    .filter(|(other, _)| *other != at)
                    .map(|(_, other)| other.clone());
                let all: Vec<Value> = [branch.clone()].into_iter().chain(others).collect();
                json!({"allOf": all})
            };
            let any: Vec<Value> = branches.iter().enumerate().map(only).collect();
            lowered.also.push(self.schema(&json!({"anyOf": any}), site.base, Mode::Open)?);
            return Ok(());
        }
        let branches = self.each(branches, site.base, site.parts)?;
        if site.is_choice {
            match site.schema.contains_key("anyOf") {
                true => lowered.also.push(json!({"anyOf": branches})),
                false => _ = lowered.schema.insert("anyOf".into(), branches),
            }
            return Ok(());
        }
        lowered.schema.insert("oneOf".into(), branches);
        lowered.schema.insert("discriminator".into(), json!({}));
        Ok(())
    }

    fn condition(&mut self, site: &Site, condition: &Value, lowered: &mut Lowered) -> Result<(), String> {
        let otherwise = self.negated(site, condition, "if")?;
        let condition = self.schema(condition, site.base, site.parts)?;
        let otherwise = self.schema(&otherwise, site.base, Mode::Open)?;
        let mut branch = |keyword: &str, condition: Value| match site.schema.get(keyword) {
            Some(schema) => Ok(json!({"allOf": [condition, self.schema(schema, site.base, site.parts)?]})),
            None => Ok::<_, String>(condition),
        };
        let any = json!({"anyOf": [branch("then", condition)?, branch("else", otherwise)?]});
        lowered.also.push(any);
        Ok(())
    }

    fn dependencies(
        &mut self,
        site: &Site,
        keyword: &str,
        map: &Map<String, Value>,
        lowered: &mut Lowered,
    ) -> Result<(), String> {
        let needs =
            |needed: &Value| !matches!(needed, Value::Array(names) if names.is_empty()) && *needed != true;
        let count = map.values().filter(|needed| needs(needed)).count();
        if count > DEPENDENCIES_MAX {
            return Err(format!("{keyword}: expected at most {DEPENDENCIES_MAX} names, found {count}"));
        }
        for (name, needed) in map.iter().filter(|(_, needed)| needs(needed)) {
            let present = match needed {
                Value::Array(names) => {
                    let names = [json!(name)].into_iter().chain(names.iter().cloned()).collect::<Vec<_>>();
                    json!({"type": "object", "required": names})
                }
                schema => {
                    let schema = self.schema(schema, site.base, site.parts)?;
                    json!({"allOf": [{"type": "object", "required": [name]}, schema]})
                }
            };
            lowered.also.push(json!({"anyOf": [{"properties": {name: false}}, present]}));
        }
        Ok(())
    }
}

/// Whether a schema has no properties of its own and one list of branches, or one reference: each of these
/// describes whole values.
fn is_one_of_others(schema: &Map<String, Value>) -> bool {
    const OTHERS: [&str; 6] = ["$dynamicRef", "$recursiveRef", "$ref", "allOf", "anyOf", "oneOf"];
    const OWN: [&str; 14] = [
        "additionalProperties",
        "dependencies",
        "dependentRequired",
        "dependentSchemas",
        "else",
        "if",
        "maxProperties",
        "minProperties",
        "patternProperties",
        "properties",
        "propertyNames",
        "required",
        "then",
        "unevaluatedProperties",
    ];
    let has_own = OWN.iter().any(|keyword| schema.contains_key(*keyword));
    let mut others = OTHERS.iter().filter_map(|keyword| schema.get(*keyword).map(|value| (*keyword, value)));
    match (others.next(), others.next()) {
        (Some(("allOf", Value::Array(parts))), None) => !has_own && parts.len() == 1,
        (Some(_), None) => !has_own,
        _ => false,
    }
}

/// The constant of a schema that has no other.
fn constant(schema: &Value) -> Option<Value> {
    let mut values = listed(schema.as_object().filter(|schema| schema.contains_key("const"))?)?;
    values.pop()
}

/// Whether a schema only requires properties, or that some are absent.
fn names_properties(schema: &Value) -> bool {
    let Some(schema) = schema.as_object() else { return false };
    let not = schema.get("not").is_none_or(|not| not.get("required").is_some());
    (schema.contains_key("required") || schema.contains_key("not"))
        && not
        && has_only(schema, &["not", "required"])
}
