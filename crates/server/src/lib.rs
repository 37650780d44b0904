//! OpenAI's and Anthropic's APIs over the engine of [`ottava`]: what `ottava serve` runs.
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
//! A request's way: `listen` accepts the connection; `gate` checks host, site, key and size; `chat`, `completions`,
//! `responses` or `messages` take the fields (`fields`, `params`, `format`, `turns`); `answer` submits to the engine;
//! `stream` writes the pieces as they come, or their fold. `about`, `tokens` and `metrics` are the other routes.
//! `docs/server.md` has routes and parameters.
//!
//! Nothing here computes or caches: a server is a client of the engine like any other.

#![forbid(unsafe_code)]

mod about;
mod adapt;
mod answer;
mod app;
mod chat;
mod completions;
mod config;
mod conversation;
mod cors;
mod error;
mod fields;
mod format;
mod front;
mod gate;
mod guard;
mod ids;
mod json;
#[cfg(feature = "kv-events")]
mod kv_events;
mod legacy;
mod listen;
mod messages;
mod metrics;
mod params;
mod responses;
mod sections;
mod shape;
mod stream;
mod tokens;
mod turns;

pub use config::Config;
pub use error::ServeError;
pub use front::{Front, Model};
pub use listen::{Server, asked_to_stop, input_ended};
