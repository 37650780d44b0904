//! Lazy graphs of tensor operations, compiled into plans that run without allocating.
//!
//! A [`GraphError`] names the node it is about. Operations themselves are in [`crate::backend`].

#![forbid(unsafe_code)]

mod error;

pub use error::GraphError;
