//! What a machine can do: the ceilings that measurements are held against.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;

use ottava::Device;
use ottava::backend::cpu::{Cpu, CpuOptions, Peaks};
use serde_json::{Value, json};

use super::super::options::ModelOptions;
use super::super::{Failure, bandwidth};

/// What so many threads reach together, or a GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ceiling {
    /// 0 for a GPU.
    pub threads: usize,
    /// Bytes a second, read from memory.
    pub bandwidth: Option<f64>,
    /// Multiply-adds a second.
    pub peaks: Option<Peaks>,
}

impl Ceiling {
    /// Measures the memory alone.
    pub fn of_memory(threads: usize, device: Device) -> Ceiling {
        let bandwidth = match threads {
            0 => bandwidth::of_gpu(device),
            threads => Some(bandwidth::measure(threads)),
        };
        Ceiling { threads, bandwidth, peaks: None }
    }

    /// Measures the engine's own threads, all cores, and the powers of two below; of a GPU the memory.
    pub fn all(threads: usize, model: &ModelOptions) -> Result<Vec<Ceiling>, Failure> {
        if threads == 0 {
            return Ok(vec![Ceiling::of_memory(0, model.device)]);
        }
        let cpu = |threads| {
            let options = CpuOptions { threads, isa: model.isa, ..CpuOptions::default() };
            Cpu::new(&options).map_err(|error| Failure::from(ottava::Error::from(error)))
        };
        let measure = |threads| {
            let peaks = Some(cpu(NonZeroUsize::new(threads))?.peaks());
            Ok(Ceiling { peaks, ..Ceiling::of_memory(threads, model.device) })
        };
        counts(cpu(None)?.threads(), threads).into_iter().map(measure).collect()
    }

    pub fn as_json(&self) -> Value {
        json!({
            "threads": self.threads,
            "read_bandwidth_bytes_per_s": self.bandwidth,
            "int8_macs_per_s": self.peaks.map(|peaks| peaks.int8),
            "f32_macs_per_s": self.peaks.map(|peaks| peaks.f32),
        })
    }
}

/// The powers of two below `cores`, `cores` itself, and what is used.
fn counts(cores: usize, used: usize) -> BTreeSet<usize> {
    let powers = std::iter::successors(Some(1), |count| Some(2 * count)).take_while(|&count| count < cores);
    powers.chain([cores, used]).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn threads_double_up_to_all_cores() {
        let counts = |cores, used| super::counts(cores, used).into_iter().collect::<Vec<_>>();
        assert_eq!(counts(12, 12), [1, 2, 4, 8, 12]);
        assert_eq!(counts(4, 3), [1, 2, 3, 4]);
        assert_eq!(counts(1, 2), [1, 2]);
    }
}
