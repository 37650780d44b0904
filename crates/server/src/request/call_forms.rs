//! Tools that are no plain functions. The model sees each as a function; its calls have another form in the
//! API.

use std::collections::HashMap;
use std::sync::Arc;

use ottava::chat::{Tool, ToolError};
use serde_json::{Value, json};

/// Parameter of a custom tool, which takes one free text.
pub(crate) const INPUT: &str = "input";

/// Kind of a tool, and of the items of its calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallKind {
    /// A function with JSON arguments.
    Function,
    /// A tool with one free text.
    Custom,
    /// A command of Responses' `local_shell`.
    LocalShell,
    /// Commands of Responses' `shell`.
    Shell,
    /// A file operation of Responses' `apply_patch`.
    ApplyPatch,
    /// A search for tools, which the client runs.
    ToolSearch,
}

/// The form of a tool's calls in the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CallForm {
    pub(crate) kind: CallKind,
    /// Name within the namespace.
    pub(crate) name: String,
    pub(crate) namespace: Option<String>,
}

/// Forms by the name that the model sees; other names are plain functions.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallForms(Arc<HashMap<String, CallForm>>);

impl CallForms {
    pub(crate) fn new(forms: HashMap<String, CallForm>) -> CallForms {
        CallForms(Arc::new(forms))
    }

    /// The form of a tool that is no plain function.
    pub(crate) fn of(&self, name: &str) -> Option<&CallForm> {
        self.0.get(name)
    }

    pub(crate) fn is_custom(&self, name: &str) -> bool {
        self.of(name).is_some_and(|form| form.kind == CallKind::Custom)
    }
}

/// The name that the model sees for a tool of a namespace.
pub(crate) fn flat_name(namespace: Option<&str>, name: &str) -> String {
    match namespace {
        None | Some("") => name.to_owned(),
        // Clients of the Model Context Protocol end theirs with it already.
        Some(namespace) if namespace.ends_with("__") => format!("{namespace}{name}"),
        Some(namespace) => format!("{namespace}__{name}"),
    }
}

/// A custom tool as a function with one text. A regular expression constrains the text; a grammar in Lark's
/// syntax becomes part of the description, because a JSON string cannot be held to it.
///
/// # Errors
/// An invalid name, by the field below `place`.
pub(crate) fn custom_tool(place: &str, name: &Value, tool: &Value) -> Result<Tool, ToolError> {
    let mut text = json!({"type": "string"});
    let mut description = tool["description"].as_str().unwrap_or_default().to_owned();
    // The chat API has the grammar one deeper.
    let format = tool["format"].get("grammar").unwrap_or(&tool["format"]);
    match (format["syntax"].as_str(), format["definition"].as_str()) {
        (Some("regex"), Some(pattern)) => text["pattern"] = format!("^(?:{pattern})$").into(),
        (Some(syntax), Some(definition)) => {
            description += &format!("\n\nThe input follows this {syntax} grammar:\n{definition}");
        }
        _ => {}
    }
    let parameters = json!({
        "type": "object", "properties": {INPUT: text}, "required": [INPUT], "additionalProperties": false,
    });
    function(place, json!({"name": name, "description": description.trim(), "parameters": parameters}))
}

/// The arguments of a custom tool's call.
pub(crate) fn custom_arguments(input: impl Into<Value>) -> Value {
    json!({INPUT: input.into()})
}

/// A function of the chat API.
///
/// # Errors
/// As [`Tool::from_json`].
pub(crate) fn function(place: &str, function: Value) -> Result<Tool, ToolError> {
    Tool::from_json(place, &json!({"type": "function", "function": function}))
}

/// A tool that clients run and that the API sends without a schema, by its key in `client_tools.json`. `name`
/// is the one that the model sees.
///
/// # Errors
/// An invalid name, by the field below `place`.
pub(crate) fn client_tool(place: &str, name: &Value, key: &str) -> Result<Tool, ToolError> {
    let tools: Value = serde_json::from_str(include_str!("client_tools.json")).unwrap_or_default();
    let mut tool = tools[key].clone();
    tool["name"] = name.clone();
    function(place, tool)
}

/// The key of a tool of Messages that clients run, by its versioned type, such as `bash_20250124`.
pub(crate) fn client_tool_of_messages(kind: &str) -> Option<&'static str> {
    ["bash", "text_editor", "memory"]
        .into_iter()
        .find(|key| kind.strip_prefix(key).is_some_and(|version| version.starts_with('_')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_custom_tool_is_a_function_with_one_text() {
        let tool = |format: Value| {
            let tool = json!({"description": "Patches.", "format": format});
            custom_tool("tools[0]", &"patch".into(), &tool).expect("a tool")
        };
        let free = tool(json!({"type": "text"}));
        assert_eq!((free.name.as_str(), free.description.as_deref()), ("patch", Some("Patches.")));
        assert_eq!(free.parameters["properties"], json!({"input": {"type": "string"}}));
        let regex = tool(json!({"type": "grammar", "syntax": "regex", "definition": "a|b"}));
        assert_eq!(regex.parameters["properties"]["input"]["pattern"], "^(?:a|b)$");
        let grammar = json!({"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: \"a\""}});
        let grammar = tool(grammar);
        assert_eq!(grammar.parameters, free.parameters);
        assert!(grammar.description.is_some_and(|text| text.ends_with("lark grammar:\nstart: \"a\"")));
        let error = custom_tool("tools[3]", &Value::Null, &json!({})).expect_err("no name");
        assert_eq!(error.field, "tools[3].function.name");
    }

    #[test]
    fn every_client_tool_has_a_schema() {
        for key in ["local_shell", "shell", "apply_patch", "tool_search", "bash", "text_editor", "memory"] {
            let tool = client_tool("tools[0]", &key.into(), key).expect("a tool");
            assert!(tool.description.is_some(), "{key}");
            let properties = tool.parameters["properties"].as_object().expect("properties");
            let required = tool.parameters["required"].as_array().into_iter().flatten();
            assert!(required.filter_map(Value::as_str).all(|name| properties.contains_key(name)), "{key}");
        }
        assert_eq!(client_tool_of_messages("text_editor_20250728"), Some("text_editor"));
        assert_eq!(client_tool_of_messages("bashful"), None);
    }

    #[test]
    fn a_name_contains_its_namespace_once() {
        assert_eq!(flat_name(Some("mcp__a__"), "b"), "mcp__a__b");
        assert_eq!(flat_name(Some("a"), "b"), "a__b");
        assert_eq!(flat_name(None, "b"), "b");
    }
}
