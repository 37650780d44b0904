//! The API for embedding in programs: an [`InferenceEngine`] built from a model file, requests, and streams
//! of text; an [`Embedder`] for vectors of texts.
//!
//! The backend's type is erased here: below, everything is generic over [`crate::backend::Backend`] and
//! compiled for one; above, an [`InferenceEngine`] is a plain handle. Scheduling is in [`crate::engine`].
//!
//! ```no_run
//! # #[cfg(feature = "text")]
//! # fn main() -> ottava::Result<()> {
//! use ottava::{Engine, Request, text::Message};
//!
//! let engine = Engine::builder("model.gguf").build()?;
//! let request = Request::chat([Message::new("user", "What is gravity?")]).max_tokens(64);
//! let answer = engine.submit(request)?.text()?;
//! println!("{} ({}, {} tokens)", answer.text, answer.finish, answer.usage.completion_tokens);
//! # Ok(()) }
//! # #[cfg(not(feature = "text"))]
//! # fn main() {}
//! ```

#![forbid(unsafe_code)]

mod builder;
#[cfg(feature = "text")]
mod chat;
#[cfg(feature = "text")]
mod chat_prompt;
mod device;
mod embedder;
mod load;
mod prepare;
mod request;
mod sidecar;
mod text_pipeline;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

pub use builder::EngineBuilder;
use builder::Source;
#[cfg(feature = "text")]
pub use chat::ChatAnswer;
pub use device::{Device, DeviceInfo};
pub use embedder::{EmbedInput, EmbedOptions, Embedder, EmbedderBuilder, EmbedderInfo, Embeddings};
pub use prepare::Prepared;
use request::Prompt;
pub use request::Request;

#[doc(hidden)]
pub use crate::backend::cpu::PrefetchHint;
pub use crate::backend::cpu::{Compute, Isa, THREADS_MAX};
pub use crate::backend::{DeviceHealth, NoHealth, Throttle};
pub use crate::embed::EmbedError;
pub use crate::ir::{KvDtype, PAGE_TOKENS, Window};
pub use crate::model::{DecoderMemory, KvBudget, LoadProgress, Pooling, SidecarUse};
pub use crate::quant::{Quality, QuantFormat};

#[cfg(feature = "constraints")]
use crate::constrain::{Constraint, ConstraintError, Constraints, Grammar};
use crate::{
    Result, TokenId,
    backend::Monitor,
    engine::{CacheEvents, Drained, EngineState, Generation, Handle, Profile, ScoreOptions, Scores, Stats},
    model::{ModelConfig, OwnModel},
    text::Vocab,
};
#[cfg(feature = "text")]
use crate::{
    chat::ReasoningState,
    engine::SubmitError,
    text::{ChatTemplate, Tokenizer},
};

/// A loaded model with its scheduler: cheap to clone, shared between threads.
///
/// Dropping the last clone stops the engine's thread after its step, without waiting. Running generations end
/// with an error, and the memory is freed a little later. [`InferenceEngine::drain`] ends an engine in order
/// and waits. Drain before a process exits: after a mere drop, a GPU's driver may still be at work.
#[derive(Clone)]
pub struct InferenceEngine {
    handle: Handle,
    shared: Arc<Shared>,
}

/// Prints one line: a vocabulary has megabytes.
impl std::fmt::Debug for InferenceEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let EngineInfo { name, device_name, .. } = self.info();
        let mut told = f.debug_struct("InferenceEngine");
        told.field("model", name)
            .field("device", device_name)
            .field("handle", &self.handle)
            .finish_non_exhaustive()
    }
}

/// The short name of [`InferenceEngine`].
pub type Engine = InferenceEngine;

struct Shared {
    info: EngineInfo,
    config: Option<ModelConfig>,
    monitor: std::result::Result<Arc<dyn Monitor>, NoHealth>,
    vocab: Arc<Vocab>,
    #[cfg(feature = "text")]
    tokenizer: Arc<Tokenizer>,
    /// Built for the first grammar.
    #[cfg(feature = "constraints")]
    constraints: std::sync::OnceLock<std::result::Result<Constraints, ConstraintError>>,
    #[cfg(feature = "text")]
    template: Option<ChatTemplate>,
    #[cfg(feature = "text")]
    format: crate::chat::ChatFormat,
    /// The control tokens that are markers of `format`; found for the first chat.
    #[cfg(feature = "text")]
    markers: std::sync::OnceLock<Vec<TokenId>>,
}

/// Facts about a loaded engine: its model, device, memory and limits.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct EngineInfo {
    /// The model file; empty for a custom graph.
    pub path: PathBuf,
    /// `general.name` of the file, else the file's stem.
    pub name: String,
    /// The device; never [`Device::Auto`].
    pub device: Device,
    /// The device and its modes, in one line.
    pub device_name: String,
    /// Why it is not a GPU, if [`Device::Auto`] preferred one.
    pub fallback: Option<String>,
    /// Worker threads of a CPU backend, including the engine's own; 0 without a CPU backend.
    pub threads: usize,
    /// Bytes of the model file.
    pub file_bytes: u64,
    /// Hash of the weights, their formats, the KV layout and the backend's arithmetic, in hexadecimal
    /// digits. Of a large file it samples the tensors. Engines with equal fingerprints compute equal keys
    /// and values.
    pub fingerprint: String,
    /// Bytes of weights, intermediates, and keys and values, in the backend's form.
    pub memory: DecoderMemory,
    /// Bytes of weights that one decode step reads.
    pub step_weight_bytes: usize,
    /// Parameters, counted over all tensors.
    pub parameters: u64,
    /// Pages of the KV cache, of [`PAGE_TOKENS`] tokens each.
    pub kv_pages: usize,
    /// Context length that the model was trained for, in tokens; for a custom graph the granted one.
    pub context_trained: usize,
    /// Most sequences at work at once.
    pub sequences_max: usize,
    /// Most tokens of one sequence.
    pub context_max: usize,
    /// Use of the sidecar file with packed weights.
    pub sidecar: SidecarUse,
    /// Defects of the file and how they were handled, one line each; each names the file.
    pub warnings: Vec<String>,
    /// Wall time from opening the file to being ready, in seconds.
    pub load_seconds: f64,
}

impl InferenceEngine {
    /// Options of an engine for a model: a GGUF file, or with the feature `safetensors` a Hugging Face folder
    /// (`config.json` next to safetensors files).
    pub fn builder(model: impl Into<PathBuf>) -> EngineBuilder {
        EngineBuilder::new(Source::File(model.into()))
    }

    /// Options of an engine for a custom graph with its weights. Requests are token ids: there is neither a
    /// tokenizer nor a chat template.
    #[cfg(feature = "unstable")]
    pub fn builder_of(model: OwnModel) -> EngineBuilder {
        EngineBuilder::new(Source::Own(Arc::new(model)))
    }

    /// Queues a request, or a [`Prepared`] one, and returns the stream of its events.
    ///
    /// # Errors
    /// [`crate::Error::Submit`] if the queue is full, or the request is invalid or too long;
    /// [`crate::Error::Text`] or [`crate::Error::NoChatTemplate`] if its text cannot be made into tokens.
    pub fn submit(&self, request: impl Into<Request>) -> Result<Generation> {
        let prepared = self.prepare(request)?;
        Ok(self.handle.submit(prepared.into_token_request(&self.shared.vocab))?)
    }

    /// The token ids of a request's prompt. Names of control tokens become those tokens where the chat
    /// template writes them, and in a text with [`Request::parse_control_tokens`]; never in the content of
    /// messages. A prompt beyond the context is refused early, by the length of its text. A text of any
    /// length that fits has the ids of [`Tokenizer::encode`].
    ///
    /// # Errors
    /// As [`InferenceEngine::submit`].
    #[cfg(feature = "text")]
    pub fn prompt_ids(&self, request: &Request) -> Result<Vec<TokenId>> {
        Ok(self.encode(request)?.0)
    }

    /// The token ids of a request's prompt, and the state of the reasoning at the end of its text.
    #[cfg(feature = "text")]
    fn encode(&self, request: &Request) -> Result<(Vec<TokenId>, ReasoningState)> {
        use crate::text::AddBos;
        request.check()?;
        let (tokenizer, context_max) = (&self.shared.tokenizer, self.shared.info.context_max);
        let format = self.chat_format();
        match &request.prompt {
            Prompt::Encoded(prompt) => Ok((prompt.ids.clone(), prompt.reasoning)),
            Prompt::Tokens(ids) if ids.len() > context_max => self.refuse(ids.len()),
            Prompt::Tokens(ids) => Ok((ids.clone(), ReasoningState::NotStarted)),
            Prompt::Text(text) => {
                let ids = tokenizer.encode_within(text, request.special(), AddBos::AsModel, context_max);
                Ok((self.fitting(ids)?, format.reasoning_after(text)))
            }
            Prompt::Chat(messages) => {
                // A template writes the text of all messages, so its length gives a lower bound before the
                // template runs.
                let bytes = messages.iter().map(|message| message.content.text_bytes()).sum();
                let least = tokenizer.least_tokens(bytes);
                if least > context_max {
                    return self.refuse(least);
                }
                if let Some(what) = self.template()?.unknown_role(messages) {
                    return Err(SubmitError::invalid("messages", what).into());
                }
                let prompt = self.chat_prompt(request, messages)?;
                let bos = self.bos_unless_written(&prompt);
                let ids = self.fitting(tokenizer.encode_prompt_within(&prompt, bos, context_max))?;
                let reasoning = match messages.last().filter(|_| request.continues()) {
                    Some(last) => format.reasoning_within(&last.content.to_text(), prompt.text()),
                    None => format.reasoning_after(prompt.text()),
                };
                Ok((ids, reasoning))
            }
        }
    }

    /// The ids of a prompt, or the error if it does not fit in the context.
    #[cfg(feature = "text")]
    fn fitting(
        &self,
        ids: std::result::Result<Vec<TokenId>, crate::text::TextError>,
    ) -> Result<Vec<TokenId>> {
        match ids {
            Err(crate::text::TextError::TooLong { at_least, .. }) => self.refuse(at_least),
            ids => Ok(ids?),
        }
    }

    /// The error of a prompt that does not fit in the context.
    #[cfg(feature = "text")]
    fn refuse<T>(&self, tokens: usize) -> Result<T> {
        Err(SubmitError::TooLong { tokens, context_max: self.shared.info.context_max }.into())
    }

    /// The token ids of a request's prompt.
    ///
    /// # Errors
    /// As [`InferenceEngine::submit`].
    #[cfg(not(feature = "text"))]
    pub fn prompt_ids(&self, request: &Request) -> Result<Vec<TokenId>> {
        Ok(match &request.prompt {
            Prompt::Tokens(ids) => ids.clone(),
            Prompt::Encoded(prompt) => prompt.ids.clone(),
        })
    }

    /// A template usually writes the BOS itself; it must not come twice.
    #[cfg(feature = "text")]
    fn bos_unless_written(&self, prompt: &crate::text::ChatPrompt) -> crate::text::AddBos {
        let vocab = &self.shared.vocab;
        let bos = vocab.bos().and_then(|id| vocab.piece(id));
        match bos {
            Some(bos) if prompt.starts_with(bos) => crate::text::AddBos::No,
            _ => crate::text::AddBos::AsModel,
        }
    }

    /// Renders messages by the model's chat template, with the generation prompt, as a text for inspection.
    /// Requests do not use this text, because it lacks the author of each part; see [`Request::chat`].
    ///
    /// # Errors
    /// [`crate::Error::NoChatTemplate`], [`crate::Error::Text`].
    #[cfg(feature = "text")]
    pub fn render_chat(&self, messages: &[crate::text::Message]) -> Result<String> {
        let template = self.template()?;
        Ok(template.render(&template.adapt(messages), &crate::text::RenderOptions::default())?)
    }

    #[cfg(feature = "text")]
    fn template(&self) -> Result<&ChatTemplate> {
        let missing = || crate::Error::NoChatTemplate { model: self.shared.info.name.clone() };
        self.shared.template.as_ref().ok_or_else(missing)
    }

    /// Negative log-likelihoods (natural log) of `ids[1..]`, and the `top` best logits after each
    /// prefix; see [`crate::engine::Handle::score`].
    ///
    /// # Errors
    /// [`crate::Error::Engine`]; [`crate::Error::kind`] gives its kind.
    pub fn score(&self, ids: &[TokenId], top: usize) -> Result<Scores> {
        Ok(self.handle.score(ids, top)?)
    }

    /// [`InferenceEngine::score`] with all options, such as a cache salt and a flag that cancels it.
    ///
    /// # Errors
    /// As [`InferenceEngine::score`], and [`EngineError::Cancelled`](crate::engine::EngineError::Cancelled).
    pub fn score_with(&self, ids: &[TokenId], options: ScoreOptions) -> Result<Scores> {
        Ok(self.handle.score_with(ids, options)?)
    }

    /// Negative log-likelihoods of `ids[first + 1..]` only, each given all ids before it.
    ///
    /// # Errors
    /// As [`InferenceEngine::score`].
    pub fn score_from(&self, ids: &[TokenId], first: usize) -> Result<Vec<f64>> {
        Ok(self.handle.score_from(ids, first, 0)?.nll)
    }

    /// The log-probability (natural log) of each label as the answer to a request, for classification. With
    /// prefix sharing, the whole pages of the prompt are computed once for all labels. Each label is text
    /// after the prompt. The end of the answer is not counted, so a label that is the beginning of another is
    /// more likely than it. Only the request's prompt, template and cache salt are used, not its sampling and
    /// stop options.
    ///
    /// # Errors
    /// [`crate::Error::Submit`] if there is no label, a label has no token, or the prompt has none; otherwise
    /// as [`InferenceEngine::submit`] and [`InferenceEngine::score`].
    #[cfg(feature = "text")]
    pub fn choose(&self, request: &Request, labels: &[&str]) -> Result<Vec<f64>> {
        use crate::text::{AddBos, Special};
        let prompt = self.prompt_ids(request)?;
        let Some(last) = prompt.len().checked_sub(1) else {
            return Err(SubmitError::invalid("prompt", "expected at least 1 token, found none").into());
        };
        let invalid = |message: String| crate::Error::from(SubmitError::invalid("labels", message));
        if labels.is_empty() {
            return Err(invalid("expected at least 1, found none".into()));
        }
        let score = |label: &&str| {
            let ids = self.tokenizer().encode(label, Special::Text, AddBos::No)?;
            if ids.is_empty() {
                return Err(invalid(format!("expected texts of at least 1 token, found {label:?}")));
            }
            let all = [&prompt[..], &ids].concat();
            let options = ScoreOptions { first: last, cache_salt: request.salt(), ..ScoreOptions::default() };
            let scores = self.handle.score_with(&all, options)?;
            Ok(-scores.nll.iter().sum::<f64>())
        };
        labels.iter().map(score).collect()
    }

    /// The model's vocabulary.
    pub fn vocab(&self) -> &Arc<Vocab> {
        &self.shared.vocab
    }

    /// The model's tokenizer.
    #[cfg(feature = "text")]
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.shared.tokenizer
    }

    /// The grammar compiler for the model's vocabulary. The first call builds it, which takes a moment; it is
    /// shared.
    ///
    /// # Errors
    /// [`crate::Error::Constraint`] if the vocabulary is unsuitable.
    #[cfg(feature = "constraints")]
    pub fn constraints(&self) -> Result<&Constraints> {
        let build = || Constraints::new(Arc::clone(&self.shared.tokenizer));
        Ok(self.shared.constraints.get_or_init(build).as_ref().map_err(Clone::clone)?)
    }

    /// Compiles a grammar for [`Request::mask`]. The engine caches recently used grammars; a new one may take
    /// a second.
    ///
    /// # Errors
    /// [`crate::Error::Constraint`] with the grammar's defect.
    #[cfg(feature = "constraints")]
    pub fn constrain(&self, grammar: &Grammar) -> Result<Constraint> {
        Ok(self.constraints()?.compile(grammar)?)
    }

    /// Whether [`Request::chat`] works with this model.
    #[cfg(feature = "text")]
    pub fn has_chat_template(&self) -> bool {
        self.shared.template.is_some()
    }

    /// Facts about the loaded engine.
    pub fn info(&self) -> &EngineInfo {
        &self.shared.info
    }

    /// The model's hyperparameters; `None` for [a custom graph](InferenceEngine::builder_of).
    #[cfg(feature = "unstable")]
    pub fn config(&self) -> Option<&ModelConfig> {
        self.shared.config.as_ref()
    }

    /// The engine's state: running, draining, stopped, or failed with its cause. Routers and health checks
    /// may poll it at any rate: it calls no driver, unlike [`InferenceEngine::health`].
    pub fn state(&self) -> EngineState {
        self.handle.state()
    }

    /// Drains and ends the engine; see [`crate::engine::Handle::drain`].
    pub fn drain(&self, until: Instant) -> Drained {
        self.handle.drain(until)
    }

    /// The reader of cache changes, for routers; `None` if
    /// [`EngineConfig::cache_events`](crate::engine::EngineConfig::cache_events) is 0.
    pub fn cache_events(&self) -> Option<CacheEvents> {
        self.handle.cache_events()
    }

    /// Counters and gauges since the start.
    pub fn stats(&self) -> Stats {
        self.handle.stats()
    }

    /// Starts a profile of all requests' steps; see [`crate::engine::Handle::start_profile`].
    ///
    /// # Errors
    /// [`crate::Error::Engine`] if the engine is overloaded or has stopped.
    pub fn start_profile(&self) -> Result<()> {
        Ok(self.handle.start_profile()?)
    }

    /// Ends the profile and returns it; it is empty if none was started.
    ///
    /// # Errors
    /// [`crate::Error::Engine`] if the engine is overloaded or has stopped.
    pub fn take_profile(&self) -> Result<Profile> {
        Ok(self.handle.take_profile()?)
    }

    /// The device's health: temperature, power, memory, clocks, errors. The calling thread queries the
    /// driver, which takes milliseconds; the engine continues meanwhile.
    ///
    /// # Errors
    /// [`NoHealth`] with the reason if the health is not available, or if the device is lost.
    pub fn health(&self) -> std::result::Result<DeviceHealth, NoHealth> {
        self.shared.monitor.as_ref().map_err(Clone::clone)?.health()
    }

    /// Recounts the KV cache's accounting; see [`crate::engine::Handle::check_integrity`].
    ///
    /// # Errors
    /// [`crate::Error::Engine`] if the accounting is inconsistent, or the engine is overloaded or has
    /// stopped.
    pub fn check_integrity(&self) -> Result<()> {
        Ok(self.handle.check_integrity()?)
    }

    /// Computes a prompt's keys and values and saves them to `path`. The calling thread writes the file, so a
    /// slow disk delays no other request.
    ///
    /// # Errors
    /// [`crate::Error::Engine`] if the file cannot be written; otherwise as [`InferenceEngine::submit`].
    pub fn save_prompt(&self, ids: &[TokenId], path: &Path) -> Result<()> {
        Ok(self.handle.save(ids, path)?)
    }

    /// Restores a file of [`InferenceEngine::save_prompt`]: a request that begins with those tokens does not
    /// compute them again. Returns the number of tokens.
    ///
    /// # Errors
    /// [`crate::Error::Engine`] if the file is damaged, belongs to another model or does not fit in
    /// the cache; nothing changes then.
    pub fn restore_prompt(&self, path: &Path) -> Result<usize> {
        Ok(self.handle.restore(path)?)
    }
}
