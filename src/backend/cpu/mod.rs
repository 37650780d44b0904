//! The CPU backend: packed weights, int8 activations, one kernel source for every instruction set.
//!
//! `lanes` is the vector abstraction, with a file for each instruction set; `dispatch` detects
//! and instantiates; `pool` runs chunks on threads.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod dispatch;
mod lanes;
#[cfg(test)]
mod lanes_tests;
#[cfg(target_arch = "aarch64")]
mod neon;
mod pool;
mod portable;

pub use dispatch::{Isa, UnknownIsa};
