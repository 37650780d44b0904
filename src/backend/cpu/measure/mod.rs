//! What this machine could reach at most: multiply-adds and bytes per second, measured.

mod bandwidth;
mod peak;

pub use bandwidth::ReadProbe;
pub use peak::Peaks;
