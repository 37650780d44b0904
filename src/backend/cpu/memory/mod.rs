//! Memory of the CPU backend: buffers, weights, KV pages, views of values for kernels, and prefetching.

mod buffer;
pub(crate) mod cache;
mod kv;
pub(crate) mod prefetch;
mod view;
mod weights;

pub(crate) use buffer::Buffer;
pub(crate) use kv::KvLayer;
pub use kv::KvPool;
pub(crate) use view::Rows;
pub(crate) use weights::{WeightArena, WeightSlice};
