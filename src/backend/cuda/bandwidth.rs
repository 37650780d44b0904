//! How fast a device's memory is, measured: the ceilings that kernels and decode are held against.

use super::driver::Event;
use super::kernels::{Grid, Kernel};
use super::memory::DeviceBuffer;
use super::{Cuda, params};
use crate::backend::BackendError;

/// Launches that are timed together.
const LAUNCHES: usize = 4;
/// Seconds of them at least, for a card to reach its clocks, and rounds at least.
const SECONDS: f64 = 0.05;
const ROUNDS: usize = 3;
/// Blocks of 256 threads that a multiprocessor holds.
const BLOCKS: usize = 8;

/// Bytes a second that a kernel moves which does nothing else.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bandwidth {
    /// Read.
    pub read: f64,
    /// Read and written, both counted.
    pub copy: f64,
}

impl Cuda {
    /// Measures with two buffers of `bytes`, which should be many times the second-level cache: the
    /// best of several rounds.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`], [`BackendError::Device`].
    pub fn bandwidth(&self, bytes: usize) -> Result<Bandwidth, BackendError> {
        let context = &self.context;
        let [src, dst] = ["what is read", "what is written"]
            .map(|what| DeviceBuffer::zeroed(&self.context, bytes.next_multiple_of(16).max(16), what));
        let (src, dst) = (src?, dst?);
        let count = (src.bytes() / 16) as u64;
        let params = params::Bandwidth { src: src.address(), dst: dst.address(), count };
        let blocks = (count as usize).div_ceil(256).min(BLOCKS * context.info().multiprocessors);
        let best = |kernel, moved: usize| {
            let (start, end) = (Event::timed(context)?, Event::timed(context)?);
            let (mut least, mut whole, mut rounds) = (f64::INFINITY, 0.0, 0);
            while whole < SECONDS || rounds < ROUNDS {
                start.record()?;
                for _ in 0..LAUNCHES {
                    // SAFETY: both buffers hold `count` times 16 bytes and live until the wait.
                    unsafe { self.kernels.launch(kernel, Grid::line(blocks, 256), &params)? };
                }
                end.record()?;
                context.wait()?;
                let seconds = start.seconds_until(&end)?;
                least = least.min(seconds / LAUNCHES as f64);
                (whole, rounds) = (whole + seconds.max(SECONDS / 1000.0), rounds + 1);
            }
            Ok::<f64, BackendError>(moved as f64 / least)
        };
        Ok(Bandwidth {
            read: best(Kernel::ReadMemory, src.bytes())?,
            copy: best(Kernel::CopyMemory, 2 * src.bytes())?,
        })
    }
}
