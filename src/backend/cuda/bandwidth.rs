//! How fast a device's memory is, measured: the ceilings that kernels and decode are held against.

use cudarc::driver::result::event;
use cudarc::driver::sys::{CUevent, CUevent_flags};

use super::driver::Context;
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

/// A time on the device.
struct Event<'c> {
    context: &'c Context,
    event: CUevent,
}

impl<'c> Event<'c> {
    fn record(context: &'c Context) -> Result<Event<'c>, BackendError> {
        let event = context.done("cuEventCreate", event::create(CUevent_flags::CU_EVENT_DEFAULT))?;
        let this = Event { context, event };
        // SAFETY: the event was just made, the stream lives as long as the context.
        let recorded = unsafe { event::record(event, context.stream()) };
        context.done("cuEventRecord", recorded).map(|()| this)
    }

    /// Seconds from this to a later one, both past.
    fn until(&self, later: &Event<'_>) -> Result<f64, BackendError> {
        // SAFETY: both were recorded.
        let milliseconds = unsafe { event::elapsed(self.event, later.event) };
        Ok(f64::from(self.context.done("cuEventElapsedTime", milliseconds)?) / 1e3)
    }
}

impl Drop for Event<'_> {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: made by `record`, and used nowhere else.
            let _ = unsafe { event::destroy(self.event) };
        }
    }
}

impl Cuda {
    /// Measures with two buffers of `bytes`, which should be many times the second-level cache: the
    /// best of several rounds.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`], [`BackendError::Device`].
    pub fn bandwidth(&self, bytes: usize) -> Result<Bandwidth, BackendError> {
        let context = &*self.context;
        let [src, dst] = ["what is read", "what is written"]
            .map(|what| DeviceBuffer::zeroed(&self.context, bytes.next_multiple_of(16).max(16), what));
        let (src, dst) = (src?, dst?);
        let count = (src.bytes() / 16) as u64;
        let params = params::Bandwidth { src: src.address(), dst: dst.address(), count };
        let blocks = (count as usize).div_ceil(256).min(BLOCKS * context.info().multiprocessors);
        let best = |kernel, moved: usize| {
            let (mut least, mut whole, mut rounds) = (f64::INFINITY, 0.0, 0);
            while whole < SECONDS || rounds < ROUNDS {
                let start = Event::record(context)?;
                for _ in 0..LAUNCHES {
                    // SAFETY: both buffers hold `count` times 16 bytes and live until the wait.
                    unsafe { self.kernels.launch(kernel, Grid::line(blocks, 256), &params)? };
                }
                let end = Event::record(context)?;
                context.wait()?;
                let seconds = start.until(&end)?;
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
