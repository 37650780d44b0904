//! [`EngineBuilder`]: the options of an engine and the choice of its device. `load` loads the model and
//! starts the engine.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use super::sidecar::SidecarLocation;
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

/// Default KV budgets: a CPU's memory is shared with other programs, a server has a GPU for itself.
const KV_CPU: KvBudget = KvBudget::Contexts(2);
#[cfg(feature = "cuda")]
const KV_CUDA: KvBudget = KvBudget::FreeShare(0.9);

/// A backend, before a model is loaded on it.
pub(super) enum Chosen {
    /// With the reason why no GPU was taken, if one was preferred.
    Cpu(Cpu, Option<String>),
    #[cfg(feature = "cuda")]
    Cuda(Cuda),
}

/// Facts that are known before the model is loaded.
pub(super) struct BeforeLoad {
    pub(super) started: Instant,
    pub(super) device: Device,
    pub(super) threads: usize,
    pub(super) fallback: Option<String>,
    /// KV budget if none is set.
    pub(super) kv: KvBudget,
}

/// The model to load.
#[derive(Clone, Debug)]
pub(super) enum Source {
    File(PathBuf),
    Own(Arc<OwnModel>),
}

/// Options of an engine; [`EngineBuilder::build`] loads it.
#[derive(Clone, Debug)]
pub struct EngineBuilder {
    pub(super) model: Source,
    pub(super) device: Device,
    pub(super) cpu: CpuOptions,
    pub(super) quantise: Option<QuantFormat>,
    pub(super) sidecar: SidecarLocation,
    pub(super) batch_invariant: bool,
    pub(super) kv_dtype: KvDtype,
    pub(super) kv: Option<KvBudget>,
    pub(super) context_max: Option<usize>,
    pub(super) open: OpenOptions,
    /// Always `None` in a build without the feature `text`.
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
            sidecar: SidecarLocation::None,
            batch_invariant: false,
            kv_dtype: KvDtype::F16,
            kv: None,
            context_max: None,
            open: OpenOptions::default(),
            chat_template: None,
            engine: EngineConfig::default(),
        }
    }

    /// Device to run on. Default: [`Device::Auto`].
    pub fn device(mut self, device: Device) -> Self {
        self.device = device;
        self
    }

    /// Threads of a CPU backend, at most [`THREADS_MAX`](crate::backend::cpu::THREADS_MAX). Default: the
    /// smaller of the machine's physical cores and the logical CPUs available to the process; outside Linux
    /// the latter.
    pub fn threads(mut self, threads: NonZeroUsize) -> Self {
        self.cpu.threads = Some(threads);
        self
    }

    /// Instruction set of a CPU backend. Default: the best that the machine has.
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

    /// Activations of a CPU backend's matrix products: int8 (fast) or f32 (exact). Default: int8.
    pub fn compute(mut self, compute: Compute) -> Self {
        self.cpu.compute = compute;
        self
    }

    /// Format to quantise F32, F16 and BF16 matrices to at load. Default: none, they stay as they are.
    pub fn quantise(mut self, format: QuantFormat) -> Self {
        self.quantise = Some(format);
        self
    }

    /// Source of a chat template (Jinja) in place of the model's own, for a model without one or with one
    /// that lacks tools. Its markers determine the format of reasoning and tool calls.
    #[cfg(feature = "text")]
    pub fn chat_template(mut self, source: impl Into<String>) -> Self {
        self.chat_template = Some(source.into());
        self
    }

    /// Stores the weights, as packed by the CPU backend, in a sidecar file next to the model:
    /// `NAME.gguf.packed`, with [`EngineBuilder::quantise`] for example `NAME.gguf.w8g128.packed`. Later
    /// loads read it instead of packing again. It is about as large as the model. It is checked on every
    /// read, replaced if the model or its options have changed, and safe to delete at any time.
    /// [`EngineInfo::sidecar`](super::EngineInfo::sidecar) reports its use; a sidecar that cannot be read or
    /// written is no error. Default: no sidecar.
    pub fn sidecar(mut self) -> Self {
        self.sidecar = SidecarLocation::NextToModel;
        self
    }

    /// As [`EngineBuilder::sidecar`], in another folder. Models with the same name replace each other's
    /// sidecar.
    pub fn sidecar_in(mut self, folder: impl AsRef<Path>) -> Self {
        self.sidecar = SidecarLocation::Folder(folder.as_ref().to_path_buf());
        self
    }

    /// Makes a request's logits on a GPU bit-identical whatever other requests share its steps; prompts take
    /// longer then. On a CPU they always are. Default: off.
    pub fn batch_invariant(mut self) -> Self {
        self.batch_invariant = true;
        self
    }

    /// Storage type of keys and values. Default: f16.
    pub fn kv_dtype(mut self, dtype: KvDtype) -> Self {
        self.kv_dtype = dtype;
        self
    }

    /// Memory for keys and values of all sequences. Default: two full contexts on a CPU; on a GPU nine tenths
    /// of the memory that the weights leave free. A budget beyond the device's memory is refused.
    pub fn kv(mut self, budget: KvBudget) -> Self {
        self.kv = Some(budget);
        self
    }

    /// Most tokens of one sequence, at most the model's own limit. Default: that limit, but no more than
    /// 4096.
    pub fn context_max(mut self, tokens: usize) -> Self {
        self.context_max = Some(tokens);
        self
    }

    /// Memory-maps the model file and the sidecar instead of reading them. Neither may be truncated or
    /// written to meanwhile: see [`OpenOptions::mmap`]. Default: off.
    pub fn mmap(mut self) -> Self {
        self.open.mmap = true;
        self
    }

    /// Reads the model file and the sidecar instead of mapping them, which is the default. The bytes used are
    /// the bytes checked, and a file that changes meanwhile is an error.
    pub fn no_mmap(mut self) -> Self {
        self.open.mmap = false;
        self
    }

    /// Queue lengths, concurrent sequences, prefill chunk, prefix sharing. A step has room for as many
    /// sequences as [`EngineConfig::sequences_max`].
    pub fn scheduling(mut self, config: EngineConfig) -> Self {
        self.engine = config;
        self
    }

    /// Estimates the engine's memory from the file's head: no weight is read.
    ///
    /// # Errors
    /// As [`EngineBuilder::build`], except for a lack of memory.
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
    /// Any [`crate::Error`] that a file, a device or a budget can cause; everything is released then.
    pub fn build(self) -> Result<InferenceEngine> {
        self.build_with(&mut |_| {})
    }

    /// As [`EngineBuilder::build`], with a `progress` callback per loaded tensor.
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

    /// The requested device, or the best one.
    pub(super) fn choose(&self) -> Result<Chosen> {
        #[cfg(feature = "cuda")]
        let cuda = |ordinal| Cuda::new(&CudaOptions { ordinal, batch_invariant: self.batch_invariant });
        let cpu = |why| Ok(Chosen::Cpu(Cpu::new(&self.cpu)?, why));
        match self.device {
            Device::Cpu => cpu(None),
            #[cfg(feature = "cuda")]
            Device::Cuda(ordinal) => Ok(Chosen::Cuda(cuda(ordinal)?)),
            // A GPU that is present and fails is an error, not a silent fallback to the CPU.
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
