//! Row operations: embedding, norms of rows and heads, gathering of outputs, and sampling.

use std::fmt;

use super::elementwise::same_shape;
use crate::ir::listing::{Listed, sign};
use crate::ir::{
    Access, Counting, InvalidOp, MatrixId, Names, Norm, NormKind, OpKind, Operation, Place, RmsNorm, Work,
    WriteMode,
};

/// Token embedding: `dst[t] = table[token t] · scale`, `[tokens, table.cols]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Embed {
    /// `[tokens, table.cols]`
    pub dst: Place,
    /// `[vocabulary, dst.cols]`
    pub table: MatrixId,
    /// Gemma's `sqrt(hidden size)`, otherwise 1.
    pub scale: f32,
}

impl Operation for Embed {
    const NAME: &'static str = "embed";
    const KIND: OpKind = OpKind::Rest;

    fn visit(&mut self, visit: &mut dyn FnMut(Access, &mut Place)) {
        visit(Access::Write, &mut self.dst);
    }

    fn work(&self, counting: &Counting<'_>) -> Work {
        let table = (counting.matrix)(self.table);
        Work::of_bytes(self.dst.rows.count(counting.step) * (table.bytes / table.rows.max(1)))
    }

    fn write(&self, f: &mut fmt::Formatter<'_>, names: &dyn Names) -> fmt::Result {
        writeln!(f, "{} = {}[tokens] · {}", Listed(self.dst), names.matrix(self.table), self.scale)
    }
}

/// `dst (+)= norm(src)`; `dst` may be `src` with [`WriteMode::Store`].
#[derive(Clone, Debug, PartialEq)]
pub struct Normalize {
    /// Same shape as `src`.
    pub dst: Place,
    /// `[rows, cols]`
    pub src: Place,
    /// Norm applied to each row.
    pub norm: Norm,
    /// Whether to replace or add to `dst`.
    pub write: WriteMode,
}

impl Operation for Normalize {
    const NAME: &'static str = "norm";
    const KIND: OpKind = OpKind::Norms;

    fn visit(&mut self, visit: &mut dyn FnMut(Access, &mut Place)) {
        visit(Access::Read, &mut self.src);
        visit(self.write.access(), &mut self.dst);
    }

    fn check(&self) -> Result<(), InvalidOp> {
        same_shape::<Self>(&self.dst, &self.src)
    }

    fn write(&self, f: &mut fmt::Formatter<'_>, names: &dyn Names) -> fmt::Result {
        let Norm { kind, weight, bias, .. } = self.norm;
        let name = if kind == NormKind::Rms { "norm" } else { "layer_norm" };
        write!(f, "{} {} {name}({}", Listed(self.dst), sign(self.write), Listed(self.src))?;
        for vector in std::iter::once(weight).chain(bias) {
            write!(f, ", {}", names.vector(vector))?;
        }
        writeln!(f, ")")
    }
}

/// RMS norm of each head in place, for queries and keys that no [`KvAppend`](super::KvAppend) prepares.
#[derive(Clone, Debug, PartialEq)]
pub struct HeadNorm {
    /// `[rows, heads · head_dim]`
    pub x: Place,
    /// Elements per head.
    pub head_dim: usize,
    /// Norm with a gain of `head_dim` elements.
    pub norm: RmsNorm,
}

impl Operation for HeadNorm {
    const NAME: &'static str = "head_norm";
    const KIND: OpKind = OpKind::Norms;

    fn visit(&mut self, visit: &mut dyn FnMut(Access, &mut Place)) {
        visit(Access::Update, &mut self.x);
    }

    fn check(&self) -> Result<(), InvalidOp> {
        if self.head_dim > 0 && self.x.cols.is_multiple_of(self.head_dim) {
            return Ok(());
        }
        Self::invalid(format!("heads of {}", self.head_dim), Listed(self.x).to_string())
    }

    fn write(&self, f: &mut fmt::Formatter<'_>, names: &dyn Names) -> fmt::Result {
        let HeadNorm { x, head_dim, norm } = self;
        writeln!(f, "{} = norm of heads of {head_dim}, {}", Listed(*x), names.vector(norm.weight))
    }
}

/// Gathers the output rows: `dst[i] = src[step.outputs[i]]`.
#[derive(Clone, Debug, PartialEq)]
pub struct GatherOutputs {
    /// `[outputs, cols]`
    pub dst: Place,
    /// `[tokens, cols]`
    pub src: Place,
}

impl Operation for GatherOutputs {
    const NAME: &'static str = "gather_outputs";
    const KIND: OpKind = OpKind::Rest;

    fn visit(&mut self, visit: &mut dyn FnMut(Access, &mut Place)) {
        visit(Access::Read, &mut self.src);
        visit(Access::Write, &mut self.dst);
    }

    fn write(&self, f: &mut fmt::Formatter<'_>, _: &dyn Names) -> fmt::Result {
        writeln!(f, "{} = {}[outputs]", Listed(self.dst), Listed(self.src))
    }
}

/// Samples a token per row of logits with the parameters in
/// [`StepInput::sampling`](crate::ir::StepInput::sampling) for the output of the same index; greedy without
/// parameters. The result is −1 for a row with a NaN or +∞, or without a value above −∞. A backend may also
/// return −1 to leave a row to the caller; it may have adjusted the logits of other rows in place.
#[derive(Clone, Debug, PartialEq)]
pub struct SampleRows {
    /// `[rows, 1]`: token ids as floats, exact below 2^24.
    pub dst: Place,
    /// `[rows, vocab]`
    pub src: Place,
}

impl Operation for SampleRows {
    const NAME: &'static str = "sample";
    const KIND: OpKind = OpKind::Sampling;

    fn visit(&mut self, visit: &mut dyn FnMut(Access, &mut Place)) {
        visit(Access::Read, &mut self.src);
        visit(Access::Write, &mut self.dst);
    }

    fn write(&self, f: &mut fmt::Formatter<'_>, _: &dyn Names) -> fmt::Result {
        writeln!(f, "{} = sample({})", Listed(self.dst), Listed(self.src))
    }
}
