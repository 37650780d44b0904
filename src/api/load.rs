//! Loads the model of an [`EngineBuilder`] on the chosen device, and starts the engine.

use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use super::builder::{BeforeLoad, EngineBuilder, Source};
use super::text_pipeline::TextPipeline;
use super::{EngineInfo, InferenceEngine};
use crate::backend::Backend;
use crate::checkpoint::{self, Checkpoint};
use crate::engine::{EngineConfig, Handle};
use crate::ir::{PAGE_TOKENS, Precision, StepLimits};
use crate::model::{
    Decoder as _, DecoderMemory, KvBudget, LoadOptions, LoadProgress, Model, ModelConfig, OwnModel,
};
use crate::{Result, headroom};

/// Least capacity of a step for rows with logits: scores read up to this many at once.
const STEP_OUTPUTS_MIN: usize = 64;
/// Default context in tokens; less if the model's own is shorter.
const CONTEXT_DEFAULT: usize = 4096;
/// Contexts that a step's memory is sized for if the budget is a share.
const CONTEXTS_OF_A_SHARE: usize = 2;

/// A loaded model and the values for its [`EngineInfo`].
struct Loaded<B: Backend> {
    model: Model<B>,
    text: TextPipeline,
    config: Option<ModelConfig>,
    name: String,
    path: PathBuf,
    file_bytes: u64,
    parameters: u64,
    context_max: usize,
    prefill_chunk: usize,
}

impl EngineBuilder {
    pub(super) fn estimate_on<B: Backend>(&self, backend: &B, kv: KvBudget) -> Result<DecoderMemory> {
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

    pub(super) fn build_on<B: Backend>(
        self,
        backend: B,
        before: BeforeLoad,
        progress: &mut dyn FnMut(LoadProgress<'_>),
    ) -> Result<InferenceEngine> {
        let loaded = match &self.model {
            Source::File(path) => self.load_file(path, backend, before.kv, progress)?,
            Source::Own(own) => self.load_own(own, backend, before.kv)?,
        };
        let Loaded { model, text, config, name, path, file_bytes, .. } = loaded;
        let info = EngineInfo {
            warnings: text.warnings(),
            name,
            path,
            device: before.device,
            device_name: model.session().backend().describe(),
            fallback: before.fallback,
            threads: before.threads,
            file_bytes,
            fingerprint: hex(&model.fingerprint()),
            memory: model.memory(),
            step_weight_bytes: model.step_weight_bytes(),
            parameters: loaded.parameters,
            kv_pages: model.pages(),
            sequences_max: self.engine.sequences_max,
            context_trained: config.as_ref().map_or(loaded.context_max, |config| config.context_length),
            context_max: loaded.context_max,
            sidecar: model.sidecar().clone(),
            load_seconds: before.started.elapsed().as_secs_f64(),
        };
        let monitor = model.session().backend().monitor();
        let scheduling = EngineConfig { prefill_chunk: Some(loaded.prefill_chunk), ..self.engine };
        let handle = Handle::spawn(model, scheduling)?;
        Ok(InferenceEngine { handle, shared: Arc::new(text.into_shared(info, config, monitor)) })
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
        let template = self.chat_template.as_deref();
        // Reading a vocabulary on one thread can take as long as loading a small model's weights on all.
        let (text, model) = thread::scope(|scope| {
            let reader = headroom::spawn_scoped(scope, || TextPipeline::read(file, template));
            let model = Model::load(file, &config, backend, &options, progress);
            let text = match reader {
                Ok(reader) => reader.join().unwrap_or_else(|panic| resume_unwind(panic)),
                // Read here if no thread could be started.
                Err(_) => TextPipeline::read(file, template),
            };
            (text, model)
        });
        let (text, model) = (text?, model?);
        Ok(Loaded {
            model,
            text,
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
        let template = self.chat_template.as_deref();
        Ok(Loaded {
            text: TextPipeline::of_numbers(own.name(), model.vocab_size(), own.end_ids(), template)?,
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

    /// The load options, and the most prompt tokens of a step.
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
        // A step's memory is allocated at load, for no more tokens than the cache can hold.
        let pool_tokens = match kv {
            KvBudget::Bytes(bytes) => {
                let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
                // A custom graph's bytes per token are known only after it is compiled.
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

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// `general.name` of the file, else the file's stem.
pub(super) fn model_name(file: &dyn Checkpoint) -> String {
    let stem =
        || file.path().file_stem().map_or_else(|| "model".into(), |s| s.to_string_lossy().into_owned());
    let name = file.metadata().str("general.name").ok().flatten();
    name.map_or_else(stem, str::to_owned)
}
