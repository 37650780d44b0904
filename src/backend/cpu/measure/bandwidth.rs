//! What the memory can do: bytes a second that kernels read which do nothing else, from huge pages and by threads
//! that each read long stretches, as weights are read. Lines are asked for ahead in two of the ways that products use, and
//! the faster one counts: a limit that products exceed is none.

use std::time::{Duration, Instant};

use crate::backend::BackendError;
use crate::backend::cpu::Cpu;
use crate::backend::cpu::isa::{Kernel, LANES, Lanes};
use crate::backend::cpu::memory::Buffer;
use crate::backend::cpu::memory::prefetch::{LINE, prefetch_far, prefetch_once};

/// Passes of a kernel go on for so long, and are so many at least.
const MEASURE_FOR: Duration = Duration::from_millis(100);
const PASSES: usize = 3;
/// Elements of a chunk, and of a step of its loop.
const CHUNK: usize = 1 << 18;
const STEP: usize = 4 * LANES;
/// Bytes that are asked for ahead, into the second-level cache and to be read once. By 6 KiB and no more one core of Zen 5
/// reads 3 to 4 % less.
const FAR: usize = 8 << 10;
const ONCE: usize = (6 << 10) + 3 * LINE;

/// Memory that is read to measure how fast.
#[derive(Debug)]
pub struct ReadProbe {
    buffer: Buffer,
}

impl ReadProbe {
    /// At least `bytes`, which should be many times the caches.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    pub fn new(bytes: usize) -> Result<ReadProbe, BackendError> {
        let chunk_bytes = CHUNK * size_of::<f32>();
        let bytes = bytes.div_ceil(chunk_bytes).max(1).saturating_mul(chunk_bytes);
        let mut buffer = Buffer::zeroed(bytes, "what is read to measure the bandwidth")?;
        // Pages that nobody has written are all the same one.
        for (i, step) in buffer.elements_mut::<f32>().chunks_mut(STEP).enumerate() {
            step.fill(value(i));
        }
        Ok(ReadProbe { buffer })
    }

    /// Its length in bytes.
    pub fn bytes(&self) -> usize {
        self.buffer.bytes()
    }
}

impl Cpu {
    /// Bytes a second that the CPU's threads read together, by the faster of two kernels: of each the mean of a tenth of
    /// a second and three passes at least.
    pub fn read_bandwidth(&self, probe: &ReadProbe) -> f64 {
        let numbers = probe.buffer.elements();
        self.reads(&Numbers::<true>(numbers)).max(self.reads(&Numbers::<false>(numbers)))
    }

    /// The same, by one of them.
    fn reads<const IS_FAR: bool>(&self, numbers: &Numbers<'_, IS_FAR>) -> f64 {
        // SAFETY: a chunk reads its own part of the numbers.
        let pass = || unsafe { self.parallel(numbers, numbers.0.len() / CHUNK) };
        // Has the threads awake.
        pass();
        let (began, mut passes) = (Instant::now(), 0);
        while passes < PASSES || began.elapsed() < MEASURE_FOR {
            pass();
            passes += 1;
        }
        (passes * size_of_val(numbers.0)) as f64 / began.elapsed().as_secs_f64()
    }
}

/// What the elements of step `i` are: unlike its neighbours', and of a chunk the sums are exact.
fn value(i: usize) -> f32 {
    (i % 8) as f32
}

/// Chunks of numbers, which are added up.
struct Numbers<'a, const IS_FAR: bool>(&'a [f32]);

impl<const IS_FAR: bool> Kernel for Numbers<'_, IS_FAR> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(&self, chunk: usize, _worker: usize) {
        let (steps, _) = self.0[chunk * CHUNK..][..CHUNK].as_chunks::<STEP>();
        // SAFETY: each load is of a step's elements.
        unsafe {
            let mut sums = [L::splat(0.0); STEP / LANES];
            for step in steps {
                for (i, sum) in sums.iter_mut().enumerate() {
                    let at = step.as_ptr().add(i * LANES);
                    match IS_FAR {
                        true => prefetch_far(at.cast::<u8>().wrapping_add(FAR)),
                        false => prefetch_once(at.cast::<u8>().wrapping_add(ONCE)),
                    }
                    *sum = L::add(*sum, L::load(at));
                }
            }
            let mut total = 0.0;
            for sum in sums {
                total += L::reduce_add(sum);
            }
            assert_eq!(total, 3.5 * CHUNK as f32, "every element is read");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use crate::backend::cpu::{Cpu, CpuOptions, Isa, ReadProbe};

    /// The kernel asserts its sums: what is measured here is that they are right.
    #[test]
    fn every_instruction_set_reads_all() {
        let probe = ReadProbe::new(3 << 20).unwrap();
        for isa in Isa::available() {
            let options =
                CpuOptions { isa: Some(isa), threads: NonZeroUsize::new(2), ..CpuOptions::default() };
            let bandwidth = Cpu::new(&options).unwrap().read_bandwidth(&probe);
            assert!(bandwidth.is_finite() && bandwidth > 1e6, "{isa}: {bandwidth}");
        }
    }
}
