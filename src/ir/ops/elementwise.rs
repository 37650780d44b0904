//! Elementwise functions, and weight-free functions of whole rows.

use std::fmt;

use crate::ir::listing::Listed;
use crate::ir::{Access, Activation, InvalidOp, Names, OpKind, Operation, Place, Precision, Rows};

/// Elementwise function of one operand.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum UnaryFn {
    /// Activation function.
    Activation(Activation),
    /// `x · factor`
    Scale(f32),
    /// `cap · tanh(x / cap)`
    SoftCap(f32),
    /// Rounding to a narrower type.
    Cast(Precision),
}

/// Elementwise function of two operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BinaryFn {
    /// `a + b`
    Add,
    /// `a − b`
    Sub,
    /// `a · b`
    Mul,
}

/// `dst = f(src)`, elementwise; `dst` may be `src`.
#[derive(Clone, Debug, PartialEq)]
pub struct Unary {
    /// Same shape as `src`.
    pub dst: Place,
    /// `[rows, cols]`
    pub src: Place,
    /// The function.
    pub f: UnaryFn,
}

impl Operation for Unary {
    const NAME: &'static str = "unary";
    const KIND: OpKind = OpKind::Rest;

    fn visit(&mut self, visit: &mut dyn FnMut(Access, &mut Place)) {
        visit(Access::Read, &mut self.src);
        visit(Access::Write, &mut self.dst);
    }

    fn check(&self) -> Result<(), InvalidOp> {
        same_shape::<Self>(&self.dst, &self.src)
    }

    fn write(&self, f: &mut fmt::Formatter<'_>, _: &dyn Names) -> fmt::Result {
        let function = match self.f {
            UnaryFn::Activation(activation) => format!("{activation:?}"),
            UnaryFn::Scale(factor) => format!("{factor} · "),
            UnaryFn::SoftCap(cap) => format!("cap {cap}"),
            UnaryFn::Cast(precision) => format!("as {precision:?}"),
        };
        writeln!(f, "{} = {function}({})", Listed(self.dst), Listed(self.src))
    }
}

/// `dst = f(a, b)`, elementwise; `dst` may be `a`. A `b` of one row ([`Rows::Fixed`](crate::ir::Rows::Fixed)
/// 1) is broadcast.
#[derive(Clone, Debug, PartialEq)]
pub struct Binary {
    /// Same shape as `a`.
    pub dst: Place,
    /// `[rows, cols]`
    pub a: Place,
    /// `[rows, cols]` or `[1, cols]`
    pub b: Place,
    /// The function.
    pub f: BinaryFn,
}

impl Operation for Binary {
    const NAME: &'static str = "binary";
    const KIND: OpKind = OpKind::Rest;

    fn visit(&mut self, visit: &mut dyn FnMut(Access, &mut Place)) {
        visit(Access::Read, &mut self.a);
        visit(Access::Read, &mut self.b);
        visit(Access::Write, &mut self.dst);
    }

    fn check(&self) -> Result<(), InvalidOp> {
        same_shape::<Self>(&self.dst, &self.a)
    }

    fn write(&self, f: &mut fmt::Formatter<'_>, _: &dyn Names) -> fmt::Result {
        let sign = match self.f {
            BinaryFn::Add => '+',
            BinaryFn::Sub => '−',
            BinaryFn::Mul => '·',
        };
        writeln!(f, "{} = {} {sign} {}", Listed(self.dst), Listed(self.a), Listed(self.b))
    }
}

/// `dst = softmax(src)` over each row; `dst` may be `src`.
#[derive(Clone, Debug, PartialEq)]
pub struct Softmax {
    /// Same shape as `src`.
    pub dst: Place,
    /// `[rows, cols]`
    pub src: Place,
}

impl Operation for Softmax {
    const NAME: &'static str = "softmax";
    const KIND: OpKind = OpKind::Rest;

    fn visit(&mut self, visit: &mut dyn FnMut(Access, &mut Place)) {
        visit(Access::Read, &mut self.src);
        visit(Access::Write, &mut self.dst);
    }

    fn check(&self) -> Result<(), InvalidOp> {
        same_shape::<Self>(&self.dst, &self.src)
    }

    fn write(&self, f: &mut fmt::Formatter<'_>, _: &dyn Names) -> fmt::Result {
        writeln!(f, "{} = softmax({})", Listed(self.dst), Listed(self.src))
    }
}

/// `dst[c][r] = src[r][c]`; both have fixed rows and are disjoint.
#[derive(Clone, Debug, PartialEq)]
pub struct Transpose {
    /// `[cols, rows]`
    pub dst: Place,
    /// `[rows, cols]`
    pub src: Place,
}

impl Operation for Transpose {
    const NAME: &'static str = "transpose";
    const KIND: OpKind = OpKind::Rest;

    fn visit(&mut self, visit: &mut dyn FnMut(Access, &mut Place)) {
        visit(Access::Read, &mut self.src);
        visit(Access::Write, &mut self.dst);
    }

    fn mixes(&self) -> Option<Rows> {
        Some(self.src.rows)
    }

    fn write(&self, f: &mut fmt::Formatter<'_>, _: &dyn Names) -> fmt::Result {
        writeln!(f, "{} = transpose({})", Listed(self.dst), Listed(self.src))
    }
}

/// Checks that result and source have equal rows and columns.
pub(super) fn same_shape<O: Operation>(dst: &Place, src: &Place) -> Result<(), InvalidOp> {
    if (dst.rows, dst.cols) == (src.rows, src.cols) {
        return Ok(());
    }
    O::invalid(format!("a result of {}", Listed(*src)), Listed(*dst).to_string())
}
