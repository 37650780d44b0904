//! OpenAI's and Anthropic's APIs over the engine of [`ottava`]: the server of `ottava serve`.
//!
//! ```no_run
//! use ottava_server::{Config, Server, asked_to_stop};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let engine = ottava::Engine::builder("model.gguf").build()?;
//! let server = Server::bind(engine, Config::default())?;
//! println!("http://{}", server.address());
//! server.run(asked_to_stop())?;
//! # Ok(())
//! # }
//! ```
//!
//! The path of a request: `http` accepts the connection and checks host, origin, key and size. `api` has the
//! routes. `request` reads fields and messages. `answer` submits to the engine and writes chunks, streamed or
//! folded into one object. `front` forwards to engines in processes of their own.
//! `docs/server.md` has routes and fields.
//!
//! Nothing here computes or caches: a server is a client of the engine like any other.

#![forbid(unsafe_code)]

mod answer;
mod api;
mod config;
mod error;
mod front;
mod http;
mod ids;
#[cfg(feature = "kv-events")]
mod kv_events;
mod metrics;
mod request;
mod server;
mod state;

pub use config::Config;
pub use error::ServeError;
pub use front::{Front, Model};
pub use server::{Server, asked_to_stop, input_ended};
