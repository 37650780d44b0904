//! Lazy graphs of tensor operations, compiled into plans that run without allocating.
//!
//! A [`Graph`] (`build`, `node`) holds typed nodes; nothing is computed while it is built. It may be several programs
//! (`programs`).
//! [`Graph::compile`] lowers what the outputs need to backend operations over numbered values
//! (`lower`, `program`), fuses them (`fuse`), gives every value a place in one arena by liveness
//! (`arena`), and yields a [`Plan`] (`plan`). A [`Session`](crate::session::Session) binds a
//! plan to a backend and its weights, and runs it. The operations are [`crate::ir::Op`]; which graph a model
//! is, is not known here (see [`crate::model`]).

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
mod program;
mod programs;
mod recurrent;
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

/// Whether operations are merged where that changes no result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fusion {
    /// All fusions.
    #[default]
    On,
    /// One operation a node: for tests, and for finding a wrong fusion.
    Off,
}

/// What a plan is compiled for.
#[derive(Clone, Copy)]
pub struct CompileOptions<'a> {
    /// Room for the rows of a step.
    pub limits: StepLimits,
    /// Bytes of an arena element: [`crate::backend::Backend::element_bytes`].
    pub element_bytes: &'a dyn Fn(Precision) -> usize,
    /// Merge operations or not.
    pub fuse: Fusion,
    /// How values of [`Dtype::Activation`] are stored.
    pub activations: Precision,
}
