//! Ottava runs language models with 8-bit and 4-bit weights near memory bandwidth.
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
//! An [`Engine`] is cheap to clone and shared between threads. It serves many requests at once. Each
//! [`submit`](Engine::submit) returns a [`Generation`](engine::Generation): an iterator over events, or with
//! the feature `async` a `Stream`. `examples/` has a chat with a deadline, classification, a constraint, many
//! requests with a shared prefix, and a prefix saved to a file. An [`Embedder`] turns texts into vectors and
//! ranks documents.
//!
//! # Features
//!
//! | feature | default | adds |
//! |---|---|---|
//! | `text` | yes | tokenizers and chat templates; without it the engine takes token ids |
//! | `safetensors` | yes | models as Hugging Face folders |
//! | `constraints` | no | answers that follow a JSON schema, a regular expression or a grammar |
//! | `async` | no | `Generation` as a `Stream`; no runtime comes with it |
//! | `serde` | no | `Serialize` for usage, timings, statistics and descriptions of engine and device |
//! | `cuda` | no | NVIDIA GPUs of compute capability 8.0 and later |
//! | `nvml` | no | GPU health |
//! | `unstable` | no | the internals below the engine, without stability guarantees |
//!
//! The minimum supported Rust version is 1.89.
//!
//! # Devices
//!
//! [`Device::Auto`] selects a GPU supported by this build if there is one, else the CPU with its best
//! instruction set. [`Device::list`] lists the devices with their free memory. Free memory of a CPU is
//! available on Linux only: elsewhere [`KvBudget::FreeShare`] is refused for a CPU.
//!
//! Building with `cuda` needs nvcc of CUDA 13.0; `docs/cli.md` lists the search paths. In Docker, an image
//! like `nvidia/cuda:13.0.1-devel` with a C++ compiler has it. `OTTAVA_CUDA_ARCHS=90a` compiles for a single
//! architecture. At run time no CUDA library is needed: the driver (580 or later) is loaded dynamically, so a
//! plain image with access to the GPU is enough.
//!
//! # Errors and shutdown
//!
//! Every error has a [`kind`](Error::kind) for programmatic handling. A panic in a mask, a waker or a backend
//! ends only its request or engine, not the process, unless the program is built with `panic = "abort"`.
//! [`Engine::state`] reports a lost device, [`Engine::drain`] shuts an engine down gracefully.
//!
//! # Stability
//!
//! The root, [`api`], [`engine`], [`text`], [`chat`], [`sample`] and `constrain` are the API for
//! applications; the changelog lists their changes. The other modules are internals, for tools and custom
//! graphs: they are public only with the feature `unstable`, and any release may change them.
//!
//! # Layers
//!
//! From the top down: [`api`] is the application interface, [`engine`] schedules requests over a [`kv`] cache
//! and a [`model`], a model is a [`graph`] compiled into a plan, a plan runs on a [`backend`] over weights in
//! [`quant`]'s canonical form, read from files by [`checkpoint`]. [`text`] converts between text and tokens,
//! [`sample`] selects the next token. ARCHITECTURE.md has a diagram, the code map and the reading order.

// Tools and custom graphs use more of the internals than the engine does.
#![cfg_attr(not(feature = "unstable"), allow(dead_code, unused_imports))]

pub mod api;
#[cfg(not(feature = "unstable"))]
mod backend;
#[cfg(feature = "unstable")]
pub mod backend;
#[cfg(feature = "text")]
pub mod chat;
#[cfg(not(feature = "unstable"))]
mod checkpoint;
#[cfg(feature = "unstable")]
pub mod checkpoint;
#[cfg(feature = "constraints")]
pub mod constrain;
#[cfg(not(feature = "unstable"))]
mod embed;
#[cfg(feature = "unstable")]
pub mod embed;
pub mod engine;
mod error;
#[cfg(not(feature = "unstable"))]
mod file;
#[cfg(feature = "unstable")]
pub mod file;
#[cfg(not(feature = "unstable"))]
mod graph;
#[cfg(feature = "unstable")]
pub mod graph;
mod headroom;
#[cfg(not(feature = "unstable"))]
mod ir;
#[cfg(feature = "unstable")]
pub mod ir;
mod kind;
#[cfg(not(feature = "unstable"))]
mod kv;
#[cfg(feature = "unstable")]
pub mod kv;
#[cfg(not(feature = "unstable"))]
mod model;
#[cfg(feature = "unstable")]
pub mod model;
#[cfg(not(feature = "unstable"))]
mod quant;
#[cfg(feature = "unstable")]
pub mod quant;
pub mod sample;
#[cfg(not(feature = "unstable"))]
mod session;
#[cfg(feature = "unstable")]
pub mod session;
pub mod text;
mod token;

pub use api::{
    Device, DeviceInfo, EmbedOptions, Embedder, EmbedderBuilder, EmbedderInfo, Embeddings, Engine,
    EngineBuilder, EngineInfo, InferenceEngine, Prepared, Request,
};
pub use engine::{EngineConfig, EngineState};
pub use error::{Error, Result};
pub use kind::ErrorKind;
pub use model::{KvBudget, LoadProgress};
pub use sample::Sampling;
pub use token::TokenId;

/// Compiles the README's example as a test.
#[cfg(all(doctest, feature = "text"))]
#[doc = include_str!("../README.md")]
struct Readme;
