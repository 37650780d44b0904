//! What operations work on: weights by number, values by their place in the arena, and the small parts that several
//! operations have.

use std::ops::Range;

use super::{AxisRows, StepInput, StepLimits};

/// A quantised or dense matrix among a model's weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MatrixId(pub u32);

/// An f32 vector among a model's weights: a norm's gain, a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VectorId(pub u32);

/// How many rows a value has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rows {
    /// One a token of the step.
    Tokens,
    /// One an output row of the step.
    Outputs,
    /// A fixed number.
    Fixed(usize),
    /// One a row that the step has of another axis.
    Axis(Axis),
}

/// Rows beside tokens and outputs, of which each sequence of a step has its own: frames of sound, patches of a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Axis {
    /// Its number among [`StepInput::axes`].
    pub id: u32,
    /// Most rows in a step.
    pub max: usize,
}

/// Experts: matrices of one shape whose numbers follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MatrixStack {
    /// The first expert's.
    pub first: MatrixId,
    /// How many there are.
    pub count: usize,
}

impl MatrixStack {
    /// The matrix of an expert, if there is such an expert.
    pub fn get(&self, expert: usize) -> Option<MatrixId> {
        let id = self.first.0.checked_add(u32::try_from(expert).ok()?)?;
        (expert < self.count).then_some(MatrixId(id))
    }
}

impl Rows {
    /// The number of rows in this step.
    pub fn count(self, step: &StepInput) -> usize {
        match self {
            Rows::Tokens => step.tokens.len(),
            Rows::Outputs => step.outputs.len(),
            Rows::Fixed(n) => n,
            Rows::Axis(axis) => step.axes.get(axis.id as usize).map_or(0, AxisRows::count),
        }
    }

    /// The most rows that a step within `limits` has.
    pub fn max(self, limits: StepLimits) -> usize {
        match self {
            Rows::Tokens => limits.tokens_max,
            Rows::Outputs => limits.outputs_max,
            Rows::Fixed(n) => n,
            Rows::Axis(axis) => axis.max,
        }
    }

    /// The rows that go together, in order: those of a sequence; all of a fixed number.
    pub fn groups(self, step: &StepInput) -> impl Iterator<Item = Range<usize>> + '_ {
        let ranges: &[Range<u32>] = match self {
            Rows::Axis(axis) => step.axes.get(axis.id as usize).map_or(&[], |axis| &axis.rows),
            _ => &[],
        };
        let sequences = if self == Rows::Tokens { step.sequences.as_slice() } else { &[] };
        let whole = match self {
            Rows::Fixed(n) => Some(0..n),
            // Outputs have no order of their own.
            _ => None,
        };
        let known = sequences.iter().map(|sequence| &sequence.rows).chain(ranges);
        known.map(|rows| rows.start as usize..rows.end as usize).chain(whole)
    }
}

/// How an activation is stored. A backend may store wider than asked
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

/// Where a value lives in the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Bytes from the arena's start, a multiple of 64.
    pub offset: usize,
    /// Its rows.
    pub rows: Rows,
    /// Elements in a row; rows follow each other without a gap.
    pub cols: usize,
    /// Its elements.
    pub precision: Precision,
}

/// What an operation does to one of its places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Only reads it.
    Read,
    /// Only writes it.
    Write,
    /// Reads what is there and replaces it.
    Update,
    /// Reads it and leaves it undefined.
    Consume,
}

/// Whether a result replaces its destination or is added to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// `dst = value`
    Store,
    /// `dst += value`: the residual stream
    Add,
}

impl Write {
    /// What becomes of the destination.
    pub fn role(self) -> Role {
        match self {
            Write::Store => Role::Write,
            Write::Add => Role::Update,
        }
    }
}

/// `y = x / sqrt(mean(x²) + eps) · weight`, over a row or over one head of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmsNorm {
    /// The gain, as long as what is normalised.
    pub weight: VectorId,
    /// Added to the mean square.
    pub eps: f32,
}

/// What a norm does to a row `x` before its gain and bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NormKind {
    /// `x / sqrt(mean(x²) + eps)` (Zhang and Sennrich 2019)
    Rms,
    /// `(x − mean(x)) / sqrt(variance(x) + eps)` (Ba et al. 2016)
    Layer,
}

/// A norm of whole rows, times `weight`, plus `bias`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm {
    /// What is divided by, and whether rows are centred first.
    pub kind: NormKind,
    /// The gain, as long as a row.
    pub weight: VectorId,
    /// Added last, as long as a row.
    pub bias: Option<VectorId>,
    /// Added to the mean square or the variance.
    pub eps: f32,
}

impl Norm {
    /// The same, if other operations can do it on their way: an RMS norm without bias.
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

/// An activation function, as gated MLPs have it for their gate and others between their layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x / (1 + exp(−x))`
    Silu,
    /// `x/2 · (1 + tanh(sqrt(2/π) · (x + 0.044715 x³)))`
    GeluTanh,
    /// `x · Φ(x)` with the normal distribution's `Φ(x) = (1 + erf(x / sqrt(2))) / 2` (Hendrycks and Gimpel 2016)
    Gelu,
}

/// Which elements rotary embedding turns together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RopePairing {
    /// `(2i, 2i + 1)`: llama files in GGUF.
    Interleaved,
    /// `(i, i + dims/2)`: qwen, gemma, and Hugging Face's convention.
    Halves,
}

/// A use of angles: the first `angles.cols` elements of each head are turned, the rest stay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// Made by [`RopeAngles`](super::RopeAngles).
    pub angles: Place,
    /// Which elements go together.
    pub pairing: RopePairing,
}

/// The heads of an attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Heads {
    /// Query heads, a multiple of `kv_heads`; query head `h` reads key head `h / (query / kv)`.
    pub query: usize,
    /// Key and value heads.
    pub kv: usize,
    /// Elements of a head.
    pub dim: usize,
}
