//! Chat answers in parts: their parser, its setup, and tool constraints.

use std::collections::VecDeque;

#[cfg(feature = "constraints")]
use super::request::no_tools;
use super::{InferenceEngine, Request};
use crate::chat::{AnswerParser, ChatFormat, ChatPart, ReasoningState, ToolChoice, Tools};
use crate::engine::{Done, Event, Generation, GenerationError, SubmitError};
use crate::text::ChatTemplate;
#[cfg(feature = "constraints")]
use crate::{
    Error,
    chat::Wanted,
    constrain::{ConstraintError, Grammar, Source},
};
use crate::{Result, TokenId};

/// The chat format of a template.
pub(super) fn format_of(template: Option<&ChatTemplate>) -> ChatFormat {
    ChatFormat::of_template(template.map_or("", ChatTemplate::source))
}

impl InferenceEngine {
    /// The model's format of reasoning and tool calls, by the markers of its chat template.
    pub fn chat_format(&self) -> ChatFormat {
        self.shared.format
    }

    /// The control tokens that mark reasoning, and tool calls if there are tools to call.
    pub fn marker_tokens(&self, tools: &Tools) -> Vec<TokenId> {
        let with_calls = !tools.list.is_empty() && tools.choice != ToolChoice::None;
        let is_marker = |id: &TokenId, with_calls| {
            let piece = self.vocab().piece(*id).unwrap_or_default();
            self.chat_format().has_marker_with(piece, with_calls)
        };
        let find = || {
            let control = self.vocab().ids().filter(|&id| self.vocab().is_control(id));
            control.filter(|id| is_marker(id, true)).collect()
        };
        let all: &Vec<TokenId> = self.shared.markers.get_or_init(find);
        all.iter().copied().filter(|id| is_marker(id, with_calls)).collect()
    }

    /// Queues a chat and returns its answer in parts: text, reasoning, calls of [`Request::tools`].
    ///
    /// ```no_run
    /// # fn main() -> ottava::Result<()> {
    /// use ottava::chat::{ChatPart, Tool, Tools};
    /// use ottava::{Engine, Request, text::Message};
    ///
    /// let engine = Engine::builder("model.gguf").build()?;
    /// let schema = serde_json::json!({"type": "object", "properties": {"city": {"type": "string"}}});
    /// let request = Request::chat([Message::new("user", "Does it rain in Oslo?")])
    ///     .tools(Tools::new(vec![Tool::new("get_weather", schema)]));
    /// for part in engine.answer(request)? {
    ///     match part? {
    ///         ChatPart::Text(text) => print!("{text}"),
    ///         ChatPart::CallStart { name, .. } => print!("\n{name} "),
    ///         ChatPart::CallArguments { text, .. } => print!("{text}"),
    ///         _ => {}
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`InferenceEngine::submit`] and [`Tools::check`]. A tool choice that must be enforced is refused if
    /// it cannot be.
    pub fn answer(&self, request: impl Into<Request>) -> Result<ChatAnswer> {
        let prepared = self.prepare(request)?;
        let (parser, markers) = (prepared.answer_parser(), self.marker_tokens(prepared.tools()));
        let generation = self.submit(Request::from(prepared).show_control_tokens(markers))?;
        Ok(ChatAnswer { generation, parser, parts: VecDeque::new(), done: None })
    }

    /// Adds the mask that enforces the request's tools and format, and shows the markers of calls. Returns
    /// the tools separately.
    pub(super) fn enforced(
        &self,
        mut request: Request,
        reasoning: ReasoningState,
    ) -> Result<(Request, Tools)> {
        let tools = std::mem::take(&mut request.tools);
        #[cfg(feature = "constraints")]
        let request = match request.format.take() {
            None if tools.list.is_empty() => request,
            text_grammar => {
                let text_grammar =
                    text_grammar.map(|text_grammar| self.checked_format(&text_grammar)).transpose()?;
                self.constrained(request, &tools, text_grammar.as_ref(), reasoning)?
            }
        };
        #[cfg(not(feature = "constraints"))]
        let request = self.constrained(request, &tools, reasoning)?;
        Ok((request, tools))
    }

    /// The checked grammar of an answer's text.
    ///
    /// # Errors
    /// Those of [`InferenceEngine::constrain`].
    #[cfg(feature = "constraints")]
    fn checked_format(&self, text_grammar: &Grammar) -> Result<Source> {
        let source = text_grammar.source()?;
        // Compiled by itself first: a tool call that may come instead must not hide an error of the grammar.
        self.constraints()?.compile_source(text_grammar.field(), &source)?;
        Ok(source)
    }

    /// Shows the markers of calls. Fails if enforcement is required.
    #[cfg(not(feature = "constraints"))]
    fn constrained(&self, request: Request, tools: &Tools, _reasoning: ReasoningState) -> Result<Request> {
        match must_keep(tools) {
            _ if tools.list.is_empty() => Ok(request),
            Some(field) => {
                let message =
                    "expected what needs no enforcing: this build is without the feature `constraints`";
                Err(SubmitError::invalid(field, message).into())
            }
            None => Ok(request.show_control_tokens(self.marker_tokens(tools))),
        }
    }

    /// Adds the mask that holds tool calls to their tools, if they make a grammar. If they do not, it fails
    /// only if enforcement is required.
    #[cfg(feature = "constraints")]
    fn constrained(
        &self,
        request: Request,
        tools: &Tools,
        text_grammar: Option<&Source>,
        reasoning: ReasoningState,
    ) -> Result<Request> {
        let markers = self.marker_tokens(tools);
        let piece = |id: TokenId| self.vocab().piece(id).unwrap_or_default().to_owned();
        // Stop tokens end an answer and are no part of it.
        let within = markers.iter().copied().filter(|id| !self.vocab().stop_ids().contains(id));
        let control: Vec<_> = within.map(|id| (piece(id), id.0)).collect();
        let request = request.show_control_tokens(markers);
        let wanted = Wanted { tools, text_grammar, reasoning, control: &control };
        let grammar = self.chat_format().grammar(&wanted).map_err(|error| no_tools(error).into()).transpose();
        let Some(grammar) = grammar else { return Ok(request) };
        if request.has_mask() {
            return Err(SubmitError::invalid("mask", "expected none beside tools, found one").into());
        }
        let constraint = grammar.and_then(|grammar| self.constrain(&grammar));
        if tools.list.is_empty() && text_grammar.is_some() {
            // No tool is at fault.
            return Ok(request.mask(constraint?));
        }
        let field = must_keep(tools).or(text_grammar.map(|_| "tools"));
        Ok(match unless_free(constraint, field)? {
            Some(constraint) => request.mask(constraint),
            None => request,
        })
    }
}

/// The constraint made of tools; `None` if they make no grammar and no field requires one, because the parser
/// then takes a call as it comes. An error that the tools did not cause is returned in any case.
#[cfg(feature = "constraints")]
fn unless_free<T>(made: Result<T>, field: Option<&'static str>) -> Result<Option<T>> {
    let at_fault = matches!(made, Err(Error::Submit(_) | Error::Constraint(ConstraintError::Invalid { .. })));
    match (made, field) {
        (Err(_), None) if at_fault => Ok(None),
        (Err(error), Some(field)) if at_fault => {
            Err(SubmitError::invalid(field, format!("expected what makes a grammar: {error}")).into())
        }
        (made, _) => made.map(Some),
    }
}

/// The field that requires enforcement of the tools, if one does.
fn must_keep(tools: &Tools) -> Option<&'static str> {
    match tools.choice {
        ToolChoice::None => None,
        ToolChoice::Required | ToolChoice::Named(_) => Some("tool_choice"),
        ToolChoice::Auto => tools.list.iter().any(|tool| tool.strict).then_some("tools"),
    }
}

/// A chat answer in parts. Dropping it cancels the request.
#[derive(Debug)]
pub struct ChatAnswer {
    generation: Generation,
    parser: AnswerParser,
    parts: VecDeque<ChatPart>,
    done: Option<Done>,
}

impl ChatAnswer {
    /// The end of the answer, once all parts have been read.
    pub fn done(&self) -> Option<&Done> {
        self.done.as_ref()
    }

    /// The answer's parser, with its counts of calls and of malformed parts.
    pub fn parser(&self) -> &AnswerParser {
        &self.parser
    }
}

impl Iterator for ChatAnswer {
    type Item = std::result::Result<ChatPart, GenerationError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(part) = self.parts.pop_front() {
                return Some(Ok(part));
            }
            match self.generation.recv()? {
                Ok(Event::Token(token)) => self.parts.extend(self.parser.push(&token.text)),
                Ok(Event::Done(done)) => {
                    self.parts.extend(self.parser.push(&done.text));
                    self.parts.extend(self.parser.finish());
                    self.done = Some(done);
                }
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

#[cfg(all(test, feature = "constraints"))]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_the_tools_fault_is_an_error_as_it_is() {
        for field in [None, Some("tools")] {
            for own in [ConstraintError::Internal("a defect"), ConstraintError::Thread("none".into())] {
                let error = unless_free::<()>(Err(own.clone().into()), field).expect_err("an error");
                assert!(matches!(&error, Error::Constraint(error) if *error == own), "{error}");
            }
        }
        let at_fault = || Err::<(), _>(SubmitError::invalid("tools", "no").into());
        assert!(unless_free(at_fault(), None).expect("no grammar is needed").is_none());
        let error = unless_free(at_fault(), Some("tool_choice")).expect_err("a grammar is needed");
        assert!(matches!(error, Error::Submit(SubmitError::Invalid { field: "tool_choice", .. })), "{error}");
    }
}
