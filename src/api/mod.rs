//! What people embed: an [`InferenceEngine`] built from a model file, requests, and streams of text.
//!
//! This is where the backend's type is erased: below, everything is generic over
//! [`crate::backend::Backend`] and compiled for one; above, an [`InferenceEngine`] is a plain handle. The
//! scheduling itself is in [`crate::engine`].
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
mod device;
mod keep;
mod load;
mod request;
mod texts;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

pub use builder::EngineBuilder;
use builder::Source;
#[cfg(feature = "text")]
pub use chat::ChatAnswer;
pub use device::{Device, DeviceInfo};
use request::Prompt;
pub use request::Request;

#[doc(hidden)]
pub use crate::backend::cpu::PrefetchHint;
pub use crate::backend::cpu::{Compute, Isa, THREADS_MAX};
pub use crate::backend::{DeviceHealth, NoHealth, Throttle};
pub use crate::ir::{KvDtype, PAGE_TOKENS, Window};
pub use crate::model::{DecoderMemory, KvBudget, LoadProgress, SidecarUse};
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
    engine::SubmitError,
    text::{ChatTemplate, Tokenizer},
};

/// A loaded model with its scheduler: cheap to clone, shared between threads.
///
/// Dropping the last clone stops the engine's thread after its step, and waits for nothing; generations still
/// running end with an error, and the memory is given back a little later. [`InferenceEngine::drain`] ends an engine
/// in order and waits. A process that ends right after a drop may end while a GPU's driver is at work: drain first.
#[derive(Clone)]
pub struct InferenceEngine {
    handle: Handle,
    shared: Arc<Shared>,
}

/// In one line: a vocabulary has megabytes.
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
    /// Made when a grammar first comes.
    #[cfg(feature = "constraints")]
    constraints: std::sync::OnceLock<std::result::Result<Constraints, ConstraintError>>,
    #[cfg(feature = "text")]
    template: Option<ChatTemplate>,
    #[cfg(feature = "text")]
    format: crate::chat::ChatFormat,
    /// The control tokens that are markers of that format; found when a chat first comes.
    #[cfg(feature = "text")]
    markers: std::sync::OnceLock<Vec<TokenId>>,
}

/// What was loaded and granted, where, and how much memory it takes.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct EngineInfo {
    /// The model file; empty for a graph of one's own.
    pub path: PathBuf,
    /// `general.name` of the file, else the file's stem.
    pub name: String,
    /// The device; never [`Device::Auto`].
    pub device: Device,
    /// The device and its modes, in one line.
    pub device_name: String,
    /// Why it is not a GPU, where [`Device::Auto`] would have taken one.
    pub fallback: Option<String>,
    /// Worker threads of a CPU backend, the engine's own included; 0 where there are none.
    pub threads: usize,
    /// Bytes of the model file.
    pub file_bytes: u64,
    /// Bytes of weights, intermediates, and keys and values, as the backend keeps them.
    pub memory: DecoderMemory,
    /// Bytes of weights that one decode step reads.
    pub step_weight_bytes: usize,
    /// Parameters, counted over all tensors.
    pub parameters: u64,
    /// Pages of the KV cache, of [`PAGE_TOKENS`] tokens each.
    pub kv_pages: usize,
    /// Most tokens of one sequence that the model was made for; for a graph of one's own what was granted.
    pub context_trained: usize,
    /// Most sequences at work at once.
    pub sequences_max: usize,
    /// Most tokens of one sequence.
    pub context_max: usize,
    /// What became of the file of packed weights.
    pub sidecar: SidecarUse,
    /// What the file says badly and what was made of it, a line each; each names the file.
    pub warnings: Vec<String>,
    /// Wall time from opening the file to being ready, in seconds.
    pub load_seconds: f64,
}

impl InferenceEngine {
    /// Starts describing an engine of a model: a GGUF file, or with the feature `safetensors` a Hugging Face folder
    /// (`config.json` beside safetensors files).
    pub fn builder(model: impl Into<PathBuf>) -> EngineBuilder {
        EngineBuilder::new(Source::File(model.into()))
    }

    /// Starts describing an engine of a graph of one's own with its weights. Requests are token ids: there is neither
    /// a tokenizer nor a chat template.
    #[cfg(feature = "unstable")]
    pub fn builder_of(model: OwnModel) -> EngineBuilder {
        EngineBuilder::new(Source::Own(Arc::new(model)))
    }

    /// Queues a request and gives the stream of its events.
    ///
    /// # Errors
    /// [`crate::Error::Submit`] if the queue is full, the request is invalid or too long;
    /// [`crate::Error::Text`] or [`crate::Error::NoChatTemplate`] if its text cannot be made into tokens.
    pub fn submit(&self, request: Request) -> Result<Generation> {
        let prompt = self.prompt_ids(&request)?;
        #[cfg(feature = "text")]
        let request = self.with_its_tools(request, &prompt)?;
        let vocab = &self.shared.vocab;
        Ok(self.handle.submit(request.into_token_request(prompt, vocab))?)
    }

    /// The token ids that a request's prompt becomes. The names of control tokens are those tokens where the template of
    /// a chat writes them, and in a text whose author [says so](Request::parse_control_tokens); never in what messages
    /// say. What is longer than the context is refused where that is seen, by the length of the text before any work;
    /// of a text of any length the ids are [`Tokenizer::encode`]'s.
    ///
    /// # Errors
    /// As [`InferenceEngine::submit`].
    #[cfg(feature = "text")]
    pub fn prompt_ids(&self, request: &Request) -> Result<Vec<TokenId>> {
        use crate::text::AddBos;
        request.check()?;
        let (tokenizer, context_max) = (&self.shared.tokenizer, self.shared.info.context_max);
        match request.prompt() {
            Prompt::Tokens(ids) if ids.len() > context_max => self.refuse(ids.len()),
            Prompt::Tokens(ids) => Ok(ids.clone()),
            Prompt::Text(text) => {
                self.fitting(tokenizer.encode_within(text, request.special(), AddBos::AsModel, context_max))
            }
            Prompt::Chat(messages) => {
                // A template writes a message's text, so the length of all of them says enough before it runs.
                let bytes = messages.iter().map(|message| message.content.text_bytes()).sum();
                let least = tokenizer.least_tokens(bytes);
                if least > context_max {
                    return self.refuse(least);
                }
                let template = self.template()?;
                if let Some(what) = template.unknown_role(messages) {
                    return Err(SubmitError::invalid("messages", what).into());
                }
                let mut options = request.options();
                if options.tools.is_some() && !template.knows_tools() {
                    if request.given_tools().choice != crate::chat::ToolChoice::None {
                        let message = "the model's chat template has no place for tools";
                        return Err(SubmitError::invalid("tools", message).into());
                    }
                    // None is to be called.
                    options.tools = None;
                }
                let prompt = template.prompt(&template.adapt(messages), &options)?;
                let bos = self.bos_unless_written(&prompt);
                self.fitting(tokenizer.encode_prompt_within(&prompt, bos, context_max))
            }
        }
    }

    /// The ids of a prompt, or the error of one that does not fit in the context.
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

    /// The token ids that a request's prompt becomes.
    ///
    /// # Errors
    /// As [`InferenceEngine::submit`].
    #[cfg(not(feature = "text"))]
    pub fn prompt_ids(&self, request: &Request) -> Result<Vec<TokenId>> {
        let Prompt::Tokens(ids) = request.prompt();
        Ok(ids.clone())
    }

    /// A template usually writes the BOS itself; then it must not come twice.
    #[cfg(feature = "text")]
    fn bos_unless_written(&self, prompt: &crate::text::ChatPrompt) -> crate::text::AddBos {
        let vocab = &self.shared.vocab;
        let bos = vocab.bos().and_then(|id| vocab.piece(id));
        match bos {
            Some(bos) if prompt.starts_with(bos) => crate::text::AddBos::No,
            _ => crate::text::AddBos::AsModel,
        }
    }

    /// Messages as the model's chat template writes them, generation prompt added: a text to look at.
    /// Requests do not go through it, because it does not say who wrote what; see [`Request::chat`].
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
    /// [`crate::Error::Engine`], whose [`crate::Error::kind`] says what is wrong.
    pub fn score(&self, ids: &[TokenId], top: usize) -> Result<Scores> {
        Ok(self.handle.score(ids, top)?)
    }

    /// [`InferenceEngine::score`] with all that may be said of it: among the cached prefixes of one salt, until a
    /// flag is set.
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

    /// The log-probability (natural log) of each label as the answer to a request, as if nothing else could be
    /// answered: classification. Where prefixes are shared, the whole pages of the prompt are computed once for all
    /// labels. A label is taken as text behind the prompt; its end is not counted, so labels that begin others are
    /// likelier than they. Of the request the prompt, the template and the cache salt count, and nothing of how
    /// tokens are chosen or where an answer ends.
    ///
    /// # Errors
    /// [`crate::Error::Submit`] if there is no label, one has no token, or the prompt has none; else as
    /// [`InferenceEngine::submit`] and [`InferenceEngine::score`].
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

    /// What compiles grammars for the model's vocabulary: made the first time, which takes a moment, and shared.
    ///
    /// # Errors
    /// [`crate::Error::Constraint`] if the vocabulary cannot be used for that.
    #[cfg(feature = "constraints")]
    pub fn constraints(&self) -> Result<&Constraints> {
        let build = || Constraints::new(Arc::clone(&self.shared.tokenizer));
        Ok(self.shared.constraints.get_or_init(build).as_ref().map_err(Clone::clone)?)
    }

    /// Compiles a grammar for [`Request::mask`]. The engine keeps the grammars that were used last; a new one may take a
    /// second.
    ///
    /// # Errors
    /// [`crate::Error::Constraint`], which says what is wrong with the grammar.
    #[cfg(feature = "constraints")]
    pub fn constrain(&self, grammar: &Grammar) -> Result<Constraint> {
        Ok(self.constraints()?.compile(grammar)?)
    }

    /// Whether [`Request::chat`] works with this model.
    #[cfg(feature = "text")]
    pub fn has_chat_template(&self) -> bool {
        self.shared.template.is_some()
    }

    /// What was loaded.
    pub fn info(&self) -> &EngineInfo {
        &self.shared.info
    }

    /// The model's hyperparameters; none of [a graph of one's own](InferenceEngine::builder_of).
    #[cfg(feature = "unstable")]
    pub fn config(&self) -> Option<&ModelConfig> {
        self.shared.config.as_ref()
    }

    /// Whether the engine works, is being drained, has stopped, or has died and of what: for routers and health
    /// checks, at any rate. It asks no driver; [`InferenceEngine::health`] does.
    pub fn state(&self) -> EngineState {
        self.handle.state()
    }

    /// Ends the engine in order; see [`crate::engine::Handle::drain`].
    pub fn drain(&self, until: Instant) -> Drained {
        self.handle.drain(until)
    }

    /// What changes in the cache, for routers, if
    /// [`EngineConfig::cache_events`](crate::engine::EngineConfig::cache_events) keeps any of it.
    pub fn cache_events(&self) -> Option<CacheEvents> {
        self.handle.cache_events()
    }

    /// Counters and rates since the start.
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

    /// Ends the profile and gives it; it is empty if none was started.
    ///
    /// # Errors
    /// [`crate::Error::Engine`] if the engine is overloaded or has stopped.
    pub fn take_profile(&self) -> Result<Profile> {
        Ok(self.handle.take_profile()?)
    }

    /// How the device is: temperature, power, memory, clocks, errors. The calling thread asks the driver,
    /// which takes milliseconds; the engine goes on meanwhile.
    ///
    /// # Errors
    /// [`NoHealth`] says why it is not known, or that the device is lost.
    pub fn health(&self) -> std::result::Result<DeviceHealth, NoHealth> {
        self.shared.monitor.as_ref().map_err(Clone::clone)?.health()
    }

    /// Recounts the KV cache's accounting; see [`crate::engine::Handle::check_integrity`].
    ///
    /// # Errors
    /// [`crate::Error::Engine`] if the accounting contradicts itself, or the engine is overloaded or
    /// has stopped.
    pub fn check_integrity(&self) -> Result<()> {
        Ok(self.handle.check_integrity()?)
    }

    /// Computes a prompt's keys and values and saves them to `path`. The calling thread writes the
    /// file, so a slow disk holds up nobody else.
    ///
    /// # Errors
    /// [`crate::Error::Engine`] if the file cannot be written; as [`InferenceEngine::submit`] else.
    pub fn save_prompt(&self, ids: &[TokenId], path: &Path) -> Result<()> {
        Ok(self.handle.save(ids, path)?)
    }

    /// Brings back what [`InferenceEngine::save_prompt`] wrote: a request that begins with those tokens
    /// does not compute them again. Gives the number of tokens.
    ///
    /// # Errors
    /// [`crate::Error::Engine`] if the file is damaged, belongs to another model or does not fit in
    /// the cache; nothing changes then.
    pub fn restore_prompt(&self, path: &Path) -> Result<usize> {
        Ok(self.handle.restore(path)?)
    }
}
