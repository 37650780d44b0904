//! Events that the call parsers emit: the start of a call and its argument text.

use serde_json::Value as Json;

use crate::chat::Tool;

/// Output of a block parser for one character.
#[derive(Debug)]
pub(super) struct Out<'t> {
    tools: &'t [Tool],
    /// Start of a call: the tool's name, and the id if the model wrote one.
    pub(super) start: Option<(String, Option<String>)>,
    /// Text to append to the call's arguments.
    pub(super) arguments: String,
}

impl<'t> Out<'t> {
    pub(super) fn new(tools: &'t [Tool]) -> Out<'t> {
        Out { tools, start: None, arguments: String::new() }
    }

    pub(super) fn has_tool(&self, name: &str) -> bool {
        self.tools.iter().any(|tool| tool.name == name)
    }

    /// Parameter schema of a tool.
    pub(super) fn parameters(&self, name: &str) -> &'t Json {
        self.tools.iter().find(|tool| tool.name == name).map_or(&Json::Null, |tool| &tool.parameters)
    }

    pub(super) fn start(&mut self, name: &str, id: Option<String>) {
        self.start = Some((name.into(), id));
    }
}
