//! Ottava runs language models with 8-bit and 4-bit weights at the speed of memory.

#![forbid(unsafe_op_in_unsafe_fn)]

pub mod backend;
pub mod engine;
pub mod graph;
pub mod kv;
pub mod model;
pub mod quant;
pub mod sample;
pub mod text;
mod token;
pub mod weights;

pub use token::TokenId;
