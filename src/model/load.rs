//! A loaded model: its graph compiled, its weights on a backend, its pages allocated.

use std::collections::BTreeSet;
use std::path::PathBuf;

use crate::backend::{Backend, PreparedMatrix};
use crate::checkpoint::Checkpoint;
use crate::graph::{CompileOptions, Fusion};
use crate::ir::OpTimes;
use crate::ir::{
    KvDtype, KvLayout, MatrixId, Op, PAGE_TOKENS, PageId, Precision, Product, RowSampling, StepInput,
    StepLimits,
};
use crate::quant::QuantFormat;
use crate::session::{KvMemory, Session};
use crate::token::TokenId;

use super::source::Source;
use super::upload::upload;
use super::{Decoder, DecoderMemory, LoadProgress, ModelConfig, ModelError, SidecarUse, decoder};

/// How a model is loaded.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadOptions {
    /// Room for the rows of a step.
    pub limits: StepLimits,
    /// How keys and values are stored.
    pub kv_dtype: KvDtype,
    /// Bytes for keys and values; as many pages as fit are allocated.
    pub kv_bytes: usize,
    /// Most tokens of a sequence, at most the model's trained context.
    pub context_max: usize,
    /// What F32, F16 and BF16 matrices become; kept as they are if none.
    pub quantise: Option<QuantFormat>,
    /// A file of the matrices as the backend prepared them: read instead of preparing them again, written
    /// or replaced where that cannot be. It is safe to delete at any time. None is kept if none.
    pub sidecar: Option<PathBuf>,
    /// How activations are asked to be stored; the residual stream is f32 always.
    pub activations: Precision,
}

/// A model on a backend.
#[derive(Debug)]
pub struct Model<B: Backend> {
    config: ModelConfig,
    session: Session<B>,
    kv: KvMemory,
    context_max: usize,
    fingerprint: [u8; 32],
    sidecar: SidecarUse,
    /// Outputs of the last step.
    outputs: usize,
}

impl<B: Backend> Model<B> {
    /// Compiles the model's graph, loads its weights and allocates its memory.
    ///
    /// # Errors
    /// [`ModelError::Context`] and [`ModelError::KvBudget`] before anything is read; a tensor that
    /// cannot be decoded or quantised, by name; [`ModelError::Backend`] if there is no memory.
    pub fn load(
        file: &dyn Checkpoint,
        config: &ModelConfig,
        backend: B,
        options: &LoadOptions,
        progress: &mut dyn FnMut(LoadProgress<'_>),
    ) -> Result<Model<B>, ModelError> {
        let kv = kv_memory(config, options)?;
        let element_bytes = |precision| backend.element_bytes(precision);
        let config = config.within(options.context_max);
        let plan = decoder::build(&config)?.compile(&CompileOptions {
            limits: options.limits,
            element_bytes: &element_bytes,
            fuse: Fusion::On,
            activations: options.activations,
        })?;
        // What the backend has no kernel for is refused before weights are read.
        plan.ops().iter().try_for_each(|op| backend.check_kernel(op))?;
        let fingerprint = file.fingerprint()?;
        let source =
            Source { file, fingerprint, quantise: options.quantise, sidecar: options.sidecar.as_deref() };
        let (weights, sidecar) =
            upload(source, &plan, &backend, progress).map_err(|error: ModelError| error.of(file))?;
        let fingerprint = cache_fingerprint::<B>(fingerprint, kv.layout, options);
        let session = Session::new(backend, plan, weights, Some(kv))?;
        let context_max = options.context_max;
        Ok(Model { config, session, kv, context_max, fingerprint, sidecar, outputs: 0 })
    }

    /// The hyperparameters.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The plan, the backend and its memory.
    pub fn session(&self) -> &Session<B> {
        &self.session
    }

    /// What became of the file of prepared weights.
    pub fn sidecar(&self) -> &SidecarUse {
        &self.sidecar
    }

    /// Bytes that the prepared matrices keep resident.
    pub fn weight_bytes(&self) -> usize {
        let matrices = &self.session.weights().matrices;
        matrices.iter().map(|matrix| matrix.bytes()).sum()
    }
}

impl<B: Backend> Model<B> {
    /// Bytes of weights that one decode step reads: each matrix that a product uses, once.
    pub fn step_weight_bytes(&self) -> usize {
        let mut matrices = BTreeSet::new();
        for op in self.session.plan().ops() {
            match op {
                Op::Matmul(matmul) => matrices.extend(matmul.products.iter().flat_map(Product::matrices)),
                // Which ones a row goes to does not matter: all have one shape.
                Op::ExpertMatmul(experts) => {
                    matrices.extend((0..experts.top_k()).filter_map(|expert| experts.experts.get(expert)));
                }
                _ => {}
            }
        }
        let weights = &self.session.weights().matrices;
        let bytes = |id: MatrixId| weights.get(id.0 as usize).map(PreparedMatrix::bytes);
        matrices.into_iter().filter_map(bytes).sum()
    }
}

/// The pool of a budget: room for one sequence of the longest context at least.
fn kv_memory(config: &ModelConfig, options: &LoadOptions) -> Result<KvMemory, ModelError> {
    let LoadOptions { context_max, kv_bytes, kv_dtype, .. } = *options;
    if context_max == 0 || context_max > config.context_length {
        return Err(ModelError::Context { asked: context_max, trained: config.context_length });
    }
    let layout = KvLayout {
        layers: config.block_count,
        kv_heads: config.heads.kv,
        head_dim: config.heads.dim,
        dtype: kv_dtype,
    };
    // Page ids are 32 bits wide.
    let pages = layout.pages_in(kv_bytes).min(u32::MAX as usize);
    let least = context_max.div_ceil(PAGE_TOKENS);
    if pages < least {
        let bytes_needed = layout.page_bytes().saturating_mul(least);
        return Err(ModelError::KvBudget { bytes: kv_bytes, bytes_needed, context_max });
    }
    Ok(KvMemory { layout, pages })
}

/// What keys and values depend on: the file, what its matrices became, and how they are stored.
fn cache_fingerprint<B: Backend>(file: [u8; 32], layout: KvLayout, options: &LoadOptions) -> [u8; 32] {
    let mut hash = blake3::Hasher::new();
    hash.update(&file);
    let LoadOptions { quantise, activations, .. } = options;
    let made = format!("{} {layout:?} {quantise:?} {activations:?}", std::any::type_name::<B>());
    hash.update(made.as_bytes());
    *hash.finalize().as_bytes()
}

impl<B: Backend> Decoder for Model<B> {
    fn limits(&self) -> StepLimits {
        self.session.plan().limits()
    }

    fn vocab_size(&self) -> usize {
        self.config.vocab_size
    }

    fn context_max(&self) -> usize {
        self.context_max
    }

    fn pages(&self) -> usize {
        self.kv.pages
    }

    fn kv_layout(&self) -> KvLayout {
        self.kv.layout
    }

    fn state_slots(&self) -> usize {
        self.session.state_slots()
    }

    fn memory(&self) -> DecoderMemory {
        let plan = self.session.plan();
        let vectors = plan.vectors().iter().map(|vector| vector.len).sum::<usize>();
        DecoderMemory {
            weight_bytes: self.weight_bytes() + vectors * size_of::<f32>(),
            arena_bytes: plan.arena_bytes(),
            kv_bytes: self.kv.pages * self.kv.layout.page_bytes(),
        }
    }

    fn step(&mut self, step: &StepInput) -> Result<(), ModelError> {
        self.outputs = 0;
        self.session.run(step)?;
        self.outputs = step.outputs.len();
        Ok(())
    }

    fn step_timed(&mut self, step: &StepInput, times: &mut OpTimes) -> Result<(), ModelError> {
        self.outputs = 0;
        self.session.run_timed(step, |op, time| times[op.kind() as usize] += time)?;
        self.outputs = step.outputs.len();
        Ok(())
    }

    fn logits(&self, output: usize, out: &mut [f32]) -> Result<(), ModelError> {
        if output >= self.outputs {
            return Err(ModelError::Output { found: output, outputs: self.outputs });
        }
        if out.len() != self.config.vocab_size {
            return Err(ModelError::Logits { expected: self.config.vocab_size, found: out.len() });
        }
        Ok(self.session.read(decoder::LOGITS, output, out)?)
    }

    fn samples(&self, sampling: &RowSampling) -> bool {
        self.session.backend().samples(sampling, self.config.vocab_size)
    }

    fn runs_ahead(&self) -> bool {
        self.session.backend().queue().is_some()
    }

    fn steps(&self) -> u64 {
        self.session.steps()
    }

    fn sampled(&mut self, step: u64, out: &mut [Option<TokenId>]) -> Result<(), ModelError> {
        Ok(self.session.sampled(decoder::SAMPLED, step, out)?)
    }

    fn copy_page(&mut self, from: PageId, to: PageId) -> Result<(), ModelError> {
        Ok(self.session.copy_page(from, to)?)
    }

    fn export_page(&self, page: PageId, out: &mut Vec<u8>) -> Result<(), ModelError> {
        Ok(self.session.export_page(page, out)?)
    }

    fn import_page(&mut self, page: PageId, bytes: &[u8]) -> Result<(), ModelError> {
        Ok(self.session.import_page(page, bytes)?)
    }

    fn fingerprint(&self) -> [u8; 32] {
        self.fingerprint
    }
}
