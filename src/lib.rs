//! Ottava runs language models with 8-bit and 4-bit weights at the speed of memory.
//!
//! ```no_run
//! use ottava::{Engine, Request};
//!
//! # fn main() -> ottava::Result<()> {
//! let engine = Engine::builder("model.gguf").build()?;
//! for event in engine.submit(Request::text("Once upon a time").max_tokens(64).seed(7))? {
//!     print!("{}", event?.text());
//! }
//! # Ok(()) }
//! ```
//!
//! From the top down: [`api`] is what people embed, [`engine`] schedules requests over a [`kv`]
//! cache and a [`model`], a model is a [`graph`] compiled into a plan, a plan runs on a
//! [`backend`] over weights in [`quant`]'s canonical form, read from files by [`checkpoint`].
//! [`text`] turns text into tokens and back, [`sample`] picks the next one. ARCHITECTURE.md has
//! the picture, the code map and the reading order.

pub mod api;
pub mod backend;
pub mod checkpoint;
pub mod engine;
mod error;
pub mod file;
pub mod graph;
pub mod ir;
mod kind;
pub mod kv;
pub mod model;
pub mod quant;
mod room;
pub mod sample;
pub mod session;
pub mod text;
mod token;

pub use api::{Device, DeviceInfo, Engine, EngineBuilder, EngineInfo, InferenceEngine, Request};
pub use engine::{EngineConfig, EngineState};
pub use error::{Error, Result};
pub use kind::ErrorKind;
pub use model::{KvBudget, LoadProgress};
pub use sample::Sampling;
pub use token::TokenId;

/// README's example, as a test.
#[cfg(all(doctest, feature = "text"))]
#[doc = include_str!("../README.md")]
struct Readme;
