//! The prompt of a chat, also by a template that has no place for tools.

use std::borrow::Cow;

use super::{InferenceEngine, Request};
use crate::Result;
use crate::chat::{ToolChoice, texts, texts::Instructions};
use crate::engine::SubmitError;
use crate::text::{ChatPrompt, ChatTemplate, Message, RenderOptions, TextError};

impl InferenceEngine {
    /// Renders messages with the request's tools. A template without a place for tools gets them as text, and
    /// likewise the calls and results of the conversation.
    pub(super) fn chat_prompt(&self, request: &Request, messages: &[Message]) -> Result<ChatPrompt> {
        let template = self.template()?;
        let mut options = request.options();
        if template.knows_tools() {
            return Ok(template.prompt(&template.adapt(messages), &options)?);
        }
        let given = options.tools.take().is_some();
        let may_call = given && request.tools.choice != ToolChoice::None;
        // Tools of the template's options alone have no parser.
        if may_call && (request.tools.list.is_empty() || !self.chat_format().is_instructed()) {
            let message = "the model's chat template has no place for tools";
            return Err(SubmitError::invalid("tools", message).into());
        }
        let written = texts::has_calls(messages) && (may_call || !template.knows_calls());
        let messages = match written {
            true => Cow::Owned(texts::calls_as_text(messages)),
            false => Cow::Borrowed(messages),
        };
        if !may_call {
            return Ok(template.prompt(&template.adapt(&messages), &options)?);
        }
        instructed(template, &messages, &texts::instructions(&request.tools), &options)
    }
}

/// A prompt with the instructions in the system text, or else in the user's first text. Some templates
/// refuse a system text, others drop it.
fn instructed(
    template: &ChatTemplate,
    messages: &[Message],
    instructions: &str,
    options: &RenderOptions,
) -> Result<ChatPrompt> {
    let mut refused = None;
    for place in [Instructions::System, Instructions::User] {
        let mut messages = messages.to_vec();
        texts::instruct(&mut messages, instructions, place);
        match template.prompt(&template.adapt(&messages), options) {
            Ok(prompt) if prompt.text().contains(instructions) => return Ok(prompt),
            Ok(_) => {}
            Err(error @ TextError::TemplateRender(_)) => refused = refused.or(Some(error)),
            Err(error) => return Err(error.into()),
        }
    }
    let dropped =
        || SubmitError::invalid("tools", "the model's chat template drops the text that lists them");
    Err(refused.map_or_else(|| dropped().into(), Into::into))
}
