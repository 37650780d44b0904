//! Operands: weight ids, places in the arena, and small types that several operations share.

use std::ops::Range;

use super::{AxisRows, StepInput, StepLimits};

/// Id of a quantised or dense weight matrix of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MatrixId(pub u32);

/// Id of an f32 weight vector of a model, such as a norm's gain or a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VectorId(pub u32);

/// Row axis of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rows {
    /// One row per token of the step.
    Tokens,
    /// One row per output of the step.
    Outputs,
    /// A fixed number of rows.
    Fixed(usize),
    /// One row per row of another axis.
    Axis(Axis),
}

/// An additional row axis, with a range of rows per sequence: audio frames, image patches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Axis {
    /// Index in [`StepInput::axes`].
    pub id: u32,
    /// Maximum rows per step.
    pub max: usize,
}

/// Expert matrices of equal shape, with consecutive ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MatrixStack {
    /// Matrix of the first expert.
    pub first: MatrixId,
    /// Number of experts.
    pub count: usize,
}

impl MatrixStack {
    /// Matrix of an expert; `None` if out of range.
    pub fn get(&self, expert: usize) -> Option<MatrixId> {
        let id = self.first.0.checked_add(u32::try_from(expert).ok()?)?;
        (expert < self.count).then_some(MatrixId(id))
    }
}

impl Rows {
    /// Number of rows in a step.
    pub fn count(self, step: &StepInput) -> usize {
        match self {
            Rows::Tokens => step.tokens.len(),
            Rows::Outputs => step.outputs.len(),
            Rows::Fixed(n) => n,
            Rows::Axis(axis) => step.axes.get(axis.id as usize).map_or(0, AxisRows::count),
        }
    }

    /// Maximum number of rows within `limits`.
    pub fn max(self, limits: StepLimits) -> usize {
        match self {
            Rows::Tokens => limits.tokens_max,
            Rows::Outputs => limits.outputs_max,
            Rows::Fixed(n) => n,
            Rows::Axis(axis) => axis.max,
        }
    }

    /// Row ranges that belong together: one per sequence; a single one for fixed rows.
    pub fn groups(self, step: &StepInput) -> impl Iterator<Item = Range<usize>> + '_ {
        let ranges: &[Range<u32>] = match self {
            Rows::Axis(axis) => step.axes.get(axis.id as usize).map_or(&[], |axis| &axis.rows),
            _ => &[],
        };
        let sequences = if self == Rows::Tokens { step.sequences.as_slice() } else { &[] };
        let whole = match self {
            Rows::Fixed(n) => Some(0..n),
            // Outputs form no groups.
            _ => None,
        };
        let known = sequences.iter().map(|sequence| &sequence.rows).chain(ranges);
        known.map(|rows| rows.start as usize..rows.end as usize).chain(whole)
    }
}

/// Storage type of an activation. A backend may use a wider type
/// ([`crate::backend::Backend::element_bytes`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Precision {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// bfloat16.
    Bf16,
}

/// Location, shape and type of a value in the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Byte offset from the start of the arena, a multiple of 64.
    pub offset: usize,
    /// Row axis.
    pub rows: Rows,
    /// Elements per row; rows are contiguous.
    pub cols: usize,
    /// Element type.
    pub precision: Precision,
}

/// Access of an operation to a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read only.
    Read,
    /// Write only.
    Write,
    /// Read and overwritten in place.
    Update,
    /// Read, and undefined afterwards.
    Consume,
}

/// Whether a result replaces or is added to its destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteMode {
    /// Replace: `dst = value`.
    Store,
    /// Accumulate: `dst += value`, for the residual stream.
    Add,
}

impl WriteMode {
    /// Access to the destination.
    pub fn access(self) -> Access {
        match self {
            WriteMode::Store => Access::Write,
            WriteMode::Add => Access::Update,
        }
    }
}

/// RMS norm over a row or a head: `y = x / sqrt(mean(x²) + eps) · weight`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmsNorm {
    /// Gain, with one element per normalised element.
    pub weight: VectorId,
    /// Epsilon, added to the mean square.
    pub eps: f32,
}

/// Normalisation of a row `x`, before gain and bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NormKind {
    /// `x / sqrt(mean(x²) + eps)` (Zhang and Sennrich 2019)
    Rms,
    /// `(x − mean(x)) / sqrt(variance(x) + eps)` (Ba et al. 2016)
    Layer,
}

/// Norm of whole rows with gain and optional bias.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm {
    /// RMS or layer norm.
    pub kind: NormKind,
    /// Gain, `[cols]`.
    pub weight: VectorId,
    /// Bias, `[cols]`.
    pub bias: Option<VectorId>,
    /// Epsilon, added to the mean square or the variance.
    pub eps: f32,
}

impl Norm {
    /// This norm as an RMS norm without bias, the kind that other operations can fuse.
    pub fn as_rms(&self) -> Option<RmsNorm> {
        let Norm { kind, weight, bias, eps } = *self;
        (kind == NormKind::Rms && bias.is_none()).then_some(RmsNorm { weight, eps })
    }
}

impl From<RmsNorm> for Norm {
    fn from(RmsNorm { weight, eps }: RmsNorm) -> Norm {
        Norm { kind: NormKind::Rms, weight, bias: None, eps }
    }
}

/// Activation function of an MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x / (1 + exp(−x))`
    Silu,
    /// `x/2 · (1 + tanh(sqrt(2/π) · (x + 0.044715 x³)))`
    GeluTanh,
    /// `x · Φ(x)` with the normal `Φ(x) = (1 + erf(x / sqrt(2))) / 2` (Hendrycks and Gimpel 2016)
    Gelu,
}

/// Pairing of the elements that rotary embedding rotates together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RopePairing {
    /// `(2i, 2i + 1)`: llama files in GGUF.
    Interleaved,
    /// `(i, i + dims/2)` (NeoX): qwen, gemma, and Hugging Face checkpoints.
    Halves,
}

/// A rotation: the first `angles.cols` elements of each head are rotated, the others are unchanged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// Result of [`RopeAngles`](super::RopeAngles).
    pub angles: Place,
    /// Pairing of rotated elements.
    pub pairing: RopePairing,
}

/// Head counts and head size of an attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Heads {
    /// Query heads, a multiple of `kv`; query head `h` uses KV head `h / (query / kv)` (GQA).
    pub query: usize,
    /// KV heads.
    pub kv: usize,
    /// Elements per head.
    pub dim: usize,
}
