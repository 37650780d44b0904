//! What the benches turn off, to measure what it is worth. Not part of the public interface: only the private
//! feature `_bench` has it.

/// How kernels are loaded and launched: all on is what ships.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switches {
    /// Whether all kernels prefer the same, largest share of a multiprocessor's L1 as shared memory. Otherwise
    /// the driver chooses one for each, and a multiprocessor drains where it changes.
    pub carve_out: bool,
    /// Whether a kernel may start before its predecessor has ended (programmatic dependent launch).
    pub overlap: bool,
}
