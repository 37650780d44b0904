//! A request as people write it; the engine's own form is [`TokenRequest`].

use std::sync::Arc;

use crate::TokenId;
use crate::engine::TokenRequest;
use crate::ir::Window;
use crate::sample::Sampling;
use crate::text::Vocab;

/// What to continue.
#[cfg(feature = "text")]
#[derive(Clone, Debug)]
pub(super) enum Prompt {
    Tokens(Vec<TokenId>),
    Text(String),
    Chat(Vec<crate::text::Message>, Box<crate::text::RenderOptions>),
}

/// Without the `text` feature a prompt is token ids.
#[cfg(not(feature = "text"))]
type Prompt = Vec<TokenId>;

/// What to generate and how. At first: greedy, at most 256 tokens, until the model ends its turn.
#[derive(Clone, Debug)]
pub struct Request {
    prompt: Prompt,
    max_tokens: usize,
    sampling: Sampling,
    stop: Vec<String>,
    ignore_eos: bool,
    window: Option<Window>,
    top_logprobs: Option<usize>,
}

impl Request {
    /// Continues token ids as they are; nothing is added.
    pub fn tokens(ids: Vec<TokenId>) -> Request {
        #[cfg(feature = "text")]
        let ids = Prompt::Tokens(ids);
        Request::new(ids)
    }

    /// Continues a text without a template (with the BOS that the model asks for). The names of control
    /// tokens in it, such as `<|im_end|>`, are those tokens: whoever writes a raw prompt writes all of it.
    /// What other people type belongs into [`Request::chat`].
    #[cfg(feature = "text")]
    pub fn text(text: impl Into<String>) -> Request {
        Request::new(Prompt::Text(text.into()))
    }

    /// Answers messages, rendered by the model's chat template. Nothing in a message is a control token,
    /// whatever it spells: only the template writes those.
    #[cfg(feature = "text")]
    pub fn chat(messages: Vec<crate::text::Message>) -> Request {
        Request::chat_with(messages, crate::text::RenderOptions::default())
    }

    /// The same with tools and further variables for the template, which count as messages do.
    #[cfg(feature = "text")]
    pub fn chat_with(messages: Vec<crate::text::Message>, options: crate::text::RenderOptions) -> Request {
        Request::new(Prompt::Chat(messages, Box::new(options)))
    }

    fn new(prompt: Prompt) -> Request {
        Request {
            prompt,
            max_tokens: 256,
            sampling: Sampling::default(),
            stop: Vec::new(),
            ignore_eos: false,
            window: None,
            top_logprobs: None,
        }
    }

    /// Most tokens to generate.
    pub fn max_tokens(mut self, tokens: usize) -> Request {
        self.max_tokens = tokens;
        self
    }

    /// All sampling parameters at once.
    pub fn sampling(mut self, sampling: Sampling) -> Request {
        self.sampling = sampling;
        self
    }

    /// Seed of the random numbers; equal seeds replay bit-equal.
    pub fn seed(mut self, seed: u64) -> Request {
        self.sampling.seed = seed;
        self
    }

    /// Temperature; 0 is greedy.
    pub fn temperature(mut self, temperature: f32) -> Request {
        self.sampling.temperature = temperature;
        self
    }

    /// Ends the answer before any of these texts.
    pub fn stop(mut self, texts: Vec<String>) -> Request {
        self.stop = texts;
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

    pub(super) fn prompt(&self) -> &Prompt {
        &self.prompt
    }

    pub(super) fn into_token_request(self, prompt: Vec<TokenId>, vocab: &Arc<Vocab>) -> TokenRequest {
        TokenRequest {
            prompt,
            max_tokens: self.max_tokens,
            sampling: self.sampling,
            stop_ids: if self.ignore_eos { Vec::new() } else { vocab.stop_ids().to_vec() },
            stop_strings: self.stop,
            window: self.window,
            text: Some(Arc::clone(vocab)),
            top: self.top_logprobs,
            mask: None,
        }
    }
}
