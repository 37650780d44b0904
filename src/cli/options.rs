//! Options that mean the same in every command: which model, on what, sampled how.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use ottava::backend::{
    KvDtype,
    cpu::{Compute, Isa},
};
use ottava::quant::QuantFormat;
use ottava::weights::OpenOptions;
use ottava::{Bytes, Device, Engine, EngineBuilder, EngineConfig, Request, Sampling};

use super::{Failure, catalog, fetch, output};

/// Which model, and how it is run.
#[derive(Args, Clone)]
pub struct ModelOptions {
    /// A GGUF file, or the name of a known model (see `ottava list`)
    #[arg(short, long, default_value = catalog::DEFAULT)]
    pub model: String,
    /// Threads [default: all cores]
    #[arg(short, long)]
    pub threads: Option<NonZeroUsize>,
    /// Most tokens of a sequence [default: the model's limit, at most 4096]
    #[arg(short = 'c', long = "ctx")]
    pub context: Option<NonZeroUsize>,
    /// How keys and values are stored
    #[arg(long, value_enum, default_value_t = Kv::F16)]
    pub kv: Kv,
    /// Memory for keys and values in MiB [default: two full contexts]
    #[arg(long, value_name = "MIB")]
    pub kv_budget: Option<usize>,
    /// What float weights become at load, such as w8g128 or w4g32 [default: they stay as they are]
    #[arg(long, value_name = "FORMAT")]
    pub weights: Option<QuantFormat>,
    /// Activations of matrix products: int8 is fast, f32 exact
    #[arg(long, value_enum, default_value_t = ComputeMode::Int8)]
    pub compute: ComputeMode,
    /// auto (a GPU if there is one), cpu, cuda or cuda:N
    #[arg(long, default_value = "auto")]
    pub device: Device,
    /// Most prompt tokens of a step [default: 256, on a GPU 2048]. More multiply prompts faster, and take more
    /// memory; running answers get their next token when the step is over
    #[arg(long, value_name = "TOKENS")]
    pub prefill_chunk: Option<NonZeroUsize>,
    /// On a GPU, too, other requests do not change a bit of a request's logits; prompts are slower
    #[arg(long)]
    pub batch_invariant: bool,
    /// Force an instruction set: portable, avx2, avxvnni, avx512, amx, dotprod, i8mm
    #[arg(long)]
    pub isa: Option<Isa>,
    /// Keep packed weights in a file beside the model, or in DIR: later loads on a CPU read it
    #[arg(long, value_name = "DIR", num_args = 0..=1, require_equals = true)]
    pub sidecar: Option<Option<PathBuf>>,
    /// Map the model and packed weights instead of reading them: packed weights load faster, and processes share
    /// them. Nothing may cut the files short or write into them meanwhile: that ends the program (SIGBUS) or gives
    /// wrong text
    #[arg(long, overrides_with = "no_mmap")]
    pub mmap: bool,
    /// Read the model and packed weights, as is the default: a file that changes meanwhile is an error
    #[arg(long, overrides_with = "mmap")]
    pub no_mmap: bool,
}

/// `--kv`
#[derive(Clone, Copy, ValueEnum)]
pub enum Kv {
    /// Half precision
    F16,
    /// 8 bits, a scale for 32 elements
    Int8,
}

/// `--compute`
#[derive(Clone, Copy, ValueEnum)]
pub enum ComputeMode {
    /// 8-bit activations, a scale for 32 elements
    Int8,
    /// Single-precision activations
    F32,
}

impl ModelOptions {
    /// The model's file; a known model is fetched if it is not in the cache.
    pub fn path(&self) -> Result<PathBuf, Failure> {
        let file = PathBuf::from(&self.model);
        if file.exists() {
            return Ok(file);
        }
        match catalog::find(&self.model) {
            Some(entry) => fetch::ensure(entry),
            None => Err(Failure::Failed(format!(
                "no file and no known model is called {}: give a GGUF file or a name from 'ottava list'",
                self.model
            ))),
        }
    }

    /// How the model's file is opened.
    pub fn open_options(&self) -> OpenOptions {
        OpenOptions { mmap: self.mmap }
    }

    /// How keys and values are stored.
    pub fn kv_dtype(&self) -> KvDtype {
        match self.kv {
            Kv::F16 => KvDtype::F16,
            Kv::Int8 => KvDtype::Int8,
        }
    }

    /// An engine's description with these options.
    pub fn builder(&self) -> Result<EngineBuilder, Failure> {
        let mut builder =
            Engine::builder().model(self.path()?).device(self.device).kv_dtype(self.kv_dtype()).compute(
                match self.compute {
                    ComputeMode::Int8 => Compute::Int8,
                    ComputeMode::F32 => Compute::F32,
                },
            );
        if let Some(format) = self.weights {
            builder = builder.quantise(format);
        }
        if let Some(threads) = self.threads {
            builder = builder.threads(threads);
        }
        if let Some(context) = self.context {
            builder = builder.context_max(context.get());
        }
        if let Some(mib) = self.kv_budget {
            builder = builder.kv_budget(Bytes::mib(mib));
        }
        if let Some(isa) = self.isa {
            builder = builder.isa(isa);
        }
        match &self.sidecar {
            None => {}
            Some(None) => builder = builder.sidecar(),
            Some(Some(folder)) => builder = builder.sidecar_in(folder),
        }
        if self.batch_invariant {
            builder = builder.batch_invariant();
        }
        Ok(if self.mmap { builder.mmap() } else { builder })
    }

    /// The engine, loaded behind a progress bar.
    pub fn engine(&self) -> Result<Engine, Failure> {
        self.engine_with(EngineConfig::default())
    }

    /// The engine with other scheduling than the default.
    pub fn engine_with(&self, scheduling: EngineConfig) -> Result<Engine, Failure> {
        let scheduling =
            EngineConfig { prefill_chunk: self.prefill_chunk.map(NonZeroUsize::get), ..scheduling };
        let bar = output::LoadBar::new();
        let engine =
            self.builder()?.scheduling(scheduling).build_with(&mut |progress| bar.update(progress))?;
        bar.finish();
        output::tell_fallback(engine.info());
        output::tell_sidecar(&engine.info().sidecar);
        Ok(engine)
    }
}

/// How tokens are chosen and when the answer ends.
#[derive(Args, Clone)]
pub struct SamplingOptions {
    /// Most tokens to generate
    #[arg(short = 'n', long = "max-tokens", default_value_t = 512)]
    pub max_tokens: usize,
    /// Seed of the random numbers [default: a new one each time]
    #[arg(long)]
    pub seed: Option<u64>,
    /// Temperature; 0 is greedy
    #[arg(long, default_value_t = 0.2)]
    pub temp: f32,
    /// Keep the K most likely tokens; 0 keeps all
    #[arg(long, default_value_t = 40)]
    pub top_k: usize,
    /// Keep the most likely tokens that make up this probability
    #[arg(long, default_value_t = 0.95)]
    pub top_p: f32,
    /// Keep tokens at least this likely relative to the best
    #[arg(long, default_value_t = 0.05)]
    pub min_p: f32,
    /// Divide the logits of recent tokens by this
    #[arg(long, default_value_t = 1.0)]
    pub repeat_penalty: f32,
    /// Subtract this from the logits of tokens already used
    #[arg(long, default_value_t = 0.0)]
    pub presence_penalty: f32,
    /// Subtract this once for each use of a token
    #[arg(long, default_value_t = 0.0)]
    pub frequency_penalty: f32,
    /// End the answer before this text (may be given several times)
    #[arg(long)]
    pub stop: Vec<String>,
}

impl SamplingOptions {
    /// The seed asked for, or a new one.
    pub fn seed_or_new(&self) -> u64 {
        use std::hash::{BuildHasher, RandomState};
        self.seed.unwrap_or_else(|| RandomState::new().hash_one(std::process::id()))
    }

    /// The request with these options.
    pub fn apply(&self, request: Request, seed: u64) -> Request {
        let sampling = Sampling {
            temperature: self.temp,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repeat_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            seed,
            ..Sampling::default()
        };
        request.sampling(sampling).max_tokens(self.max_tokens).stop(self.stop.clone())
    }
}
