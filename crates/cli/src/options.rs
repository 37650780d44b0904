//! Options shared by several commands: model, device, memory and sampling.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use clap::builder::TypedValueParser;
use clap::{Args, ValueEnum};
use ottava::backend::cpu::{Compute, Isa, PrefetchHint};
use ottava::checkpoint::{self, Checkpoint, OpenOptions};
use ottava::ir::KvDtype;
use ottava::quant::QuantFormat;
use ottava::text::TextError;
use ottava::{Device, DeviceInfo, Engine, EngineBuilder, EngineConfig, KvBudget, Request};

use super::numbers::{CHUNK_MAX, MIB_MAX, THREADS_MAX, TOKENS_MAX, probability, real, whole};
use super::{Failure, catalog, fetch, input, output};

/// Share of a CPU's free memory for the KV cache of a server.
const KV_SHARE: f32 = 0.25;
/// Default of `-n`: maximum tokens per answer.
const MAX_TOKENS: usize = 512;
/// Maximum bytes of a stop text: the library's limit.
const STOP_BYTES_MAX: usize = 1024;

/// Model, device and memory options.
#[derive(Args, Clone)]
pub struct ModelOptions {
    /// GGUF file (any part of a split model), Hugging Face folder (config.json and safetensors), or name of a
    /// known model (see `ottava list`)
    #[arg(short, long, default_value = catalog::DEFAULT)]
    pub model: PathBuf,
    /// CPU threads, 1 to 1024 [default: one per physical core]
    #[arg(short, long, allow_hyphen_values = true, value_parser = whole(1, THREADS_MAX))]
    pub threads: Option<usize>,
    /// Maximum tokens of prompt and answer, up to the trained context [default: that context, at most 4096]
    #[arg(short = 'c', long = "ctx", allow_hyphen_values = true, value_parser = whole(1, TOKENS_MAX))]
    pub context: Option<usize>,
    /// Data type of the KV cache
    #[arg(long, value_enum, default_value_t = Kv::F16)]
    pub kv: Kv,
    /// Size of the KV cache in MiB [default: two full contexts, for `serve` a quarter of the free memory; on
    /// a GPU nine tenths of the free memory]
    #[arg(long, value_name = "MIB", allow_hyphen_values = true, value_parser = whole(1, MIB_MAX))]
    pub kv_budget: Option<usize>,
    /// Quantise float weights at load to FORMAT, such as w8g128 or w4g32 [default: as stored]
    #[arg(long, value_name = "FORMAT")]
    pub weights: Option<QuantFormat>,
    /// Data type of activations in matrix products on a CPU: int8 is fast, f32 exact
    #[arg(long, value_enum, default_value_t = ComputeMode::Int8)]
    pub compute: ComputeMode,
    /// Device: auto (a GPU if there is one), cpu, cuda or cuda:N
    #[arg(long, default_value = "auto")]
    pub device: Device,
    /// Maximum prompt tokens per step, 1 to 65536 [default: 256, on a GPU 2048]. Larger steps process prompts
    /// faster, take more memory, and delay the next token of running answers
    #[arg(long, value_name = "TOKENS", allow_hyphen_values = true, value_parser = whole(1, CHUNK_MAX))]
    pub prefill_chunk: Option<usize>,
    /// Make logits on a GPU independent of other requests, bit for bit, as on a CPU; prompts are slower
    #[arg(long)]
    pub batch_invariant: bool,
    /// CPU instruction set: portable, avx2, avxvnni, avx512, amx, dotprod or i8mm [default: best available]
    #[arg(long)]
    pub isa: Option<Isa>,
    /// Force the hint of a single token's weight prefetches: l2, nta
    #[arg(long, hide = true)]
    pub prefetch: Option<PrefetchHint>,
    /// Store packed weights in a file next to the model, or in DIR; later loads on a CPU read it
    #[arg(long, value_name = "DIR", num_args = 0..=1, require_equals = true)]
    pub sidecar: Option<Option<PathBuf>>,
    /// Chat template file (Jinja) to use instead of the model's own, for a model without one or with one that
    /// has no tools
    #[arg(long, value_name = "FILE")]
    pub chat_template: Option<PathBuf>,
    /// Memory-map the model and packed weights instead of reading them: packed weights load faster, and
    /// processes share them. Truncating or modifying a mapped file ends the program (SIGBUS) or gives wrong
    /// text
    #[arg(long, overrides_with = "no_mmap")]
    pub mmap: bool,
    /// Read the model and packed weights (default): a file that changes during the load is an error
    #[arg(long, overrides_with = "mmap")]
    pub no_mmap: bool,
}

/// `--kv`
#[derive(Clone, Copy, ValueEnum)]
pub enum Kv {
    /// Half precision
    F16,
    /// 8-bit integers, one scale per 32 elements
    Int8,
}

/// `--compute`
#[derive(Clone, Copy, ValueEnum)]
pub enum ComputeMode {
    /// 8-bit integer activations, one scale per 32 elements
    Int8,
    /// Single-precision activations
    F32,
}

impl ModelOptions {
    /// Name of the option that reads standard input, if there is one.
    pub fn reader(&self) -> Option<&'static str> {
        self.chat_template.as_ref().and_then(|template| input::reader("--chat-template", template))
    }

    /// The model's file or folder; a known model is fetched if it is not in the cache.
    pub fn path(&self) -> Result<PathBuf, Failure> {
        match std::fs::metadata(&self.model) {
            Ok(_) => return Ok(self.model.clone()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(Failure::Failed(format!("{}: {error}", self.model.display()))),
        }
        match self.model.to_str().and_then(catalog::find) {
            Some(entry) => fetch::ensure(entry),
            None if self.model.is_symlink() => Err(Failure::Failed(format!(
                "{}: expected a model, found a link to a file that is not there",
                self.model.display()
            ))),
            None => Err(Failure::Failed(format!(
                "no file and no known model is called {}: give a GGUF file, a folder of Hugging Face or a name from 'ottava list'",
                self.model.display()
            ))),
        }
    }

    /// The model's file or folder, open.
    pub fn checkpoint(&self) -> Result<Box<dyn Checkpoint>, Failure> {
        let path = self.path()?;
        let options = OpenOptions { mmap: self.mmap };
        checkpoint::open(&path, &options).map_err(|error| of_file(&path, error.into()))
    }

    /// Data type of the KV cache.
    pub fn kv_dtype(&self) -> KvDtype {
        match self.kv {
            Kv::F16 => KvDtype::F16,
            Kv::Int8 => KvDtype::Int8,
        }
    }

    /// Engine builder with these options.
    fn builder(&self, path: &Path) -> EngineBuilder {
        let mut builder =
            Engine::builder(path).device(self.device).kv_dtype(self.kv_dtype()).compute(match self.compute {
                ComputeMode::Int8 => Compute::Int8,
                ComputeMode::F32 => Compute::F32,
            });
        if let Some(format) = self.weights {
            builder = builder.quantise(format);
        }
        if let Some(threads) = self.threads.and_then(NonZeroUsize::new) {
            builder = builder.threads(threads);
        }
        if let Some(context) = self.context {
            builder = builder.context_max(context);
        }
        if let Some(mib) = self.kv_budget {
            builder = builder.kv(KvBudget::Bytes((mib as u64).saturating_mul(1 << 20)));
        }
        if let Some(isa) = self.isa {
            builder = builder.isa(isa);
        }
        if let Some(hint) = self.prefetch {
            builder = builder.prefetch(hint);
        }
        match &self.sidecar {
            None => {}
            Some(None) => builder = builder.sidecar(),
            Some(Some(folder)) => builder = builder.sidecar_in(folder),
        }
        if self.batch_invariant {
            builder = builder.batch_invariant();
        }
        if self.mmap { builder.mmap() } else { builder }
    }

    /// Loads the engine and shows a progress bar meanwhile.
    pub fn engine(&self) -> Result<Loaded, Failure> {
        self.engine_with(EngineConfig::default())
    }

    /// Loads the engine with this scheduling configuration in place of the default.
    pub fn engine_with(&self, scheduling: EngineConfig) -> Result<Loaded, Failure> {
        self.engine_by(scheduling, |builder| builder)
    }

    /// Loads the engine with a KV cache for many conversations: a share of a CPU's free memory, unless
    /// `--kv-budget` is given. On a GPU the default is a share of the free memory in any case.
    pub fn engine_of_many(&self, scheduling: EngineConfig) -> Result<Loaded, Failure> {
        let devices = Device::list();
        let usable = |info: &DeviceInfo| info.device != Device::Cpu && info.unusable.is_none();
        let on_gpu = self.device != Device::Cpu && devices.iter().any(usable);
        let is_known = devices.first().is_some_and(|cpu| cpu.memory_free_bytes.is_some());
        self.engine_by(scheduling, |builder| match self.kv_budget {
            None if !on_gpu && is_known => builder.kv(KvBudget::FreeShare(KV_SHARE)),
            _ => builder,
        })
    }

    fn engine_by(
        &self,
        scheduling: EngineConfig,
        change: impl FnOnce(EngineBuilder) -> EngineBuilder,
    ) -> Result<Loaded, Failure> {
        let scheduling = EngineConfig { prefill_chunk: self.prefill_chunk, ..scheduling };
        let path = self.path()?;
        let mut builder = change(self.builder(&path).scheduling(scheduling));
        if let Some(template) = &self.chat_template {
            builder = builder.chat_template(input::read_file(template)?);
        }
        let bar = output::LoadBar::new();
        let engine = builder.build_with(&mut |progress| bar.update(progress));
        bar.finish();
        let engine = engine.map_err(|error| of_file(self.source_of(&error).unwrap_or(&path), error))?;
        output::tell_fallback(engine.info());
        output::tell_warnings(&engine.info().warnings);
        output::tell_sidecar(&engine.info().sidecar);
        Ok(Loaded(engine))
    }

    /// The chat template's file, if the error is about the template and not the model.
    fn source_of(&self, error: &ottava::Error) -> Option<&Path> {
        let of_template = |error: &TextError| {
            matches!(error, TextError::TemplateSyntax { .. } | TextError::TemplateLimit { .. })
        };
        match error {
            ottava::Error::Text(error) if of_template(error) => self.chat_template.as_deref(),
            _ => None,
        }
    }
}

/// The program's engine. Its drop waits for the engine thread, so that no driver call runs at exit.
pub struct Loaded(Engine);

impl std::ops::Deref for Loaded {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        &self.0
    }
}

/// Time limit for the engine's last step at exit. Without it, a hung device would keep the process alive.
const LAST_STEP: std::time::Duration = std::time::Duration::from_secs(10);

impl Drop for Loaded {
    fn drop(&mut self) {
        let (ended, hears) = std::sync::mpsc::channel::<()>();
        let watch = move || {
            if hears.recv_timeout(LAST_STEP) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                output::tell(format_args!(
                    "warning: the engine's last step did not end within {} s",
                    LAST_STEP.as_secs()
                ));
                std::process::exit(1);
            }
        };
        // If the thread cannot start, there is no time limit.
        let _ = std::thread::Builder::new().spawn(watch);
        self.0.drain(std::time::Instant::now());
        drop(ended);
    }
}

/// A failure with the model's path in front, if the error is about the model and does not name the path.
pub fn of_file(path: &Path, error: ottava::Error) -> Failure {
    use ottava::Error;
    let (name, message) = (path.display().to_string(), error.to_string());
    let is_of_file = matches!(
        error,
        Error::Weights(_)
            | Error::Quant(_)
            | Error::Graph(_)
            | Error::Session(_)
            | Error::Model(_)
            | Error::Text(_)
    );
    Failure::Failed(if is_of_file && !message.contains(&name) {
        format!("{name}: {message}")
    } else {
        message
    })
}

/// Sampling options and limits of an answer.
#[derive(Args, Clone)]
pub struct SamplingOptions {
    /// Maximum tokens to generate, 1 to 16777216 [default: 512]
    #[arg(short = 'n', long, allow_hyphen_values = true, value_parser = whole(1, TOKENS_MAX))]
    pub max_tokens: Option<usize>,
    /// Random seed [default: a new one each time]
    #[arg(long, allow_hyphen_values = true, value_parser = whole(0, u64::MAX))]
    pub seed: Option<u64>,
    /// Sampling temperature, 0 to 100; 0 is greedy
    #[arg(long, default_value_t = 0.2, allow_hyphen_values = true, value_parser = real(0.0, 100.0))]
    pub temp: f32,
    /// Top-k sampling: keep the K most likely tokens; 0 keeps all
    #[arg(long, default_value_t = 40, allow_hyphen_values = true, value_parser = whole(0, TOKENS_MAX))]
    pub top_k: usize,
    /// Top-p sampling: keep the most likely tokens up to this total probability, above 0 to 1
    #[arg(long, default_value_t = 0.95, allow_hyphen_values = true, value_parser = probability)]
    pub top_p: f32,
    /// Min-p sampling: minimum probability of a token relative to the most likely one, 0 to 1
    #[arg(long, default_value_t = 0.05, allow_hyphen_values = true, value_parser = real(0.0, 1.0))]
    pub min_p: f32,
    /// Repetition penalty on the last 64 tokens of prompt and answer, 0.01 to 100; 1 is off
    #[arg(long, default_value_t = 1.0, allow_hyphen_values = true, value_parser = real(0.01, 100.0))]
    pub repeat_penalty: f32,
    /// Presence penalty on tokens generated among the last 64, -100 to 100; 0 is off
    #[arg(long, default_value_t = 0.0, allow_hyphen_values = true, value_parser = real(-100.0, 100.0))]
    pub presence_penalty: f32,
    /// Frequency penalty, per use, on tokens generated among the last 64, -100 to 100; 0 is off
    #[arg(long, default_value_t = 0.0, allow_hyphen_values = true, value_parser = real(-100.0, 100.0))]
    pub frequency_penalty: f32,
    /// Stop text of 1 to 1024 bytes: the answer ends before it (can be repeated)
    #[arg(long, allow_hyphen_values = true, value_parser = stop_text())]
    pub stop: Vec<String>,
}

/// Value parser of stop texts, with the library's limit on their length.
fn stop_text() -> impl TypedValueParser<Value = String> {
    input::utf8().try_map(|text| match text.len() {
        1..=STOP_BYTES_MAX => Ok(text),
        found => Err(format!("expected a text of 1 to {STOP_BYTES_MAX} bytes, found {found}")),
    })
}

impl SamplingOptions {
    /// The given seed, or a random one below 2^53, which is exact in JSON readers with only 64-bit floats.
    pub fn seed_or_new(&self) -> u64 {
        use std::hash::{BuildHasher, RandomState};
        self.seed.unwrap_or_else(|| RandomState::new().hash_one(std::process::id()) >> 11)
    }

    /// Maximum tokens to generate.
    pub fn max_tokens(&self) -> usize {
        self.max_tokens.unwrap_or(MAX_TOKENS)
    }

    /// Prints a note if `--top-k` is larger than the vocabulary.
    pub fn tell_top_k(&self, vocab: usize) {
        if self.top_k > vocab {
            let top_k = self.top_k;
            output::tell(format_args!(
                "note: --top-k {top_k} is more than the vocabulary's {vocab} tokens, which are all kept"
            ));
        }
    }

    /// Text of the note on an answer of `tokens` tokens that `-n` or the context of `room` tokens cut.
    pub fn cut(&self, tokens: usize, room: usize) -> String {
        match self.max_tokens {
            _ if tokens < self.max_tokens() => {
                format!("the answer ends after {tokens} tokens: the context of {room} is full (-c)")
            }
            Some(asked) => format!("the answer ends after {asked} tokens (-n)"),
            None => format!("the answer ends after {MAX_TOKENS} tokens, the default; -n sets another"),
        }
    }

    /// The request with these options.
    pub fn apply(&self, request: Request, seed: u64) -> Request {
        request
            .temperature(self.temp)
            .top_k(self.top_k)
            .top_p(self.top_p)
            .min_p(self.min_p)
            .repetition_penalty(self.repeat_penalty)
            .presence_penalty(self.presence_penalty)
            .frequency_penalty(self.frequency_penalty)
            .seed(seed)
            .max_tokens(self.max_tokens())
            .stop(&self.stop)
    }
}
