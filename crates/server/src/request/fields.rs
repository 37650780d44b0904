//! The fields of a request's body. Each is taken by its row of `table`, which has its name, kind and schema.
//! Fields without a row are unknown.

#[cfg(test)]
use std::collections::BTreeSet;

use axum::body::Bytes;
use axum::http::StatusCode;
use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::request::json::{self, JsonError, MIB_MAX, is_within};
use crate::request::json_fields::Fields;
use crate::request::kinds::{Kind, List, Object};
use crate::request::skipped::Skipped;

/// A row of the table of request fields.
pub(crate) struct Field<K> {
    name: &'static str,
    kind: K,
    schema: Schema,
}

/// The schema of a field in `/openapi.json`.
enum Schema {
    /// The kind's, with a description unless it is empty.
    OfKind(&'static str),
    /// A component of `api/openapi.json`.
    Component(&'static str),
}

/// A field with the schema of its kind.
pub(crate) const fn field<K>(name: &'static str, kind: K, description: &'static str) -> Field<K> {
    Field { name, kind, schema: Schema::OfKind(description) }
}

/// A field with a component as its schema.
pub(crate) const fn shaped<K>(name: &'static str, kind: K, component: &'static str) -> Field<K> {
    Field { name, kind, schema: Schema::Component(component) }
}

/// A row whatever its kind.
pub(crate) trait Row: Sync {
    fn name(&self) -> &'static str;

    /// JSON schema of the field in `/openapi.json`.
    fn schema(&self) -> Value;

    /// Checks a value and drops it.
    fn check(&self, value: Value) -> Result<(), ApiError>;
}

impl<K: Kind> Row for Field<K> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn schema(&self) -> Value {
        match self.schema {
            Schema::Component(name) => json!({"$ref": format!("#/components/schemas/{name}")}),
            Schema::OfKind(description) => {
                let mut schema = self.kind.schema();
                if !description.is_empty() {
                    schema["description"] = description.into();
                }
                schema
            }
        }
    }

    fn check(&self, value: Value) -> Result<(), ApiError> {
        self.kind.read(value).map(drop).map_err(|found| self.kind.error(self.name, &found))
    }
}

/// Rows that are documented together.
pub(crate) struct Group {
    /// The heading of its section in `docs/server.md`.
    pub(crate) title: &'static str,
    pub(crate) rows: &'static [&'static dyn Row],
}

/// The body of a request.
pub(crate) struct RequestFields {
    fields: Fields,
    /// Parts of fields without effect.
    skipped: Skipped,
    /// Names taken so far, present in the body or not.
    #[cfg(test)]
    taken: BTreeSet<&'static str>,
}

/// Most memory of a field's values, in MiB. Tools, variables and metadata are copied for templates and
/// answers.
const FIELD_MIB_MAX: usize = 16;
/// Fields that are read once, with the body's limit alone.
const READ_ONCE: &[&str] = &["messages", "input", "prompt", "tokens", "logit_bias"];

fn is_too_large(name: &str, value: &Value) -> bool {
    !READ_ONCE.contains(&name) && !is_within(value, FIELD_MIB_MAX << 20)
}

impl RequestFields {
    /// Parses a body.
    ///
    /// # Errors
    /// A body that is no JSON object, or one with too many values.
    pub(crate) fn parse(body: &Bytes) -> Result<RequestFields, ApiError> {
        let refused = |status, message: String| ApiError::new(status, "invalid_request_error", message);
        match json::parse(body) {
            Ok(Value::Object(map)) => match map.iter().find(|(name, value)| is_too_large(name, value)) {
                None => Ok(RequestFields::of(map)),
                Some((name, _)) => {
                    // A client may have made up a name of any length.
                    let name: String = name.chars().take(64).collect();
                    let message = format!(
                        "{name}: expected values of at most {FIELD_MIB_MAX} MiB in memory, found more"
                    );
                    Err(ApiError::invalid(name, message).too_large())
                }
            },
            Ok(_) => Err(refused(StatusCode::BAD_REQUEST, "the body: expected a JSON object".into())),
            Err(JsonError::Syntax(error)) => {
                Err(refused(StatusCode::BAD_REQUEST, format!("the body is no JSON: {error}")))
            }
            Err(JsonError::Large) => {
                let message =
                    format!("the body: expected values of at most {MIB_MAX} MiB in memory, found more");
                Err(refused(StatusCode::PAYLOAD_TOO_LARGE, message))
            }
        }
    }

    pub(crate) fn of(map: Map<String, Value>) -> RequestFields {
        RequestFields {
            fields: Fields::of(map),
            skipped: Skipped::default(),
            #[cfg(test)]
            taken: BTreeSet::new(),
        }
    }

    /// Takes a field.
    ///
    /// # Errors
    /// The kind's, by the field's name.
    pub(crate) fn take<K: Kind>(&mut self, field: &Field<K>) -> Result<Option<K::Value>, ApiError> {
        self.note(field);
        self.fields.read(field.name, &field.kind)
    }

    /// Takes a required list of at least one element.
    pub(crate) fn needed_list(&mut self, field: &Field<List>) -> Result<Vec<Value>, ApiError> {
        let list = self.take(field)?.filter(|list| !list.is_empty());
        list.ok_or_else(|| self.fields.missing(field.name, "a list of at least one"))
    }

    /// Takes an object for its own fields to be taken by name.
    pub(crate) fn inner(&mut self, field: &Field<Object>) -> Result<Option<Fields>, ApiError> {
        self.note(field);
        self.fields.take(field.name).map(|value| Fields::at(field.name, value)).transpose()
    }

    /// Takes the rows of a group as an object of their names.
    pub(crate) fn group(&mut self, group: &Group) -> Fields {
        let mut map = Map::new();
        for row in group.rows {
            self.note(*row);
            map.extend(self.fields.take(row.name()).map(|value| (row.name().to_owned(), value)));
        }
        Fields::of(map)
    }

    /// Takes the rows of a group for a check of their values alone.
    ///
    /// # Errors
    /// The first row's that refuses its value.
    pub(crate) fn check(&mut self, group: &Group) -> Result<(), ApiError> {
        for row in group.rows {
            self.note(*row);
            self.fields.take(row.name()).map(|value| row.check(value)).transpose()?;
        }
        Ok(())
    }

    /// The error of a required field that is absent.
    pub(crate) fn missing(&self, field: &dyn Row, expected: &str) -> ApiError {
        self.fields.missing(field.name(), expected)
    }

    /// A field's value for an answer that repeats it; not taken.
    pub(crate) fn get(&self, field: &dyn Row) -> Option<&Value> {
        self.fields.get(field.name())
    }

    /// Record of the parts that a reader of fields skips.
    pub(crate) fn skipped(&mut self) -> &mut Skipped {
        &mut self.skipped
    }

    /// Names of the fields that were not taken, and of parts that were skipped.
    pub(crate) fn unknown(self) -> Vec<String> {
        self.fields.rest().into_iter().map(|(name, _)| name).chain(self.skipped.names()).collect()
    }

    /// Names taken so far, present in the body or not.
    #[cfg(test)]
    pub(crate) fn taken(&self) -> &BTreeSet<&'static str> {
        &self.taken
    }

    #[cfg(test)]
    fn note(&mut self, row: &dyn Row) {
        self.taken.insert(row.name());
    }

    #[cfg(not(test))]
    fn note(&mut self, _: &dyn Row) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::kinds::{Count, Text};

    #[test]
    fn what_nobody_takes_is_unknown() {
        let body = json!({"a": 1, "b": null, "c": "x"});
        let mut fields = RequestFields::of(body.as_object().expect("an object").clone());
        assert_eq!(fields.take(&field("a", Count(0, 9), "")).unwrap(), Some(1));
        assert_eq!(fields.take(&field("b", Text, "")).unwrap(), None);
        assert_eq!(fields.unknown(), ["c"]);
    }

    #[test]
    fn a_body_that_is_no_object_is_refused() {
        for body in ["", "[]", "{\"a\":", "nonsense", "\"text\""] {
            assert!(RequestFields::parse(&Bytes::from(body)).is_err(), "{body}");
        }
    }
}
