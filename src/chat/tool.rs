//! Tool definitions and the tool choice of a request.

use serde_json::{Value, json};

/// Maximum number of tools in a request.
const TOOLS_MAX: usize = 512;
/// Maximum length of a tool's name in bytes, as in the Model Context Protocol.
const NAME_BYTES_MAX: usize = 128;

/// Invalid tool definition or tool choice.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct ToolError {
    /// Path of the invalid field: `tools[1].function.name`.
    pub field: String,
    /// Expected and found value.
    pub message: String,
}

impl ToolError {
    pub(super) fn new(field: impl Into<String>, message: impl Into<String>) -> ToolError {
        ToolError { field: field.into(), message: message.into() }
    }
}

/// A function that the model may call.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Tool {
    /// Name: 1 to 128 ASCII letters, digits, `_`, `-` and `.`.
    pub name: String,
    /// Description for the model.
    pub description: Option<String>,
    /// JSON schema of the arguments, which form an object.
    pub parameters: Value,
    /// Whether the arguments must follow the schema. Default: false.
    pub strict: bool,
}

impl Tool {
    /// Tool without a description, not strict.
    pub fn new(name: impl Into<String>, parameters: Value) -> Tool {
        Tool { name: name.into(), description: None, parameters, strict: false }
    }

    /// Parses a tool of the chat API: `{"type": "function", "function": {"name": …, "parameters": …}}`.
    ///
    /// # Errors
    /// [`ToolError`] with a field below `field`: a type other than `function`, an invalid name, or parameters
    /// that are not the schema of an object.
    pub fn from_json(field: &str, value: &Value) -> Result<Tool, ToolError> {
        let at = |name: &str| format!("{field}.{name}");
        let kind = &value["type"];
        if kind != "function" {
            return Err(ToolError::new(at("type"), format!("expected \"function\", found {kind}")));
        }
        let function = &value["function"];
        let name = function["name"].as_str().unwrap_or_default();
        check_name(field, name)?;
        let parameters = match &function["parameters"] {
            Value::Null => json!({"type": "object", "properties": {}}),
            Value::Object(schema) if may_be_object(schema.get("type")) => Value::Object(schema.clone()),
            _ => {
                return Err(ToolError::new(
                    at("function.parameters"),
                    "expected the JSON schema of an object",
                ));
            }
        };
        let description = function["description"].as_str().map(str::to_owned);
        Ok(Tool { name: name.into(), description, parameters, strict: function["strict"] == true })
    }

    /// The tool in the chat API's JSON form, which chat templates take.
    pub fn to_json(&self) -> Value {
        let mut function = json!({"name": self.name});
        if let Some(description) = &self.description {
            function["description"] = description.clone().into();
        }
        function["parameters"] = self.parameters.clone();
        json!({"type": "function", "function": function})
    }
}

/// Whether a schema's `type` allows objects.
fn may_be_object(kind: Option<&Value>) -> bool {
    match kind {
        None | Some(Value::Null) => true,
        Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == "object"),
        Some(kind) => kind == "object",
    }
}

/// Rejects names that some tool-call format cannot represent.
fn check_name(field: &str, name: &str) -> Result<(), ToolError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(plain) {
        let message = format!("expected 1 to {NAME_BYTES_MAX} letters, digits, '_', '-' or '.'");
        return Err(ToolError::new(format!("{field}.function.name"), message));
    }
    Ok(())
}

/// Whether and which tools are called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ToolChoice {
    /// The model decides (default).
    #[default]
    Auto,
    /// No tool is called.
    None,
    /// At least one tool is called.
    Required,
    /// The named tool is called exactly once.
    Named(String),
}

/// The tools of a request and the choice among them.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Tools {
    /// Available tools.
    pub list: Vec<Tool>,
    /// Tool choice. Default: [`ToolChoice::Auto`].
    pub choice: ToolChoice,
    /// Whether an answer has at most one call (no parallel calls). Default: false.
    pub single: bool,
}

impl Tools {
    /// Tools with automatic choice and any number of calls.
    pub fn new(list: Vec<Tool>) -> Tools {
        Tools { list, choice: ToolChoice::Auto, single: false }
    }

    /// Sets the tool choice.
    pub fn choice(mut self, choice: ToolChoice) -> Tools {
        self.choice = choice;
        self
    }

    /// Limits an answer to one call.
    pub fn single(mut self) -> Tools {
        self.single = true;
        self
    }

    /// Validates names and choice.
    ///
    /// # Errors
    /// [`ToolError`]: more than 512 tools, an invalid or duplicate name, a choice that is not in the list,
    /// or a required call without tools.
    pub fn check(&self) -> Result<(), ToolError> {
        let found = self.list.len();
        if found > TOOLS_MAX {
            return Err(ToolError::new("tools", format!("expected at most {TOOLS_MAX}, found {found}")));
        }
        for (at, tool) in self.list.iter().enumerate() {
            check_name(&format!("tools[{at}]"), &tool.name)?;
            if self.list[..at].iter().any(|before| before.name == tool.name) {
                let message = format!("a second tool with the name {:?}", tool.name);
                return Err(ToolError::new(format!("tools[{at}].function.name"), message));
            }
        }
        match &self.choice {
            ToolChoice::Named(name) if !self.list.iter().any(|tool| tool.name == *name) => {
                Err(ToolError::new("tool_choice", format!("{name:?} is none of the tools")))
            }
            ToolChoice::Required if self.list.is_empty() => {
                Err(ToolError::new("tool_choice", "expected tools, found none"))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_is_what_it_was_in_json() {
        let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}}});
        let value = json!({"type": "function", "function": {
            "name": "weather", "description": "Tells it.", "parameters": parameters,
        }});
        let tool = Tool::from_json("tools[0]", &value).expect("a tool");
        assert_eq!(tool.to_json(), value);
    }

    #[test]
    fn what_is_no_tool_names_its_field() {
        let function = |function: Value| json!({"type": "function", "function": function});
        let cases = [
            (json!({"type": "web_search"}), "tools[2].type"),
            (function(json!({})), "tools[2].function.name"),
            (function(json!({"name": "a b"})), "tools[2].function.name"),
            (function(json!({"name": "x".repeat(NAME_BYTES_MAX + 1)})), "tools[2].function.name"),
            (function(json!({"name": "a", "parameters": []})), "tools[2].function.parameters"),
            (
                function(json!({"name": "a", "parameters": {"type": "string"}})),
                "tools[2].function.parameters",
            ),
            (
                function(json!({"name": "a", "parameters": {"type": ["null"]}})),
                "tools[2].function.parameters",
            ),
        ];
        for (value, field) in cases {
            assert_eq!(Tool::from_json("tools[2]", &value).expect_err("refused").field, field, "{value}");
        }
    }

    #[test]
    fn a_choice_is_among_the_tools() {
        let tools =
            |names: &[&str]| Tools::new(names.iter().map(|name| Tool::new(*name, json!({}))).collect());
        assert_eq!(tools(&["a", "b"]).choice(ToolChoice::Named("b".into())).check(), Ok(()));
        let refused = [
            (tools(&["a"]).choice(ToolChoice::Named("b".into())), "tool_choice"),
            (tools(&[]).choice(ToolChoice::Required), "tool_choice"),
            (tools(&["a", "b", "a"]), "tools[2].function.name"),
            (tools(&["a", "b}\" c"]), "tools[1].function.name"),
            (Tools::new(vec![Tool::new("a", json!({})); TOOLS_MAX + 1]), "tools"),
        ];
        for (tools, field) in refused {
            assert_eq!(tools.check().expect_err("refused").field, field);
        }
    }
}
