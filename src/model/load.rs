//! [`Model`]: a compiled graph with weights and KV pool on a backend.

use std::collections::BTreeSet;
use std::fmt::Debug;

use crate::backend::{Backend, PageMemory, PreparedMatrix, Weights};
use crate::checkpoint::Checkpoint;
use crate::graph::{CompileOptions, Fusion, Graph, Plan};
use crate::ir::OpTimes;
use crate::ir::{KvLayout, MatrixId, Op, Product, RowSampling, StateLayout, StepInput, StepLimits};
use crate::session::{KvMemory, Session};
use crate::token::TokenId;

use super::budget::Pool;
use super::source::Source;
use super::upload::upload;
use super::{
    Decoder, DecoderMemory, KvBudget, LoadOptions, LoadProgress, ModelConfig, ModelError, SidecarUse, decoder,
};

/// A loaded model on a backend.
#[derive(Debug)]
pub struct Model<B: Backend> {
    pub(super) vocab_size: usize,
    pub(super) session: Session<B>,
    pub(super) kv: KvMemory,
    pub(super) context_max: usize,
    pub(super) fingerprint: [u8; 32],
    pub(super) sidecar: SidecarUse,
    /// Number of outputs of the last step.
    pub(super) outputs: usize,
}

impl<B: Backend> Model<B> {
    /// Compiles the model's graph, loads its weights and allocates its memory.
    ///
    /// # Errors
    /// [`ModelError::Context`], [`ModelError::KvBudget`] and [`ModelError::KvMemory`], if possible before
    /// anything is read; a tensor that cannot be decoded or quantised, by name; [`ModelError::Backend`] for
    /// an operation without a kernel or if memory is exhausted.
    pub fn load(
        file: &dyn Checkpoint,
        config: &ModelConfig,
        backend: B,
        options: &LoadOptions,
        progress: &mut dyn FnMut(LoadProgress<'_>),
    ) -> Result<Model<B>, ModelError> {
        let pool = Pool::new(config, options)?;
        pool.memory(free(&backend))?;
        let config = config.within(options.context_max);
        let plan = compile(&decoder::build(&config)?, &backend, options)?;
        // Operations without a kernel are rejected before weights are read.
        plan.ops().iter().try_for_each(|op| backend.check_kernel(op))?;
        let fingerprint = file.fingerprint()?;
        let source =
            Source { file, fingerprint, quantise: options.quantise, sidecar: options.sidecar.as_deref() };
        let (weights, sidecar) =
            upload(source, &plan, &backend, progress).map_err(|error: ModelError| error.of(file))?;
        let fingerprint = cache_fingerprint(&backend, fingerprint, pool.layout(), options, &config.rope);
        let session = bound(backend, plan, weights, pool)?;
        let (kv, context_max, vocab_size) = (session.kv_memory(), options.context_max, config.vocab_size);
        Ok(Model { vocab_size, session, kv, context_max, fingerprint, sidecar, outputs: 0 })
    }

    /// Estimated allocation of [`Model::load`], computed without reading weights. An estimate, because
    /// backends pad matrices.
    ///
    /// # Errors
    /// Invalid options, or a file that lacks a required tensor. Insufficient memory is not an error.
    pub fn estimate(
        file: &dyn Checkpoint,
        config: &ModelConfig,
        backend: &B,
        options: &LoadOptions,
    ) -> Result<DecoderMemory, ModelError> {
        let pool = Pool::new(config, options)?;
        let plan = compile(&decoder::build(config)?, backend, options)?;
        let source = Source { file, fingerprint: [0; 32], quantise: options.quantise, sidecar: None };
        let mut weight_bytes = plan.vectors().iter().map(|vector| vector.len * size_of::<f32>()).sum();
        for spec in plan.matrices() {
            weight_bytes += backend.matrix_bytes(source.shape(spec)?);
        }
        reckon(weight_bytes, &plan, pool, free(backend))
    }

    /// The session: plan, backend and memory.
    pub fn session(&self) -> &Session<B> {
        &self.session
    }

    /// Outcome for the sidecar with prepared weights.
    pub fn sidecar(&self) -> &SidecarUse {
        &self.sidecar
    }

    /// Resident bytes of the prepared matrices.
    pub fn weight_bytes(&self) -> usize {
        let matrices = &self.session.weights().matrices;
        matrices.iter().map(|matrix| matrix.bytes()).sum()
    }
}

impl<B: Backend> Model<B> {
    /// Bytes of weights that one decode step reads. Each used matrix counts once.
    pub fn step_weight_bytes(&self) -> usize {
        let mut matrices = BTreeSet::new();
        for op in self.session.plan().ops() {
            match op {
                Op::Matmul(matmul) => matrices.extend(matmul.products.iter().flat_map(Product::matrices)),
                // All experts have one shape, so the first `top_k` represent any selection.
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

/// Free bytes of the backend's device, if known.
pub(super) fn free<B: Backend>(backend: &B) -> Option<u64> {
    backend.memory().map(|memory| memory.free_bytes)
}

/// Memory of a model with `weight_bytes` bytes of weights.
pub(super) fn reckon(
    weight_bytes: usize,
    plan: &Plan,
    pool: Pool,
    free: Option<u64>,
) -> Result<DecoderMemory, ModelError> {
    let arena_bytes = plan.arena_bytes();
    let shares = matches!(pool.budget(), KvBudget::FreeShare(_));
    let left = free.filter(|_| shares).map(|free| free.saturating_sub((weight_bytes + arena_bytes) as u64));
    let kv_bytes = match pool.bytes(left) {
        // Free memory is below one context: loading would return this error.
        Err(ModelError::KvBudget { .. }) if shares => pool.least_bytes(),
        found => found?,
    };
    Ok(DecoderMemory { weight_bytes, arena_bytes, kv_bytes })
}

/// Creates a session. The pool is sized after the backend has allocated everything else.
pub(super) fn bound<B: Backend>(
    backend: B,
    plan: Plan,
    weights: Weights<B>,
    pool: Pool,
) -> Result<Session<B>, ModelError> {
    Session::sized(backend, plan, weights, |backend| pool.memory(free(backend)).map(Some))
}

pub(super) fn compile<B: Backend>(
    graph: &Graph,
    backend: &B,
    options: &LoadOptions,
) -> Result<Plan, ModelError> {
    Ok(graph.compile(&CompileOptions {
        limits: options.limits,
        element_bytes: &|precision| backend.element_bytes(precision),
        fuse: Fusion::On,
        activations: options.activations,
    })?)
}

/// Fingerprint of everything that keys and values depend on: weights, their formats, KV layout, arithmetic,
/// and `computed`. For files that is the rotary embedding, which can depend on the requested context.
pub(super) fn cache_fingerprint<B: Backend>(
    backend: &B,
    weights: [u8; 32],
    layout: KvLayout,
    options: &LoadOptions,
    computed: &dyn Debug,
) -> [u8; 32] {
    let mut hash = blake3::Hasher::new();
    hash.update(&weights);
    let LoadOptions { quantise, activations, .. } = options;
    let (device, arithmetic) = (std::any::type_name::<B>(), backend.arithmetic());
    let made = format!("{device} {arithmetic} {layout:?} {quantise:?} {activations:?} {computed:?}");
    hash.update(made.as_bytes());
    *hash.finalize().as_bytes()
}

impl<B: Backend> Decoder for Model<B> {
    fn limits(&self) -> StepLimits {
        self.session.plan().limits()
    }

    fn vocab_size(&self) -> usize {
        self.vocab_size
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

    fn states(&self) -> StateLayout {
        self.session.states()
    }

    fn memory(&self) -> DecoderMemory {
        let plan = self.session.plan();
        let vectors = plan.vectors().iter().map(|vector| vector.len).sum::<usize>();
        DecoderMemory {
            weight_bytes: self.weight_bytes() + vectors * size_of::<f32>(),
            arena_bytes: plan.arena_bytes(),
            kv_bytes: self.kv.pages * self.session.page_bytes(),
        }
    }

    fn step(&mut self, step: &StepInput) -> Result<(), ModelError> {
        self.outputs = 0;
        self.session.main().run(step)?;
        self.outputs = step.outputs.len();
        Ok(())
    }

    fn step_timed(&mut self, step: &StepInput, times: &mut OpTimes) -> Result<(), ModelError> {
        self.outputs = 0;
        self.session.main().run_timed(step, |op, time| times[op.kind() as usize] += time)?;
        self.outputs = step.outputs.len();
        Ok(())
    }

    fn logits(&self, output: usize, out: &mut [f32]) -> Result<(), ModelError> {
        if output >= self.outputs {
            return Err(ModelError::Output { found: output, outputs: self.outputs });
        }
        if out.len() != self.vocab_size {
            return Err(ModelError::Logits { expected: self.vocab_size, found: out.len() });
        }
        Ok(self.session.read(decoder::LOGITS, output, out)?)
    }

    fn samples(&self, sampling: &RowSampling) -> bool {
        self.session.backend().samples(sampling, self.vocab_size)
    }

    fn runs_ahead(&self) -> bool {
        self.session.backend().queue().is_some()
    }

    fn steps(&self) -> u64 {
        self.session.steps()
    }

    fn sampled(&mut self, step: u64, out: &mut [Option<TokenId>]) -> Result<(), ModelError> {
        Ok(self.session.main().sampled(decoder::SAMPLED, step, out)?)
    }

    fn kv(&self) -> &dyn PageMemory {
        self.session.kv()
    }

    fn kv_mut(&mut self) -> &mut dyn PageMemory {
        self.session.kv_mut()
    }

    fn fingerprint(&self) -> [u8; 32] {
        self.fingerprint
    }
}
