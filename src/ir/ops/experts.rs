//! Mixtures of experts (MoE): routing, expert products, and the weighted sum.

use std::fmt;

use crate::ir::listing::{Listed, sign};
use crate::ir::{Access, Counting, InvalidOp, MatrixStack, Names, OpKind, Operation, Place, Work, WriteMode};

/// Top-k routing: the `top_k` experts with the largest logits per row, in descending order. Ties go to the
/// lower expert number.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// `[rows, 2 · top_k]`: expert numbers, then their weights.
    pub dst: Place,
    /// Router logits, `[rows, experts]`.
    pub src: Place,
    /// Experts per row.
    pub top_k: usize,
    /// Whether the weights of the chosen experts are normalised to sum 1; otherwise they are the softmax over
    /// all experts.
    pub renormalise: bool,
}

/// Product of each row with its experts' matrices: `dst[r][s] = src[r] · expert(r, s)ᵀ`. If `src` has a part
/// per expert: `src[r][s] · expert(r, s)ᵀ`.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertMatmul {
    /// `[rows, top_k · matrix.rows]`
    pub dst: Place,
    /// `[rows, matrix.cols]` or `[rows, top_k · matrix.cols]`
    pub src: Place,
    /// Result of [`Route`].
    pub routes: Place,
    /// The experts' matrices.
    pub experts: MatrixStack,
}

impl ExpertMatmul {
    /// Experts per row.
    pub fn top_k(&self) -> usize {
        self.routes.cols / 2
    }
}

/// Weighted sum of the experts' results: `dst (+)= Σ_s weight(r, s) · src[r][s]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Combine {
    /// `[rows, cols]`
    pub dst: Place,
    /// `[rows, top_k · cols]`
    pub src: Place,
    /// Result of [`Route`].
    pub routes: Place,
    /// Whether to replace or add to `dst`.
    pub write: WriteMode,
}

impl Operation for Route {
    const NAME: &'static str = "route";
    const KIND: OpKind = OpKind::Rest;

    fn visit(&mut self, visit: &mut dyn FnMut(Access, &mut Place)) {
        visit(Access::Read, &mut self.src);
        visit(Access::Write, &mut self.dst);
    }

    fn check(&self) -> Result<(), InvalidOp> {
        if self.top_k == 0 || self.top_k > self.src.cols {
            return Self::invalid(format!("1 to {} experts a row", self.src.cols), self.top_k.to_string());
        }
        if (self.dst.rows, self.dst.cols) != (self.src.rows, 2 * self.top_k) {
            return Self::invalid(
                format!("a result of {} columns", 2 * self.top_k),
                Listed(self.dst).to_string(),
            );
        }
        Ok(())
    }

    fn write(&self, f: &mut fmt::Formatter<'_>, _: &dyn Names) -> fmt::Result {
        let sum = if self.renormalise { ", sum 1" } else { "" };
        writeln!(f, "{} = route({}) to {}{sum}", Listed(self.dst), Listed(self.src), self.top_k)
    }
}

impl Operation for ExpertMatmul {
    const NAME: &'static str = "expert_matmul";
    const KIND: OpKind = OpKind::Matmul;

    fn visit(&mut self, visit: &mut dyn FnMut(Access, &mut Place)) {
        visit(Access::Read, &mut self.src);
        visit(Access::Read, &mut self.routes);
        visit(Access::Write, &mut self.dst);
    }

    fn check(&self) -> Result<(), InvalidOp> {
        let top_k = self.top_k();
        if top_k == 0 || !self.dst.cols.is_multiple_of(top_k) {
            return Self::invalid(
                format!("a part for each of {top_k} experts"),
                Listed(self.dst).to_string(),
            );
        }
        if self.src.rows != self.dst.rows || self.routes.rows != self.dst.rows {
            return Self::invalid("source, routes and result of the same rows", Listed(self.dst).to_string());
        }
        Ok(())
    }

    /// Bytes for the fewest distinct experts possible: all rows may be routed to the same `top_k`.
    fn work(&self, counting: &Counting<'_>) -> Work {
        let (rows, matrix) = (self.dst.rows.count(counting.step), (counting.matrix)(self.experts.first));
        if rows == 0 {
            return Work::default();
        }
        let macs = (rows * self.top_k() * matrix.rows * matrix.cols) as u64;
        let (int8_macs, float_macs) = if matrix.int8 { (macs, 0) } else { (0, macs) };
        Work { bytes: (self.top_k() * matrix.bytes) as u64, int8_macs, float_macs }
    }

    fn write(&self, f: &mut fmt::Formatter<'_>, names: &dyn Names) -> fmt::Result {
        let (experts, name) = (self.experts.count, names.matrix(self.experts.first));
        let [dst, src, routes] = [self.dst, self.src, self.routes].map(Listed);
        writeln!(f, "{dst} = {src} · {name} of {experts} by {routes}")
    }
}

impl Operation for Combine {
    const NAME: &'static str = "combine";
    const KIND: OpKind = OpKind::Rest;

    fn visit(&mut self, visit: &mut dyn FnMut(Access, &mut Place)) {
        visit(Access::Read, &mut self.src);
        visit(Access::Read, &mut self.routes);
        visit(self.write.access(), &mut self.dst);
    }

    fn check(&self) -> Result<(), InvalidOp> {
        let top_k = self.routes.cols / 2;
        let rows = [self.src.rows, self.routes.rows] == [self.dst.rows; 2];
        if !rows || top_k == 0 || self.src.cols != top_k * self.dst.cols {
            return Self::invalid(
                format!("{top_k} parts of {}", Listed(self.dst)),
                Listed(self.src).to_string(),
            );
        }
        Ok(())
    }

    fn write(&self, f: &mut fmt::Formatter<'_>, _: &dyn Names) -> fmt::Result {
        let [dst, src, routes] = [self.dst, self.src, self.routes].map(Listed);
        writeln!(f, "{dst} {} parts of {src} by {routes}", sign(self.write))
    }
}
