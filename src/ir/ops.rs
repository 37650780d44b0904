//! The fused operations that a plan is made of, as data: shapes, places and weight ids.
//!
//! Every value is a matrix `[rows, cols]`, row-major, in the arena at a [`Place`]. What an
//! operation computes is said here and, executable in f64, in `backend/reference`.

use std::sync::Arc;

use super::{StepInput, StepLimits};

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
}

impl Rows {
    /// The number of rows in this step.
    pub fn count(self, step: &StepInput) -> usize {
        match self {
            Rows::Tokens => step.tokens.len(),
            Rows::Outputs => step.outputs.len(),
            Rows::Fixed(n) => n,
        }
    }

    /// The most rows that a step within `limits` has.
    pub fn max(self, limits: StepLimits) -> usize {
        match self {
            Rows::Tokens => limits.tokens_max,
            Rows::Outputs => limits.outputs_max,
            Rows::Fixed(n) => n,
        }
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

/// Whether a result replaces its destination or is added to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// `dst = value`
    Store,
    /// `dst += value`: the residual stream
    Add,
}

/// `y = x / sqrt(mean(x²) + eps) · weight`, over a row or over one head of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmsNorm {
    /// The gain, as long as what is normalised.
    pub weight: VectorId,
    /// Added to the mean square.
    pub eps: f32,
}

/// The gate's activation function in a gated MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x / (1 + exp(−x))`
    Silu,
    /// `x/2 · (1 + tanh(sqrt(2/π) · (x + 0.044715 x³)))`
    GeluTanh,
}

/// What becomes of one matrix product.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Epilogue {
    /// `dst = y (+ bias)`, or `dst += y (+ bias)`.
    Write(Write),
    /// `dst = activation(y) · (x · upᵀ)`, where `y = x · matrixᵀ`; no bias.
    Gated {
        /// The second matrix, of the same shape.
        up: MatrixId,
        /// Applied to the first product.
        activation: Activation,
    },
}

/// One product of a [`Matmul`]: `y = x · matrixᵀ`, `[rows, matrix.rows]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Product {
    /// `[rows of src, matrix.rows]`
    pub dst: Place,
    /// `[dst.cols, src.cols]`
    pub matrix: MatrixId,
    /// Added to every row, `[dst.cols]`.
    pub bias: Option<VectorId>,
    /// What becomes of the product.
    pub epilogue: Epilogue,
}

impl Product {
    /// The matrices that the product reads.
    pub fn matrices(&self) -> impl Iterator<Item = MatrixId> {
        let up = match self.epilogue {
            Epilogue::Gated { up, .. } => Some(up),
            Epilogue::Write(_) => None,
        };
        std::iter::once(self.matrix).chain(up)
    }
}

/// Products of one source with several matrices; the source is normalised and, where the backend
/// does so, quantised once for all of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Matmul {
    /// `[rows, K]`
    pub src: Place,
    /// Applied to each row of `src` first (`src` itself stays as it is).
    pub norm: Option<RmsNorm>,
    /// At least one.
    pub products: Vec<Product>,
}

/// Which elements rotary embedding turns together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RopePairing {
    /// `(2i, 2i + 1)`: llama files in GGUF.
    Interleaved,
    /// `(i, i + dims/2)`: qwen, gemma, and Hugging Face's convention.
    Halves,
}

/// Fills `dst` with `[cos | sin]` of `position · inv_freq[i]`, times `magnitude`.
/// The angle is reduced in f64, so it is exact to 128k positions and beyond.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeAngles {
    /// `[tokens, 2 · inv_freq.len()]`: all cosines of a row, then all sines.
    pub dst: Place,
    /// Radians a position, `[dims / 2]`.
    pub inv_freq: Arc<[f64]>,
    /// Scales both (YaRN's attention factor), else 1.
    pub magnitude: f32,
}

/// A use of angles: the first `angles.cols` elements of each head are turned, the rest stay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// Made by [`RopeAngles`].
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

/// Prepares an attention: q and k get their per-head norm and their rotation, q in place, and k
/// and v are written to the pages of `layer` at the tokens' positions.
///
/// Where the [`Attention`] of `q` follows at once, nothing else may read `q`: a backend may do both in
/// one, and leave it as it was. It does where `dst` lies apart from all that the append reads.
#[derive(Clone, Debug, PartialEq)]
pub struct KvAppend {
    /// `[tokens, heads.query · heads.dim]`, changed in place.
    pub q: Place,
    /// `[tokens, heads.kv · heads.dim]`; undefined afterwards.
    pub k: Place,
    /// `[tokens, heads.kv · heads.dim]`; unchanged.
    pub v: Place,
    /// Index of the layer in the KV pool.
    pub layer: usize,
    /// The heads' shape.
    pub heads: Heads,
    /// Norm of each query head.
    pub q_norm: Option<RmsNorm>,
    /// Norm of each key head.
    pub k_norm: Option<RmsNorm>,
    /// Rotation, after the norms.
    pub rope: Option<Rope>,
}

impl KvAppend {
    /// Whether it prepares this attention.
    pub fn prepares(&self, attention: &Attention) -> bool {
        (self.q, self.layer, self.heads) == (attention.q, attention.layer, attention.heads)
    }
}

/// Causal attention of each token over its sequence's pages:
/// `softmax(soft_cap(q · k · scale)) · v`.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    /// `[tokens, heads.query · heads.dim]`
    pub dst: Place,
    /// `[tokens, heads.query · heads.dim]`, prepared by [`KvAppend`].
    pub q: Place,
    /// Index of the layer in the KV pool.
    pub layer: usize,
    /// The heads' shape.
    pub heads: Heads,
    /// Multiplies the products, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// The layer's window: a query at `p` sees positions above `p − window` (on top of
    /// [`crate::ir::StepSequence::window`]).
    pub window: Option<u32>,
    /// `cap · tanh(x / cap)` of the scaled products.
    pub soft_cap: Option<f32>,
}

/// An elementwise function of one value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum UnaryFn {
    /// An activation function.
    Activation(Activation),
    /// `x · factor`
    Scale(f32),
    /// `cap · tanh(x / cap)`
    SoftCap(f32),
    /// Rounded to a narrower format and widened again as stored.
    Cast(Precision),
}

/// An elementwise function of two values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BinaryFn {
    /// `a + b`
    Add,
    /// `a · b`
    Mul,
}

/// One step of a plan.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// `dst[t] = table[token t] · scale`, `[tokens, table.cols]`.
    Embed {
        /// `[tokens, table.cols]`
        dst: Place,
        /// `[vocabulary, dst.cols]`
        table: MatrixId,
        /// Gemma's `sqrt(D)`, else 1.
        scale: f32,
    },
    /// `dst (+)= rms_norm(src)`; `dst` may be `src` with [`Write::Store`].
    Norm {
        /// Same shape as `src`.
        dst: Place,
        /// `[rows, cols]`
        src: Place,
        /// `[cols]`
        norm: RmsNorm,
        /// Replace or add.
        write: Write,
    },
    /// See [`Matmul`].
    Matmul(Matmul),
    /// See [`RopeAngles`].
    RopeAngles(RopeAngles),
    /// Rotates each head of `x` in place.
    Rope {
        /// `[tokens, heads · head_dim]`
        x: Place,
        /// Elements of a head.
        head_dim: usize,
        /// The rotation.
        rope: Rope,
    },
    /// See [`KvAppend`].
    KvAppend(KvAppend),
    /// See [`Attention`].
    Attention(Attention),
    /// `dst[i] = src[step.outputs[i]]`
    GatherOutputs {
        /// `[outputs, cols]`
        dst: Place,
        /// `[tokens, cols]`
        src: Place,
    },
    /// `dst = f(src)`; `dst` may be `src`.
    Unary {
        /// Same shape as `src`.
        dst: Place,
        /// `[rows, cols]`
        src: Place,
        /// The function.
        f: UnaryFn,
    },
    /// `dst = f(a, b)`; `dst` may be `a`. `b` may have one row ([`Rows::Fixed`] 1), used for all.
    Binary {
        /// Same shape as `a`.
        dst: Place,
        /// `[rows, cols]`
        a: Place,
        /// `[rows, cols]` or `[1, cols]`
        b: Place,
        /// The function.
        f: BinaryFn,
    },
    /// `dst = softmax(src)` over each row; `dst` may be `src`.
    Softmax {
        /// Same shape as `src`.
        dst: Place,
        /// `[rows, cols]`
        src: Place,
    },
    /// The token of each row of logits, as [`StepInput::sampling`](super::StepInput::sampling) has it
    /// for the output of the same index, greedy where it says nothing; −1 for a row with a NaN or +∞, or
    /// without anything above −∞. A backend may leave rows to the caller, who then finds −1 too; the
    /// logits of the others may have been adjusted in place.
    Sample {
        /// `[rows, 1]`: whole numbers, exact below 2^24.
        dst: Place,
        /// `[rows, vocab]`
        src: Place,
    },
    /// `dst[c][r] = src[r][c]`; both have fixed rows and do not overlap.
    Transpose {
        /// `[cols, rows]`
        dst: Place,
        /// `[rows, cols]`
        src: Place,
    },
}

impl Op {
    /// The operation's name, as profiles and errors print it.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Embed { .. } => "embed",
            Op::Norm { .. } => "rms_norm",
            Op::Matmul(_) => "matmul",
            Op::RopeAngles(_) => "rope_angles",
            Op::Rope { .. } => "rope",
            Op::KvAppend(_) => "kv_append",
            Op::Attention(_) => "attention",
            Op::GatherOutputs { .. } => "gather_outputs",
            Op::Unary { .. } => "unary",
            Op::Binary { .. } => "binary",
            Op::Softmax { .. } => "softmax",
            Op::Sample { .. } => "sample",
            Op::Transpose { .. } => "transpose",
        }
    }
}
