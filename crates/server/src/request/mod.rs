//! Requests: from JSON to typed parameters and one internal form of a conversation, whatever the API.
//!
//! `json` bounds the memory of parsed values; `json_fields` takes fields by name and makes errors that name them; `params`
//! and `format` read the parameters that all APIs share; `conversation` and `message_builder` read messages;
//! `template_compat` rewrites messages that a chat template refuses.

pub(crate) mod conversation;
pub(crate) mod format;
pub(crate) mod json;
pub(crate) mod json_fields;
pub(crate) mod message_builder;
pub(crate) mod params;
pub(crate) mod prompt;
pub(crate) mod template_compat;
