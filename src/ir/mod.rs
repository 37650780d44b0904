//! The intermediate representation: operations as data, the steps that they run over, and what each operation
//! reads, writes and costs.
//!
//! `ops` has the operations, `step` the ragged rows of a step and its page tables, `kv` the shape of keys and values,
//! `work` the bytes and multiply-adds that an operation takes at least. Nothing here knows a device: a
//! [`Backend`](crate::backend::Backend) runs operations, and a [`graph`](crate::graph) is compiled into them.

#![forbid(unsafe_code)]

mod kv;
mod ops;
mod step;
mod work;

pub use kv::*;
pub use ops::*;
pub use step::*;
pub use work::*;
