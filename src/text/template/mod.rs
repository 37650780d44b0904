//! Chat templates: from messages to the text that a model was trained to continue.
//!
//! A template is a program from a model file and therefore untrusted. It runs in `minijinja`, rewritten to
//! bound its run time and memory (`program.rs`, `bounds.rs`). It has its own thread, with a stack deep enough
//! for any nesting within those limits. The environment is that of `transformers` (`environment.rs`):
//! Jinja2's immutable sandbox with `trim_blocks`, `lstrip_blocks`, loop controls, its own `tojson`,
//! `raise_exception`, `strftime_now` and `generation` tags.
//!
//! Messages are untrusted, too: every string has an origin (`origin.rs`), and only text of the template can
//! become a control token.
//!
//! # Differences from Jinja2
//!
//! - Steps, time, bytes, items and depth are bounded, a field of a format has at most 10,000 characters, an
//!   integer 127 bits: the process must survive any file.
//! - `include`, `import`, `extends`, `super` and `self` fail: a model file has one template.
//! - There is no `lipsum`, and no filter `random`, `urlencode`, `urlize`, `wordwrap` or `xmlattr`, no
//!   `encode` and `translate` of strings: no public chat template uses them.
//! - Generators are lists if they are printed or passed to `tojson`: Python prints an address or fails.
//!   Methods and objects print without an address.
//! - Different types have an order in `sort`, between two constants, and in all but the last of the
//!   comparisons `a < b < c`. `1` and `true` are two keys of a dictionary; an empty namespace is false. This
//!   follows from the engine's values; a template that depends on it fails in Jinja2 or has no meaning.
//! - The default of a macro's parameter cannot refer to the preceding parameters (the engine fills them from
//!   the last to the first).
//! - `safe` creates Python's `Markup` for `+` only; its other operators take it as a plain string.
//! - `strftime_now` is in UTC and in English, so that a prompt does not depend on the machine.
//! - A loop over a tuple needs parentheses (`for x in (1, 2)`).
//! - Half of a surrogate pair from an escape (`'\ud83d'`) is an error, because UTF-8 cannot represent it.
//! - Extensions of the engine remain (`do`, and `with` around a block).

mod arguments;
mod bounds;
mod collections;
mod compare;
mod continuation;
mod cuts;
mod environment;
mod filters;
mod flexible;
mod formatting;
mod items;
mod json;
mod letters;
mod literals;
mod message;
mod methods;
mod numbers;
mod operators;
mod origin;
mod predicates;
mod program;
mod prompt;
mod repr;
mod strftime;
mod strings;
mod types;

pub use message::{Content, ContentPart, Message, ToolCall};
pub use prompt::ChatPrompt;

use origin::Marks;

use super::error::TextError;
use super::parts::key;
use super::vocab::Vocab;
use crate::checkpoint::{Checkpoint, Metadata, TextSource, shown_line};
use crate::headroom;
use minijinja::machinery::{self, Instructions};
use minijinja::value::{Serde, Value};
use minijinja::{AutoEscape, ErrorKind};
use serde_json::Value as Json;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::SystemTime;

/// Stack size for parsing and running a template, in bytes. Only touched pages become resident.
const STACK_BYTES: usize = 64 << 20;

/// Roles that any template may use.
const ROLES: [&str; 8] = ["assistant", "developer", "function", "ipython", "model", "system", "tool", "user"];

/// Maximum number of characters of a role in an error message.
const ROLE_SHOWN: usize = 40;

/// Inputs of a template in addition to the messages. Default: a generation prompt and no tools.
///
/// ```
/// use ottava::text::RenderOptions;
///
/// let options = RenderOptions::default().variable("enable_thinking", false);
/// assert!(options.add_generation_prompt);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RenderOptions {
    /// Ends the prompt with the start of the assistant's answer. Default: true.
    pub add_generation_prompt: bool,
    /// Ends the prompt with the text of the last message, which the answer continues; there is no generation
    /// prompt then. Default: false.
    pub continue_final_message: bool,
    /// Tool definitions in the chat API's form. Default: `None`, which is `none` in the template.
    pub tools: Option<serde_json::Value>,
    /// Further variables, for templates that use them (`enable_thinking`). Default: none.
    pub variables: serde_json::Map<String, serde_json::Value>,
    /// Current time for `strftime_now` (UTC). Default: `None`, the system clock.
    pub now: Option<SystemTime>,
}

impl Default for RenderOptions {
    /// Generation prompt, no tools, no variables, system clock.
    fn default() -> RenderOptions {
        RenderOptions {
            add_generation_prompt: true,
            continue_final_message: false,
            tools: None,
            variables: serde_json::Map::new(),
            now: None,
        }
    }
}

impl RenderOptions {
    /// Omits the generation prompt: the prompt ends with the last message, as the template ends it.
    pub fn without_generation_prompt(mut self) -> RenderOptions {
        self.add_generation_prompt = false;
        self
    }

    /// Continues the last message: the prompt ends with its text. A template that trims texts has white
    /// space at its end removed.
    pub fn continuing(mut self) -> RenderOptions {
        self.continue_final_message = true;
        self
    }

    /// Sets the tools that the model may call.
    pub fn tools(mut self, tools: serde_json::Value) -> RenderOptions {
        self.tools = Some(tools);
        self
    }

    /// Adds a variable.
    pub fn variable(mut self, name: impl Into<String>, value: impl Into<serde_json::Value>) -> RenderOptions {
        self.variables.insert(name.into(), value.into());
        self
    }

    /// Sets the current time.
    pub fn now(mut self, now: SystemTime) -> RenderOptions {
        self.now = Some(now);
        self
    }
}

/// Chat template of a model.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    source: String,
    bos: String,
    eos: String,
    /// Whether the template accepts lists of content parts. Determined at the first list.
    takes_parts: OnceLock<bool>,
}

impl ChatTemplate {
    /// Chat template of a model file; `None` if it has none.
    ///
    /// # Errors
    /// As [`ChatTemplate::from_source`], and for metadata of the wrong type.
    pub fn from_metadata(metadata: &Metadata, vocab: &Vocab) -> Result<Option<ChatTemplate>, TextError> {
        let source = metadata.str(key::CHAT_TEMPLATE)?;
        source.map(|source| ChatTemplate::from_source(source, vocab)).transpose()
    }

    /// Chat template of a checkpoint; `None` if it has none.
    ///
    /// # Errors
    /// As [`ChatTemplate::from_metadata`]; for a folder, [`TextError::Metadata`] for an invalid document.
    pub fn from_checkpoint(
        checkpoint: &dyn Checkpoint,
        vocab: &Vocab,
    ) -> Result<Option<ChatTemplate>, TextError> {
        match checkpoint.text() {
            TextSource::Metadata(metadata) => ChatTemplate::from_metadata(metadata, vocab),
            #[cfg(feature = "safetensors")]
            TextSource::Documents(documents) => {
                let source = super::folder::chat_template(documents)?;
                source.map(|source| ChatTemplate::from_source(&source, vocab)).transpose()
            }
        }
    }

    /// Compiles a template from its Jinja source. `bos_token` and `eos_token` come from the vocabulary.
    ///
    /// # Errors
    /// [`TextError::TemplateSyntax`] if it does not parse, [`TextError::TemplateLimit`] if it exceeds the
    /// limits on length or nesting.
    pub fn from_source(source: &str, vocab: &Vocab) -> Result<ChatTemplate, TextError> {
        let piece = |id: Option<_>| id.and_then(|id| vocab.piece(id)).unwrap_or_default().to_owned();
        let source = program::prepare(source)?;
        let (bos, eos) = (piece(vocab.bos()), piece(vocab.eos()));
        let template = ChatTemplate { source, bos, eos, takes_parts: OnceLock::new() };
        on_deep_stack(|| program::compile(&template.source).map(|_| ()))?;
        Ok(template)
    }

    /// Converts messages to a form that the template accepts. If it does not extract text from content parts,
    /// lists of text parts become one text with a line per part. Clients send lists to any model.
    pub fn adapt<'m>(&self, messages: &'m [Message]) -> Cow<'m, [Message]> {
        let has_list = messages.iter().any(|message| matches!(message.content, Content::Parts(_)));
        if !has_list || self.takes_parts() {
            return Cow::Borrowed(messages);
        }
        let plain = |message: &Message| {
            let text = message.content.text_of_parts();
            Message {
                content: text.map_or_else(|| message.content.clone(), Content::Text),
                ..message.clone()
            }
        };
        Cow::Owned(messages.iter().map(plain).collect())
    }

    /// Whether the text of a user's content part appears in the prompt, without the list's syntax.
    fn takes_parts(&self) -> bool {
        const TEXT: &str = "Which animals?";
        if let Some(&known) = self.takes_parts.get() {
            return known;
        }
        let message = Message::new("user", vec![ContentPart::text(TEXT)]);
        let printed = |prompt: &str| ["'text'", "\"text\""].iter().any(|key| prompt.contains(key));
        match self.render(&[message], &RenderOptions::default()) {
            Ok(prompt) => *self.takes_parts.get_or_init(|| prompt.contains(TEXT) && !printed(&prompt)),
            Err(TextError::TemplateRender(_)) => *self.takes_parts.get_or_init(|| false),
            // After a limit or memory error the answer is unknown; the request fails with the same error.
            Err(_) => true,
        }
    }

    /// Renders the prompt for these messages as plain text. Control tokens in it must not be parsed if users
    /// wrote the messages: use [`ChatTemplate::prompt`] instead.
    ///
    /// # Errors
    /// As [`ChatTemplate::prompt`].
    pub fn render(&self, messages: &[Message], options: &RenderOptions) -> Result<String, TextError> {
        Ok(self.prompt(messages, options)?.into_text())
    }

    /// Renders the prompt for these messages, with the origin of its parts: template or messages, tools and
    /// variables.
    ///
    /// # Errors
    /// [`TextError::TemplateRender`] if the template fails or rejects the messages (`raise_exception`),
    /// [`TextError::TemplateLimit`] if it exceeds the limits on steps, time or memory;
    /// [`TextError::TemplateMemory`] and [`TextError::TemplateThread`] if it cannot be started.
    pub fn prompt(&self, messages: &[Message], options: &RenderOptions) -> Result<ChatPrompt, TextError> {
        on_deep_stack(|| self.run(messages, options))
    }

    fn run(&self, messages: &[Message], options: &RenderOptions) -> Result<ChatPrompt, TextError> {
        let mut messages: Vec<Json> = messages.iter().map(|message| message.fields().into()).collect();
        let blank = options.continue_final_message.then(|| continuation::mark(&mut messages));
        let tools = options.tools.iter();
        let mut texts = vec![self.source.as_str(), &self.bos, &self.eos];
        messages
            .iter()
            .chain(tools)
            .chain(options.variables.values())
            .for_each(|json| strings_in(json, &mut texts));
        let marks = Marks::unused(texts.into_iter()).ok_or_else(|| {
            TextError::TemplateRender(
                "expected a private character that no message has, found none".to_owned(),
            )
        })?;
        let env = environment::new(options.now, marks);
        let program = program::compile(&self.source)?;
        let mut text = String::new();
        let mut out = machinery::make_string_output(&mut text);
        let blocks: BTreeMap<&str, Instructions<'_>> = BTreeMap::new();
        let context = self.context(&messages, options);
        // Any custom escaping makes the engine track safe strings. The name has no meaning.
        let escaping = AutoEscape::Custom("origin".into());
        machinery::eval(&env, &program, context, &blocks, &mut out, escaping).map_err(render_error)?;
        let text = marks.read(&text);
        Ok(ChatPrompt::new(match blank {
            Some(blank) => continuation::cut(&text, blank)?,
            None => text,
        }))
    }

    fn context(&self, messages: &[Json], options: &RenderOptions) -> Value {
        let mut context: BTreeMap<String, Value> = BTreeMap::new();
        // Identifiers only: other names could shadow the functions of the rewritten program.
        let is_name = |key: &str| key != bounds::ONE && key.chars().all(|c| c == '_' || c.is_alphanumeric());
        let variables = options.variables.iter().filter(|(key, _)| is_name(key));
        context.extend(variables.map(|(key, value)| (key.clone(), Value::from(Serde(value)))));
        let own = |text: &str| Value::from_safe_string(text.to_owned());
        let given = [
            ("messages", messages.iter().map(|message| self.message(message)).collect()),
            ("tools", options.tools.as_ref().map_or(Value::from(()), |tools| Value::from(Serde(tools)))),
            (
                "add_generation_prompt",
                Value::from(options.add_generation_prompt && !options.continue_final_message),
            ),
            ("bos_token", own(&self.bos)),
            ("eos_token", own(&self.eos)),
        ];
        context.extend(given.map(|(key, value)| (key.to_owned(), value)));
        Value::from(context)
    }

    /// A message as a template value. A role counts as the template's text if the template may build a marker
    /// from it (`<|user|>`).
    fn message(&self, fields: &Json) -> Value {
        let field = |(name, value): (&String, &Json)| {
            let own = value.as_str().filter(|role| name == "role" && self.has_role(role));
            let value = own
                .map_or_else(|| Value::from(Serde(value)), |role| Value::from_safe_string(role.to_owned()));
            (Value::from(name.as_str()), value)
        };
        Value::from_pairs(fields.as_object().into_iter().flatten().map(field))
    }

    /// Source of the template, as rewritten for the engine.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Whether the template uses tools. Otherwise it would silently omit them.
    pub fn knows_tools(&self) -> bool {
        self.source.contains("tools")
    }

    /// Whether the template writes calls of the conversation, with or without tools.
    pub(crate) fn knows_calls(&self) -> bool {
        self.source.contains("tool_calls")
    }

    /// Error message for the first message with a role that the template does not support.
    pub(crate) fn unknown_role(&self, messages: &[Message]) -> Option<String> {
        let at = messages.iter().position(|message| !self.has_role(&message.role))?;
        let role: String = messages[at].role.chars().take(ROLE_SHOWN).collect();
        Some(format!(
            "message {at}: expected a role of the chat template's, such as \"user\", found {role:?}"
        ))
    }

    fn has_role(&self, role: &str) -> bool {
        let is_word = role.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | ' '));
        ROLES.contains(&role) || (is_word && self.source.contains(&format!("\"{role}\"")))
    }
}

/// All strings in a value, including keys.
fn strings_in<'v>(value: &'v Json, found: &mut Vec<&'v str>) {
    match value {
        Json::String(text) => found.push(text),
        Json::Array(items) => items.iter().for_each(|item| strings_in(item, found)),
        Json::Object(fields) => fields.iter().for_each(|(key, item)| {
            found.push(key);
            strings_in(item, found);
        }),
        _ => {}
    }
}

/// Runs work on a thread with a deep stack. A panic becomes an error.
fn on_deep_stack<T: Send>(work: impl FnOnce() -> Result<T, TextError> + Send) -> Result<T, TextError> {
    if !headroom::has(STACK_BYTES + headroom::SMALL_BYTES) {
        return Err(TextError::TemplateMemory { bytes: STACK_BYTES });
    }
    std::thread::scope(|scope| {
        let builder = std::thread::Builder::new().name("chat-template".to_owned()).stack_size(STACK_BYTES);
        let thread = builder.spawn_scoped(scope, work);
        let thread = thread.map_err(|error| TextError::TemplateThread(error.to_string()))?;
        thread.join().unwrap_or(Err(TextError::TemplatePanicked))
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
            // A template may raise user text.
            Some(detail) => format!("{}{at}", shown_line(detail)),
            None => format!("{kind}{at}"),
        }),
    }
}

#[cfg(test)]
mod tests;
