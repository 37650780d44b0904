//! Fused operations of a plan, as data: shapes, places and weight ids.
//!
//! Every value is a row-major matrix `[rows, cols]` in the arena, at a [`Place`]. The semantics of an
//! operation are documented here and implemented in f64 in `backend/reference`. To add an operation, add a
//! struct that implements [`Operation`] in a file of this folder, a row in the table below, and its kernels.

mod attention;
mod elementwise;
mod experts;
mod matmul;
mod mean;
mod recurrent;
mod rotary;
mod row_attention;
mod rows;

use std::fmt;

use super::{Access, Counting, InvalidOp, Names, OpKind, Operation, Place, Rows, Work};
pub use attention::*;
pub use elementwise::*;
pub use experts::*;
pub use matmul::*;
pub use mean::*;
pub use recurrent::*;
pub use rotary::*;
pub use row_attention::*;
pub use rows::*;

macro_rules! operations {
    ($($variant:ident($operation:ident),)*) => {
        /// An operation of a plan.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Op {$(
            #[doc = concat!("See [`", stringify!($operation), "`].")]
            $variant($operation),
        )*}

        impl Op {
            /// Names of all operations.
            pub const NAMES: &[&str] = &[$($operation::NAME,)*];

            /// [`Operation::NAME`]
            pub fn name(&self) -> &'static str {
                match self { $(Op::$variant(_) => $operation::NAME,)* }
            }

            /// [`Operation::KIND`]
            pub fn kind(&self) -> OpKind {
                match self { $(Op::$variant(_) => $operation::KIND,)* }
            }

            /// [`Operation::visit`]
            pub fn visit(&mut self, visit: &mut dyn FnMut(Access, &mut Place)) {
                match self { $(Op::$variant(op) => op.visit(visit),)* }
            }

            /// [`Operation::check`]
            ///
            /// # Errors
            /// [`InvalidOp`].
            pub fn check(&self) -> Result<(), InvalidOp> {
                match self { $(Op::$variant(op) => op.check(),)* }
            }

            /// [`Operation::mixes`]
            pub fn mixes(&self) -> Option<Rows> {
                match self { $(Op::$variant(op) => op.mixes(),)* }
            }

            /// [`Operation::work`]
            pub fn work(&self, counting: &Counting<'_>) -> Work {
                match self { $(Op::$variant(op) => op.work(counting),)* }
            }

            /// [`Operation::write`]
            pub(crate) fn write(&self, f: &mut fmt::Formatter<'_>, names: &dyn Names) -> fmt::Result {
                match self { $(Op::$variant(op) => op.write(f, names),)* }
            }
        }
    };
}

operations! {
    Embed(Embed),
    Norm(Normalize),
    Matmul(Matmul),
    RopeAngles(RopeAngles),
    Rope(ApplyRope),
    KvAppend(KvAppend),
    Attention(Attention),
    GatherOutputs(GatherOutputs),
    Unary(Unary),
    Binary(Binary),
    Softmax(Softmax),
    Sample(SampleRows),
    Transpose(Transpose),
    RowAttention(RowAttention),
    MeanRows(MeanRows),
    Route(Route),
    ExpertMatmul(ExpertMatmul),
    Combine(Combine),
    ShortConv(ShortConv),
    GatedDelta(GatedDelta),
    HeadNorm(HeadNorm),
}

impl Op {
    /// All places of the operation with their access, sources before destinations.
    pub fn places(&self) -> Vec<(Access, Place)> {
        let mut found = Vec::new();
        self.clone().visit(&mut |access, place| found.push((access, *place)));
        found
    }
}

#[cfg(test)]
mod tests;
