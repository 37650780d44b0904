//! Read bandwidth: bytes per second of kernels that only read. As in products, the memory is in huge pages,
//! and each thread reads long contiguous ranges. Two kernels prefetch differently; the faster one counts,
//! so that products do not exceed the limit.

use std::marker::PhantomData;
use std::time::{Duration, Instant};

use crate::backend::BackendError;
use crate::backend::cpu::Cpu;
use crate::backend::cpu::isa::{Kernel, LANES, Lanes};
use crate::backend::cpu::memory::Buffer;
use crate::backend::cpu::memory::prefetch::{IntoL2, LINE, NonTemporal, Off, Prefetch};
use crate::backend::cpu::tuning::PrefetchHint;

/// Minimum duration of a kernel's measurement, and minimum number of passes.
const MEASURE_FOR: Duration = Duration::from_millis(100);
const PASSES: usize = 3;
/// Elements per chunk, and per iteration of its loop.
const CHUNK: usize = 1 << 18;
const STEP: usize = 4 * LANES;
/// Prefetch distances in bytes: into L2, and non-temporal. With exactly 6 KiB, one core of Zen 5 reads 3 to
/// 4 % less.
const INTO_L2: usize = 8 << 10;
const NON_TEMPORAL: usize = (6 << 10) + 3 * LINE;

/// Memory that is read to measure the bandwidth.
#[derive(Debug)]
pub struct ReadProbe {
    buffer: Buffer,
}

impl ReadProbe {
    /// Allocates at least `bytes`, which should be many times the size of the caches.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    pub fn new(bytes: usize) -> Result<ReadProbe, BackendError> {
        let chunk_bytes = CHUNK * size_of::<f32>();
        let bytes = bytes.div_ceil(chunk_bytes).max(1).saturating_mul(chunk_bytes);
        let mut buffer = Buffer::zeroed(bytes, "what is read to measure the bandwidth")?;
        // Untouched pages would all be the same zero page.
        for (i, step) in buffer.elements_mut::<f32>().chunks_mut(STEP).enumerate() {
            step.fill(value(i));
        }
        Ok(ReadProbe { buffer })
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.buffer.bytes()
    }
}

impl Cpu {
    /// Bytes per second that the CPU's threads read together: the faster of two kernels. Each is a mean
    /// over a tenth of a second and at least three passes. One kernel prefetches into L2; the other
    /// prefetches by the non-temporal hint if products do, otherwise not at all.
    pub fn read_bandwidth(&self, probe: &ReadProbe) -> f64 {
        let numbers = probe.buffer.elements();
        let other = match self.hint {
            PrefetchHint::NonTemporal => self.reads(&Numbers::<NonTemporal, NON_TEMPORAL>::of(numbers)),
            PrefetchHint::L2 => self.reads(&Numbers::<Off, 0>::of(numbers)),
        };
        self.reads(&Numbers::<IntoL2, INTO_L2>::of(numbers)).max(other)
    }

    /// Bytes per second of one kernel.
    fn reads<P: Prefetch, const AHEAD: usize>(&self, numbers: &Numbers<'_, P, AHEAD>) -> f64 {
        // SAFETY: a chunk reads its own part of the numbers.
        let pass = || unsafe { self.parallel(numbers, numbers.values.len() / CHUNK) };
        // Wakes the threads.
        pass();
        let (began, mut passes) = (Instant::now(), 0);
        while passes < PASSES || began.elapsed() < MEASURE_FOR {
            pass();
            passes += 1;
        }
        (passes * size_of_val(numbers.values)) as f64 / began.elapsed().as_secs_f64()
    }
}

/// The value of all elements of iteration `i`. Neighbouring iterations differ, and a chunk's sum is exact.
fn value(i: usize) -> f32 {
    (i % 8) as f32
}

/// A kernel that adds up numbers, and prefetches by `P` at a distance of `AHEAD` bytes.
struct Numbers<'a, P, const AHEAD: usize> {
    values: &'a [f32],
    prefetch: PhantomData<fn(P)>,
}

impl<P, const AHEAD: usize> Numbers<'_, P, AHEAD> {
    fn of(values: &[f32]) -> Numbers<'_, P, AHEAD> {
        Numbers { values, prefetch: PhantomData }
    }
}

impl<P: Prefetch, const AHEAD: usize> Kernel for Numbers<'_, P, AHEAD> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(&self, chunk: usize, _worker: usize) {
        let (steps, _) = self.values[chunk * CHUNK..][..CHUNK].as_chunks::<STEP>();
        // SAFETY: each load is of a step's elements.
        unsafe {
            let mut sums = [L::splat(0.0); STEP / LANES];
            for step in steps {
                for (i, sum) in sums.iter_mut().enumerate() {
                    let at = step.as_ptr().add(i * LANES);
                    P::line(at.cast::<u8>().wrapping_add(AHEAD));
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

    /// The kernel itself asserts that its sums are right.
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
