//! Peak arithmetic: multiply-adds per second of kernels that do nothing else. Like matrix kernels, they read
//! activations from L1, so the peak of an instruction set is that of its own dot products.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::backend::cpu::Cpu;
use crate::backend::cpu::isa::{Kernel, LANES, Lanes, for_each};

/// Minimum duration of a run, and number of runs; the fastest one counts.
const RUN: Duration = Duration::from_millis(20);
const RUNS: usize = 5;
/// Iterations of a chunk. They take microseconds, so that other threads process the share of a late one.
const STEPS: usize = 16;
const ROUNDS: usize = 256;
/// Codes in the low and high nibble of every byte, and the four activations of every dot product.
const CODES: [i64; 2] = [3, 5];
const QUAD: [i8; 4] = [1, 2, -1, 3];

/// Multiply-adds per second of all threads together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peaks {
    /// With 8-bit codes, summed in i32.
    pub int8: f64,
    /// In single precision.
    pub f32: f64,
}

impl Cpu {
    /// Measures the instruction set in use on all threads of the pool, in a fraction of a second. On AMX it
    /// measures dot products, not tiles.
    pub fn peaks(&self) -> Peaks {
        Peaks { int8: self.peak(Unit::Int8), f32: self.peak(Unit::F32) }
    }

    fn peak(&self, unit: Unit) -> f64 {
        let (mut chunks, mut runs, mut best) = (4 * self.threads(), 0, 0.0);
        while runs < RUNS {
            let products = Products { unit, macs: AtomicU64::new(0) };
            let started = Instant::now();
            // SAFETY: chunks write only to the atomic counter, and any number of chunks is valid.
            unsafe { self.parallel(&products, chunks) };
            let took = started.elapsed();
            best = f64::max(best, products.macs.into_inner() as f64 / took.as_secs_f64());
            if took < RUN {
                chunks *= 2;
            } else {
                runs += 1;
            }
        }
        best
    }
}

/// The unit that multiplies.
#[derive(Clone, Copy, Debug)]
enum Unit {
    Int8,
    F32,
}

/// Chunks of nothing but multiply-adds.
struct Products {
    unit: Unit,
    /// Multiply-adds done.
    macs: AtomicU64,
}

impl Kernel for Products {
    const ON_CODES: bool = true;

    #[inline(always)]
    unsafe fn run<L: Lanes>(&self, _chunk: usize, _worker: usize) {
        // The sums hide an instruction's latency and fit in registers: twelve registers on AVX-512, eight on
        // AVX2, sixteen on NEON.
        // SAFETY: the caller vouches for the CPU's features.
        let a_step = unsafe {
            match (self.unit, const { L::WIDE }) {
                (Unit::Int8, true) => dots::<L, 2, 6>(),
                (Unit::Int8, false) => dots::<L, 1, 4>(),
                (Unit::F32, true) => fmas::<L, 12>(),
                (Unit::F32, false) => fmas::<L, 4>(),
            }
        };
        self.macs.fetch_add((a_step * STEPS * ROUNDS) as u64, Ordering::Relaxed);
    }
}

/// Dot products of `T` vectors of codes, which stay in registers, with `M` rows of activations. Returns the
/// multiply-adds of one iteration.
///
/// # Safety
/// The CPU has the features of `L`.
#[inline(always)]
unsafe fn dots<L: Lanes, const T: usize, const M: usize>() -> usize {
    let (codes, quads) = black_box(([(CODES[1] << 4 | CODES[0]) as u8; 4 * LANES], [[QUAD; 4]; 6 * STEPS]));
    // SAFETY: `codes` has sixteen rows of four codes, and `quads` four quads for each step and each of at
    // most six rows of activations.
    unsafe {
        let codes = L::bytes(codes.as_ptr());
        let codes = [L::low::<4>(codes), L::high::<4>(codes)];
        let mut sums = [[L::splat_i32(0); T]; M];
        for _ in 0..ROUNDS {
            // `black_box` keeps the compiler from hoisting the loads out of the loop.
            let mut next = black_box(quads.as_ptr());
            for _ in 0..STEPS {
                let mut activations = [L::activations(next.cast()); M];
                for (m, activations) in activations.iter_mut().enumerate() {
                    *activations = L::activations(next.add(m).cast());
                }
                next = next.add(M);
                for_each!([0 1 2 3] Q => {
                    for (sums, &activations) in sums.iter_mut().zip(&activations) {
                        for (sum, &codes) in sums.iter_mut().zip(&codes) {
                            *sum = match (const { L::PAIRS }, Q) {
                                (false, _) => L::dot_small::<Q>(*sum, codes, activations),
                                // Half as many products, of eight columns each.
                                (true, 0 | 1) => L::dot_pair(*sum, codes, activations),
                                (true, _) => *sum,
                            };
                        }
                    }
                });
            }
        }
        let mut total = 0;
        for &sum in sums.as_flattened() {
            total += i64::from(L::reduce_add_i32(sum));
        }
        let products = QUAD.iter().map(|&a| i64::from(a)).sum::<i64>() * CODES[..T].iter().sum::<i64>();
        assert_eq!(total, (4 * LANES * M * STEPS * ROUNDS) as i64 * products, "every product is added");
    }
    16 * LANES * T * M
}

/// Repeatedly halves `N` sums and adds one. Returns the multiply-adds of one iteration.
///
/// # Safety
/// The CPU has the features of `L`.
#[inline(always)]
unsafe fn fmas<L: Lanes, const N: usize>() -> usize {
    // Start values are hidden from the compiler, which would compute equal sums once.
    let (starts, half, one) = black_box(([0.0; N], 0.5, 1.0));
    // SAFETY: register arithmetic; the caller vouches for the CPU's features.
    unsafe {
        let (half, one) = (L::splat(half), L::splat(one));
        let mut sums = [half; N];
        for (sum, start) in sums.iter_mut().zip(starts) {
            *sum = L::splat(start);
        }
        for _ in 0..STEPS * ROUNDS {
            for sum in &mut sums {
                *sum = L::fma(*sum, half, one);
            }
        }
        for sum in sums {
            assert_eq!(L::reduce_add(sum), 2.0 * LANES as f32, "the limit of the series");
        }
    }
    LANES * N
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use super::*;
    use crate::backend::cpu::{CpuOptions, Isa};

    /// The kernels themselves assert that their sums are right.
    #[test]
    fn every_instruction_set_has_its_peaks() {
        for isa in Isa::available() {
            let options =
                CpuOptions { isa: Some(isa), threads: NonZeroUsize::new(2), ..CpuOptions::default() };
            let cpu = Cpu::new(&options).unwrap();
            let Peaks { int8, f32 } = cpu.peaks();
            assert!(int8.is_finite() && int8 > 1e6 && f32.is_finite() && f32 > 1e6, "{isa}: {int8} {f32}");
        }
    }

    #[test]
    fn multiply_adds_are_counted_by_the_chunk() {
        let options = CpuOptions { isa: Some(Isa::Portable), ..CpuOptions::default() };
        let cpu = Cpu::new(&options).unwrap();
        for (unit, a_step) in [(Unit::Int8, 4 * 16 * 16), (Unit::F32, 4 * 16)] {
            let products = Products { unit, macs: AtomicU64::new(0) };
            // SAFETY: as in `peak`.
            unsafe { cpu.parallel(&products, 3) };
            assert_eq!(products.macs.into_inner(), 3 * a_step * 16 * 256, "{unit:?}");
        }
    }
}
