//! [`Request`], the public form of a request; the engine's own form is [`TokenRequest`].

use std::sync::Arc;
use std::time::Instant;

use crate::TokenId;
#[cfg(feature = "constraints")]
use crate::constrain::Grammar;
use crate::engine::TokenRequest;
use crate::ir::Window;
use crate::sample::{Sampling, TokenMask};
use crate::text::Vocab;
#[cfg(feature = "text")]
use crate::{
    chat::{ChatFormat, ReasoningState, Tool, ToolError, Tools},
    engine::SubmitError,
    text::{Message, RenderOptions, Special},
};

/// The prompt to continue.
#[derive(Clone)]
pub(super) enum Prompt {
    Tokens(Vec<TokenId>),
    #[cfg(feature = "text")]
    Text(String),
    #[cfg(feature = "text")]
    Chat(Vec<Message>),
    /// Encoded prompt of a prepared request.
    Encoded(Arc<EncodedPrompt>),
}

/// The token ids of a prompt, and the form of its answer.
pub(super) struct EncodedPrompt {
    pub(super) ids: Vec<TokenId>,
    #[cfg(feature = "text")]
    pub(super) format: ChatFormat,
    /// State of the reasoning at the end of the prompt's text.
    #[cfg(feature = "text")]
    pub(super) reasoning: ReasoningState,
    #[cfg(feature = "text")]
    pub(super) tools: Tools,
}

/// Makes a mask for each submission of its request.
type MakeMask = Arc<dyn Fn() -> Box<dyn TokenMask> + Send + Sync>;

/// A prompt, and how to generate its answer. Default: greedy, seed 0, at most 256 tokens, until the model
/// ends its turn; penalties are off and cover the last 64 tokens. Setters may be called in any order.
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
    pub(super) prompt: Prompt,
    #[cfg(feature = "text")]
    special: Special,
    #[cfg(feature = "text")]
    template: Option<Box<RenderOptions>>,
    #[cfg(feature = "text")]
    pub(super) tools: Tools,
    #[cfg(feature = "constraints")]
    pub(super) format: Option<Grammar>,
    show_control_tokens: Vec<TokenId>,
    max_tokens: usize,
    min_tokens: usize,
    sampling: Sampling,
    stop: Vec<String>,
    stop_tokens: Vec<TokenId>,
    include_stop: bool,
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

    /// Continues a text without a template, with a BOS if the model uses one. No part of the text becomes a
    /// control token, whatever it spells, unless [`Request::parse_control_tokens`] is set.
    #[cfg(feature = "text")]
    pub fn text(text: impl Into<String>) -> Request {
        Request::new(Prompt::Text(text.into()))
    }

    /// Answers messages, rendered by the model's chat template. No part of a message becomes a control token,
    /// whatever it spells: only the template writes those. An empty list, or a role that the template does
    /// not support, is refused.
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
            #[cfg(feature = "constraints")]
            format: None,
            show_control_tokens: Vec::new(),
            max_tokens: 256,
            min_tokens: 0,
            sampling: Sampling::default(),
            stop: Vec::new(),
            stop_tokens: Vec::new(),
            include_stop: false,
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

    /// Parses the names of control tokens in a [`Request::text`], such as `<|im_end|>`. For prompts written
    /// entirely by their author; other people's text belongs in [`Request::chat`]. Default: off.
    #[cfg(feature = "text")]
    pub fn parse_control_tokens(mut self) -> Request {
        self.special = Special::Parse;
        self
    }

    /// Options of the chat template other than the messages: tools, further variables, whether it begins the
    /// answer. They are treated as users' text.
    #[cfg(feature = "text")]
    pub fn template(mut self, options: RenderOptions) -> Request {
        self.template = Some(Box::new(options));
        self
    }

    /// Tools that the model may call. The chat template renders them; if it has no place for them, the system
    /// text, or else the user's first text, describes them. A tool choice that must be enforced is
    /// enforced, and [`InferenceEngine::answer`](crate::InferenceEngine::answer) parses the calls. If the
    /// request is submitted instead, calls stay in the text with their markers. Default: none.
    #[cfg(feature = "text")]
    pub fn tools(mut self, tools: Tools) -> Request {
        self.tools = tools;
        self
    }

    /// Grammar of the answer's visible text. Reasoning may precede the text, and calls of
    /// [`Request::tools`] may replace it; a [`Request::mask`] covers the whole answer instead. Default: none.
    #[cfg(feature = "constraints")]
    pub fn format(mut self, grammar: Grammar) -> Request {
        self.format = Some(grammar);
        self
    }

    /// Control tokens to show in the events' text, such as the
    /// [`InferenceEngine::marker_tokens`](crate::InferenceEngine::marker_tokens) for a parser. All others are
    /// hidden. Default: none.
    pub fn show_control_tokens(mut self, ids: impl IntoIterator<Item = TokenId>) -> Request {
        self.show_control_tokens = ids.into_iter().collect();
        self
    }

    /// Most tokens to generate. Default: 256.
    pub fn max_tokens(mut self, tokens: usize) -> Request {
        self.max_tokens = tokens;
        self
    }

    /// Number of tokens before which no end of turn or stop token is sampled, and within which no stop string
    /// ends. A mask or format may complete the answer sooner, and so may `max_tokens`. Default: 0.
    pub fn min_tokens(mut self, tokens: usize) -> Request {
        self.min_tokens = tokens;
        self
    }

    /// Seed of the random numbers; equal seeds replay bit-equal. Default: 0.
    pub fn seed(mut self, seed: u64) -> Request {
        self.sampling.seed = seed;
        self
    }

    /// Divides the logits; 0 is greedy. Range: 0 to 100. Default: 0.
    pub fn temperature(mut self, temperature: f32) -> Request {
        self.sampling.temperature = temperature;
        self
    }

    /// Top-k: keeps this many of the most likely tokens; 0 keeps all. Default: 0.
    pub fn top_k(mut self, tokens: usize) -> Request {
        self.sampling.top_k = tokens;
        self
    }

    /// Top-p: keeps the most likely tokens until their probability reaches this; 1 keeps all. Default: 1.
    pub fn top_p(mut self, probability: f32) -> Request {
        self.sampling.top_p = probability;
        self
    }

    /// Min-p: keeps tokens at least this likely relative to the most likely; 0 keeps all. Default: 0.
    pub fn min_p(mut self, ratio: f32) -> Request {
        self.sampling.min_p = ratio;
        self
    }

    /// Repetition penalty: divides positive and multiplies negative logits of the last tokens
    /// ([`Request::penalty_last_n`]), prompt included; 1 is off. Range: 0.01 to 100. Default: 1.
    pub fn repetition_penalty(mut self, factor: f32) -> Request {
        self.sampling.repetition_penalty = factor;
        self
    }

    /// Presence penalty: subtracted from the logits of tokens generated among the last ones
    /// ([`Request::penalty_last_n`]). Range: -100 to 100. Default: 0.
    pub fn presence_penalty(mut self, penalty: f32) -> Request {
        self.sampling.presence_penalty = penalty;
        self
    }

    /// Frequency penalty: subtracted for each time a token was generated among the last ones
    /// ([`Request::penalty_last_n`]). Range: -100 to 100. Default: 0.
    pub fn frequency_penalty(mut self, penalty: f32) -> Request {
        self.sampling.frequency_penalty = penalty;
        self
    }

    /// Number of last tokens, prompt included, that the penalties cover. Default: 64.
    pub fn penalty_last_n(mut self, tokens: usize) -> Request {
        self.sampling.penalty_last_n = tokens;
        self
    }

    /// Added to the logits of single tokens; negative infinity forbids a token. Default: none.
    pub fn logit_bias(mut self, biases: impl IntoIterator<Item = (TokenId, f32)>) -> Request {
        self.sampling.logit_bias = biases.into_iter().collect();
        self
    }

    /// Stop strings: the answer ends before the first of them, which
    /// [`Done::stop`](crate::engine::Done::stop) names. They do not count in tool calls. Default: none.
    pub fn stop<S: Into<String>>(mut self, texts: impl IntoIterator<Item = S>) -> Request {
        self.stop = texts.into_iter().map(Into::into).collect();
        self
    }

    /// Tokens that end the answer, in addition to the model's end-of-turn tokens;
    /// [`Done::end`](crate::engine::Done::end) has the one that did. Default: none.
    pub fn stop_tokens(mut self, ids: impl IntoIterator<Item = TokenId>) -> Request {
        self.stop_tokens = ids.into_iter().collect();
        self
    }

    /// Includes the stop string, or the text of the stop token, that ended the answer. Default: off.
    pub fn include_stop(mut self) -> Request {
        self.include_stop = true;
        self
    }

    /// Continues after the model's end-of-turn token, for benchmarks. Default: off.
    pub fn ignore_eos(mut self) -> Request {
        self.ignore_eos = true;
        self
    }

    /// Attends only to a sliding window with attention sinks; old pages are freed. Default: the whole
    /// context.
    pub fn window(mut self, window: Window) -> Request {
        self.window = Some(window);
        self
    }

    /// Reports the log-probabilities of each token and of the best `n` alternatives. Default: none.
    pub fn top_logprobs(mut self, n: usize) -> Request {
        self.top_logprobs = Some(n);
        self
    }

    /// Mask of allowed tokens. Each submission of the request uses its own clone. Default: none.
    pub fn mask(mut self, mask: impl TokenMask + Clone + Sync + 'static) -> Request {
        self.mask = Some(Arc::new(move || Box::new(mask.clone())));
        self
    }

    /// Time at which the answer ends at the latest: in the queue, in its prompt or among its tokens. The
    /// tokens generated until then are kept, and the finish reason is
    /// [`FinishReason::Deadline`](crate::engine::FinishReason::Deadline). It is checked between steps;
    /// [`Generation::recv_timeout`](crate::engine::Generation::recv_timeout) bounds a reader's wait exactly.
    /// Default: none.
    pub fn deadline(mut self, deadline: Instant) -> Request {
        self.deadline = Some(deadline);
        self
    }

    /// Higher priority is scheduled first and preempted last; ties by arrival. Default: 0.
    pub fn priority(mut self, priority: i8) -> Request {
        self.priority = priority;
        self
    }

    /// Prefix-cache salt: pages are shared only between requests with equal salts, such as those of one
    /// tenant. Without a salt, the time to the first token can reveal prompts of other users. Default: none.
    pub fn cache_salt(mut self, salt: [u8; 32]) -> Request {
        self.cache_salt = Some(salt);
        self
    }

    /// Id for the caller's use, returned by [`Generation::id`](crate::engine::Generation::id). Default: none.
    pub fn id(mut self, id: u64) -> Request {
        self.id = Some(id);
        self
    }

    #[cfg(feature = "text")]
    pub(super) fn salt(&self) -> Option<[u8; 32]> {
        self.cache_salt
    }

    #[cfg(feature = "text")]
    pub(super) fn special(&self) -> Special {
        self.special
    }

    /// Whether the answer continues the last message.
    #[cfg(feature = "text")]
    pub(super) fn continues(&self) -> bool {
        self.template.as_ref().is_some_and(|options| options.continue_final_message)
    }

    #[cfg(feature = "text")]
    pub(super) fn options(&self) -> RenderOptions {
        let mut options = self.template.as_deref().cloned().unwrap_or_default();
        if !self.tools.list.is_empty() {
            options.tools = Some(self.tools.list.iter().map(Tool::to_json).collect());
        }
        options
    }

    /// Whether a mask is set already.
    #[cfg(feature = "constraints")]
    pub(super) fn has_mask(&self) -> bool {
        self.mask.is_some()
    }

    /// Replaces the prompt together with the options of how to encode it.
    pub(super) fn with_prompt(self, prompt: Prompt) -> Request {
        Request {
            prompt,
            #[cfg(feature = "text")]
            special: Special::Text,
            #[cfg(feature = "text")]
            template: None,
            ..self
        }
    }

    /// Refuses options that would otherwise be ignored silently.
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
        #[cfg(feature = "constraints")]
        if self.format.is_some() && matches!(self.prompt, Prompt::Encoded(_)) {
            return Err(SubmitError::invalid("format", "expected none after `prepare`, found one"));
        }
        self.tools.check().map_err(no_tools)?;
        match &self.prompt {
            Prompt::Chat(messages) if messages.is_empty() => {
                Err(SubmitError::invalid("messages", "expected at least 1, found none"))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn into_token_request(self, prompt: Arc<EncodedPrompt>, vocab: &Arc<Vocab>) -> TokenRequest {
        // The last owner of the prompt gives its ids away.
        drop(self.prompt);
        let stop_scope = prompt.stop_scope(&self.stop);
        let ids = Arc::try_unwrap(prompt).map_or_else(|shared| shared.ids.clone(), |own| own.ids);
        let mut request = TokenRequest::new(ids, self.max_tokens);
        request.sampling = self.sampling;
        request.min_tokens = self.min_tokens;
        request.stop_ids = if self.ignore_eos { Vec::new() } else { vocab.stop_ids().to_vec() };
        request.stop_ids.extend(self.stop_tokens);
        request.stop_strings = self.stop;
        request.stop_scope = stop_scope;
        request.include_stop = self.include_stop;
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

/// Prints counts only: a prompt is a user's text.
impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (what, count) = match &self.prompt {
            Prompt::Tokens(ids) => ("tokens", ids.len()),
            Prompt::Encoded(prompt) => ("tokens", prompt.ids.len()),
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

/// The request error of invalid tools.
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
            ..Sampling::default()
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
