//! Tools of `/v1/responses`: functions, custom tools, namespaces, and OpenAI's own that clients run.

use std::collections::{HashMap, HashSet};

use ottava::chat::{Tool, ToolChoice, ToolError, Tools};
use serde_json::Value;

use crate::error::{ApiError, wrong};
use crate::request::call_forms::{CallForm, CallForms, CallKind, client_tool, custom_tool, flat_name};
use crate::request::conversation::choice_of_word;
use crate::request::fields::RequestFields;
use crate::request::json_fields::Fields;
use crate::request::message_builder::{chosen, function, refused};
use crate::request::parts::unknown_type;
use crate::request::skipped::Skipped;
use crate::request::table::{RESPONSES_PARALLEL, RESPONSES_TOOL_CHOICE, RESPONSES_TOOLS};

/// This API's name for a tool's parameters.
const SCHEMA: &str = "parameters";

/// Tools of `tool_search_output` and `additional_tools`, with their place in the request.
pub(super) type FoundTools = Vec<(String, Value)>;

/// Takes the tools with their choice and the forms of their calls.
pub(super) fn callable(
    fields: &mut RequestFields,
    found: &FoundTools,
) -> Result<(Tools, CallForms), ApiError> {
    let list = fields.take(&RESPONSES_TOOLS)?.unwrap_or_default();
    let mut reader =
        Reader { tools: Vec::new(), forms: HashMap::new(), known: None, skipped: fields.skipped() };
    for (at, entry) in list.iter().enumerate() {
        reader.read(&format!("tools[{at}]"), entry, None)?;
    }
    reader.add_found(found)?;
    let Reader { mut tools, forms, .. } = reader;
    let (choice, allowed) = choice(fields)?;
    if let Some(allowed) = allowed {
        tools.retain(|tool| {
            let namespace = forms.get(&tool.name).and_then(|form| form.namespace.as_ref());
            allowed.contains(&tool.name) || namespace.is_some_and(|name| allowed.contains(name))
        });
    }
    let tools = chosen(Tools::new(tools), choice, SCHEMA)?;
    let is_single = fields.take(&RESPONSES_PARALLEL)? == Some(false);
    Ok((if is_single { tools.single() } else { tools }, CallForms::new(forms)))
}

/// Whether a tool is callable here: others run at the API's provider.
pub(super) fn is_callable(tool: &Value) -> bool {
    kind_of(tool).is_some() || tool["type"] == "namespace"
}

/// Kind of a tool that the client runs.
fn kind_of(tool: &Value) -> Option<CallKind> {
    match tool["type"].as_str()? {
        "function" => Some(CallKind::Function),
        "custom" => Some(CallKind::Custom),
        "local_shell" => Some(CallKind::LocalShell),
        "shell" if matches!(tool["environment"]["type"].as_str(), None | Some("local")) => {
            Some(CallKind::Shell)
        }
        "apply_patch" => Some(CallKind::ApplyPatch),
        "tool_search" if tool["execution"] == "client" => Some(CallKind::ToolSearch),
        _ => None,
    }
}

struct Reader<'s> {
    tools: Vec<Tool>,
    forms: HashMap<String, CallForm>,
    /// Names so far; `None` while the listed tools are read. A found tool of a known name has no effect.
    known: Option<HashSet<String>>,
    skipped: &'s mut Skipped,
}

impl Reader<'_> {
    /// Reads a tool, or those of a namespace.
    fn read(&mut self, place: &str, entry: &Value, namespace: Option<&str>) -> Result<(), ApiError> {
        if !entry.is_object() {
            return Err(wrong(place, "an object", entry));
        }
        if entry["type"] == "namespace" && namespace.is_none() {
            let name = entry["name"].as_str().unwrap_or_default();
            for (at, tool) in entry["tools"].as_array().into_iter().flatten().enumerate() {
                self.read(&format!("{place}.tools[{at}]"), tool, Some(name))?;
            }
            return Ok(());
        }
        let Some(kind) = kind_of(entry) else {
            self.skipped.add("tools", entry["type"].as_str().unwrap_or_default());
            return Ok(());
        };
        let tool = tool(place, kind, entry, namespace).map_err(|error| refused(error, SCHEMA))?;
        if let Some(known) = &mut self.known
            && !known.insert(tool.name.clone())
        {
            return Ok(());
        }
        if kind != CallKind::Function || namespace.is_some() {
            let name = entry["name"].as_str().unwrap_or(&tool.name).to_owned();
            let form = CallForm { kind, name, namespace: namespace.map(str::to_owned) };
            self.forms.insert(tool.name.clone(), form);
        }
        self.tools.push(tool);
        Ok(())
    }

    /// Adds the tools among the items that the request does not list.
    fn add_found(&mut self, found: &FoundTools) -> Result<(), ApiError> {
        self.known = Some(self.tools.iter().map(|tool| tool.name.clone()).collect());
        found.iter().try_for_each(|(place, entry)| self.read(place, entry, None))
    }
}

/// A tool as the model sees it.
fn tool(place: &str, kind: CallKind, entry: &Value, namespace: Option<&str>) -> Result<Tool, ToolError> {
    let name = entry["name"].as_str().map(|name| flat_name(namespace, name)).into();
    let own = |key: &str| client_tool(place, &key.into(), key);
    match kind {
        CallKind::Function => function(place, &name, entry, SCHEMA),
        CallKind::Custom => custom_tool(place, &name, entry),
        CallKind::LocalShell => own("local_shell"),
        CallKind::Shell => own("shell"),
        CallKind::ApplyPatch => own("apply_patch"),
        CallKind::ToolSearch if entry[SCHEMA].is_object() => {
            function(place, &"tool_search".into(), entry, SCHEMA)
        }
        CallKind::ToolSearch => own("tool_search"),
    }
}

/// `tool_choice` in this API's form, and the names of the allowed tools if not all are.
fn choice(fields: &mut RequestFields) -> Result<(ToolChoice, Option<HashSet<String>>), ApiError> {
    let value = match fields.take(&RESPONSES_TOOL_CHOICE)? {
        None => return Ok((ToolChoice::Auto, None)),
        Some(Value::String(word)) => return Ok((choice_of_word("tool_choice", &word)?, None)),
        Some(value) => value,
    };
    let mut choice = Fields::at("tool_choice", value)?;
    let kind = choice.needed("type")?;
    match kind.as_str() {
        "function" | "custom" => {
            let name = choice.needed("name")?;
            Ok((ToolChoice::Named(flat_name(choice.string("namespace")?.as_deref(), &name)), None))
        }
        "local_shell" | "shell" | "apply_patch" => Ok((ToolChoice::Named(kind), None)),
        "allowed_tools" => {
            let mode = choice.needed("mode")?;
            let name = |tool: &Value| {
                let name = tool["name"].as_str().or(tool["type"].as_str())?;
                Some(flat_name(tool["namespace"].as_str(), name))
            };
            let names = choice.list("tools")?.unwrap_or_default().iter().filter_map(name).collect();
            Ok((choice_of_word("tool_choice.mode", &mode)?, Some(names)))
        }
        _ => Err(unknown_type(
            &choice,
            &kind,
            "function, custom, local_shell, shell, apply_patch or allowed_tools",
        )),
    }
}
