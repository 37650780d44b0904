//! Lazy graphs of tensor operations, compiled into plans that run without allocating.
//!
//! A [`Graph`] (`build`, `node`) holds typed nodes and computes nothing itself. It may contain several
//! programs (`programs`). [`Graph::compile`] lowers the nodes needed by the outputs to backend operations
//! over numbered values (`lower`, `ssa`), fuses them (`fuse`), assigns every value a place in one arena
//! by liveness (`arena`), and returns a [`Plan`] (`plan`). A [`Session`](crate::session::Session) binds a
//! plan to a backend and its weights, and runs it. The operations are [`crate::ir::Op`]. The graphs of model
//! families are in [`crate::model`].

#![forbid(unsafe_code)]

mod arena;
mod attention;
mod build;
mod error;
mod experts;
mod fuse;
mod lower;
mod node;
mod plan;
mod programs;
mod recurrent;
mod ssa;
#[cfg(test)]
mod tests;

use crate::ir::{Precision, StepLimits};
pub use build::Graph;
pub use error::GraphError;
pub use node::{
    AttentionSpec, DeltaOperands, Dtype, KvShape, MatrixSpec, NodeId, RopeSpec, RowAttentionSpec, StateId,
    StateSpec, VectorSpec,
};
pub use plan::Plan;

/// Whether to fuse operations. Fusion does not change results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fusion {
    /// All fusions.
    #[default]
    On,
    /// One operation per node, for tests and for bisecting fusion bugs.
    Off,
}

/// Options of [`Graph::compile`].
#[derive(Clone, Copy)]
pub struct CompileOptions<'a> {
    /// Maximum rows of a step.
    pub limits: StepLimits,
    /// Bytes per arena element: [`crate::backend::Backend::element_bytes`].
    pub element_bytes: &'a dyn Fn(Precision) -> usize,
    /// Whether to fuse operations.
    pub fuse: Fusion,
    /// Storage type of [`Dtype::Activation`] values.
    pub activations: Precision,
}
