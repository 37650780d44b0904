//! Measured limits of this machine: multiply-adds and bytes per second.

mod bandwidth;
mod peak;

pub use bandwidth::ReadProbe;
pub use peak::Peaks;
