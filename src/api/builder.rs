//! Describes an engine and chooses its device; `load` loads the model and starts it.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use super::keep::Keep;
use super::{Device, InferenceEngine};
use crate::Result;
use crate::backend::cpu::{Compute, Cpu, CpuOptions, Isa, PrefetchHint};
#[cfg(feature = "cuda")]
use crate::backend::{
    BackendError,
    cuda::{Cuda, CudaOptions},
};
use crate::checkpoint::OpenOptions;
use crate::engine::EngineConfig;
use crate::ir::KvDtype;
use crate::model::{DecoderMemory, KvBudget, LoadProgress, OwnModel};
use crate::quant::QuantFormat;

/// Keys and values on a CPU, whose memory others use too, and on a GPU, which a server has for itself.
const KV_CPU: KvBudget = KvBudget::Contexts(2);
#[cfg(feature = "cuda")]
const KV_CUDA: KvBudget = KvBudget::FreeShare(0.9);

/// A backend, before a model is loaded on it.
enum Chosen {
    /// With the reason why it is no GPU, where one would have been taken.
    Cpu(Cpu, Option<String>),
    #[cfg(feature = "cuda")]
    Cuda(Cuda),
}

/// What is known before the model is loaded.
pub(super) struct BeforeLoad {
    pub(super) started: Instant,
    pub(super) device: Device,
    pub(super) threads: usize,
    pub(super) fallback: Option<String>,
    /// Keys and values where nothing is asked for.
    pub(super) kv: KvBudget,
}

/// What is loaded.
#[derive(Clone, Debug)]
pub(super) enum Source {
    File(PathBuf),
    Own(Arc<OwnModel>),
}

/// Describes an engine; [`EngineBuilder::build`] loads it.
#[derive(Clone, Debug)]
pub struct EngineBuilder {
    pub(super) model: Source,
    pub(super) device: Device,
    pub(super) cpu: CpuOptions,
    pub(super) quantise: Option<QuantFormat>,
    pub(super) sidecar: Keep,
    pub(super) batch_invariant: bool,
    pub(super) kv_dtype: KvDtype,
    pub(super) kv: Option<KvBudget>,
    pub(super) context_max: Option<usize>,
    pub(super) open: OpenOptions,
    /// None where the build has no text.
    pub(super) chat_template: Option<String>,
    pub(super) engine: EngineConfig,
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
            chat_template: None,
            engine: EngineConfig::default(),
        }
    }

    /// Where to run.
    pub fn device(mut self, device: Device) -> Self {
        self.device = device;
        self
    }

    /// Threads of a CPU backend, at most [`THREADS_MAX`](crate::backend::cpu::THREADS_MAX). Default: the smaller of the
    /// machine's physical cores and the logical CPUs that the process may use; outside Linux the latter.
    pub fn threads(mut self, threads: NonZeroUsize) -> Self {
        self.cpu.threads = Some(threads);
        self
    }

    /// Forces an instruction set. Default: the best that the machine has.
    pub fn isa(mut self, isa: Isa) -> Self {
        self.cpu.isa = Some(isa);
        self
    }

    /// Forces the hint of a single token's weight prefetches, for measurements. Default: by processor.
    #[doc(hidden)]
    pub fn prefetch(mut self, hint: PrefetchHint) -> Self {
        self.cpu.prefetch = Some(hint);
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

    /// The source of a chat template (Jinja) in place of the model's own: for a model that has none, or one without
    /// tools. Its markers say how the model writes reasoning and calls of tools.
    #[cfg(feature = "text")]
    pub fn chat_template(mut self, source: impl Into<String>) -> Self {
        self.chat_template = Some(source.into());
        self
    }

    /// Keeps the weights as a CPU backend packs them in a file beside the model: `NAME.gguf.packed`, with
    /// [`EngineBuilder::quantise`] such as `NAME.gguf.w8g128.packed`. Later loads read it instead of packing again.
    /// It is about as large as the model, checked whenever it is read, replaced if the model or its options have
    /// changed, and safe to delete at any time. [`EngineInfo::sidecar`](super::EngineInfo::sidecar) says what became of
    /// it; that it cannot be used or written fails nothing.
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

    /// About how much memory the engine would take, estimated from the file's head: no weight is read.
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
}
