//! [`Prepared`]: a request with an encoded prompt and a mask made of its tools and format.

use std::sync::Arc;

use super::request::{EncodedPrompt, Prompt};
use super::{InferenceEngine, Request};
#[cfg(feature = "text")]
use crate::chat::{AnswerParser, OutsideCalls, ReasoningState, ToolChoice, Tools};
use crate::{
    Result, TokenId,
    engine::TokenRequest,
    text::{StopScope, Vocab},
};

/// A request with an encoded prompt, ready to be submitted any number of times; see
/// [`InferenceEngine::prepare`]. Convert it with [`Request::from`] to set further options, such as sampling.
/// Clones share the prompt.
#[derive(Clone)]
pub struct Prepared {
    prompt: Arc<EncodedPrompt>,
    /// The other options; its prompt is this one.
    request: Request,
}

impl Prepared {
    /// The token ids of the prompt.
    pub fn prompt_ids(&self) -> &[TokenId] {
        &self.prompt.ids
    }

    /// Parser of an answer to the prompt. It sees the whole answer only if [`Request::show_control_tokens`]
    /// has the [`InferenceEngine::marker_tokens`], as in [`InferenceEngine::answer`]. A prompt given as token
    /// ids counts as one that has not opened the reasoning.
    #[cfg(feature = "text")]
    pub fn answer_parser(&self) -> AnswerParser {
        self.prompt.answer_parser()
    }

    #[cfg(feature = "text")]
    pub(super) fn tools(&self) -> &Tools {
        &self.prompt.tools
    }

    pub(super) fn into_token_request(self, vocab: &Arc<Vocab>) -> TokenRequest {
        let Prepared { prompt, request } = self;
        request.into_token_request(prompt, vocab)
    }
}

#[cfg(feature = "text")]
impl EncodedPrompt {
    /// Parser of an answer to the prompt.
    fn answer_parser(&self) -> AnswerParser {
        let parser = AnswerParser::new(self.format, &self.tools);
        if self.reasoning == ReasoningState::Open { parser.in_reasoning() } else { parser }
    }

    /// Scope of stop strings: the answer without its calls. `None` if there are no stop strings or no calls.
    pub(super) fn stop_scope(&self, stops: &[String]) -> Option<Box<dyn StopScope>> {
        let may_call = !self.tools.list.is_empty() && self.tools.choice != ToolChoice::None;
        let is_needed = may_call && !stops.is_empty();
        is_needed.then(|| Box::new(OutsideCalls::new(self.answer_parser())) as _)
    }
}

#[cfg(not(feature = "text"))]
impl EncodedPrompt {
    /// Stop strings count everywhere.
    pub(super) fn stop_scope(&self, _: &[String]) -> Option<Box<dyn StopScope>> {
        None
    }
}

/// Prints counts only, as a request does.
impl std::fmt::Debug for Prepared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Prepared").field(&self.request).finish()
    }
}

impl From<Prepared> for Request {
    fn from(prepared: Prepared) -> Request {
        prepared.request
    }
}

impl InferenceEngine {
    /// Encodes a request's prompt and compiles the mask that enforces its tools and its format. For callers
    /// that need the prompt's ids, submit a request more than once, or parse its answer on their own.
    ///
    /// ```no_run
    /// # #[cfg(feature = "text")]
    /// # fn main() -> ottava::Result<()> {
    /// use ottava::{Engine, Request, text::Message};
    ///
    /// let engine = Engine::builder("model.gguf").build()?;
    /// let prepared = engine.prepare(Request::chat([Message::new("user", "Why is the sky blue?")]))?;
    /// println!("{} tokens", prepared.prompt_ids().len());
    /// for seed in 0..3 {
    ///     let request = Request::from(prepared.clone()).temperature(1.0).seed(seed);
    ///     println!("{}", engine.submit(request)?.text()?.text);
    /// }
    /// # Ok(()) }
    /// # #[cfg(not(feature = "text"))]
    /// # fn main() {}
    /// ```
    ///
    /// # Errors
    /// Those of [`InferenceEngine::submit`], except for a full queue and for options outside their ranges.
    pub fn prepare(&self, request: impl Into<Request>) -> Result<Prepared> {
        let request = request.into();
        if let Prompt::Encoded(prompt) = &request.prompt {
            #[cfg(feature = "text")]
            request.check()?;
            return Ok(Prepared { prompt: Arc::clone(prompt), request });
        }
        #[cfg(feature = "text")]
        let (request, prompt) = {
            let (ids, reasoning) = self.encode(&request)?;
            let (request, tools) = self.enforced(request, reasoning)?;
            (request, EncodedPrompt { ids, format: self.chat_format(), reasoning, tools })
        };
        #[cfg(not(feature = "text"))]
        let prompt = EncodedPrompt { ids: self.prompt_ids(&request)? };
        let prompt = Arc::new(prompt);
        Ok(Prepared { request: request.with_prompt(Prompt::Encoded(Arc::clone(&prompt))), prompt })
    }
}
