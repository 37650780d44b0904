//! Describes an engine, loads its model and starts it.

use std::num::NonZeroUsize;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use super::keep::Keep;
use super::texts::Texts;
use super::{Device, EngineInfo, InferenceEngine};
use crate::backend::{
    Backend,
    cpu::{Compute, Cpu, CpuOptions, Isa},
};
#[cfg(feature = "cuda")]
use crate::backend::{
    BackendError,
    cuda::{Cuda, CudaOptions},
};
use crate::checkpoint::{self, Checkpoint, OpenOptions};
use crate::engine::{EngineConfig, Handle};
use crate::ir::{KvDtype, PAGE_TOKENS, Precision, StepLimits};
use crate::model::{
    Decoder as _, DecoderMemory, KvBudget, LoadOptions, LoadProgress, Model, ModelConfig, OwnModel,
};
use crate::quant::QuantFormat;
use crate::{Result, room};

/// Least rows of a step whose logits are computed: scores read so many at once.
const STEP_OUTPUTS_MIN: usize = 64;
/// The context when none is asked for: the model's own, but no more than this.
const CONTEXT_DEFAULT: usize = 4096;
/// Keys and values on a CPU, whose memory others use too, and on a GPU, which a server has for itself.
const KV_CPU: KvBudget = KvBudget::Contexts(2);
#[cfg(feature = "cuda")]
const KV_CUDA: KvBudget = KvBudget::FreeShare(0.9);
/// Contexts that a step's memory is sized for where the budget is a share.
const CONTEXTS_OF_A_SHARE: usize = 2;

/// A backend, before a model is loaded on it.
enum Chosen {
    /// With the reason why it is no GPU, where one would have been taken.
    Cpu(Cpu, Option<String>),
    #[cfg(feature = "cuda")]
    Cuda(Cuda),
}

/// What is known before the model is loaded.
struct BeforeLoad {
    started: Instant,
    device: Device,
    threads: usize,
    fallback: Option<String>,
    /// Keys and values where nothing is asked for.
    kv: KvBudget,
}

/// What is loaded.
#[derive(Clone, Debug)]
pub(super) enum Source {
    File(PathBuf),
    Own(Arc<OwnModel>),
}

/// A loaded model and what becomes of its [`EngineInfo`].
struct Loaded<B: Backend> {
    model: Model<B>,
    texts: Texts,
    config: Option<ModelConfig>,
    name: String,
    path: PathBuf,
    file_bytes: u64,
    parameters: u64,
    context_max: usize,
    prefill_chunk: usize,
}

/// Describes an engine; [`EngineBuilder::build`] loads it.
#[derive(Clone, Debug)]
pub struct EngineBuilder {
    model: Source,
    device: Device,
    cpu: CpuOptions,
    quantise: Option<QuantFormat>,
    sidecar: Keep,
    batch_invariant: bool,
    kv_dtype: KvDtype,
    kv: Option<KvBudget>,
    context_max: Option<usize>,
    open: OpenOptions,
    engine: EngineConfig,
}

impl EngineBuilder {
    pub(super) fn new(model: Source) -> Self {
        EngineBuilder {
            model,
            device: Device::Auto,
            cpu: CpuOptions::default(),
            quantise: None,
            sidecar: Keep::Nowhere,
            batch_invariant: false,
            kv_dtype: KvDtype::F16,
            kv: None,
            context_max: None,
            open: OpenOptions::default(),
            engine: EngineConfig::default(),
        }
    }

    /// Where to run.
    pub fn device(mut self, device: Device) -> Self {
        self.device = device;
        self
    }

    /// Threads of a CPU backend, at most [`THREADS_MAX`](crate::backend::cpu::THREADS_MAX). Default: one per
    /// physical core.
    pub fn threads(mut self, threads: NonZeroUsize) -> Self {
        self.cpu.threads = Some(threads);
        self
    }

    /// Forces an instruction set. Default: the best that the machine has.
    pub fn isa(mut self, isa: Isa) -> Self {
        self.cpu.isa = Some(isa);
        self
    }

    /// Activations of a CPU backend's matrix products: int8 (the default, fast) or f32 (exact).
    pub fn compute(mut self, compute: Compute) -> Self {
        self.cpu.compute = compute;
        self
    }

    /// What F32, F16 and BF16 matrices become at load. Default: they stay as they are.
    pub fn quantise(mut self, format: QuantFormat) -> Self {
        self.quantise = Some(format);
        self
    }

    /// Keeps the weights as a CPU backend packs them in a file beside the model, `NAME.gguf.packed`: later
    /// loads read it instead of packing again. It is about as large as the model, checked whenever it is
    /// read, replaced if the model or its options have changed, and safe to delete at any time.
    /// [`EngineInfo::sidecar`] says what became of it; that it cannot be used or written fails nothing.
    pub fn sidecar(mut self) -> Self {
        self.sidecar = Keep::BesideTheModel;
        self
    }

    /// As [`EngineBuilder::sidecar`], in a folder of its own. Models of the same name replace each other's.
    pub fn sidecar_in(mut self, folder: impl AsRef<Path>) -> Self {
        self.sidecar = Keep::In(folder.as_ref().to_path_buf());
        self
    }

    /// On a GPU, too, a request's logits have the same bits whatever other requests share its steps;
    /// prompts take longer there. On a CPU that is always so.
    pub fn batch_invariant(mut self) -> Self {
        self.batch_invariant = true;
        self
    }

    /// How keys and values are stored.
    pub fn kv_dtype(mut self, dtype: KvDtype) -> Self {
        self.kv_dtype = dtype;
        self
    }

    /// Memory for keys and values of all sequences. Default: room for two full contexts on a CPU, on a GPU nine tenths
    /// of what the weights leave free. What the device has not is refused.
    pub fn kv(mut self, budget: KvBudget) -> Self {
        self.kv = Some(budget);
        self
    }

    /// Most tokens of one sequence, at most the model's own limit. Default: that limit, or 4096 if it is more.
    pub fn context_max(mut self, tokens: usize) -> Self {
        self.context_max = Some(tokens);
        self
    }

    /// Maps the model's file and a file of packed weights instead of reading them. Nothing must cut them short or
    /// write into them: see [`OpenOptions::mmap`].
    pub fn mmap(mut self) -> Self {
        self.open.mmap = true;
        self
    }

    /// Reads the model's file and a file of packed weights, which is the default: what is used of them is what
    /// was checked, and a file that changes meanwhile is an error.
    pub fn no_mmap(mut self) -> Self {
        self.open.mmap = false;
        self
    }

    /// Queue lengths, sequences at once, prefill chunk, prefix sharing. A step has room for as many sequences as are
    /// asked for.
    pub fn scheduling(mut self, config: EngineConfig) -> Self {
        self.engine = config;
        self
    }

    /// About how much memory the engine would take, reckoned from the file's head: no weight is read.
    ///
    /// # Errors
    /// As [`EngineBuilder::build`], but for memory that is short.
    pub fn estimate(&self) -> Result<DecoderMemory> {
        self.engine.check()?;
        match self.choose()? {
            Chosen::Cpu(cpu, _) => self.estimate_on(&cpu, KV_CPU),
            #[cfg(feature = "cuda")]
            Chosen::Cuda(cuda) => self.estimate_on(&cuda, KV_CUDA),
        }
    }

    fn estimate_on<B: Backend>(&self, backend: &B, kv: KvBudget) -> Result<DecoderMemory> {
        let chunk = B::PREFILL_CHUNK;
        match &self.model {
            Source::File(path) => {
                let file = checkpoint::open(path, &self.open)?;
                let config = ModelConfig::from_file(&*file)?;
                let (options, _) = self.load_options(Some(&config), chunk, kv);
                Ok(Model::estimate(&*file, &config, backend, &options)?)
            }
            Source::Own(own) => {
                Ok(Model::estimate_graph(own, backend, &self.load_options(None, chunk, kv).0)?)
            }
        }
    }

    /// Loads the model and starts the engine's thread.
    ///
    /// # Errors
    /// Any [`crate::Error`] that a file, a device or a budget can cause; nothing stays behind.
    pub fn build(self) -> Result<InferenceEngine> {
        self.build_with(&mut |_| {})
    }

    /// As [`EngineBuilder::build`], telling `progress` of each tensor loaded.
    ///
    /// # Errors
    /// As [`EngineBuilder::build`].
    pub fn build_with(self, progress: &mut dyn FnMut(LoadProgress<'_>)) -> Result<InferenceEngine> {
        let started = Instant::now();
        self.engine.check()?;
        match self.choose()? {
            Chosen::Cpu(cpu, fallback) => {
                let (device, threads) = (Device::Cpu, cpu.threads());
                self.build_on(cpu, BeforeLoad { started, device, threads, fallback, kv: KV_CPU }, progress)
            }
            #[cfg(feature = "cuda")]
            Chosen::Cuda(cuda) => {
                let device = Device::Cuda(cuda.device().ordinal);
                let before = BeforeLoad { started, device, threads: 0, fallback: None, kv: KV_CUDA };
                self.build_on(cuda, before, progress)
            }
        }
    }

    /// The device asked for, or the best there is.
    fn choose(&self) -> Result<Chosen> {
        #[cfg(feature = "cuda")]
        let cuda = |ordinal| Cuda::new(&CudaOptions { ordinal, batch_invariant: self.batch_invariant });
        let cpu = |why| Ok(Chosen::Cpu(Cpu::new(&self.cpu)?, why));
        match self.device {
            Device::Cpu => cpu(None),
            #[cfg(feature = "cuda")]
            Device::Cuda(ordinal) => Ok(Chosen::Cuda(cuda(ordinal)?)),
            // A GPU that is there and fails is an error: nobody should wait for a CPU unawares.
            #[cfg(feature = "cuda")]
            Device::Auto => match cuda(0) {
                Ok(cuda) => Ok(Chosen::Cuda(cuda)),
                Err(BackendError::Unavailable { reason, .. }) => cpu(Some(reason)),
                Err(error) => Err(error.into()),
            },
            #[cfg(not(feature = "cuda"))]
            Device::Cuda(ordinal) => {
                let reason = super::device::NO_CUDA.to_owned();
                Err(crate::backend::BackendError::Unavailable { what: format!("cuda:{ordinal}"), reason }
                    .into())
            }
            #[cfg(not(feature = "cuda"))]
            Device::Auto => cpu(Some(super::device::NO_CUDA.to_owned())),
        }
    }

    fn build_on<B: Backend>(
        self,
        backend: B,
        before: BeforeLoad,
        progress: &mut dyn FnMut(LoadProgress<'_>),
    ) -> Result<InferenceEngine> {
        let loaded = match &self.model {
            Source::File(path) => self.load_file(path, backend, before.kv, progress)?,
            Source::Own(own) => self.load_own(own, backend, before.kv)?,
        };
        let Loaded { model, texts, config, name, path, file_bytes, .. } = loaded;
        let info = EngineInfo {
            warnings: texts.warnings(),
            name,
            path,
            device: before.device,
            device_name: model.session().backend().describe(),
            fallback: before.fallback,
            threads: before.threads,
            file_bytes,
            memory: model.memory(),
            step_weight_bytes: model.step_weight_bytes(),
            parameters: loaded.parameters,
            kv_pages: model.pages(),
            sequences_max: self.engine.sequences_max,
            context_max: loaded.context_max,
            sidecar: model.sidecar().clone(),
            load_seconds: before.started.elapsed().as_secs_f64(),
        };
        let monitor = model.session().backend().monitor();
        let scheduling = EngineConfig { prefill_chunk: Some(loaded.prefill_chunk), ..self.engine };
        let handle = Handle::spawn(model, scheduling)?;
        Ok(InferenceEngine { handle, shared: Arc::new(texts.into_shared(info, config, monitor)) })
    }

    fn load_file<B: Backend>(
        &self,
        path: &Path,
        backend: B,
        kv: KvBudget,
        progress: &mut dyn FnMut(LoadProgress<'_>),
    ) -> Result<Loaded<B>> {
        let opened = checkpoint::open(path, &self.open)?;
        let file = &*opened;
        let config = ModelConfig::from_file(file)?;
        let (options, prefill_chunk) = self.load_options(Some(&config), B::PREFILL_CHUNK, kv);
        // A vocabulary takes a thread as long as the weights of a small model take all of them.
        let (texts, model) = thread::scope(|scope| {
            let reader = room::spawn_scoped(scope, || Texts::read(file));
            let model = Model::load(file, &config, backend, &options, progress);
            let texts = match reader {
                Ok(reader) => reader.join().unwrap_or_else(|panic| resume_unwind(panic)),
                // What a thread that cannot be started would have read is read here.
                Err(_) => Texts::read(file),
            };
            (texts, model)
        });
        let (texts, model) = (texts?, model?);
        Ok(Loaded {
            model,
            texts,
            name: model_name(file),
            path: path.to_path_buf(),
            file_bytes: file.file_bytes(),
            parameters: file.tensors().iter().map(|t| t.dims.iter().product::<u64>()).sum(),
            context_max: options.context_max,
            config: Some(config),
            prefill_chunk,
        })
    }

    fn load_own<B: Backend>(&self, own: &OwnModel, backend: B, kv: KvBudget) -> Result<Loaded<B>> {
        let (options, prefill_chunk) = self.load_options(None, B::PREFILL_CHUNK, kv);
        let model = Model::of_graph(own, backend, &options)?;
        Ok(Loaded {
            texts: Texts::of_numbers(own.name(), model.vocab_size(), own.end_ids())?,
            model,
            config: None,
            name: own.name().to_owned(),
            path: PathBuf::new(),
            file_bytes: 0,
            parameters: own.parameters(),
            context_max: options.context_max,
            prefill_chunk,
        })
    }

    /// How the model is loaded, and most prompt tokens of its steps.
    fn load_options(
        &self,
        config: Option<&ModelConfig>,
        chunk_default: usize,
        kv_default: KvBudget,
    ) -> (LoadOptions, usize) {
        let trained = config.map_or(CONTEXT_DEFAULT, |config| config.context_length);
        let context_max = self.context_max.unwrap_or(CONTEXT_DEFAULT.min(trained));
        let kv = self.kv.unwrap_or(kv_default);
        let path = match &self.model {
            Source::File(path) => path,
            Source::Own(_) => Path::new("model"),
        };
        // A step's memory is taken at load: none for more tokens than the cache can hold.
        let pool_tokens = match kv {
            KvBudget::Bytes(bytes) => {
                let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
                // What a graph keeps of a token is known when it is compiled.
                let pages =
                    config.map_or(usize::MAX, |config| config.kv_layout(self.kv_dtype).pages_in(bytes));
                pages.saturating_mul(PAGE_TOKENS)
            }
            KvBudget::Contexts(contexts) => contexts.saturating_mul(context_max),
            KvBudget::FreeShare(_) => context_max.saturating_mul(CONTEXTS_OF_A_SHARE),
        };
        let chunk = self.engine.prefill_chunk.unwrap_or(chunk_default).min(pool_tokens);
        let outputs_max = self.engine.sequences_max.max(STEP_OUTPUTS_MIN);
        let limits = StepLimits { tokens_max: chunk.saturating_add(outputs_max), outputs_max };
        let options = LoadOptions {
            limits,
            kv_dtype: self.kv_dtype,
            kv,
            context_max,
            quantise: self.quantise,
            sidecar: self.sidecar.path(path, self.quantise),
            activations: Precision::F32,
        };
        (options, chunk)
    }
}

/// What the file calls itself, else its own name.
fn model_name(file: &dyn Checkpoint) -> String {
    let stem =
        || file.path().file_stem().map_or_else(|| "model".into(), |s| s.to_string_lossy().into_owned());
    let name = file.metadata().str("general.name").ok().flatten();
    name.map_or_else(stem, str::to_owned)
}
