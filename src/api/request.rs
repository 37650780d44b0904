//! A request as people write it; the engine's own form is [`TokenRequest`].

use std::sync::Arc;
use std::time::Instant;

use crate::TokenId;
use crate::engine::TokenRequest;
use crate::ir::Window;
use crate::sample::{Sampling, TokenMask};
use crate::text::Vocab;
#[cfg(feature = "text")]
use crate::{
    chat::{Tool, ToolError, Tools},
    engine::SubmitError,
    text::{Message, RenderOptions, Special},
};

/// What to continue.
#[derive(Clone)]
pub(super) enum Prompt {
    Tokens(Vec<TokenId>),
    #[cfg(feature = "text")]
    Text(String),
    #[cfg(feature = "text")]
    Chat(Vec<Message>),
}

/// Makes a mask for each time that its request is submitted.
type MakeMask = Arc<dyn Fn() -> Box<dyn TokenMask> + Send + Sync>;

/// What to generate and how. Default: greedy, seed 0, at most 256 tokens, until the model ends its turn; penalties are
/// off and look at the last 64 tokens. The setters may come in any order.
///
/// ```
/// # #[cfg(feature = "text")]
/// # fn ask() -> ottava::Request {
/// use std::time::{Duration, Instant};
/// use ottava::{Request, text::Message};
///
/// let messages = [Message::new("system", "Be brief."), Message::new("user", "What is gravity?")];
/// Request::chat(messages)
///     .temperature(0.7)
///     .top_p(0.9)
///     .stop(["\n\n"])
///     .deadline(Instant::now() + Duration::from_secs(30))
/// # }
/// ```
#[derive(Clone)]
pub struct Request {
    prompt: Prompt,
    #[cfg(feature = "text")]
    special: Special,
    #[cfg(feature = "text")]
    template: Option<Box<RenderOptions>>,
    #[cfg(feature = "text")]
    tools: Tools,
    /// Its answer is kept to its tools already.
    #[cfg(feature = "text")]
    keeps_tools: bool,
    show_control_tokens: Vec<TokenId>,
    max_tokens: usize,
    sampling: Sampling,
    stop: Vec<String>,
    ignore_eos: bool,
    window: Option<Window>,
    top_logprobs: Option<usize>,
    mask: Option<MakeMask>,
    deadline: Option<Instant>,
    priority: i8,
    cache_salt: Option<[u8; 32]>,
    id: Option<u64>,
}

impl Request {
    /// Continues token ids as they are; nothing is added.
    pub fn tokens(ids: Vec<TokenId>) -> Request {
        Request::new(Prompt::Tokens(ids))
    }

    /// Continues a text without a template (with the BOS that the model asks for). Nothing in it is a control token,
    /// whatever it spells, unless [`Request::parse_control_tokens`] says so.
    #[cfg(feature = "text")]
    pub fn text(text: impl Into<String>) -> Request {
        Request::new(Prompt::Text(text.into()))
    }

    /// Answers messages, rendered by the model's chat template. Nothing in a message is a control token,
    /// whatever it spells: only the template writes those. No messages, or a role that the template cannot know, are
    /// refused.
    #[cfg(feature = "text")]
    pub fn chat(messages: impl IntoIterator<Item = Message>) -> Request {
        Request::new(Prompt::Chat(messages.into_iter().collect()))
    }

    fn new(prompt: Prompt) -> Request {
        Request {
            prompt,
            #[cfg(feature = "text")]
            special: Special::Text,
            #[cfg(feature = "text")]
            template: None,
            #[cfg(feature = "text")]
            tools: Tools::default(),
            #[cfg(feature = "text")]
            keeps_tools: false,
            show_control_tokens: Vec::new(),
            max_tokens: 256,
            sampling: Sampling::default(),
            stop: Vec::new(),
            ignore_eos: false,
            window: None,
            top_logprobs: None,
            mask: None,
            deadline: None,
            priority: 0,
            cache_salt: None,
            id: None,
        }
    }

    /// Takes the names of control tokens in a [`Request::text`], such as `<|im_end|>`, for those tokens: for prompts
    /// that their author writes whole. What other people type belongs into [`Request::chat`].
    #[cfg(feature = "text")]
    pub fn parse_control_tokens(mut self) -> Request {
        self.special = Special::Parse;
        self
    }

    /// What the chat template gets besides the messages: tools, further variables, whether it begins the answer. They
    /// count as what users wrote.
    #[cfg(feature = "text")]
    pub fn template(mut self, options: RenderOptions) -> Request {
        self.template = Some(Box::new(options));
        self
    }

    /// What the model may call. The chat template gets it, a choice that has to be kept is kept, and
    /// [`InferenceEngine::answer`](crate::InferenceEngine::answer) reads the calls; where the request is submitted
    /// instead, they stand in the text with their markers.
    #[cfg(feature = "text")]
    pub fn tools(mut self, tools: Tools) -> Request {
        (self.tools, self.keeps_tools) = (tools, false);
        self
    }

    /// Spells these control tokens out in the events' text, which hides the others: markers that a parser reads, such
    /// as [`InferenceEngine::marker_tokens`](crate::InferenceEngine::marker_tokens).
    pub fn show_control_tokens(mut self, ids: impl IntoIterator<Item = TokenId>) -> Request {
        self.show_control_tokens = ids.into_iter().collect();
        self
    }

    /// Most tokens to generate. Default: 256.
    pub fn max_tokens(mut self, tokens: usize) -> Request {
        self.max_tokens = tokens;
        self
    }

    /// Seed of the random numbers; equal seeds replay bit-equal. Default: 0.
    pub fn seed(mut self, seed: u64) -> Request {
        self.sampling.seed = seed;
        self
    }

    /// Divides the logits; 0, the default, is greedy.
    pub fn temperature(mut self, temperature: f32) -> Request {
        self.sampling.temperature = temperature;
        self
    }

    /// Keeps the most likely tokens; 0 keeps all.
    pub fn top_k(mut self, tokens: usize) -> Request {
        self.sampling.top_k = tokens;
        self
    }

    /// Keeps the most likely tokens until their probability reaches this; 1 keeps all.
    pub fn top_p(mut self, probability: f32) -> Request {
        self.sampling.top_p = probability;
        self
    }

    /// Keeps tokens at least this likely relative to the most likely; 0 keeps all.
    pub fn min_p(mut self, ratio: f32) -> Request {
        self.sampling.min_p = ratio;
        self
    }

    /// Divides positive and multiplies negative logits of the last tokens ([`Request::penalty_last_n`]), prompt
    /// included; 1 is off.
    pub fn repetition_penalty(mut self, factor: f32) -> Request {
        self.sampling.repetition_penalty = factor;
        self
    }

    /// Subtracted from the logits of tokens generated among the last ones ([`Request::penalty_last_n`]).
    pub fn presence_penalty(mut self, penalty: f32) -> Request {
        self.sampling.presence_penalty = penalty;
        self
    }

    /// Subtracted for each time a token was generated among the last ones ([`Request::penalty_last_n`]).
    pub fn frequency_penalty(mut self, penalty: f32) -> Request {
        self.sampling.frequency_penalty = penalty;
        self
    }

    /// How many of the last tokens, prompt included, the penalties look at. Default: 64.
    pub fn penalty_last_n(mut self, tokens: usize) -> Request {
        self.sampling.penalty_last_n = tokens;
        self
    }

    /// Added to the logits of single tokens; negative infinity forbids one.
    pub fn logit_bias(mut self, biases: impl IntoIterator<Item = (TokenId, f32)>) -> Request {
        self.sampling.logit_bias = biases.into_iter().collect();
        self
    }

    /// Ends the answer before any of these texts; [`Done::stop`](crate::engine::Done::stop) says which.
    pub fn stop<S: Into<String>>(mut self, texts: impl IntoIterator<Item = S>) -> Request {
        self.stop = texts.into_iter().map(Into::into).collect();
        self
    }

    /// Goes on after the model's end-of-turn token: for benches.
    pub fn ignore_eos(mut self) -> Request {
        self.ignore_eos = true;
        self
    }

    /// Attends to a sliding window only, with attention sinks; old pages are freed.
    pub fn window(mut self, window: Window) -> Request {
        self.window = Some(window);
        self
    }

    /// Gives the log-probabilities of the best `n` tokens with each token.
    pub fn top_logprobs(mut self, n: usize) -> Request {
        self.top_logprobs = Some(n);
        self
    }

    /// Says which tokens the answer may have. Each submission of the request works with a clone of its own.
    pub fn mask(mut self, mask: impl TokenMask + Clone + Sync + 'static) -> Request {
        self.mask = Some(Arc::new(move || Box::new(mask.clone())));
        self
    }

    /// When the answer ends at the latest, wherever the request is then: in the queue, in its prompt or among its
    /// tokens. What was generated until then stays, and
    /// [`FinishReason::Deadline`](crate::engine::FinishReason::Deadline) is the reason. The engine looks between steps;
    /// [`Generation::recv_timeout`](crate::engine::Generation::recv_timeout) bounds a reader's wait to the moment.
    pub fn deadline(mut self, deadline: Instant) -> Request {
        self.deadline = Some(deadline);
        self
    }

    /// Who has a higher priority starts first, and keeps its pages of the cache longer; among equals who came first. At
    /// first 0.
    pub fn priority(mut self, priority: i8) -> Request {
        self.priority = priority;
        self
    }

    /// Shares what the cache has of the prompt only with requests of the same salt, such as those of one tenant: how
    /// fast an answer comes tells nobody else what was asked before.
    pub fn cache_salt(mut self, salt: [u8; 32]) -> Request {
        self.cache_salt = Some(salt);
        self
    }

    /// A number of the caller's, which [`Generation::id`](crate::engine::Generation::id) gives back.
    pub fn id(mut self, id: u64) -> Request {
        self.id = Some(id);
        self
    }

    pub(super) fn prompt(&self) -> &Prompt {
        &self.prompt
    }

    #[cfg(feature = "text")]
    pub(super) fn salt(&self) -> Option<[u8; 32]> {
        self.cache_salt
    }

    #[cfg(feature = "text")]
    pub(super) fn special(&self) -> Special {
        self.special
    }

    #[cfg(feature = "text")]
    pub(super) fn options(&self) -> RenderOptions {
        let mut options = self.template.as_deref().cloned().unwrap_or_default();
        if !self.tools.list.is_empty() {
            options.tools = Some(self.tools.list.iter().map(Tool::to_json).collect());
        }
        options
    }

    /// Whether something says already which tokens may come.
    #[cfg(feature = "constraints")]
    pub(super) fn has_mask(&self) -> bool {
        self.mask.is_some()
    }

    #[cfg(feature = "text")]
    pub(super) fn given_tools(&self) -> &Tools {
        &self.tools
    }

    #[cfg(feature = "text")]
    pub(super) fn keeps_tools(&self) -> bool {
        self.keeps_tools
    }

    #[cfg(feature = "text")]
    pub(super) fn that_keeps_tools(mut self) -> Request {
        self.keeps_tools = true;
        self
    }

    /// Refuses what would otherwise be left out without a word.
    #[cfg(feature = "text")]
    pub(super) fn check(&self) -> Result<(), SubmitError> {
        let (is_text, is_chat) =
            (matches!(self.prompt, Prompt::Text(_)), matches!(self.prompt, Prompt::Chat(_)));
        if self.template.is_some() && !is_chat {
            return Err(SubmitError::invalid("template", "expected messages to render, found none"));
        }
        if self.special == Special::Parse && !is_text {
            return Err(SubmitError::invalid(
                "parse_control_tokens",
                "expected a text, found another prompt",
            ));
        }
        if !self.tools.list.is_empty() && !is_chat {
            return Err(SubmitError::invalid("tools", "expected messages to answer, found none"));
        }
        self.tools.check().map_err(no_tools)?;
        match &self.prompt {
            Prompt::Chat(messages) if messages.is_empty() => {
                Err(SubmitError::invalid("messages", "expected at least 1, found none"))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn into_token_request(self, prompt: Vec<TokenId>, vocab: &Arc<Vocab>) -> TokenRequest {
        let mut request = TokenRequest::new(prompt, self.max_tokens);
        request.sampling = self.sampling;
        request.stop_ids = if self.ignore_eos { Vec::new() } else { vocab.stop_ids().to_vec() };
        request.stop_strings = self.stop;
        request.window = self.window;
        request.text = Some(Arc::clone(vocab));
        request.show_control_tokens = self.show_control_tokens;
        request.top = self.top_logprobs;
        request.mask = self.mask.map(|make| make());
        request.deadline = self.deadline;
        request.priority = self.priority;
        request.cache_salt = self.cache_salt;
        request.id = self.id;
        request
    }
}

/// Counts, not what users wrote.
impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (what, count) = match &self.prompt {
            Prompt::Tokens(ids) => ("tokens", ids.len()),
            #[cfg(feature = "text")]
            Prompt::Text(text) => ("bytes", text.len()),
            #[cfg(feature = "text")]
            Prompt::Chat(messages) => ("messages", messages.len()),
        };
        let mut told = f.debug_struct("Request");
        told.field(what, &count).field("max_tokens", &self.max_tokens).field("id", &self.id);
        told.finish_non_exhaustive()
    }
}

/// Tools that are no tools, as an error of the request.
#[cfg(feature = "text")]
pub(super) fn no_tools(error: ToolError) -> SubmitError {
    match error.field.as_str() {
        "tool_choice" => SubmitError::invalid("tool_choice", error.message),
        "tools" => SubmitError::invalid("tools", error.message),
        _ => SubmitError::invalid("tools", error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn setters_come_in_any_order_and_none_undoes_another() {
        let setters: [fn(Request) -> Request; 11] = [
            |request| request.temperature(0.5),
            |request| request.top_k(3),
            |request| request.top_p(0.9),
            |request| request.min_p(0.1),
            |request| request.repetition_penalty(1.5),
            |request| request.presence_penalty(2.5),
            |request| request.frequency_penalty(3.5),
            |request| request.penalty_last_n(7),
            |request| request.logit_bias([(TokenId(4), -1.0)]),
            |request| request.seed(8),
            |request| request.stop(["a", "b"]).max_tokens(9),
        ];
        let expected = Sampling {
            temperature: 0.5,
            top_k: 3,
            top_p: 0.9,
            min_p: 0.1,
            repetition_penalty: 1.5,
            presence_penalty: 2.5,
            frequency_penalty: 3.5,
            penalty_last_n: 7,
            logit_bias: vec![(TokenId(4), -1.0)],
            seed: 8,
        };
        let plain = Request::tokens(vec![TokenId(1)]);
        let forwards = setters.iter().fold(plain.clone(), |request, set| set(request));
        let backwards = setters.iter().rev().fold(plain, |request, set| set(request));
        for request in [forwards, backwards] {
            assert_eq!(request.sampling, expected);
            assert_eq!((request.stop, request.max_tokens), (vec!["a".to_owned(), "b".into()], 9));
        }
    }

    #[cfg(feature = "text")]
    #[test]
    fn what_users_wrote_is_not_printed() {
        let secret = "my own words";
        let chat = Request::chat([Message::new("user", secret)]).id(5);
        assert_eq!(format!("{chat:?}"), "Request { messages: 1, max_tokens: 256, id: Some(5), .. }");
        let text = Request::text(secret).stop([secret]);
        assert_eq!(format!("{text:?}"), "Request { bytes: 12, max_tokens: 256, id: None, .. }");
    }
}
