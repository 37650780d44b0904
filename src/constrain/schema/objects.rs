//! Keywords that are rewritten once the other keywords of a schema are: `uniqueItems`, `propertyNames`,
//! `minProperties`, `maxProperties`, and the end of an object.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::arrays::{Unique, unique};
use super::constants::{DEPTH_MAX, exact, values};
use super::counts::Counts;
use super::described::Described;
use super::lower::{Lowered, Lowering, Site};
use super::types::Types;
use super::vacuous::{has_only, is_vacuous};
use crate::constrain::regex;

impl Lowering<'_, '_> {
    /// `uniqueItems` of arrays.
    pub(super) fn unique(&mut self, site: &Site, lowered: &mut Lowered) -> Result<(), String> {
        if site.schema.get("uniqueItems") != Some(&Value::Bool(true)) {
            return Ok(());
        }
        let items = site.schema.get("items");
        let values = items.and_then(|items| values(items, site.base, self.references, DEPTH_MAX));
        let Unique::Of(arrays) = unique(site.schema, values.as_deref())? else { return Ok(()) };
        self.pay(arrays.iter().filter_map(Value::as_array).map(Vec::len).sum())?;
        let mut any = vec![site.types.without(Types::ARRAY).schema()];
        if !arrays.is_empty() {
            let arrays = exact("uniqueItems", &arrays.into())?;
            any.push(json!({"enum": arrays}));
        }
        ["items", "minItems", "maxItems"]
            .iter()
            .for_each(|keyword| _ = lowered.schema.shift_remove(*keyword));
        lowered.also.push(json!({"anyOf": any}));
        Ok(())
    }

    /// `propertyNames` of an object without named properties, by the names or their regular expression.
    pub(super) fn names(&mut self, site: &Site, lowered: &mut Lowered) -> Result<(), String> {
        let Some(names) =
            site.schema.get("propertyNames").filter(|names| !is_vacuous(site.schema, "propertyNames", names))
        else {
            return Ok(());
        };
        let others = lowered.schema.get("additionalProperties").cloned().unwrap_or_else(|| true.into());
        let is_map =
            !["properties", "patternProperties"].iter().any(|keyword| site.schema.contains_key(*keyword));
        let (keyword, properties) =
            match (values(names, site.base, self.references, DEPTH_MAX), pattern_of(names)) {
                (Some(values), _) if is_map => {
                    let names = values.iter().filter_map(Value::as_str);
                    ("properties", names.map(|name| (name.to_owned(), others.clone())).collect::<Map<_, _>>())
                }
                (None, Some(pattern)) if is_map => ("patternProperties", Map::from_iter([(pattern, others)])),
                _ => {
                    return Err(
                        "propertyNames: expected an enum or a pattern, and no properties next to it".into()
                    );
                }
            };
        if keyword == "patternProperties" {
            let checked = properties.keys().try_for_each(|pattern| regex::check(pattern));
            checked.map_err(|problem| format!("propertyNames: {problem}"))?;
        }
        self.pay(properties.len())?;
        lowered.schema.insert(keyword.into(), properties.into());
        lowered.schema.insert("additionalProperties".into(), false.into());
        Ok(())
    }

    /// `minProperties` and `maxProperties`.
    pub(super) fn counts(
        &mut self,
        site: &Site,
        described: Option<Described>,
        is_closed: bool,
        lowered: &mut Lowered,
    ) -> Result<(), String> {
        let bound = |keyword: &str| {
            site.schema.get(keyword).and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok())
        };
        let (least, most) = (bound("minProperties"), bound("maxProperties"));
        if least.is_none() && most.is_none() {
            return Ok(());
        }
        let described = match described {
            Some(described) => described,
            None => Described::by(site.schema, site.base, self.references)?,
        };
        // `propertyNames` has added properties.
        let own = lowered.schema.get("properties").and_then(Value::as_object);
        let names = described.names().chain(own.into_iter().flat_map(Map::keys));
        let mut optional: Vec<&str> =
            names.map(String::as_str).filter(|name| !described.required.contains(*name)).collect();
        let mut seen = HashSet::new();
        optional.retain(|name| seen.insert(*name));
        let is_closed = is_closed || lowered.schema.get("additionalProperties") == Some(&Value::Bool(false));
        let has_free =
            !is_closed || described.has_patterns() || lowered.schema.contains_key("patternProperties");
        let (required, least) = (described.required.len(), least.unwrap_or(0));
        let counts = Counts { optional, required, has_free, least, most };
        let Some(mut any) = counts.alternatives()? else { return Ok(()) };
        self.pay(any.len() * described.size)?;
        lowered.schema.shift_remove("minProperties");
        lowered.schema.shift_remove("maxProperties");
        if any.first() != Some(&Value::Bool(true)) {
            any.push(site.types.without(Types::OBJECT).schema());
            lowered.also.push(json!({"anyOf": any}));
        }
        Ok(())
    }
}

impl Lowered {
    /// Joins a schema with those that apply in addition.
    pub(super) fn finished(self, closure: Option<Value>) -> Value {
        let Lowered { mut schema, mut also } = self;
        match closure {
            Some(Value::Object(closure)) if is_leaf(&schema) => {
                let mut all = closure;
                let others = all.shift_remove("additionalProperties");
                for (keyword, names) in all {
                    let own = schema.entry(keyword).or_insert_with(|| Map::new().into());
                    if let (Value::Object(own), Value::Object(names)) = (own, names) {
                        names.into_iter().for_each(|(name, schema)| _ = own.entry(name).or_insert(schema));
                    }
                }
                schema.extend(others.map(|others| ("additionalProperties".to_owned(), others)));
                schema.shift_remove("unevaluatedProperties");
            }
            Some(closure) => {
                schema.shift_remove("unevaluatedProperties");
                also.push(closure);
            }
            None => {}
        }
        if also.is_empty() {
            return schema.into();
        }
        if !schema.is_empty() {
            also.insert(0, schema.into());
        }
        json!({"allOf": also})
    }
}

/// Whether no other schema applies to the value.
fn is_leaf(schema: &Map<String, Value>) -> bool {
    !["$ref", "allOf", "anyOf", "oneOf"].iter().any(|keyword| schema.contains_key(*keyword))
}

/// Regular expression of a schema for texts that has no other keyword than their lengths.
fn pattern_of(schema: &Value) -> Option<String> {
    let schema = schema.as_object().filter(|schema| Types::of(schema).has("string"))?;
    let length = |keyword: &str| schema.get(keyword).and_then(Value::as_u64).map(|n| n.to_string());
    if has_only(schema, &["type", "pattern"]) {
        return schema.get("pattern")?.as_str().map(str::to_owned);
    }
    let (least, most) = (length("minLength").unwrap_or("0".into()), length("maxLength").unwrap_or_default());
    has_only(schema, &["type", "minLength", "maxLength"]).then(|| format!("^(?s:.{{{least},{most}}})$"))
}
