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
//! An [`Engine`] is cheap to clone and shared between threads. It serves many requests at once; each
//! [`submit`](Engine::submit) gives a [`Generation`](engine::Generation): a loop over events, or with the
//! feature `async` a `Stream`. `examples/` has a chat with a deadline, classification, a constraint, many
//! requests over one beginning, and a beginning that is kept in a file.
//!
//! # Features
//!
//! | feature | default | what it adds |
//! |---|---|---|
//! | `text` | yes | tokenizers and chat templates; without it the engine takes token ids |
//! | `safetensors` | yes | models as Hugging Face folders |
//! | `constraints` | no | answers that follow a JSON schema, a regular expression or a grammar |
//! | `async` | no | `Generation` as a `Stream`; no runtime comes with it |
//! | `serde` | no | `Serialize` for what services print: usage, statistics, what was granted |
//! | `cuda` | no | NVIDIA GPUs of compute capability 8.0 and later |
//! | `nvml` | no | a card's health |
//! | `unstable` | no | the machinery below the engine, which any release may change |
//!
//! The library needs Rust 1.89.
//!
//! # Devices
//!
//! [`Device::Auto`] takes a GPU if there is one that this build has code for, else the CPU with the best
//! instruction set that it has. [`Device::list`] tells what there is and how much memory is free. Of a CPU that is
//! known on Linux only: elsewhere [`KvBudget::FreeShare`] is refused there.
//!
//! Building with `cuda` needs nvcc of CUDA 13.0; `docs/cli.md` says where it is searched for. In Docker, an image like
//! `nvidia/cuda:13.0.1-devel` with a C++ compiler has it. `OTTAVA_CUDA_ARCHS=90a` compiles for one architecture in
//! place of all. The program needs no CUDA library: the driver (580 or later) is found at run time, so a plain image
//! with the GPU passed in is enough.
//!
//! # Errors and ends
//!
//! Every error has a [`kind`](Error::kind), which says what a service must decide. A panic of a mask, a
//! waker or a backend ends its own request or engine, never the process; with `panic = "abort"` it does end
//! the process. [`Engine::state`] tells of a lost device, [`Engine::drain`] ends an engine in order.
//!
//! # What is stable
//!
//! The root, [`api`], [`engine`], [`text`], [`chat`], [`sample`] and `constrain` are what programs embed; changes
//! there are in the changelog. The other modules are the machinery, for tools and for graphs of one's own: they are
//! public with the feature `unstable` alone, and any release may change them.
//!
//! # The way down
//!
//! From the top down: [`api`] is what people embed, [`engine`] schedules requests over a [`kv`] cache and a
//! [`model`], a model is a [`graph`] compiled into a plan, a plan runs on a [`backend`] over weights in
//! [`quant`]'s canonical form, read from files by [`checkpoint`]. [`text`] turns text into tokens and back,
//! [`sample`] picks the next one. ARCHITECTURE.md has the picture, the code map and the reading order.

// Tools and graphs of one's own use more of the machinery than the engine does.
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
mod room;
pub mod sample;
#[cfg(not(feature = "unstable"))]
mod session;
#[cfg(feature = "unstable")]
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
