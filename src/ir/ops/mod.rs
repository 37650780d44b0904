//! The fused operations that a plan is made of, as data: shapes, places and weight ids.
//!
//! Every value is a matrix `[rows, cols]`, row-major, in the arena at a [`Place`](super::Place). What an
//! operation computes is said here and, executable in f64, in `backend/reference`.

mod attention;
mod elementwise;
mod experts;
mod matmul;
mod rotary;
mod row_attention;
mod rows;

pub use attention::{Attention, KvAppend};
pub use elementwise::{Binary, BinaryFn, Softmax, Transpose, Unary, UnaryFn};
pub use experts::{Combine, ExpertMatmul, Route};
pub use matmul::{Epilogue, Matmul, Product};
pub use rotary::{ApplyRope, RopeAngles};
pub use row_attention::{RowAttention, Sees};
pub use rows::{Embed, GatherOutputs, Normalize, SampleRows};
