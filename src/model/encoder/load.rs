//! [`Encoder`]: a compiled encoder with its weights on a backend.

use std::path::PathBuf;

use crate::backend::{Backend, PreparedMatrix as _};
use crate::checkpoint::{Checkpoint, Role};
use crate::graph::Plan;
use crate::ir::{Precision, StepInput, StepLimits, StepSequence};
use crate::quant::QuantFormat;
use crate::session::Session;

use super::graph::{self, PLACES, POOLED};
use super::{EncoderConfig, Pooling, TextEncoder, TextTokens};
use crate::model::load::compile;
use crate::model::source::Source;
use crate::model::upload::upload;
use crate::model::{DecoderMemory, LoadOptions, LoadProgress, ModelError};

/// Options for loading an encoder.
#[derive(Clone, Debug, PartialEq)]
pub struct EncoderOptions {
    /// Maximum tokens and texts of a step. The tokens are at least `context_max`.
    pub limits: StepLimits,
    /// Maximum length of a text, in tokens.
    pub context_max: usize,
    /// Pooling.
    pub pooling: Pooling,
    /// Format to which F32, F16 and BF16 matrices are quantised; `None` keeps them.
    pub quantise: Option<QuantFormat>,
    /// Sidecar file with prepared matrices: see [`LoadOptions::sidecar`].
    pub sidecar: Option<PathBuf>,
}

/// A loaded encoder on a backend.
#[derive(Debug)]
pub struct Encoder<B: Backend> {
    session: Session<B>,
    places: Option<Places>,
    pooling: Pooling,
    context_max: usize,
    width: usize,
    step: StepInput,
}

/// Tables that are added to the token embeddings, in f32.
#[derive(Debug)]
struct Places {
    width: usize,
    /// `[context, width]`; empty without learned positions.
    positions: Vec<f32>,
    /// `[token types, width]`; empty without token types.
    types: Vec<f32>,
    /// Rows of a step.
    rows: Vec<f32>,
}

impl<B: Backend> Encoder<B> {
    /// Compiles the encoder's graph, loads its weights and allocates its memory.
    ///
    /// # Errors
    /// [`ModelError::Context`]; [`ModelError::NoClassHead`] for [`Pooling::Rank`] without a classification
    /// head; a tensor that cannot be decoded or quantised, by name; [`ModelError::Backend`] for an operation
    /// without a kernel or if memory is exhausted.
    pub fn load(
        file: &dyn Checkpoint,
        config: &EncoderConfig,
        backend: B,
        options: &EncoderOptions,
        progress: &mut dyn FnMut(LoadProgress<'_>),
    ) -> Result<Encoder<B>, ModelError> {
        let EncoderOptions { context_max, pooling, .. } = *options;
        let trained = config.model.context_length;
        if context_max == 0 || context_max > trained {
            return Err(ModelError::Context { asked: context_max, trained });
        }
        if pooling == Pooling::Rank && !config.class_head.is_some() {
            return Err(ModelError::NoClassHead { family: config.model.family.name });
        }
        let config = EncoderConfig { model: config.model.within(context_max), ..config.clone() };
        let tokens_max = options.limits.tokens_max.max(context_max);
        let limits = StepLimits { tokens_max, ..options.limits };
        let activations = Precision::F32;
        let load = LoadOptions { limits, activations, ..LoadOptions::new(context_max) };
        let plan = compile(&graph::build(&config, pooling)?, &backend, &load)?;
        // Operations without a kernel are rejected before weights are read.
        plan.ops().iter().try_for_each(|op| backend.check_kernel(op))?;
        let fingerprint = file.fingerprint()?;
        let source =
            Source { file, fingerprint, quantise: options.quantise, sidecar: options.sidecar.as_deref() };
        let of = |error: ModelError| error.of(file);
        let (weights, _) = upload(source, &plan, &backend, progress).map_err(of)?;
        let places = Places::read(file, &config, tokens_max).map_err(of)?;
        let (width, session) = (config.width(pooling), Session::new(backend, plan, weights, None)?);
        Ok(Encoder { session, places, pooling, context_max, width, step: StepInput::default() })
    }

    /// The session: plan, backend and memory.
    pub fn session(&self) -> &Session<B> {
        &self.session
    }

    fn plan(&self) -> &Plan {
        self.session.plan()
    }

    /// The step of texts: each is a sequence with one output.
    fn set_step(&mut self, texts: &[TextTokens<'_>]) {
        let step = &mut self.step;
        step.clear();
        for text in texts {
            let first = step.tokens.len() as u32;
            let count = text.ids.len() as u32;
            step.tokens.extend_from_slice(text.ids);
            step.positions.extend(0..count);
            let rows = first..first + count;
            let last = self.pooling == Pooling::Last;
            step.outputs.push(if last { rows.end.saturating_sub(1) } else { rows.start });
            step.sequences.push(StepSequence { rows, pages: 0..0, window: None });
        }
    }
}

impl Places {
    fn read(
        file: &dyn Checkpoint,
        config: &EncoderConfig,
        tokens_max: usize,
    ) -> Result<Option<Places>, ModelError> {
        let (dialect, width) = (&config.model.dialect, config.model.embedding_length);
        let table = |role: Role, first: usize, rows: usize| -> Result<Vec<f32>, ModelError> {
            let matrix = file.matrix(&dialect.weight(role))?;
            let mut values = vec![0.0; rows * width];
            for (row, out) in values.chunks_exact_mut(width.max(1)).enumerate() {
                matrix.dequantize_row(first + row, out);
            }
            Ok(values)
        };
        if config.tables().is_empty() {
            return Ok(None);
        }
        let positions = config
            .first_position
            .map(|first| table(Role::PositionEmbedding, first, config.model.context_length));
        let types = match config.token_types {
            0 => Vec::new(),
            count => table(Role::TokenTypes, 0, count)?,
        };
        let rows = Vec::with_capacity(tokens_max.saturating_mul(width));
        Ok(Some(Places { width, positions: positions.transpose()?.unwrap_or_default(), types, rows }))
    }

    /// The rows of a step: position and token type of each token.
    fn rows(&mut self, texts: &[TextTokens<'_>]) -> &[f32] {
        let Places { width, positions, types, rows } = self;
        let row =
            |table: &[f32], index: usize, col: usize| table.get(index * *width + col).copied().unwrap_or(0.0);
        let last_type = (types.len() / (*width).max(1)).saturating_sub(1);
        rows.clear();
        for text in texts {
            for place in 0..text.ids.len() {
                let kind = usize::from(place >= text.first_segment).min(last_type);
                rows.extend((0..*width).map(|col| row(types, kind, col) + row(positions, place, col)));
            }
        }
        rows
    }
}

impl<B: Backend> TextEncoder for Encoder<B> {
    fn limits(&self) -> StepLimits {
        self.plan().limits()
    }

    fn context_max(&self) -> usize {
        self.context_max
    }

    fn width(&self) -> usize {
        self.width
    }

    fn memory(&self) -> DecoderMemory {
        let vectors: usize = self.plan().vectors().iter().map(|vector| vector.len).sum();
        let matrices: usize = self.session.weights().matrices.iter().map(|matrix| matrix.bytes()).sum();
        let places = self.places.as_ref().map_or(0, |places| places.positions.len() + places.types.len());
        DecoderMemory {
            weight_bytes: matrices + (vectors + places) * size_of::<f32>(),
            arena_bytes: self.plan().arena_bytes(),
            kv_bytes: 0,
        }
    }

    fn encode(&mut self, texts: &[TextTokens<'_>], out: &mut [f32]) -> Result<(), ModelError> {
        if let Some(long) = texts.iter().find(|text| text.ids.len() > self.context_max) {
            return Err(ModelError::Context { asked: long.ids.len(), trained: self.context_max });
        }
        self.set_step(texts);
        if let Some(places) = &mut self.places {
            self.session.main().set_input(PLACES, places.rows(texts))?;
        }
        self.session.main().run(&self.step)?;
        Ok(self.session.read(POOLED, 0, out)?)
    }
}
