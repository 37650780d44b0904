//! [`EmbedderBuilder`]: the options of an embedder, and its loading.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use super::input::Encoding;
use super::{Embedder, EmbedderInfo, Shared};
use crate::Result;
use crate::api::Device;
use crate::api::builder::{Chosen, EngineBuilder, Source};
use crate::api::load::model_name;
use crate::backend::Backend;
use crate::backend::cpu::{Compute, Isa};
use crate::checkpoint::{self, Checkpoint, TextSource};
use crate::embed::{EmbedError, EmbedHandle};
use crate::ir::StepLimits;
use crate::model::{Encoder, EncoderConfig, EncoderOptions, LoadProgress, Pooling, TextEncoder as _};
use crate::quant::QuantFormat;

/// Default context in tokens; less if the model's own is shorter.
const CONTEXT_DEFAULT: usize = 8192;
/// Least tokens, and most texts, of a step.
const STEP_TOKENS_MIN: usize = 1024;
const STEP_TEXTS: usize = 128;

/// Options of an embedder; [`EmbedderBuilder::build`] loads it.
#[derive(Clone, Debug)]
pub struct EmbedderBuilder {
    path: PathBuf,
    /// Device, threads and the options of weights.
    engine: EngineBuilder,
    pooling: Option<Pooling>,
}

/// Facts that are known before the model is loaded.
struct BeforeLoad {
    started: Instant,
    device: Device,
    fallback: Option<String>,
}

impl EmbedderBuilder {
    pub(super) fn new(path: PathBuf) -> Self {
        EmbedderBuilder { engine: EngineBuilder::new(Source::File(path.clone())), path, pooling: None }
    }

    /// Device to run on. Default: [`Device::Auto`].
    pub fn device(mut self, device: Device) -> Self {
        self.engine = self.engine.device(device);
        self
    }

    /// Threads of a CPU backend: see [`EngineBuilder::threads`].
    pub fn threads(mut self, threads: NonZeroUsize) -> Self {
        self.engine = self.engine.threads(threads);
        self
    }

    /// Instruction set of a CPU backend. Default: the best that the machine has.
    pub fn isa(mut self, isa: Isa) -> Self {
        self.engine = self.engine.isa(isa);
        self
    }

    /// Activations of a CPU backend's products with quantised matrices: int8 (fast) or f32 (exact). Default:
    /// int8.
    pub fn compute(mut self, compute: Compute) -> Self {
        self.engine = self.engine.compute(compute);
        self
    }

    /// Format to quantise F32, F16 and BF16 matrices to at load. Default: none, they stay as they are.
    pub fn quantise(mut self, format: QuantFormat) -> Self {
        self.engine = self.engine.quantise(format);
        self
    }

    /// Memory-maps the model file instead of reading it: see [`EngineBuilder::mmap`]. Default: off.
    pub fn mmap(mut self) -> Self {
        self.engine = self.engine.mmap();
        self
    }

    /// Most tokens of one text, at most the model's own limit. Default: that limit, but no more than 8192.
    pub fn context_max(mut self, tokens: usize) -> Self {
        self.engine = self.engine.context_max(tokens);
        self
    }

    /// Pooling of the rows of a text. Default: the model's own. A language model without a declared
    /// pooling is refused unless this option chooses one.
    pub fn pooling(mut self, pooling: Pooling) -> Self {
        self.pooling = Some(pooling);
        self
    }

    /// Loads the model and starts the embedder's thread.
    ///
    /// # Errors
    /// [`crate::Error::Embed`] for a language model without a declared pooling, and any [`crate::Error`] that
    /// a file or a device can cause; everything is released then.
    pub fn build(self) -> Result<Embedder> {
        self.build_with(&mut |_| {})
    }

    /// As [`EmbedderBuilder::build`], with a `progress` callback per loaded tensor.
    ///
    /// # Errors
    /// As [`EmbedderBuilder::build`].
    pub fn build_with(self, progress: &mut dyn FnMut(LoadProgress<'_>)) -> Result<Embedder> {
        let started = Instant::now();
        match self.engine.choose()? {
            Chosen::Cpu(cpu, fallback) => {
                self.build_on(cpu, BeforeLoad { started, device: Device::Cpu, fallback }, progress)
            }
            #[cfg(feature = "cuda")]
            Chosen::Cuda(cuda) => {
                let device = Device::Cuda(cuda.device().ordinal);
                self.build_on(cuda, BeforeLoad { started, device, fallback: None }, progress)
            }
        }
    }

    fn build_on<B: Backend + 'static>(
        self,
        backend: B,
        before: BeforeLoad,
        progress: &mut dyn FnMut(LoadProgress<'_>),
    ) -> Result<Embedder> {
        let opened = checkpoint::open(&self.path, &self.engine.open)?;
        let file = &*opened;
        let config = EncoderConfig::from_file(file)?;
        let name = model_name(file);
        let pooling = self.pooling.or(config.pooling);
        let pooling = pooling.ok_or_else(|| EmbedError::NoPooling { model: name.clone() })?;
        let encoding = encoding(file)?;
        let encoder = Encoder::load(file, &config, backend, &self.options(&config, pooling), progress)?;
        let info = EmbedderInfo {
            path: self.path,
            name,
            device: before.device,
            device_name: encoder.session().backend().describe(),
            fallback: before.fallback,
            pooling,
            dimensions: encoder.width(),
            context_max: encoder.context_max(),
            context_trained: config.model.context_length,
            memory: encoder.memory(),
            prompts: encoding.prompts.keys().cloned().collect(),
            load_seconds: before.started.elapsed().as_secs_f64(),
        };
        let handle = EmbedHandle::spawn(encoder, config.model.vocab_size)?;
        Ok(Embedder { handle, shared: Arc::new(Shared { info, encoding }) })
    }

    fn options(&self, config: &EncoderConfig, pooling: Pooling) -> EncoderOptions {
        let usual = config.context_usual.min(CONTEXT_DEFAULT);
        let context_max = self.engine.context_max.unwrap_or(usual);
        let limits = StepLimits { tokens_max: context_max.max(STEP_TOKENS_MIN), outputs_max: STEP_TEXTS };
        let quantise = self.engine.quantise;
        let sidecar = self.engine.sidecar.path(Path::new(&self.path), quantise);
        EncoderOptions { limits, context_max, pooling, quantise, sidecar }
    }
}

/// Tokenizer and prompts of a model.
fn encoding(file: &dyn Checkpoint) -> Result<Encoding> {
    Ok(Encoding {
        prompts: match file.text() {
            TextSource::Metadata(_) => BTreeMap::new(),
            #[cfg(feature = "safetensors")]
            TextSource::Documents(documents) => documents.prompts()?,
        },
        #[cfg(feature = "text")]
        tokenizer: crate::text::Tokenizer::from_checkpoint(file),
    })
}
