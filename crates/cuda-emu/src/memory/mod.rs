//! Memory: the device's global memory ([`Memory`]), shared memory of blocks with its checks.
//!
//! Global addresses are addresses of the host, so that host memory can be registered and is then
//! valid on both sides, as with unified addressing on a card.

mod access;
mod allocation;
pub(crate) mod arrivals;
pub(crate) mod clocks;
mod global;
mod history;
pub(crate) mod shadow;

use std::fmt;

pub(crate) use allocation::{Allocation, Region, View};
pub use global::{Memory, MemoryError};

/// Fills a slice, unless it is empty: `memset` of no bytes at an address where nothing is took 100 ns (glibc with
/// AVX-512 on Zen 4).
pub(crate) fn fill<T: Copy>(values: &mut [T], value: T) {
    if !values.is_empty() {
        values.fill(value);
    }
}

/// A state space of PTX.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// Memory of the device, which all threads share. Constant and parameter memory lie in it.
    Global,
    /// Memory of a block, or of a cluster's blocks.
    Shared,
    /// Memory of one thread.
    Local,
    /// One of the others, told apart by the address.
    Generic,
}

impl fmt::Display for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Space::Global => "global",
            Space::Shared => "shared",
            Space::Local => "local",
            Space::Generic => "generic",
        })
    }
}
