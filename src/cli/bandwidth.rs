//! The machine's read bandwidth, and a GPU's: the ceiling that decode is measured against.

use std::time::Instant;

/// Bytes of the buffer each measurement reads: well beyond any cache.
const BUFFER_BYTES: usize = 512 << 20;
/// Passes over the buffer; the fastest counts, for a ceiling.
const PASSES: usize = 5;

/// Bytes a second that `threads` threads read together from memory.
pub fn measure(threads: usize) -> f64 {
    let words = BUFFER_BYTES / 8;
    let buffer: Vec<u64> = (0..words as u64).collect();
    let expected = (words as u64 - 1).wrapping_mul(words as u64) / 2;
    let share = words.div_ceil(threads.max(1));
    let pass = || {
        let started = Instant::now();
        let sum = std::thread::scope(|scope| {
            let parts: Vec<_> = buffer.chunks(share).map(|part| scope.spawn(move || sum(part))).collect();
            parts.into_iter().filter_map(|part| part.join().ok()).fold(0, u64::wrapping_add)
        });
        assert_eq!(sum, expected, "every word is read");
        BUFFER_BYTES as f64 / started.elapsed().as_secs_f64()
    };
    (0..PASSES).map(|_| pass()).fold(0.0, f64::max)
}

/// Sums in eight strands, so that memory and not the adder is the limit.
fn sum(words: &[u64]) -> u64 {
    let mut strands = [0u64; 8];
    let mut blocks = words.chunks_exact(8);
    for block in &mut blocks {
        for (strand, word) in strands.iter_mut().zip(block) {
            *strand = strand.wrapping_add(*word);
        }
    }
    let rest = blocks.remainder().iter().fold(0, |a: u64, b| a.wrapping_add(*b));
    strands.iter().fold(rest, |a, b| a.wrapping_add(*b))
}

/// Bytes a second that a GPU reads from its memory, where there is one with room to measure.
pub fn of_gpu(device: ottava::Device) -> Option<f64> {
    #[cfg(feature = "cuda")]
    {
        use ottava::backend::cuda::{Cuda, CudaOptions};
        let ordinal = if let ottava::Device::Cuda(ordinal) = device { ordinal } else { 0 };
        let cuda = Cuda::new(&CudaOptions { ordinal, ..CudaOptions::default() }).ok()?;
        Some(cuda.bandwidth(ottava::Bytes::mib(256).0).ok()?.read)
    }
    #[cfg(not(feature = "cuda"))]
    {
        let _ = device;
        None
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_sum_takes_every_word_once() {
        let words: Vec<u64> = (1..=1003).collect();
        assert_eq!(super::sum(&words), 1003 * 1004 / 2);
    }
}
