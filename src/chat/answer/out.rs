//! What readers of calls have to say of a character.

use serde_json::Value as Json;

use crate::chat::Tool;

/// What a block has to say of a character.
#[derive(Debug)]
pub(super) struct Out<'t> {
    tools: &'t [Tool],
    /// A call begins: its tool, and its id where the model wrote one.
    pub(super) start: Option<(String, Option<String>)>,
    /// What comes behind a call's arguments.
    pub(super) arguments: String,
}

impl<'t> Out<'t> {
    pub(super) fn new(tools: &'t [Tool]) -> Out<'t> {
        Out { tools, start: None, arguments: String::new() }
    }

    pub(super) fn has_tool(&self, name: &str) -> bool {
        self.tools.iter().any(|tool| tool.name == name)
    }

    /// The schema of a tool's arguments.
    pub(super) fn parameters(&self, name: &str) -> &'t Json {
        self.tools.iter().find(|tool| tool.name == name).map_or(&Json::Null, |tool| &tool.parameters)
    }

    pub(super) fn start(&mut self, name: &str, id: Option<String>) {
        self.start = Some((name.into(), id));
    }
}
