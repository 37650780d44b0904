//! Chat templates: messages to the text that a model was trained to continue.
//!
//! The template is a program out of a model file, so it is not trusted. It runs in `minijinja`, rewritten so
//! that it can neither run nor grow without end (`program.rs`, `bounds.rs`), on a thread of its own whose
//! stack is deep enough for any nesting that passes those limits. What it finds there is what
//! `transformers` gives its templates (`environment.rs`): Jinja2's immutable sandbox with `trim_blocks`,
//! `lstrip_blocks`, loop controls, its own `tojson`, `raise_exception`, `strftime_now` and `generation` tags.
//!
//! Nor are the messages trusted: every string carries who wrote it (`origin.rs`), and only what the template
//! wrote can become a control token.
//!
//! # Differences from Jinja2
//!
//! - Steps, time, bytes, items and depth are bounded, a field of a format has at most 10,000 characters, an
//!   integer 127 bits: the process must outlive every file.
//! - `include`, `import`, `extends`, `super` and `self` fail: a model file has one template.
//! - There is no `lipsum`, and no filter `random`, `urlencode`, `urlize`, `wordwrap` or `xmlattr`, no `encode`
//!   and `translate` of strings: no public chat template has a use for them.
//! - Generators are lists where they are printed or given to `tojson`: Python prints an address or fails.
//!   Methods and objects print without an address.
//! - Unlike types have an order in `sort`, between two constants, and in all but the last of the
//!   comparisons `a < b < c`; `1` and `true` are two keys of a dictionary; an empty namespace is false. That
//!   is how the engine's values are, and a template that meets it fails in Jinja2 or has no sense.
//! - The default of a macro's parameter does not see the parameters before it (the engine fills them from
//!   the last to the first).
//! - `safe` makes Python's `Markup` for `+` only; its other operators take it as a plain string.
//! - `strftime_now` is in UTC and in English, so that a prompt does not depend on the machine.
//! - A loop over a tuple wants its parentheses (`for x in (1, 2)`); half a character that an escape makes
//!   (`'\ud83d'`) is an error, as no text can hold it.
//! - What the engine has beyond Jinja2 stays (`do`, and `with` around a block).

mod arguments;
mod bounds;
mod collections;
mod compare;
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
use crate::room;
use minijinja::machinery::{self, Instructions};
use minijinja::value::{Serde, Value};
use minijinja::{AutoEscape, ErrorKind};
use serde_json::Value as Json;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::SystemTime;

/// Stack for parsing and running a template, in bytes; the pages are only used when touched.
const STACK_BYTES: usize = 64 << 20;

/// Roles that every template may know.
const ROLES: [&str; 8] = ["assistant", "developer", "function", "ipython", "model", "system", "tool", "user"];

/// So many characters of a role are in the message that refuses it.
const ROLE_SHOWN: usize = 40;

/// What a template is given besides the messages. Default: it begins the answer, and there are no tools.
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

impl RenderOptions {
    /// Does not begin the assistant's answer: the messages end with one that goes on.
    pub fn without_generation_prompt(mut self) -> RenderOptions {
        self.add_generation_prompt = false;
        self
    }

    /// Tools that the model may call.
    pub fn tools(mut self, tools: serde_json::Value) -> RenderOptions {
        self.tools = Some(tools);
        self
    }

    /// A further variable, beside those set before.
    pub fn variable(mut self, name: impl Into<String>, value: impl Into<serde_json::Value>) -> RenderOptions {
        self.variables.insert(name.into(), value.into());
        self
    }

    /// What the template takes for now.
    pub fn now(mut self, now: SystemTime) -> RenderOptions {
        self.now = Some(now);
        self
    }
}

/// The chat template of a model.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    source: String,
    bos: String,
    eos: String,
    /// Whether it takes the text out of a list of parts. Found out where the first list comes.
    takes_parts: OnceLock<bool>,
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

    /// The chat template of a checkpoint; `None` where it has none.
    ///
    /// # Errors
    /// As [`ChatTemplate::from_metadata`]; of a folder [`TextError::Metadata`] for a document that is not sound.
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

    /// A template from its Jinja source; `bos_token` and `eos_token` come from the vocabulary.
    ///
    /// # Errors
    /// [`TextError::TemplateSyntax`] where it does not parse, [`TextError::TemplateLimit`] where it is
    /// longer or more deeply nested than any chat template needs to be.
    pub fn from_source(source: &str, vocab: &Vocab) -> Result<ChatTemplate, TextError> {
        let piece = |id: Option<_>| id.and_then(|id| vocab.piece(id)).unwrap_or_default().to_owned();
        let source = program::prepare(source)?;
        let (bos, eos) = (piece(vocab.bos()), piece(vocab.eos()));
        let template = ChatTemplate { source, bos, eos, takes_parts: OnceLock::new() };
        on_deep_stack(|| program::compile(&template.source).map(|_| ()))?;
        Ok(template)
    }

    /// The messages as the template can take them: where it does not take the text out of a user's list of parts, lists of
    /// texts become texts, a line a part. Clients write lists whatever the model is.
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

    /// Whether the text of a user's part is in the prompt, and the list around it is not.
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
            // A limit or no memory: nothing is known, and the request will see the same.
            Err(_) => true,
        }
    }

    /// The prompt for these messages as a plain text. Control tokens in it must not be parsed where users
    /// wrote the messages: [`ChatTemplate::prompt`] is for that.
    ///
    /// # Errors
    /// As [`ChatTemplate::prompt`].
    pub fn render(&self, messages: &[Message], options: &RenderOptions) -> Result<String, TextError> {
        Ok(self.prompt(messages, options)?.into_text())
    }

    /// The prompt for these messages, and which parts of it come from them, the tools and the variables.
    ///
    /// # Errors
    /// [`TextError::TemplateRender`] where the template fails or refuses the messages (`raise_exception`),
    /// [`TextError::TemplateLimit`] where it takes more steps, time or memory than it may.
    pub fn prompt(&self, messages: &[Message], options: &RenderOptions) -> Result<ChatPrompt, TextError> {
        on_deep_stack(|| self.run(messages, options))
    }

    fn run(&self, messages: &[Message], options: &RenderOptions) -> Result<ChatPrompt, TextError> {
        let messages: Vec<Json> = messages.iter().map(|message| message.fields().into()).collect();
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
        // The name means nothing; with any escaping the engine tells its own strings from others.
        let escaping = AutoEscape::Custom("origin".into());
        machinery::eval(&env, &program, context, &blocks, &mut out, escaping).map_err(render_error)?;
        Ok(ChatPrompt::new(marks.read(&text)))
    }

    fn context(&self, messages: &[Json], options: &RenderOptions) -> Value {
        let mut context: BTreeMap<String, Value> = BTreeMap::new();
        // Names that a template can spell: others could hide the functions of the rewritten program.
        let is_name = |key: &str| key != bounds::ONE && key.chars().all(|c| c == '_' || c.is_alphanumeric());
        let variables = options.variables.iter().filter(|(key, _)| is_name(key));
        context.extend(variables.map(|(key, value)| (key.clone(), Value::from(Serde(value)))));
        let own = |text: &str| Value::from_safe_string(text.to_owned());
        let given = [
            ("messages", messages.iter().map(|message| self.message(message)).collect()),
            ("tools", options.tools.as_ref().map_or(Value::from(()), |tools| Value::from(Serde(tools)))),
            ("add_generation_prompt", Value::from(options.add_generation_prompt)),
            ("bos_token", own(&self.bos)),
            ("eos_token", own(&self.eos)),
        ];
        context.extend(given.map(|(key, value)| (key.to_owned(), value)));
        Value::from(context)
    }

    /// A message as the template sees it. Its role counts as the template's own text where the template
    /// can be expected to build a marker of it (`<|user|>`).
    fn message(&self, fields: &Json) -> Value {
        let field = |(name, value): (&String, &Json)| {
            let own = value.as_str().filter(|role| name == "role" && self.has_role(role));
            let value = own
                .map_or_else(|| Value::from(Serde(value)), |role| Value::from_safe_string(role.to_owned()));
            (Value::from(name.as_str()), value)
        };
        Value::from_pairs(fields.as_object().into_iter().flatten().map(field))
    }

    /// Its source, as it runs here.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Whether it looks at tools: one that does not would leave them out without a word.
    pub fn knows_tools(&self) -> bool {
        self.source.contains("tools")
    }

    /// What is wrong with the first message whose role the template cannot know.
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

/// The strings within a value, keys included.
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

/// Runs the work on a thread with a deep stack; a panic in there is an error here.
fn on_deep_stack<T: Send>(work: impl FnOnce() -> Result<T, TextError> + Send) -> Result<T, TextError> {
    if !room::has(STACK_BYTES + room::SMALL_BYTES) {
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
            // A template may raise what users wrote.
            Some(detail) => format!("{}{at}", shown_line(detail)),
            None => format!("{kind}{at}"),
        }),
    }
}

#[cfg(test)]
mod tests;
