//! An item of a response while it is written.

use serde_json::{Map, Value, json};

use crate::answer::custom_input::CustomInput;
use crate::answer::output_items::Section;
use crate::ids::random_hex;
use crate::request::call_forms::{CallForm, CallForms, CallKind};

/// The open item.
pub(super) struct Item {
    /// Prefix of its events' types, such as `response.output_text`; none for calls that come whole.
    pub(super) events: Option<&'static str>,
    /// The item at its beginning, without content.
    pub(super) value: Value,
    /// Text, arguments or input so far.
    text: String,
    /// The field of the text, in the last event and, for calls, in the item.
    field: &'static str,
    kind: Kind,
}

enum Kind {
    /// Content in parts.
    Parts,
    /// Arguments of a function.
    Function,
    /// The text in a custom tool's arguments.
    Custom(CustomInput),
    /// Arguments that become the object in a field of the item.
    Object { field: &'static str, call: CallKind },
}

impl Item {
    pub(super) fn new(section: Section, forms: &CallForms) -> Item {
        let mut item = match section {
            Section::Text => Item::of(
                "response.output_text",
                json!({"id": id("msg"), "type": "message", "role": "assistant", "content": []}),
                ("text", Kind::Parts),
            ),
            Section::Reasoning => Item::of(
                "response.reasoning_text",
                json!({"id": id("rs"), "type": "reasoning", "summary": [], "content": []}),
                ("text", Kind::Parts),
            ),
            Section::Call { id: call, name } => Item::call(&call, name, forms),
        };
        item.value["status"] = "in_progress".into();
        item
    }

    fn of(events: &'static str, value: Value, (field, kind): (&'static str, Kind)) -> Item {
        Item { events: Some(events), value, text: String::new(), field, kind }
    }

    fn call(call: &str, name: String, forms: &CallForms) -> Item {
        let form = forms.of(&name).cloned();
        let CallForm { kind, name, namespace } =
            form.unwrap_or(CallForm { kind: CallKind::Function, name, namespace: None });
        let named = |prefix: &str, kind: &str, field: &str| {
            let mut value = json!({"id": id(prefix), "type": kind, "call_id": call, "name": name});
            if let Some(namespace) = &namespace {
                value["namespace"] = namespace.as_str().into();
            }
            value[field] = "".into();
            value
        };
        let whole = |prefix: &str, kind: &str| json!({"id": id(prefix), "type": kind, "call_id": call});
        let (value, field) = match kind {
            CallKind::Function => {
                let value = named("fc", "function_call", "arguments");
                return Item::of("response.function_call_arguments", value, ("arguments", Kind::Function));
            }
            CallKind::Custom => {
                let (value, kind) =
                    (named("ctc", "custom_tool_call", "input"), Kind::Custom(CustomInput::default()));
                return Item::of("response.custom_tool_call_input", value, ("input", kind));
            }
            CallKind::LocalShell => (whole("lsh", "local_shell_call"), "action"),
            CallKind::Shell => (whole("sh", "shell_call"), "action"),
            CallKind::ApplyPatch => (whole("apc", "apply_patch_call"), "operation"),
            CallKind::ToolSearch => (whole("ts", "tool_search_call"), "arguments"),
        };
        let kind = Kind::Object { field, call: kind };
        let mut item = Item { events: None, value, text: String::new(), field, kind };
        item.fill();
        item
    }

    /// Adds text of the answer, and returns the text for an event.
    pub(super) fn push(&mut self, text: String) -> Option<String> {
        let more = match &mut self.kind {
            Kind::Custom(input) => input.push(&text),
            _ => text,
        };
        self.text.push_str(&more);
        (self.events.is_some() && !more.is_empty()).then_some(more)
    }

    /// Text that was held back until the end.
    pub(super) fn rest(&mut self) -> Option<String> {
        let Kind::Custom(input) = &mut self.kind else { return None };
        let rest = input.finish();
        self.text.push_str(&rest);
        Some(rest).filter(|rest| !rest.is_empty())
    }

    /// Puts the text into the item.
    pub(super) fn fill(&mut self) {
        match self.kind {
            Kind::Parts => self.value["content"] = json!([self.part()]),
            Kind::Function | Kind::Custom(_) => self.value[self.field] = self.text.as_str().into(),
            Kind::Object { field, call } => {
                // A truncated call is no JSON.
                let arguments: Map<String, Value> = serde_json::from_str(&self.text).unwrap_or_default();
                self.value[field] = object(call, arguments);
                if call == CallKind::ToolSearch {
                    self.value["execution"] = "client".into();
                }
            }
        }
    }

    /// Whether the content is in parts. A call's arguments are a field of the item.
    pub(super) fn has_parts(&self) -> bool {
        matches!(self.kind, Kind::Parts)
    }

    /// The only part, so far.
    pub(super) fn part(&self) -> Value {
        if self.value["type"] == "reasoning" {
            return json!({"type": "reasoning_text", "text": self.text});
        }
        json!({"type": "output_text", "text": self.text, "annotations": [], "logprobs": []})
    }

    /// Fields of an event with a part of the text.
    pub(super) fn delta(&self, text: String) -> Value {
        self.with("delta", text)
    }

    /// Fields of the event with the whole text.
    pub(super) fn done(&self) -> Value {
        let mut fields = self.with(self.field, self.text.clone());
        if matches!(self.kind, Kind::Function) {
            fields["name"] = self.value["name"].clone();
        }
        fields
    }

    fn with(&self, name: &str, text: String) -> Value {
        let mut fields = json!({});
        fields[name] = text.into();
        if self.value["type"] == "message" {
            fields["logprobs"] = json!([]);
        }
        fields
    }
}

fn id(kind: &str) -> String {
    format!("{kind}_{}", random_hex::<12>())
}

/// The object of a call, with the fields that its item requires.
fn object(call: CallKind, mut arguments: Map<String, Value>) -> Value {
    let required = match call {
        CallKind::LocalShell => {
            arguments.insert("type".into(), "exec".into());
            json!({"command": [], "env": {}})
        }
        CallKind::Shell => json!({"commands": [], "timeout_ms": null, "max_output_length": null}),
        CallKind::ApplyPatch => json!({"type": "update_file", "path": "", "diff": ""}),
        _ => json!({}),
    };
    let is_deletion = arguments.get("type").is_some_and(|kind| kind == "delete_file");
    for (name, value) in required.as_object().cloned().unwrap_or_default() {
        if !(is_deletion && name == "diff") {
            arguments.entry(name).or_insert(value);
        }
    }
    arguments.into()
}
