//! The intermediate representation: operations as data, the steps that they run over, and what each operation
//! reads, writes and costs.
//!
//! `ops` has the operations and their table, `operation` is what each says of itself, `value` what they work
//! on. `step` has the ragged rows of a step and its page tables, `kv` the shape of keys and values, `state`
//! what recurrent layers keep of a sequence, `work` the bytes and multiply-adds that an operation takes at
//! least. Nothing here knows a device: a [`Backend`](crate::backend::Backend) runs operations, and a
//! [`graph`](crate::graph) is compiled into them.

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
