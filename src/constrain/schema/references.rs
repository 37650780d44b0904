//! Resolution of `$ref`: pointers with escapes, anchors, and the `$id`s of a document.

use std::cell::Cell;
use std::collections::HashMap;

use serde_json::{Map, Value};

use crate::constrain::error::quotation;

/// Index of a resource: the document, or a subschema with an `$id` of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Base(usize);

/// Maximum number of resources, and of bytes in the URI of one.
const RESOURCES_MAX: usize = 1024;
const URI_MAX: usize = 2048;
/// Maximum number of schemas and values that are visited through references.
const VISITS_MAX: usize = 500_000;

/// Base of the document itself.
pub(super) const ROOT: Base = Base(0);

/// Targets of a document's references.
pub(super) struct References<'a> {
    /// URI and schema of each resource.
    resources: Vec<(String, &'a Value)>,
    by_uri: HashMap<String, Base>,
    anchors: HashMap<(Base, &'a str), &'a Value>,
    visits: Cell<usize>,
}

impl<'a> References<'a> {
    /// Reads the resources and anchors of a document.
    ///
    /// # Errors
    /// Too many or too long `$id`s.
    pub(super) fn of(root: &'a Value) -> Result<References<'a>, String> {
        let uri = root.as_object().and_then(own_id).unwrap_or_default().to_owned();
        let by_uri = HashMap::from([(uri.clone(), ROOT)]);
        let (resources, visits) = (vec![(uri, root)], Cell::new(VISITS_MAX));
        let mut found = References { resources, by_uri, anchors: HashMap::new(), visits };
        let mut open = vec![(root, ROOT)];
        while let Some((value, base)) = open.pop() {
            match value {
                Value::Object(map) => {
                    let base = if std::ptr::eq(value, root) { ROOT } else { found.enter(map, value, base) };
                    found.add_anchors(map, value, base);
                    if found.resources.last().is_some_and(|(uri, _)| uri.len() > URI_MAX)
                        || found.resources.len() > RESOURCES_MAX
                    {
                        return Err(format!(
                            "$id: expected at most {RESOURCES_MAX} of at most {URI_MAX} bytes"
                        ));
                    }
                    open.extend(map.values().map(|value| (value, base)));
                }
                Value::Array(list) => open.extend(list.iter().map(|value| (value, base))),
                _ => {}
            }
        }
        Ok(found)
    }

    /// Whether more schemas and values may be visited through references, after this number of them.
    pub(super) fn visit(&self, count: usize) -> bool {
        self.visits.set(self.visits.get().saturating_sub(count));
        self.visits.get() > 0
    }

    fn add_anchors(&mut self, map: &'a Map<String, Value>, value: &'a Value, base: Base) {
        for keyword in ["$anchor", "$dynamicAnchor", "$id", "id"] {
            let name = map.get(keyword).and_then(Value::as_str).unwrap_or_default();
            let name = if keyword.ends_with("id") { name.strip_prefix('#') } else { Some(name) };
            if let Some(name) = name.filter(|name| !name.is_empty()) {
                self.anchors.entry((base, name)).or_insert(value);
            }
        }
    }

    /// Base of a subschema, added as a resource if it has an `$id`.
    fn enter(&mut self, map: &Map<String, Value>, value: &'a Value, base: Base) -> Base {
        let Some(id) = own_id(map) else { return base };
        let uri = self.joined(base, id);
        let resources = &mut self.resources;
        *self.by_uri.entry(uri.clone()).or_insert_with(|| {
            resources.push((uri, value));
            Base(resources.len() - 1)
        })
    }

    /// Base of the references within a subschema.
    pub(super) fn base_of(&self, map: &Map<String, Value>, base: Base) -> Base {
        let found = own_id(map).map(|id| self.joined(base, id));
        found.and_then(|uri| self.by_uri.get(&uri)).copied().unwrap_or(base)
    }

    /// The target of a reference, and its base.
    ///
    /// # Errors
    /// No such target in this document.
    pub(super) fn resolve(&self, reference: &str, base: Base) -> Result<(&'a Value, Base), String> {
        let (uri, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let base = match uri {
            "" => Some(base),
            uri => self.by_uri.get(&self.joined(base, uri)).copied(),
        };
        let target = base.and_then(|base| self.within(base, fragment));
        target.ok_or_else(|| {
            let reference = quotation(reference);
            format!("a $ref is not found in the schema: {reference}; other documents are not fetched")
        })
    }

    fn within(&self, base: Base, fragment: &str) -> Option<(&'a Value, Base)> {
        let (_, resource) = *self.resources.get(base.0)?;
        let decoded = percent_decoded(fragment);
        match decoded.as_deref().unwrap_or(fragment) {
            "" => Some((resource, base)),
            // A key may contain a percent sign that its reference does not escape.
            pointer if pointer.starts_with('/') => {
                self.pointed(resource, base, pointer).or_else(|| self.pointed(resource, base, fragment))
            }
            name => Some((*self.anchors.get(&(base, name))?, base)),
        }
    }

    /// The target of a JSON pointer (RFC 6901).
    fn pointed(&self, resource: &'a Value, base: Base, pointer: &str) -> Option<(&'a Value, Base)> {
        let (mut value, mut base) = (resource, base);
        let segments = pointer.strip_prefix('/').filter(|rest| !rest.is_empty()).into_iter();
        for segment in segments.flat_map(|rest| rest.split('/')) {
            let key = segment.replace("~1", "/").replace("~0", "~");
            value = match value {
                Value::Object(map) => map.get(&key)?,
                Value::Array(list) => list.get(key.parse::<usize>().ok()?)?,
                _ => return None,
            };
            base = value.as_object().map_or(base, |map| self.base_of(map, base));
        }
        Some((value, base))
    }

    /// A URI reference, absolute. Dot segments stay as they are.
    fn joined(&self, base: Base, reference: &str) -> String {
        let reference = reference.trim_end_matches('#');
        let uri = self.resources.get(base.0).map_or("", |(uri, _)| uri);
        let directory = uri.rfind('/').map_or("", |end| uri.get(..=end).unwrap_or_default());
        let origin = uri.find("://").and_then(|scheme| {
            let host = scheme + "://".len();
            let end = uri.get(host..)?.find('/').map_or(uri.len(), |end| host + end);
            uri.get(..end)
        });
        if reference.contains("://") || reference.starts_with("urn:") {
            reference.into()
        } else if reference.starts_with('/') {
            format!("{}{reference}", origin.unwrap_or_default())
        } else {
            format!("{directory}{reference}")
        }
    }
}

/// The `$id` of a subschema, unless it is an anchor.
fn own_id(map: &Map<String, Value>) -> Option<&str> {
    let id = map.get("$id").and_then(Value::as_str)?.trim_end_matches('#');
    Some(id).filter(|id| !id.is_empty() && !id.starts_with('#'))
}

/// Decodes `%41` and the like; `None` for other uses of the percent sign and for bytes that are no UTF-8.
fn percent_decoded(fragment: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(fragment.len());
    let mut parts = fragment.split('%');
    bytes.extend_from_slice(parts.next().unwrap_or_default().as_bytes());
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn references_are_found_by_pointer_anchor_and_id() {
        let document = json!({
            "$id": "https://example.com/schemas/root.json",
            "$defs": {
                "x/y": {"const": 1}, "a~b": {"const": 2}, "50% é": {"const": 3}, "~1": {"const": 4}, "": {"const": 5},
                "anchored": {"$anchor": "six", "const": 6}, "old": {"$id": "#seven", "const": 7},
                "list": [{"const": 8}],
                "own": {"$id": "node.json", "const": 9, "$defs": {"in": {"$anchor": "six", "const": 10}}},
            },
        });
        let references = References::of(&document).unwrap();
        let constant = |reference: &str, base| {
            references.resolve(reference, base).map(|(value, _)| value["const"].clone()).unwrap_or_default()
        };
        for (reference, expected) in [
            ("#/$defs/x~1y", 1),
            ("#/$defs/x%2Fy", 0),
            ("#/$defs/x%7E1y", 1),
            ("#/%24defs/a~0b", 2),
            ("#/$defs/50%25%20%C3%A9", 3),
            ("#/$defs/50% é", 3),
            ("#/$defs/~01", 4),
            ("#/$defs/", 5),
            ("#six", 6),
            ("#seven", 7),
            ("#/$defs/list/0", 8),
            ("root.json#/$defs/x~1y", 1),
            ("https://example.com/schemas/root.json#six", 6),
            ("node.json", 9),
            ("/schemas/node.json#six", 10),
            ("node.json#/$defs/in", 10),
            ("#/$defs/own/$defs/in", 10),
            ("#/$defs/none", 0),
            ("#none", 0),
            ("other.json", 0),
            ("#/$defs/list/1", 0),
        ] {
            let expected = if expected == 0 { Value::Null } else { expected.into() };
            assert_eq!(constant(reference, ROOT), expected, "{reference}");
        }
        let (_, base) = references.resolve("node.json", ROOT).unwrap();
        assert_eq!((constant("#six", base), constant("#/$defs/in", base)), (10.into(), 10.into()));
    }
}
