//! Requests: from JSON to typed parameters and one internal form of a conversation, whatever the API.
//!
//! `table` has a row for each field, with a kind of `kinds`. `fields` takes a body's fields by these rows,
//! `json_fields` those of inner objects by name; `json` bounds the memory of parsed values, `encoding`
//! handles byte-order marks. `params` and `format` read the parameters of every API, `budget` bounds the
//! answers, `conversation` and `message_builder` read the messages, `parts` the texts in them. `call_forms`
//! has the tools that are no plain functions, `skipped` the names of parts without effect.
//! `template_compat` rewrites messages that a chat template refuses, by its `template_demands`.

pub(crate) mod budget;
pub(crate) mod call_forms;
pub(crate) mod conversation;
pub(crate) mod encoding;
pub(crate) mod fields;
pub(crate) mod format;
pub(crate) mod json;
pub(crate) mod json_fields;
pub(crate) mod kinds;
pub(crate) mod message_builder;
pub(crate) mod params;
pub(crate) mod parts;
pub(crate) mod prompt;
pub(crate) mod skipped;
pub(crate) mod table;
pub(crate) mod template_compat;
pub(crate) mod template_demands;
