//! A CUDA driver library over the interpreter: what `libcuda.so` exports, and how a test puts it in
//! the real one's place.
//!
//! The crate is built twice. The shared library (`libcuda_emu.so`, whose name for the loader is
//! `libcuda.so`) is the driver: entry points (`entry`), one state behind a lock (`state`), work that
//! is deferred and interleaved adversarially (`schedule`). The Rust library, which tests link, has
//! [`install`]: it loads the shared library, so that a later `dlopen("libcuda.so")` finds that one,
//! and talks to it through the few C functions of `control`. The two have their own statics; nothing
//! is shared but those functions.
//!
//! From the C side to the interpreter: `abi` (declarations, pointers, panics) → `entry` (a file per
//! family) → `state` with `devices`, `queue`, `capture`, `graph`, `function`, `host`, `image` → `schedule`
//! (when and in which order) → `work` (one copy, one launch) → [`crate::launch`].

mod abi;
mod capture;
mod card;
mod control;
mod devices;
mod entry;
mod faults;
mod function;
mod graph;
mod handles;
mod host;
mod image;
mod install;
mod library;
#[cfg_attr(not(unix), path = "no_loader.rs")]
mod loader;
mod options;
mod pool;
mod queue;
mod report;
mod schedule;
mod state;
mod status;
mod thread;
mod wire;
mod work;

pub use faults::Injection;
pub use install::{Emulator, InstallError, NotEmulated, install, last_fault};
pub use options::InstallOptions;
pub use state::KernelStats;
pub use wire::FaultReport;
