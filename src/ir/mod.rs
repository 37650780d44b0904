//! Intermediate representation: operations as data, and the steps that they run over.
//!
//! `ops` has the operations and their table, `operation` the trait that describes them, `value` their
//! operands and small common types. `step` has the ragged rows of a step and its page tables, `kv` the KV
//! cache layout, `state` the per-sequence states of recurrent layers, `work` the minimum bytes and
//! multiply-adds of an operation. The IR is independent of devices: a [`Backend`](crate::backend::Backend)
//! runs operations, and a [`graph`](crate::graph) is compiled into them.

#![forbid(unsafe_code)]

mod kv;
mod listing;
mod operation;
mod ops;
mod state;
mod step;
mod value;
mod work;

pub use kv::*;
pub(crate) use listing::Listed;
pub use operation::*;
pub use ops::*;
pub use state::*;
pub use step::*;
pub use value::*;
pub use work::*;
