//! How fast a device's memory is, measured: the ceilings that kernels and decode are held against.

use std::sync::Arc;

use super::driver::{Context, Event};
use super::kernels::{Grid, Kernel};
use super::memory::DeviceBuffer;
use super::{Cuda, params};
use crate::backend::BackendError;

/// Launches that are timed together.
const LAUNCHES: usize = 4;
/// Seconds of them at least, for a card to reach its clocks, and rounds at least.
const SECONDS: f64 = 0.05;
const ROUNDS: usize = 3;
/// Threads of a block.
const THREADS: u32 = 256;
/// Words that the host makes; the device copies them until its memory is full.
const RANDOM_WORDS: usize = 1 << 20;

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
    /// best of several rounds. What is read is random, as weights are: zeros may cost a card less.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`], [`BackendError::Device`].
    pub fn bandwidth(&self, bytes: usize) -> Result<Bandwidth, BackendError> {
        let bytes = bytes.next_multiple_of(16).max(16);
        let src = random(&self.context, bytes, "what is read")?;
        let dst = DeviceBuffer::zeroed(&self.context, bytes, "what is written")?;
        let params = params::Bandwidth { src: src.address(), dst: dst.address(), count: (bytes / 16) as u64 };
        // SAFETY: both buffers hold `count` times 16 bytes, and live until `seconds` has waited.
        let seconds = |kernel| unsafe { self.seconds(kernel, &params) };
        Ok(Bandwidth {
            read: bytes as f64 / seconds(Kernel::ReadMemory)?,
            copy: 2.0 * bytes as f64 / seconds(Kernel::CopyMemory)?,
        })
    }

    /// Seconds of a launch, the least of several rounds.
    ///
    /// # Safety
    /// The buffers hold what `params` says, until this returns.
    unsafe fn seconds(&self, kernel: Kernel, params: &params::Bandwidth) -> Result<f64, BackendError> {
        let context = &self.context;
        let grid = Grid::line(self.blocks(kernel, params.count as usize)?, THREADS);
        let (start, end) = (Event::timed(context)?, Event::timed(context)?);
        let (mut least, mut whole, mut rounds) = (f64::INFINITY, 0.0, 0);
        while whole < SECONDS || rounds < ROUNDS {
            start.record()?;
            for _ in 0..LAUNCHES {
                // SAFETY: promised by the caller, and `wait` is below.
                unsafe { self.kernels.launch(kernel, grid, params)? };
            }
            end.record()?;
            context.wait()?;
            let seconds = start.seconds_until(&end)?;
            least = least.min(seconds / LAUNCHES as f64);
            (whole, rounds) = (whole + seconds.max(SECONDS / 1000.0), rounds + 1);
        }
        Ok(least)
    }

    /// As many blocks as the device holds at a time: more would be a second, shorter wave of them.
    fn blocks(&self, kernel: Kernel, count: usize) -> Result<usize, BackendError> {
        let fit = self.kernels.blocks_per_multiprocessor(kernel, THREADS)?.max(1);
        Ok(count.div_ceil(THREADS as usize).min(fit * self.context.info().multiprocessors))
    }
}

/// Memory full of random odd words: what `read_memory` counts on, so that it writes nothing.
fn random(context: &Arc<Context>, bytes: usize, what: &'static str) -> Result<DeviceBuffer, BackendError> {
    let buffer = DeviceBuffer::zeroed(context, bytes, what)?;
    let words: Vec<u32> = (0..(bytes / 4).min(RANDOM_WORDS) as u64).map(|i| mixed(i) | 1).collect();
    buffer.upload(0, &words)?;
    let mut filled = 4 * words.len();
    while filled < bytes {
        let more = filled.min(bytes - filled);
        buffer.copy_within(0, filled, more)?;
        filled += more;
    }
    Ok(buffer)
}

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014).
fn mixed(index: u64) -> u32 {
    let mut z = index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cuda::CudaOptions;

    fn cuda() -> Cuda {
        cuda_emu::install(&cuda_emu::InstallOptions::skipped_by("OTTAVA_TEST_GPU")).unwrap();
        Cuda::new(&CudaOptions::default()).unwrap()
    }

    #[test]
    fn all_of_the_memory_is_random_and_odd() {
        let cuda = cuda();
        // More than the host makes, and no multiple of it.
        let bytes = 4 * (2 * RANDOM_WORDS + 1000);
        let mut words = vec![0u32; bytes / 4];
        random(&cuda.context, bytes, "a test").unwrap().download(0, &mut words).unwrap();
        assert!(words.iter().all(|word| word % 2 == 1));
        let ones: u32 = words.iter().map(|word| word.count_ones()).sum();
        assert!((16.4..16.6).contains(&(f64::from(ones) / words.len() as f64)), "{ones} bits are set");
    }

    #[test]
    fn every_block_has_its_place_and_both_speeds_are_found() {
        let cuda = cuda();
        let multiprocessors = cuda.device().multiprocessors;
        for kernel in [Kernel::ReadMemory, Kernel::CopyMemory] {
            let fit = cuda.kernels.blocks_per_multiprocessor(kernel, THREADS).unwrap();
            assert!((1..=8).contains(&fit), "{fit} blocks of {THREADS} threads");
            assert_eq!(cuda.blocks(kernel, 1 << 30).unwrap(), fit * multiprocessors);
            assert_eq!(cuda.blocks(kernel, 1000).unwrap(), 4);
        }
        let found = cuda.bandwidth(1 << 18).unwrap();
        assert!(found.read > 0.0 && found.copy > 0.0 && found.copy.is_finite(), "{found:?}");
    }

    /// Statistics are of all tests of this program, so the kernel that only this file runs is looked at.
    #[test]
    fn what_is_read_is_not_written() {
        let emulator = cuda_emu::install(&cuda_emu::InstallOptions::skipped_by("OTTAVA_TEST_GPU")).unwrap();
        cuda().bandwidth(1 << 18).unwrap();
        if let Some(read) = emulator.statistics().get("read_memory") {
            assert_eq!(read.sum.global_bytes_written, 0);
        }
    }
}
