//! Items of a conversation so far. Items that the client ran become calls with their results; those of other
//! services are skipped.

use serde_json::{Value, json};

use super::tools::FoundTools;
use crate::error::{ApiError, wrong};
use crate::request::call_forms::{custom_arguments, flat_name};
use crate::request::conversation::arguments;
use crate::request::json_fields::Fields;
use crate::request::message_builder::Turns;
use crate::request::parts::{Media, Parts, unknown_type};
use crate::request::skipped::Skipped;

/// Field of the items, in the names of skipped ones.
const FIELD: &str = "input";

/// Reader of the items of an input.
pub(super) struct History<'s> {
    pub(super) turns: Turns,
    /// Tools among the items.
    pub(super) found: FoundTools,
    pub(super) skipped: &'s mut Skipped,
}

impl History<'_> {
    /// Reads an item.
    ///
    /// # Errors
    /// A malformed item, media in a user's message, or a reference to a stored item.
    pub(super) fn read(&mut self, place: &str, item: Value) -> Result<(), ApiError> {
        let mut item = Fields::at(place, item)?;
        let kind = item.string("type")?.unwrap_or_else(|| "message".into());
        match kind.as_str() {
            "message" => self.message(&mut item),
            "reasoning" => {
                let thought = self.thought(&mut item)?;
                if !thought.is_empty() {
                    self.turns.think(thought);
                }
                Ok(())
            }
            "item_reference" => Err(unknown_type(&item, &kind, "an item: no item is stored here")),
            "tool_search_output" => self.search_output(place, &mut item),
            "additional_tools" => {
                let tools = item.list("tools")?.unwrap_or_default();
                self.find(place, tools);
                Ok(())
            }
            kind if kind.ends_with("_output") && is_clients(kind, &item) => self.output(kind, &mut item),
            kind if is_clients(kind, &item) => self.call(kind, &mut item),
            kind => self.other(kind, &mut item),
        }
    }

    fn message(&mut self, item: &mut Fields) -> Result<(), ApiError> {
        let role = role(item)?;
        let media = if role == "assistant" { Media::Noted } else { Media::Refused };
        let text = self.text(item, "content", media)?;
        self.turns.say(role, text);
        Ok(())
    }

    /// A call that the client ran.
    fn call(&mut self, kind: &str, item: &mut Fields) -> Result<(), ApiError> {
        let (name, arguments) = match kind {
            "function_call" => {
                let name = flat_name(item.string("namespace")?.as_deref(), &item.needed("name")?);
                (name, of_text(item.take("arguments").unwrap_or_else(|| json!({}))))
            }
            "custom_tool_call" => {
                let name = flat_name(item.string("namespace")?.as_deref(), &item.needed("name")?);
                let input = match item.take("input") {
                    Some(Value::String(text)) => text,
                    other => other.map(|value| value.to_string()).unwrap_or_default(),
                };
                (name, custom_arguments(input))
            }
            "local_shell_call" => {
                let mut action = item.object("action")?.unwrap_or_default();
                action.shift_remove("type");
                ("local_shell".into(), action.into())
            }
            "shell_call" => ("shell".into(), item.object("action")?.unwrap_or_default().into()),
            "apply_patch_call" => {
                ("apply_patch".into(), item.object("operation")?.unwrap_or_default().into())
            }
            _ => ("tool_search".into(), of_text(item.take("arguments").unwrap_or_else(|| json!({})))),
        };
        let id = id(item)?;
        self.turns.call(id, name, arguments);
        Ok(())
    }

    /// The result of a call that the client ran.
    fn output(&mut self, kind: &str, item: &mut Fields) -> Result<(), ApiError> {
        let id = id(item)?;
        let text = match kind {
            "shell_call_output" if item.get("output").is_some_and(Value::is_array) => {
                let chunks = item.list("output")?.unwrap_or_default();
                chunks.iter().map(shell_output).collect::<Vec<_>>().join("\n")
            }
            "apply_patch_call_output" => {
                let output = item.string("output")?;
                output.or(item.string("status")?).unwrap_or_default()
            }
            _ if item.get("output").is_none() => String::new(),
            _ => self.text(item, "output", Media::Noted)?,
        };
        self.turns.result(id, text);
        Ok(())
    }

    /// The tools that a search found, and its result if the client ran it.
    fn search_output(&mut self, place: &str, item: &mut Fields) -> Result<(), ApiError> {
        let tools = item.list("tools")?.unwrap_or_default();
        let names: Vec<&str> = tools.iter().filter_map(|tool| tool["name"].as_str()).collect();
        let text = format!("Found tools: {}", names.join(", "));
        if is_clients("tool_search_output", item) {
            let id = id(item)?;
            self.turns.result(id, text);
        }
        self.find(place, tools);
        Ok(())
    }

    fn find(&mut self, place: &str, tools: Vec<Value>) {
        let places = tools.into_iter().enumerate().map(|(at, tool)| (format!("{place}.tools[{at}]"), tool));
        self.found.extend(places);
    }

    /// An item of another service. It is skipped unless it carries a text.
    fn other(&mut self, kind: &str, item: &mut Fields) -> Result<(), ApiError> {
        let has_role = item.get("role").is_some_and(Value::is_string);
        let has_text = item.get("content").is_some_and(|content| content.is_string() || content.is_array());
        if has_role && has_text {
            return self.message(item);
        }
        self.skipped.add(FIELD, kind);
        Ok(())
    }

    fn text(&mut self, item: &mut Fields, name: &str, media: Media) -> Result<String, ApiError> {
        let content = item.take(name).ok_or_else(|| item.missing(name, "a text or a list of parts"))?;
        let mut parts = Parts { field: FIELD, media, skipped: self.skipped };
        parts.text(&item.place(name), content)
    }

    /// The reasoning text, or else its summary. Encrypted reasoning of another server is dropped.
    fn thought(&mut self, item: &mut Fields) -> Result<String, ApiError> {
        let mut parts = Parts { field: FIELD, media: Media::Noted, skipped: self.skipped };
        let mut thought = |name: &str| match item.take(name) {
            Some(content) => parts.text(&item.place(name), content),
            None => Ok(String::new()),
        };
        let (content, summary) = (thought("content")?, thought("summary")?);
        Ok(if content.is_empty() { summary } else { content })
    }
}

/// Whether the client ran the call or wrote the result.
fn is_clients(kind: &str, item: &Fields) -> bool {
    const CALLS: [&str; 6] = [
        "function_call",
        "custom_tool_call",
        "local_shell_call",
        "shell_call",
        "apply_patch_call",
        "tool_search_call",
    ];
    let call = match kind {
        "tool_search_output" => "tool_search_call",
        _ => kind.strip_suffix("_output").unwrap_or(kind),
    };
    // Searches run on the server by default.
    let is_servers = call == "tool_search_call" && item.get("execution").is_none_or(|by| by != "client");
    CALLS.contains(&call) && !is_servers
}

/// Id of a call. Items of `local_shell` and searches may have their own id alone.
fn id(item: &mut Fields) -> Result<String, ApiError> {
    let own = item.string("id")?;
    item.string("call_id")?.or(own).ok_or_else(|| item.missing("call_id", "a string"))
}

fn role(item: &mut Fields) -> Result<&'static str, ApiError> {
    let role = item.needed("role")?;
    match role.as_str() {
        "user" => Ok("user"),
        "assistant" => Ok("assistant"),
        "system" | "developer" => Ok("system"),
        _ => Err(wrong(&item.place("role"), "user, assistant, system or developer", &role.into())),
    }
}

/// Arguments as a text or as they are.
fn of_text(given: Value) -> Value {
    match given {
        Value::String(text) => arguments(&text),
        given => given,
    }
}

/// Output of a shell command with its end.
fn shell_output(chunk: &Value) -> String {
    let outcome = &chunk["outcome"];
    let end = match (outcome["type"].as_str(), &outcome["exit_code"]) {
        (Some("timeout"), _) => "timed out".to_owned(),
        (_, Value::Number(code)) => format!("exit code: {code}"),
        _ => String::new(),
    };
    let texts = [chunk["stdout"].as_str(), chunk["stderr"].as_str(), Some(&end)];
    texts.into_iter().flatten().filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n")
}
