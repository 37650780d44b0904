//! [`OwnModel`]: a model from a user-built graph and named weights, without a model file.

use std::fmt;

use crate::backend::Backend;
use crate::checkpoint::shown;
use crate::graph::{Graph, GraphError, Plan};
use crate::ir::Rows;
use crate::session::NamedWeights;
use crate::token::TokenId;

use super::budget::Pool;
use super::decoder::{LOGITS, SAMPLED};
use super::load::{bound, cache_fingerprint, compile, free, reckon};
use super::{DecoderMemory, LoadOptions, Model, ModelError, SidecarUse};

/// A user-built graph with its weights. The output `logits`, `[outputs, vocabulary]`, is computed from the
/// step's tokens with at least one attention. Sampling is added at load. Weights are used as given:
/// [`LoadOptions::quantise`] and [`LoadOptions::sidecar`] must be `None`.
#[derive(Clone)]
pub struct OwnModel {
    name: String,
    graph: Graph,
    weights: NamedWeights,
    ends: Vec<TokenId>,
}

/// Omits the weights.
impl fmt::Debug for OwnModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnModel").field("name", &self.name).finish_non_exhaustive()
    }
}

impl OwnModel {
    /// Model with this graph and no end-of-answer tokens.
    pub fn new(name: impl Into<String>, graph: Graph, weights: NamedWeights) -> OwnModel {
        OwnModel { name: name.into(), graph, weights, ends: Vec::new() }
    }

    /// Sets the tokens that end an answer. Default: none.
    pub fn ends(mut self, ids: impl IntoIterator<Item = TokenId>) -> OwnModel {
        self.ends = ids.into_iter().collect();
        self
    }

    /// Name of the model.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Tokens that end an answer.
    pub fn end_ids(&self) -> &[TokenId] {
        &self.ends
    }

    /// Number of elements in all weights.
    pub fn parameters(&self) -> u64 {
        let matrices =
            self.graph.matrices().iter().map(|spec| (spec.rows as u64).saturating_mul(spec.cols as u64));
        matrices.chain(self.graph.vectors().iter().map(|spec| spec.len as u64)).sum()
    }

    /// Plan with sampling, KV pool and vocabulary size. Checks the engine's assumptions about the graph.
    fn plan<B: Backend>(
        &self,
        backend: &B,
        options: &LoadOptions,
    ) -> Result<(Plan, Pool, usize), ModelError> {
        let mut graph = self.graph.clone();
        let logits = graph.named(LOGITS).ok_or_else(|| self.refuse("it has no output `logits`"))?;
        let (rows, vocab_size) = graph.shape(logits)?;
        let sampled = graph.sample(logits)?;
        graph.output(SAMPLED, sampled)?;
        let plan = compile(&graph, backend, options)?;
        let rules = [
            (rows == Rows::Outputs, "its logits are not rows of outputs"),
            (plan.vocab().is_none_or(|rows| rows >= vocab_size), "it cannot embed all tokens of its logits"),
            (plan.inputs().next().is_none(), "it has inputs, which no request fills"),
            (
                !plan.ops().iter().any(|op| matches!(op.mixes(), Some(Rows::Tokens | Rows::Axis(_)))),
                "rows of a step are mixed, and prompts come in parts",
            ),
            (plan.states().is_empty(), "states of sequences do not run in the engine yet"),
            (options.quantise.is_none(), "its weights are taken as they are, and not quantised"),
            (options.sidecar.is_none(), "its weights are not kept in a file"),
        ];
        if let Some((_, broken)) = rules.into_iter().find(|(holds, _)| !holds) {
            return Err(self.refuse(broken));
        }
        let pool = Pool::of_plan(&plan, options)?.ok_or_else(|| self.refuse("it has no attention"))?;
        Ok((plan, pool, vocab_size))
    }

    fn refuse(&self, reason: &str) -> ModelError {
        GraphError::Unsupported { node: shown(&self.name), reason: reason.into() }.into()
    }
}

impl<B: Backend> Model<B> {
    /// Loads a model from a user-built graph.
    ///
    /// # Errors
    /// [`ModelError::Graph`] for a graph that is not such a decoder, [`ModelError::Session`] for weights that
    /// do not fit its names and shapes, [`ModelError::Backend`] for an operation without a kernel; otherwise
    /// as [`Model::load`].
    pub fn of_graph(own: &OwnModel, backend: B, options: &LoadOptions) -> Result<Model<B>, ModelError> {
        let (plan, pool, vocab_size) = own.plan(&backend, options)?;
        pool.memory(free(&backend))?;
        plan.ops().iter().try_for_each(|op| backend.check_kernel(op))?;
        let (weights, computed) = (own.weights.fingerprint(), own.graph.definition());
        let fingerprint = cache_fingerprint(&backend, weights, pool.layout(), options, &computed);
        let weights = own.weights.bind(&plan, &backend)?;
        let session = bound(backend, plan, weights, pool)?;
        let (kv, context_max, sidecar) = (session.kv_memory(), options.context_max, SidecarUse::Off);
        Ok(Model { vocab_size, session, kv, context_max, fingerprint, sidecar, outputs: 0 })
    }

    /// Estimated allocation of [`Model::of_graph`].
    ///
    /// # Errors
    /// [`ModelError::Graph`], [`ModelError::Context`].
    pub fn estimate_graph(
        own: &OwnModel,
        backend: &B,
        options: &LoadOptions,
    ) -> Result<DecoderMemory, ModelError> {
        let (plan, pool, _) = own.plan(backend, options)?;
        let vectors: usize = plan.vectors().iter().map(|vector| vector.len * size_of::<f32>()).sum();
        reckon(vectors + own.weights.matrix_bytes(), &plan, pool, free(backend))
    }
}
