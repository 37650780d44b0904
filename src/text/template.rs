//! Chat templates: messages to the text that a model was trained to continue.
//!
//! The template is a program out of a model file, so it is not trusted. It runs in `minijinja` with the
//! environment that `transformers` gives its templates (`environment.rs`), rewritten so that it can
//! neither run nor grow without end (`program.rs`, `bounds.rs`), on a thread of its own whose stack is deep enough for
//! any nesting that passes those limits.

mod bounds;
mod environment;
mod program;
mod strftime;

use super::error::TextError;
use super::parts::key;
use super::vocab::Vocab;
use crate::weights::Metadata;
use minijinja::machinery::{self, Instructions};
use minijinja::value::{Serde, Value};
use minijinja::{AutoEscape, ErrorKind};
use std::collections::BTreeMap;
use std::time::SystemTime;

/// Stack for parsing and running a template, in bytes; the pages are only used when touched.
const STACK_BYTES: usize = 64 << 20;

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Message {
    /// Who speaks: `system`, `user`, `assistant`, `tool`, or what else the template knows.
    pub role: String,
    /// What is said.
    pub content: String,
}

impl Message {
    /// A message of this role.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Message {
        Message { role: role.into(), content: content.into() }
    }
}

/// What a template is told besides the messages.
#[derive(Clone, Debug)]
pub struct RenderOptions {
    /// End with the beginning of the assistant's answer.
    pub add_generation_prompt: bool,
    /// Descriptions of tools, as the chat API has them; `None` is Jinja's `none`.
    pub tools: Option<serde_json::Value>,
    /// Further variables that some templates know (`enable_thinking`).
    pub variables: serde_json::Map<String, serde_json::Value>,
    /// What `strftime_now` takes for now (UTC); the clock where `None`.
    pub now: Option<SystemTime>,
}

impl Default for RenderOptions {
    /// A generation prompt, no tools.
    fn default() -> RenderOptions {
        RenderOptions {
            add_generation_prompt: true,
            tools: None,
            variables: serde_json::Map::new(),
            now: None,
        }
    }
}

/// The chat template of a model.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    source: String,
    bos: String,
    eos: String,
}

impl ChatTemplate {
    /// The chat template of a model file; `None` where it has none.
    ///
    /// # Errors
    /// As [`ChatTemplate::from_source`], and where the metadata hold something else than a string.
    pub fn from_metadata(metadata: &Metadata, vocab: &Vocab) -> Result<Option<ChatTemplate>, TextError> {
        let source = metadata.str(key::CHAT_TEMPLATE)?;
        source.map(|source| ChatTemplate::from_source(source, vocab)).transpose()
    }

    /// A template from its Jinja source; `bos_token` and `eos_token` come from the vocabulary.
    ///
    /// # Errors
    /// [`TextError::TemplateSyntax`] where it does not parse, [`TextError::TemplateLimit`] where it is
    /// longer or more deeply nested than any chat template needs to be.
    pub fn from_source(source: &str, vocab: &Vocab) -> Result<ChatTemplate, TextError> {
        let piece = |id: Option<_>| id.and_then(|id| vocab.piece(id)).unwrap_or_default().to_owned();
        let source = program::prepare(source)?;
        let template = ChatTemplate { source, bos: piece(vocab.bos()), eos: piece(vocab.eos()) };
        on_deep_stack(|| program::compile(&template.source).map(|_| ()))?;
        Ok(template)
    }

    /// The prompt for these messages.
    ///
    /// # Errors
    /// [`TextError::TemplateRender`] where the template fails or refuses the messages (`raise_exception`),
    /// [`TextError::TemplateLimit`] where it takes more steps, time or memory than it may.
    pub fn render(&self, messages: &[Message], options: &RenderOptions) -> Result<String, TextError> {
        on_deep_stack(|| self.run(messages, options))
    }

    fn run(&self, messages: &[Message], options: &RenderOptions) -> Result<String, TextError> {
        let env = environment::new(options.now);
        let program = program::compile(&self.source)?;
        let mut text = String::new();
        let mut out = machinery::make_string_output(&mut text);
        let blocks: BTreeMap<&str, Instructions<'_>> = BTreeMap::new();
        machinery::eval(&env, &program, self.context(messages, options), &blocks, &mut out, AutoEscape::None)
            .map_err(render_error)?;
        Ok(text)
    }

    fn context(&self, messages: &[Message], options: &RenderOptions) -> Value {
        let mut context: BTreeMap<String, Value> = BTreeMap::new();
        context.extend(options.variables.iter().map(|(key, value)| (key.clone(), Value::from(Serde(value)))));
        let given = [
            ("messages", Value::from(Serde(messages))),
            ("tools", options.tools.as_ref().map_or(Value::from(()), |tools| Value::from(Serde(tools)))),
            ("add_generation_prompt", Value::from(options.add_generation_prompt)),
            ("bos_token", Value::from(self.bos.as_str())),
            ("eos_token", Value::from(self.eos.as_str())),
        ];
        context.extend(given.map(|(key, value)| (key.to_owned(), value)));
        Value::from(context)
    }
}

/// Runs the work on a thread with a deep stack; a panic in there is an error here.
fn on_deep_stack<T: Send>(work: impl FnOnce() -> Result<T, TextError> + Send) -> Result<T, TextError> {
    let failed = |what: String| TextError::TemplateRender(what);
    std::thread::scope(|scope| {
        let builder = std::thread::Builder::new().name("chat-template".to_owned()).stack_size(STACK_BYTES);
        let thread = builder.spawn_scoped(scope, work);
        let thread =
            thread.map_err(|error| failed(format!("expected a thread to run in, found: {error}")))?;
        thread.join().unwrap_or_else(|_| Err(failed("the template engine panicked".to_owned())))
    })
}

fn render_error(error: minijinja::Error) -> TextError {
    let at = error.line().map_or(String::new(), |line| format!(" (line {line})"));
    match error.kind() {
        ErrorKind::OutOfFuel => {
            TextError::TemplateLimit(format!("more steps than {}{at}", bounds::STEPS_MAX))
        }
        _ if bounds::is_limit(&error) => {
            TextError::TemplateLimit(format!("{}{at}", error.detail().unwrap_or_default()))
        }
        kind => TextError::TemplateRender(match error.detail() {
            Some(detail) => format!("{detail}{at}"),
            None => format!("{kind}{at}"),
        }),
    }
}

#[cfg(test)]
mod tests;
